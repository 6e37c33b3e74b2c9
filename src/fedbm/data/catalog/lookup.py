"""The catalogue of known data sets.

An entry applies if the source says which data set it is, or if the source has exactly the classes of the entry and
these are distinctive. Classes named 0 to 9 are not: any data may have them.
"""

from __future__ import annotations

from collections.abc import Sequence

from fedbm.data.catalog import medmnist_sets, paper_sets
from fedbm.data.catalog.entry import Entry
from fedbm.errors import FedBMError, did_you_mean, join_words

CATALOG: dict[str, Entry] = {entry.name: entry for entry in (*paper_sets.ENTRIES, *medmnist_sets.ENTRIES)}


def find(name: str) -> Entry:
    """Return the entry *name*; raise FedBMError if there is none."""
    if name not in CATALOG:
        near = did_you_mean(name.lower(), CATALOG)
        raise FedBMError(
            f'no data set is called "{name}"{near}; the catalogue contains {join_words(CATALOG, "and")}; '
            "give data of your own as the path of a folder or file"
        )
    return CATALOG[name]


def entry_for_classes(classes: Sequence[str]) -> Entry | None:
    """Return the entry with these classes in this order, or None."""
    return next((e for e in CATALOG.values() if e.by_classes and list(e.classes) == list(classes)), None)
