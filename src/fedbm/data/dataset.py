"""Load a data set by name or path: images, labels and split as arrays, with concepts from the catalogue."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedbm.config.options import DataOptions, check
from fedbm.data.cache import FORMAT, open_or_build
from fedbm.data.catalog.download import find_download
from fedbm.data.catalog.entries import CATALOG, Entry, Recommends, entry_for_classes
from fedbm.data.decode import BadFiles, Decoded, Progress, ValueRange, decode_images
from fedbm.data.readers.dicom import expand_frames
from fedbm.data.readers.dispatch import detect, digits, find_by_reader
from fedbm.data.readers.file_tree import normalize_name
from fedbm.data.readers.sample_index import SampleIndex, Source, text_array
from fedbm.data.readers.table import is_table, join_metadata
from fedbm.data.splits import SPLITS, Split, choose_split
from fedbm.errors import FedBMError, did_you_mean
from fedbm.utils.io import digest_of, sha256_file
from fedbm.utils.text import make_html


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """A data set in memory.

    Attributes:
        name: name in the catalogue, or name of the folder or file.
        classes: class names in label order.
        concepts: the concept text of each class, as a clinician calls it.
        modality: how the images were taken, such as "endoscopy".
        images: pixels [n,H,W,C], memory-mapped.
        labels: class number of each sample, [n].
        split: 0 for train, 1 for val and 2 for test, [n].
        mean: mean of each channel, for normalisation.
        std: standard deviation of each channel, for normalisation.
        hflip: whether generated images may be flipped horizontally.
        vflip: whether generated images may be flipped vertically.
        recommends: recommended configuration values.
        checksum: identifies classes, images, labels and split.
        notes: what the user should know about how the data was read.
        ids: name of each sample.
        columns: further values of each sample by column: site, writer, lesion, …
        value_range: grey values that became black and white, if the user chose them.

    Example:
        >>> import fedbm
        >>> data = fedbm.load("digits")
        >>> data.classes[:3], data.shape, len(data.indices("test"))
        (('0', '1', '2'), (1, 32, 32), 359)
    """

    name: str
    classes: tuple[str, ...]
    concepts: tuple[str, ...]
    modality: str
    images: NDArray[np.uint8]
    labels: NDArray[np.int64]
    split: NDArray[np.uint8]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    hflip: bool
    vflip: bool
    recommends: Recommends
    checksum: str
    notes: tuple[str, ...]
    ids: NDArray[np.str_] = field(default_factory=lambda: np.array([], dtype=np.str_))
    columns: Mapping[str, NDArray[np.str_]] = field(default_factory=dict)
    value_range: ValueRange = ()

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape (C, H, W) of one image as a model reads it."""
        _, height, width, channels = self.images.shape
        return channels, height, width

    def indices(self, subset: str) -> NDArray[np.int64]:
        """Return the sample numbers of "train", "val" or "test" in ascending order."""
        if subset not in SPLITS:
            raise FedBMError(f'unknown subset "{subset}": use train, val or test')
        return np.flatnonzero(self.split == SPLITS.index(subset))

    def counts(self) -> NDArray[np.int64]:
        """Return the number of samples of each class in train, val and test, [3,K]."""
        subsets = [self.labels[self.split == code] for code in range(len(SPLITS))]
        return np.stack([np.bincount(labels, minlength=len(self.classes)) for labels in subsets])

    def _title(self) -> str:
        return f"{self.name}: {len(self.labels)} images of {self.shape}, {len(self.classes)} classes"

    def __repr__(self) -> str:
        sizes = zip(SPLITS, self.counts().sum(axis=1), strict=True)
        return f"Dataset({self._title()}, {', '.join(f'{subset} {size}' for subset, size in sizes)})"

    def _repr_html_(self) -> str:
        rows = zip(self.classes, self.concepts, *self.counts().tolist(), strict=True)
        return make_html(self._title(), ("class", "concept", *SPLITS), rows, self.notes)


