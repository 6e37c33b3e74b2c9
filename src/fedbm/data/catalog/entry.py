"""One data set of the catalogue."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


# a configuration key's value, or one for each β it depends on
Recommends = Mapping[str, int | float | str | Mapping[float, int | float]]


@dataclass(frozen=True)
class Entry:
    """One data set. Prompts are built from *modality* and the concept texts; *recommends* holds the
    configuration values used where the user gives none."""

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
    by_classes: bool = True  # images with these classes are taken for this data set; otherwise its file must say so
    recommends: Recommends = field(default_factory=dict)
