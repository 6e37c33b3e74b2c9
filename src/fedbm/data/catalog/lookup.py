"""The catalogue of known data sets, read from catalog.toml."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from fedbm.data.catalog.entry import Entry
from fedbm.errors import FedBMError, did_you_mean, join_words


def _read_catalog() -> dict[str, Entry]:
    tables = tomllib.loads(files("fedbm.data.catalog").joinpath("catalog.toml").read_text(encoding="utf-8"))
    medmnist = tables.pop("medmnist")
    return {
        name: _make_entry(name, {**tables.get(own.get("same_as"), {}), **(medmnist if "md5" in own else {}), **own})
        for name, own in tables.items()
    }


def _make_entry(name: str, values: dict[str, Any]) -> Entry:
    values.pop("same_as", None)
    values["origin"] = values["origin"].format(name=name)
    values["md5"] = {int(size): digest for size, digest in values.get("md5", {}).items()}
    values["recommends"] = {
        key: {float(beta): one for beta, one in value.items()} if isinstance(value, dict) else value
        for key, value in values.get("recommends", {}).items()
    }
    return Entry(name=name, **values)


CATALOG = _read_catalog()


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
    """Return the entry with exactly these classes in this order, or None. Entries with common classes do not count."""
    return next((e for e in CATALOG.values() if e.by_classes and list(e.classes) == list(classes)), None)