def load(
    name_or_path: str | Path,
    *,
    size: int | None = None,
    channels: int | None = None,
    split: Split = "auto",
    group: str | None = None,
    metadata: str | Path | None = None,
    split_seed: int = 0,
    path_column: str = "",
    label_column: str = "",
    value_range: ValueRange = (),
    normalise: Literal["fixed", "own"] = "fixed",
    mean: Sequence[float] = (),
    std: Sequence[float] = (),
    cache: Path | None = None,
    folder: Path | None = None,
    on_bad_file: BadFiles = "refuse",
    concepts: Mapping[str, str] | None = None,
    verify: bool = False,
    progress: Progress | None = None,
) -> Dataset:
    """Load a data set. Images are decoded once and then read from a cache.

    Args:
        name_or_path: a name of the catalogue, or the path of a folder, archive, table, .npz or LEAF json file.
        size: height and width of the images, a multiple of 4 from 16 up. Default: the size of the source if all images
            have the same, otherwise the catalogue's, otherwise 128.
        channels: 1 for grey or 3 for colour. Default: those of the source, otherwise the catalogue's, otherwise 3.
        split: "official" uses the source's own split, "stratified" splits each class 7:1:2, "grouped" also keeps
            samples with the same *group* together, and "auto" chooses among them.
        group: column for the grouped split, such as "patient".
        metadata: table with further columns, joined to the samples by name.
        split_seed: seed of the split.
        path_column: column of a table that names the images. Default: path, image, filename or a similar one.
        label_column: column of a table with the labels, or several columns of 0 and 1, separated by commas. If the
            source is a folder or an archive, the table is *metadata*. Default: label, class, dx or a similar one.
        value_range: grey values that become black and white, for images of more than 8 bits. Default: the window of
            a DICOM file, otherwise 0 and 65535.
        normalise: "fixed" uses ImageNet's statistics for colour and 0.5 for grey, "own" those of the training images.
        mean: mean of each channel for normalisation, from 0 to 1, together with *std*.
        std: standard deviation of each channel for normalisation.
        cache: folder for prepared copies. Default: FEDBM_HOME, otherwise ~/.cache/fedbm.
        folder: folder in which to find catalogued data and tables of metadata. Default: the download folder.
        on_bad_file: "refuse" raises an error for unreadable images, "skip" skips them.
        concepts: class name → concept text, instead of the catalogue's.
        verify: also check the images of a prepared copy byte by byte. All other files are always checked.
        progress: called with (images done, images in total) while decoding.

    Returns:
        The data set.

    Raises:
        FedBMError: if the data cannot be found, read or split, or if an argument is invalid.

    Example:
        >>> import fedbm
        >>> fedbm.load("digits")
        Dataset(digits: 1797 images of (1, 32, 32), 10 classes, train 1258, val 180, test 359)
    """
    check_source(name_or_path)
    check_image_shape(size, channels)
    for key, value in (("split", split), ("normalise", normalise), ("on_bad_file", on_bad_file)):
        check(DataOptions, key, value)
    if group and split in ("official", "stratified"):
        raise FedBMError(f'group = "{group}" has no effect with split = "{split}": use split = "grouped"')
    if value_range and not (len(value_range) == 2 and -math.inf < value_range[0] < value_range[1] < math.inf):
        text = ",".join(f"{value:g}" for value in value_range)
        raise FedBMError(f"value_range must be LOW,HIGH, such as 0,4095, not {text}")
    if normalise == "own" and (mean or std):
        raise FedBMError('mean and std have no effect with normalise = "own": remove them, or use "fixed"')
    concepts = concepts or {}
    table = Path(metadata).expanduser() if metadata else None
    if table and folder and not table.exists() and (folder / table).exists():
        table = folder / table
    labels = table if label_column and not is_table(Path(name_or_path)) else None
    with _explain_os_errors(name_or_path):
        columns = (path_column, label_column, labels)
        name, source = _locate(name_or_path, split_seed, size, Path(folder or download_folder()), columns)
        table_digest = sha256_file(table) if table else None

    def build() -> Decoded:
        with _explain_os_errors(name_or_path):
            index = source.scan()
        if table and not labels:
            joined = join_metadata(table, index.ids)
            if differing := [key for key in joined if (joined[key] != index.columns.get(key, joined[key])).any()]:
                raise FedBMError(
                    f'the column "{differing[0]}" has other values in {table.name} than in {name}: rename or remove one'
                )
            index = replace(index, columns={**index.columns, **joined})
        index = expand_frames(index)
        entry, _ = _match_entry(name, index, concepts)
        # Refuse mistakes before decoding, which may take long.
        concept_texts(entry, concepts)
        choose_split(index, split, group, split_seed, name)
        side, depth = size or index.size or entry.size, channels or index.channels or entry.channels
        choose_statistics(entry, depth, mean, std)
        decoded = decode_images(index, side, depth, on_bad_file, progress, value_range)
        chosen, notes = choose_split(decoded.index, split, group, split_seed, name)
        return replace(decoded, index=replace(decoded.index, split=chosen, notes=decoded.index.notes + notes))

    settings = {
        "format": FORMAT,
        "source": source.fingerprint,
        "metadata": table_digest,
        "size": size,
        "channels": channels,
        "split": split,
        "group": group,
        "split_seed": split_seed,
        "on_bad_file": on_bad_file,
        "columns": [path_column, label_column],
        "value_range": value_range,
    }
    place = Path(cache or default_cache()) / f"{name}-{size or 'own'}-{digest_of(settings)[:16]}"
    prepared = open_or_build(place, build, settings | {"from": normalize_name(str(name_or_path))}, verify)
    dataset = replace(make_dataset(name, prepared, concepts, mean, std), value_range=value_range)
    return _normalise_by_own(dataset, name) if normalise == "own" else dataset


