"""A name or a path → a Dataset: images, labels and split as arrays, and what the catalogue knows of them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedbm.data import sources
from fedbm.data.catalog import Entry, entry_for_classes, find
from fedbm.data.decode import Listing, OnBad, Progress, Raw, read
from fedbm.data.folder import printable
from fedbm.data.prepared import FORMAT, open_or_build
from fedbm.data.split import SPLITS, check_usable, stratified
from fedbm.errors import FedBMError, did_you_mean
from fedbm.files import digest_of


@dataclass(frozen=True, eq=False)
class Dataset:
    """What a run learns from. *checksum* identifies the data, *notes* are what the user should be told."""

    name: str
    classes: tuple[str, ...]
    concepts: tuple[str, ...]  # what a clinician calls each class
    modality: str
    images: NDArray[np.uint8]  # [n, H, W, C], memory-mapped
    labels: NDArray[np.int64]
    split: NDArray[np.uint8]  # 0 train, 1 val, 2 test
    mean: tuple[float, ...]
    std: tuple[float, ...]
    hflip: bool
    vflip: bool
    recommends: Mapping[str, int | float | str]
    checksum: str
    notes: tuple[str, ...]
    ids: NDArray[np.str_] = field(default_factory=lambda: np.array([], dtype=np.str_))  # what each sample is called
    columns: Mapping[str, NDArray[np.str_]] = field(default_factory=dict)  # per sample: site, writer, lesion, …

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W), as a model sees one image."""
        _, height, width, channels = self.images.shape
        return channels, height, width

    def indices(self, side: str) -> NDArray[np.int64]:
        """The samples of "train", "val" or "test", in ascending order."""
        if side not in SPLITS:
            raise FedBMError(f'"{side}" is no part of a data set: say train, val or test')
        return np.flatnonzero(self.split == SPLITS.index(side))

    def counts(self) -> NDArray[np.int64]:
        """[3, K]: how many samples of each class train, val and test hold."""
        return np.stack(
            [np.bincount(self.labels[self.split == side], minlength=len(self.classes)) for side in range(3)]
        )


def load(
    name_or_path: str | Path,
    *,
    size: int | None = None,
    channels: int | None = None,
    split_seed: int = 0,
    cache: Path | None = None,
    on_bad: OnBad = "refuse",
    concepts: Mapping[str, str] | None = None,
    verify: bool = False,
    progress: Progress | None = None,
) -> Dataset:
    """The data set of a catalogue name that is built in, or of a folder or file; decoded on first use only.

    Size and channels are the catalogue's where they are not given (128 and 3 for data it does not know).
    *verify* reads every byte of the prepared copy and checks it.
    """
    name, listing = _locate(name_or_path)
    known = entry_for_classes(listing.classes)
    entry = known or _uncatalogued(name, listing.classes)
    size = entry.size if size is None else size
    channels = entry.channels if channels is None else channels
    _check_choices(size, channels, on_bad)
    texts = _concept_texts(entry, concepts or {})

    def build() -> tuple[Raw, NDArray[np.uint8]]:
        raw = read(listing, size, channels, on_bad, progress)
        check_usable(raw.labels, raw.split, raw.classes, name)  # again: some may have been skipped
        return raw, stratified(raw.labels, seed=split_seed) if raw.split is None else raw.split

    settings = {
        "format": FORMAT,
        "source": listing.identity,
        "size": size,
        "channels": channels,
        "split_seed": split_seed,
        "on_bad": on_bad,
    }
    place = Path(cache or default_cache()) / f"{name}-{size}-{digest_of(settings)[:16]}"
    prepared, damage = open_or_build(place, build, settings | {"from": printable(str(name_or_path))}, verify)

    notes = []
    if known is None and not set(entry.classes) <= set(concepts or {}):
        notes.append(
            f"no catalogued data set has the classes of {name}: class names serve as concepts, "
            "and generated images may be flipped"
        )
    if prepared.was_split:
        notes.append(f"{name} brings no split: each class was cut 7:1:2 with seed {split_seed}")
    if prepared.skipped:
        notes.append(f"{len(prepared.skipped)} unreadable images left out, the first is {prepared.skipped[0]}")
    if damage:
        notes.append(f"the prepared copy {place} was damaged ({damage}) and has been made anew")
    return Dataset(
        name=entry.name,
        classes=prepared.classes,
        concepts=texts,
        modality=entry.modality,
        images=prepared.images,
        labels=prepared.labels,
        split=prepared.split,
        mean=_per_channel(entry.mean, channels),
        std=_per_channel(entry.std, channels),
        hflip=entry.hflip,
        vflip=entry.vflip,
        recommends=entry.recommends,
        checksum=prepared.checksum,
        notes=tuple(notes),
    )


def default_cache() -> Path:
    return Path(os.environ.get("FEDBM_HOME") or "~/.cache/fedbm").expanduser()


def _locate(name_or_path: str | Path) -> tuple[str, Listing]:
    """What to call the data, and its samples. A folder that is called digits is given as ./digits."""
    if name_or_path == "digits":
        return "digits", sources.digits()
    path = Path(name_or_path).expanduser()
    if isinstance(name_or_path, Path) or path.name != name_or_path or path.suffix or os.path.exists(path):
        listing = sources.detect(path)
        absolute = Path(os.path.abspath(path))
        return printable(absolute.name if absolute.is_dir() else absolute.stem), listing
    entry = find(name_or_path)
    raise FedBMError(
        f"the images of {entry.name} are not part of this package: get {entry.origin}, and give the folder "
        "as --data PATH"
    )


def _uncatalogued(name: str, classes: tuple[str, ...]) -> Entry:
    return Entry(
        name=name,
        title=name,
        classes={label: label.replace("-", " ").replace("_", " ") for label in classes},
        modality="medical",
        licence="unknown",
        citation="",
        origin=name,
    )


def _check_choices(size: int, channels: int, on_bad: str) -> None:
    if size < 16 or size % 4:
        raise FedBMError(f"image size {size} cannot be used: give a multiple of 4 from 16 up")
    if channels not in (1, 3):
        raise FedBMError(f"{channels} channels cannot be used: give 1 (grey) or 3 (colour)")
    if on_bad not in ("refuse", "skip"):
        raise FedBMError(f'on_bad is "{on_bad}", it can be "refuse" or "skip"')


def _concept_texts(entry: Entry, given: Mapping[str, str]) -> tuple[str, ...]:
    for name, text in given.items():
        if name not in entry.classes:
            near = did_you_mean(name, entry.classes)
            raise FedBMError(f'concepts name the class "{name}", which {entry.name} does not have{near}')
        if not text.strip():
            raise FedBMError(f'the concept text of class "{name}" is empty: say what a clinician calls it')
    return tuple(given.get(name, text) for name, text in entry.classes.items())


def _per_channel(values: tuple[float, ...], channels: int) -> tuple[float, ...]:
    """As they are, or their average where colour data is read as grey or grey data as colour."""
    return values if len(values) == channels else (sum(values) / len(values),) * channels
