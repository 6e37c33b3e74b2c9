"""A name or a path → a Dataset: images, labels and split as arrays, and what the catalogue knows of them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedbm.data.cache import FORMAT, Made, open_or_build
from fedbm.data.catalog.download import downloaded
from fedbm.data.catalog.entry import Entry, Recommends
from fedbm.data.catalog.lookup import CATALOG, entry_for_classes, find
from fedbm.data.decode import BadFiles, Progress, read
from fedbm.data.readers import dispatch as sources
from fedbm.data.readers.file_tree import printable
from fedbm.data.readers.metadata import join
from fedbm.data.readers.sample_index import Source
from fedbm.data.split_choice import Split, check_choice, decide
from fedbm.data.splits import SPLITS
from fedbm.errors import FedBMError, did_you_mean
from fedbm.utils.io import digest_of, sha256_file


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
    recommends: Recommends
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
    split: Split = "auto",
    group: str | None = None,
    metadata: str | Path | None = None,
    split_seed: int = 0,
    cache: Path | None = None,
    folder: Path | None = None,
    on_bad_file: BadFiles = "refuse",
    concepts: Mapping[str, str] | None = None,
    verify: bool = False,
    progress: Progress | None = None,
) -> Dataset:
    """The data set of a catalogue name that is built in, or of a folder or file; decoded on first use only.

    Size and channels are the source's own or the catalogue's where they are not given (128 and 3 for data it does not
    know). *split*: "official" (the source's own), "stratified", "grouped" (no value of the column *group* on two
    sides) or "auto". *metadata*: a table whose columns are joined to the samples by name. *concepts*: class → what
    a clinician calls it. *folder*: where a catalogued name, and a table of metadata, is looked for. *verify* checks the
    images of the prepared copy too, byte by byte; the rest always is.
    """
    _check_choices(size, channels, on_bad_file)
    check_choice(split, group)
    with _reading(name_or_path):
        name, source = _locate(name_or_path, split_seed, size, folder or downloads())
    joined = _table_path(Path(metadata).expanduser(), folder) if metadata else None

    def build() -> Made:
        with _reading(name_or_path):
            listing = source.scan()
        if joined:
            listing = replace(listing, columns={**listing.columns, **join(joined, listing.ids)})
        entry = _entry(name, listing.known_as, listing.classes)
        concept_texts(entry, concepts or {})  # better now than when all is decoded
        chosen, notes = decide(listing, split, group, split_seed, name)
        side, depth = size or listing.size or entry.size, channels or listing.channels or entry.channels
        decoded = read(listing, side, depth, on_bad_file, progress)
        if decoded.skipped:
            chosen, notes = decide(decoded.listing, split, group, split_seed, name)
        if listing.size and side > listing.size:
            notes += (f"the images of {name} have {listing.size} pixels a side and were enlarged to {side}",)
        return Made(decoded, chosen, notes)

    settings = {
        "format": FORMAT,
        "source": source.identity,
        "metadata": _identity(joined) if joined else None,
        "size": size,
        "channels": channels,
        "split": split,
        "group": group,
        "split_seed": split_seed,
        "on_bad_file": on_bad_file,
    }
    place = Path(cache or default_cache()) / f"{name}-{size or 'own'}-{digest_of(settings)[:16]}"
    prepared, damage = open_or_build(place, build, settings | {"from": printable(str(name_or_path))}, verify)
    entry = _entry(name, prepared.known_as, prepared.classes)
    texts = concept_texts(entry, concepts or {})

    notes = []
    if CATALOG.get(entry.name) is not entry:
        if not set(entry.classes) <= set(concepts or {}):
            notes.append(
                f"no catalogued data set has the classes of {name}: class names serve as concepts, "
                "and generated images may be flipped"
            )
    elif prepared.known_as is None and entry.name != name:
        notes.append(
            f"{name} has the classes of {entry.name} and is taken for it: its concepts, modality, colour statistics, "
            "flips and recommended settings are used"
        )
    notes += prepared.notes
    if prepared.skipped:
        notes.append(f"{len(prepared.skipped)} unreadable images left out, the first is {prepared.skipped[0]}")
    if damage:
        notes.append(f"the prepared copy {place} was damaged ({damage}) and has been made anew")
    depth = prepared.images.shape[3]
    return Dataset(
        name=entry.name,
        classes=prepared.classes,
        concepts=texts,
        modality=entry.modality,
        images=prepared.images,
        labels=prepared.labels,
        split=prepared.split,
        mean=per_channel(entry.mean, depth),
        std=per_channel(entry.std, depth),
        hflip=entry.hflip,
        vflip=entry.vflip,
        recommends=_recommends(entry, prepared.columns),
        checksum=prepared.checksum,
        notes=tuple(notes),
        ids=prepared.ids,
        columns=prepared.columns,
    )


def default_cache() -> Path:
    return Path(os.environ.get("FEDBM_HOME") or "~/.cache/fedbm").expanduser()


def downloads() -> Path:
    """Where 'fedbm data get' puts files, and where a catalogued name is looked for."""
    return default_cache() / "downloads"


def _locate(name_or_path: str | Path, seed: int, size: int | None, folder: Path) -> tuple[str, Source]:
    """What to call the data, and where it is. A folder that is called digits is given as ./digits."""
    if name_or_path == "digits":
        return "digits", sources.digits()
    path = Path(name_or_path).expanduser()
    if isinstance(name_or_path, Path) or path.name != name_or_path or path.suffix or os.path.exists(path):
        source = sources.detect(path, seed)
        absolute = Path(os.path.abspath(path))
        return printable(absolute.name if absolute.is_dir() else absolute.stem.removesuffix(".tar")), source
    entry = find(str(name_or_path))
    if place := downloaded(entry.name, folder, size):
        return entry.name, sources.detect(place, seed)
    raise FedBMError(
        f"the images of {entry.name} are not here: 'fedbm data get {entry.name}' gets them or says how, "
        "and where they are already, give that as --data PATH"
    )


@contextmanager
def _reading(what: str | Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise FedBMError(f"cannot read {error.filename or what}: {error.strerror or error}") from error


def _entry(name: str, known_as: str | None, classes: tuple[str, ...]) -> Entry:
    """What the catalogue knows of the data, or what can be said without it."""
    known = entry_for_classes(classes) if known_as is None else CATALOG.get(known_as)
    return known or Entry(
        name=name,
        title=name,
        classes={label: label.replace("-", " ").replace("_", " ") for label in classes},
        modality="medical",
        licence="unknown",
        citation="",
        origin=name,
    )


def _table_path(metadata: Path, folder: Path | None) -> Path:
    """Return the path as given if there is such a file, else the file of that name in *folder* if there is one."""
    beside = folder / metadata if folder and not metadata.exists() else metadata
    return beside if beside.exists() else metadata


def _identity(metadata: Path) -> str:
    try:
        return sha256_file(metadata)
    except OSError as error:
        raise FedBMError(f"cannot read the metadata {metadata}: {error.strerror}") from error


def _check_choices(size: int | None, channels: int | None, on_bad_file: str) -> None:
    if size is not None and (size < 16 or size % 4):
        raise FedBMError(f"image size {size} cannot be used: give a multiple of 4 from 16 up")
    if channels not in (None, 1, 3):
        raise FedBMError(f"{channels} channels cannot be used: give 1 (grey) or 3 (colour)")
    if on_bad_file not in ("refuse", "skip"):
        raise FedBMError(f'on_bad_file is "{on_bad_file}", it can be "refuse" or "skip"')


def concept_texts(entry: Entry, given: Mapping[str, str]) -> tuple[str, ...]:
    """What each class is called: in the user's words where there are some, else in the catalogue's."""
    for name, text in given.items():
        if name not in entry.classes:
            near = did_you_mean(name, entry.classes)
            raise FedBMError(f'concepts name the class "{name}", which {entry.name} does not have{near}')
        if not text.strip():
            raise FedBMError(f'the concept text of class "{name}" is empty: say what a clinician calls it')
    return tuple(given.get(name, text) for name, text in entry.classes.items())


def _recommends(entry: Entry, columns: Mapping[str, object]) -> Recommends:
    """The entry's recommendations, less a partition by a column that these samples do not have."""
    if entry.recommends.get("partition_column") in (None, *columns):
        return entry.recommends
    return {key: value for key, value in entry.recommends.items() if key not in ("partition", "partition_column")}


def per_channel(values: tuple[float, ...], channels: int) -> tuple[float, ...]:
    """As they are, or their average where colour data is read as grey or grey data as colour."""
    return values if len(values) == channels else (sum(values) / len(values),) * channels