def make_dataset(
    name: str, prepared: Decoded, concepts: Mapping[str, str], mean: Sequence[float] = (), std: Sequence[float] = ()
) -> Dataset:
    """Return the data set of prepared images, with what the catalogue knows about its classes."""
    index = prepared.index
    assert index.split is not None
    entry, notes = _match_entry(name, index, concepts)
    mean, std = choose_statistics(entry, prepared.images.shape[3], mean, std)
    return Dataset(
        name=entry.name,
        classes=index.classes,
        concepts=concept_texts(entry, concepts),
        modality=entry.modality,
        images=prepared.images,
        labels=index.labels,
        split=index.split,
        mean=mean,
        std=std,
        hflip=entry.hflip,
        vflip=entry.vflip,
        recommends=entry.recommends,
        checksum=prepared.checksum,
        notes=(*notes, *index.notes),
        ids=text_array(index.ids),
        columns=index.columns,
    )


def check_source(data: object) -> None:
    """Raise FedBMError if *data* is neither a name nor a path."""
    if not isinstance(data, str | Path):
        raise FedBMError(
            f"data must be a name or a path, not {type(data).__name__}: use fedbm.from_arrays(images, labels) or "
            "fedbm.from_torch(dataset) for data in memory"
        )


def default_cache() -> Path:
    return Path(os.environ.get("FEDBM_HOME") or "~/.cache/fedbm").expanduser()


def download_folder() -> Path:
    """Return the folder to which 'fedbm data get' writes, and in which catalogued data is searched."""
    return default_cache() / "downloads"


def _locate(
    name_or_path: str | Path, seed: int, size: int | None, folder: Path, columns: tuple[str, str, Path | None]
) -> tuple[str, Source]:
    """Return the name of the data and its source. A folder named digits must be given as ./digits."""
    found = (Path("digits"), digits()) if name_or_path == "digits" else find_by_reader(str(name_or_path))
    if found is not None:
        if any(columns):
            raise FedBMError(f"path_column and label_column have no effect on {name_or_path}: remove them")
        return normalize_name(found[0].stem), found[1]
    path = Path(name_or_path).expanduser()
    entry = CATALOG.get(str(name_or_path))
    if entry is None or os.path.exists(path):
        source = detect(path, seed, *columns)
        absolute = Path(os.path.abspath(path))
        return normalize_name(absolute.name if absolute.is_dir() else absolute.stem.removesuffix(".tar")), source
    if place := find_download(entry.name, folder, size):
        return entry.name, detect(place, seed, *columns)
    raise FedBMError(
        f"the images of {entry.name} are not here: run 'fedbm data get {entry.name}', "
        "or give the path of a copy as --data PATH, or the folder that contains it as --data-dir DIR"
    )


