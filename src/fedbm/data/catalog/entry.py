"""The description of one data set in the catalogue."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


# Configuration key → its value, or one value for each β.
Recommends = Mapping[str, int | float | str | Mapping[float, int | float]]


@dataclass(frozen=True)
class Entry:
    """One data set. Prompts are built from *modality* and the concept texts. *recommends* contains default settings."""

    name: str
    title: str
    classes: Mapping[str, str]  # class name → concept text, in label order
    modality: str
    licence: str
    citation: str
    origin: str
    channels: int = 3
    size: int = 128
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD
    hflip: bool = True
    vflip: bool = True
    by_classes: bool = True  # images with these classes are this data set; if False, the file itself must say so
    recommends: Recommends = field(default_factory=dict)


def generic_entry(name: str, classes: Mapping[str, str], title: str = "") -> Entry:
    """Return an entry for data that the catalogue does not contain."""
    title = title or name
    return Entry(
        name=name, title=title, classes=classes, modality="medical", licence="unknown", citation="", origin=title
    )
