"""What is known of each data set: its classes by name, what a clinician calls them, how its images are read.

Concept text belongs to a class name, never to a position: a source lists its own classes, and an entry
applies only where the source itself says which data set it is, or where that list is equal to its own and
is like no other: anyone's images may be called 0 to 9.
"""

from __future__ import annotations

from collections.abc import Sequence

from fedbm.data.catalog import medmnist_sets as entries_medmnist
from fedbm.data.catalog import paper_sets as entries_paper
from fedbm.data.catalog.entry import Entry
from fedbm.errors import FedBMError, did_you_mean, join_words

CATALOG: dict[str, Entry] = {entry.name: entry for entry in (*entries_paper.ENTRIES, *entries_medmnist.ENTRIES)}


def find(name: str) -> Entry:
    if name not in CATALOG:
        near = did_you_mean(name.lower(), CATALOG)
        raise FedBMError(
            f'no data set is called "{name}"{near}; the catalogue holds {join_words(CATALOG)}, '
            "and data of your own is given as the path of its folder or file"
        )
    return CATALOG[name]


def entry_for_classes(classes: Sequence[str]) -> Entry | None:
    """The entry whose classes are *classes* in the same label order, or None."""
    return next((e for e in CATALOG.values() if e.by_classes and list(e.classes) == list(classes)), None)