@contextmanager
def _explain_os_errors(source: str | Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise FedBMError(f"cannot read {error.filename or source}: {error.strerror or error}") from error


def _match_entry(name: str, index: SampleIndex, concepts: Mapping[str, str]) -> tuple[Entry, list[str]]:
    """Return the catalogue entry of the data, or a generic one, and a note unless the user named the entry.

    Data with the classes of a catalogued data set have its concepts and colours, but keep their own name and the
    general settings. A copy is recognised by a name that begins with the data set's, such as ham10000_128.npz.
    """
    if named := CATALOG.get(index.catalog_name or ""):
        return named, []
    known = entry_for_classes(index.classes) if index.catalog_name is None else None
    if known is None:
        note = (
            f"the catalogue has no data set with the classes of {name}: methods that use texts, such as FedBM, encode "
            "the class names with a language model (pip install 'fedbm[text]'), and may flip generated images"
        )
        entry = Entry(name, {label: label.replace("-", " ").replace("_", " ") for label in index.classes})
        return entry, [] if set(entry.classes) <= set(concepts) else [note]
    same = f"{name} has the same classes as {known.name}, so its"
    if name.startswith(known.name):
        note = f"{same} name, concepts, modality, colour statistics, flips and recommended settings are used"
        return known, [] if name == known.name else [note]
    note = f"{same} concepts, modality, colour statistics and flips are used"
    return replace(known, name=name, recommends={}), [note]


def check_image_shape(size: int | None, channels: int | None) -> None:
    """Raise FedBMError if images of this shape are not supported."""
    if size is not None and (size < 16 or size % 4):
        raise FedBMError(f"image size {size} is not supported: use a multiple of 4 from 16 up")
    if channels not in (None, 1, 3):
        raise FedBMError(f"{channels} channels are not supported: use 1 (grey) or 3 (colour)")


def concept_texts(entry: Entry, given: Mapping[str, str]) -> tuple[str, ...]:
    """Return the concept text of each class: the *given* one, otherwise the catalogue's."""
    for name, text in given.items():
        if name not in entry.classes:
            near = did_you_mean(name, entry.classes)
            raise FedBMError(f'concepts name the class "{name}", which {entry.name} does not have{near}')
        if not text.strip():
            raise FedBMError(f'the concept text of class "{name}" is empty: describe the class in a few words')
    return tuple(given.get(name, text) for name, text in entry.classes.items())


def choose_statistics(
    source: Entry | Dataset, channels: int, mean: Sequence[float] = (), std: Sequence[float] = ()
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation of each channel: the given ones, otherwise the source's or their average."""
    if not mean and not std and len(source.mean) == channels:
        return source.mean, source.std
    if not mean and not std:
        return (sum(source.mean) / len(source.mean),) * channels, (sum(source.std) / len(source.std),) * channels
    if len(mean) != channels or len(std) != channels or min(std) <= 0:
        raise FedBMError(f"mean and std must have one number per channel, here {channels}, and std must be above 0")
    return tuple(mean), tuple(std)


def _normalise_by_own(dataset: Dataset, name: str) -> Dataset:
    """Return the data set with the statistics of its training images, and a note that lists them."""
    from fedbm.data.inspection.inspect import measure_pixels  # which imports this module

    pixels = measure_pixels(dataset.images, dataset.split)
    if min(pixels.std) <= 0:
        raise FedBMError('all training images have one colour, so normalise = "own" is impossible: use "fixed"')
    mean, std = (" ".join(f"{value:.3f}" for value in values) for values in (pixels.mean, pixels.std))
    note = f"normalised by mean {mean} and standard deviation {std} of the training images of {name}"
    return replace(dataset, mean=pixels.mean, std=pixels.std, notes=(*dataset.notes, note))
