"""fedbm concepts: how a language model sees a data set's classes; [concepts] of a file are the user's own words."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from fedbm.cli.tables import similarity_table
from fedbm.data.catalog.lookup import CATALOG
from fedbm.data.dataset import concept_texts
from fedbm.runs.config import Config
from fedbm.runs.plan import concepts_for, load_dataset


def concepts(found: argparse.Namespace, console: Console, config: Config) -> None:
    made = concepts_for(config.language, *classes_of(config), config.train.seed)
    console.print(similarity_table(made))
    for sentence in made.diagnose():
        console.print(sentence)
    source = made.provenance
    console.print(f"read by {source.get('encoder')} with {made.embeddings.shape[1]} prompts a class")
    if found.save:
        made.save(Path(found.save))
        console.print(f"saved: {found.save}", soft_wrap=True)


def classes_of(config: Config) -> tuple[Sequence[str], Sequence[str], str]:
    """Classes, texts and modality: of a catalogued data set without its images, of any other by looking at it."""
    if entry := CATALOG.get(config.data.name):
        return tuple(entry.classes), concept_texts(entry, config.concepts), entry.modality
    dataset = load_dataset(config)
    return dataset.classes, dataset.concepts, dataset.modality
