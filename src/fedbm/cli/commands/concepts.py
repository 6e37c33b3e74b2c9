"""fedbm concepts: show how a language model separates a data set's classes, and save the distributions."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedbm.cli.flags import add_settings, flags_of, read_config
from fedbm.cli.parser import Parser

if TYPE_CHECKING:
    from rich.console import Console

    from fedbm.runs.config import Config

HELP = "show how a language model sees a data set's classes, or save it"
EXAMPLES = """examples:
  fedbm concepts --data ham10000
  fedbm concepts scans.toml --save scans.safetensors          [concepts] in the file states what classes are called
"""


def add_arguments(parser: Parser) -> None:
    parser.add_argument("file", nargs="?", help="a configuration file; its [concepts] state what classes are called")
    parser.add_argument("--save", help="write the distributions to this file (.safetensors)")
    add_settings(parser, ["data", *flags_of("language"), "seed", "cache"])


def execute(args: argparse.Namespace, console: Console) -> None:
    from fedbm.cli.tables import similarity_table
    from fedbm.runs.plan import concepts_for

    config = read_config(args)
    made = concepts_for(config.language, *_classes(config), config.train.seed)
    console.print(similarity_table(made))
    for sentence in made.describe_separability():
        console.print(sentence)
    console.print(f"read by {made.provenance.get('encoder')} with {made.embeddings.shape[1]} prompts a class")
    if args.save:
        made.save(Path(args.save))
        console.print(f"saved: {args.save}", soft_wrap=True)


def _classes(config: Config) -> tuple[Sequence[str], Sequence[str], str]:
    """Return classes, texts and modality; a catalogued data set need not be loaded for that."""
    from fedbm.data.catalog.lookup import CATALOG
    from fedbm.data.dataset import concept_texts
    from fedbm.runs.plan import load_dataset

    if entry := CATALOG.get(config.data.name):
        return tuple(entry.classes), concept_texts(entry, config.concepts), entry.modality
    dataset = load_dataset(config)
    return dataset.classes, dataset.concepts, dataset.modality
