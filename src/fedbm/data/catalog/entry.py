"""The description of one data set in the catalogue."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

# Configuration key → its value, or one value for each β.
Recommends = Mapping[str, int | float | str | Mapping[float, int | float]]


@dataclass(frozen=True)
class Entry:
    """One data set. Prompts are built from *modality* and the concept texts. catalog.toml describes the fields."""

    name: str
    title: str
    classes: Mapping[str, str]  # class name → concept text, in label order
    modality: str
    licence: str
    citation: str
    origin: str
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


def generic_entry(name: str, classes: Mapping[str, str], title: str = "") -> Entry:
    """Return an entry for data that the catalogue does not contain."""
    title = title or name
    return Entry(
        name=name, title=title, classes=classes, modality="medical", licence="unknown", citation="", origin=title
    )
