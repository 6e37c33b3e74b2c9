"""fedbm concepts: show how a language model separates a data set's classes.

examples:
  fedbm concepts --data ham10000
  fedbm concepts scans.toml --save scans.safetensors          [concepts] in the file describes the classes
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from fedbm.cli.flags import add_settings, check_ending, read_config, section_flags


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", nargs="?", help="a configuration file; its [concepts] section describes the classes")
    parser.add_argument("--save", metavar="FILE", help="write the distributions to this .safetensors file")
    add_settings(parser, ["data", *section_flags("language"), "seed", "cache"])


def execute(args: argparse.Namespace, console: Console) -> None:
    from fedbm.data.catalog.entries import CATALOG
    from fedbm.data.dataset import concept_texts
    from fedbm.runs.plan import concepts_for, load_dataset

    check_ending("--save", args.save, ".safetensors")
    config = read_config(args)
    if entry := CATALOG.get(config.data.name):  # needs no images
        classes, texts, modality = tuple(entry.classes), concept_texts(entry, config.concepts), entry.modality
    else:
        dataset = load_dataset(config)
        classes, texts, modality = dataset.classes, dataset.concepts, dataset.modality
    made = concepts_for(config.language, classes, texts, modality, config.train.seed)
    console.print(similarity_table(made))
    for sentence in made.describe_separability():
        console.print(sentence)
    console.print(f"encoder: {made.provenance.get('encoder')}, {made.embeddings.shape[1]} prompts per class")
    if args.save:
        made.save(Path(args.save))
        console.print(f"saved: {args.save}")


def similarity_table(concepts: Any) -> Table:
    """Return the cosines between class means; with many classes, the nearest other class of each class."""
    from fedbm.cli.console_tables import MAX_CLASS_COLUMNS, table

    classes, cosines = concepts.classes, concepts.similarity()
    if len(classes) <= MAX_CLASS_COLUMNS:
        rows = [(name, *(f"{cosine:.2f}" for cosine in cosines[k].tolist())) for k, name in enumerate(classes)]
        return table("Cosine between class means", ("class", *classes), rows)
    highest, nearest = (found.tolist() for found in cosines.clone().fill_diagonal_(-1).max(dim=1))
    names = [classes[other] for other in nearest]
    pairs = zip(classes, concepts.texts, names, [f"{cosine:.2f}" for cosine in highest], strict=True)
    return table("", ("class", "concept", "nearest", "cosine"), pairs, text_columns=3)
