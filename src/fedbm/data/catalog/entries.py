"""The catalogue of known data sets, read from catalog.toml."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files

from fedbm.errors import FedBMError, did_you_mean, shorten_list

_WORD = re.compile(r"[A-Za-zÀ-ɏ]{3}")  # a concept text without one is a number, a code or not English

# Configuration key → its value, or one value for each β.
Recommends = Mapping[str, int | float | str | Mapping[float, int | float]]


@dataclass(frozen=True)
class Entry:
    """One data set. Prompts are built from *modality* and the concept texts. catalog.toml describes the fields.

    The defaults apply to data that the catalogue does not contain.
    """

    name: str
    classes: Mapping[str, str]  # class name → concept text, in label order
    title: str = ""
    modality: str = "medical"
    licence: str = "unknown"
    citation: str = ""
    origin: str = ""
    channels: int = 3
    size: int = 128
    hflip: bool = True
    vflip: bool = True
    by_classes: bool = True
    recommends: Recommends = field(default_factory=dict)
    by_hand: str = ""
    md5: Mapping[int, str] = field(default_factory=dict)

    @property
    def mean(self) -> tuple[float, ...]:
        """Mean of each channel for normalisation: ImageNet's for colour."""
        return (0.485, 0.456, 0.406) if self.channels == 3 else (0.5,)

    @property
    def std(self) -> tuple[float, ...]:
        """Standard deviation of each channel for normalisation: ImageNet's for colour."""
        return (0.229, 0.224, 0.225) if self.channels == 3 else (0.5,)


def _read_catalog() -> dict[str, Entry]:
    tables = tomllib.loads(files("fedbm.data.catalog").joinpath("catalog.toml").read_text(encoding="utf-8"))
    medmnist = tables.pop("medmnist")
    entries = {}
    for name, own in tables.items():
        values = {**tables.get(own.get("same_as"), {}), **(medmnist if "md5" in own else {}), **own}
        values.pop("same_as", None)
        values["origin"] = values["origin"].format(name=name)
        values["md5"] = {int(size): digest for size, digest in values.get("md5", {}).items()}
        values["recommends"] = {
            key: {float(beta): one for beta, one in value.items()} if isinstance(value, dict) else value
            for key, value in values.get("recommends", {}).items()
        }
        entries[name] = Entry(name=name, **values)
    return entries


CATALOG = _read_catalog()


def find_entry(name: str) -> Entry:
    """Return the entry *name*; raise FedBMError if there is none."""
    if name not in CATALOG:
        near = did_you_mean(name.lower(), CATALOG)
        raise FedBMError(f'no data set is called "{name}"{near}; the catalogue contains {", ".join(CATALOG)}')
    return CATALOG[name]


def entry_for_classes(classes: Sequence[str]) -> Entry | None:
    """Return the entry with exactly these classes in this order, or None. Entries with common classes do not count."""
    return next((e for e in CATALOG.values() if e.by_classes and list(e.classes) == list(classes)), None)


def describe_wordless(classes: Sequence[str], concepts: Sequence[str]) -> Iterator[str]:
    """Yield a sentence if concept texts have no word for a language model to read."""
    wordless = [
        f'"{text}" for class "{name}"' for name, text in zip(classes, concepts, strict=False) if not _WORD.search(text)
    ]
    if wordless:
        yield (
            f"a language model cannot learn what a class is from a number, a code or a text that is not English "
            f"({shorten_list(wordless, 3)}): describe the classes in [concepts] of the configuration file, "
            "or in Python with load(concepts=…)"
        )
