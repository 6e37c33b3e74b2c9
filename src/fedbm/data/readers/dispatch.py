"""Find the reader for a path. The digits need no path and are always available."""

from __future__ import annotations

import os
import tarfile
import zipfile
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from posixpath import basename

import numpy as np

from fedbm.data.catalog.entries import CATALOG
from fedbm.data.readers import femnist, folder, npz, table
from fedbm.data.readers.file_tree import IMAGE_ENDINGS, FileTree, file_stamp, open_folder, open_tar, open_zip
from fedbm.data.readers.sample_index import SampleIndex, Source, load_bytes
from fedbm.errors import FedBMError, did_you_mean
from fedbm.utils.io import digest_of
from fedbm.utils.plugins import Plugin, check_usable, load_plugins

_HAM10000_TABLES = ("ham10000_metadata", "ham10000_metadata.csv", "ham10000_metadata.tab")


def detect(
    path: Path, seed: int = 0, path_column: str = "", label_column: str = "", labels: Path | None = None
) -> Source:
    """Return the source at *path*. Only readers that draw some of the samples use the *seed*.

    The columns belong to the table at *path*, or to *labels*, a table with the labels of the images at *path*.
    """
    if not os.path.exists(path):  # unlike Path.exists, False if access is denied
        siblings = os.listdir(path.parent) if os.access(path.parent, os.R_OK) and path.parent.is_dir() else []
        near = did_you_mean(path.name, [*siblings, *CATALOG])
        raise FedBMError(
            f'{path} does not exist or cannot be accessed, and no data set is called "{path.name}"{near}; '
            "'fedbm data list' prints the catalogue"
        )
    if path.is_fifo():  # opening it would wait for a program that writes to it
        raise FedBMError(f"{path} is a named pipe: give a file or a folder")
    if not path.is_dir():
        path.open("rb").close()  # report a file that cannot be opened as such, not as unknown
    if table.is_table(path):
        return table.find(path, path_column, label_column)
    if labels:
        return table.find(labels, path_column, label_column, _open_tree(path))
    if path_column or label_column:
        raise FedBMError(
            f"path_column and label_column name columns of a table, but {path} is not a table. Give the table "
            "of its images as --metadata TABLE, together with --label-column"
        )
    return _find_reader(path, seed)


@cache
def reader_plugins() -> dict[str, Plugin]:
    """Return the readers that other installed packages declare in the entry points "fedbm.readers"."""
    return load_plugins("fedbm.readers", (), lambda name, value: "" if callable(value) else "it is not a function")


def find_by_reader(name: str) -> tuple[Path, Source] | None:
    """Return path and source of a name READER:PATH; None if it has another form or is a file."""
    from fedbm.utils.fingerprint import package_digest  # imports PyTorch

    reader, colon, place = name.partition(":")
    if not colon or os.path.exists(name) or len(reader) < 2:  # C: is a drive
        return None
    plugins = reader_plugins()
    check_usable(plugins, reader)
    if reader not in plugins:
        near = did_you_mean(reader, plugins)
        raise FedBMError(
            f'there is no reader "{reader}"{near} for {name}; installed are: {", ".join(plugins) or "none"}'
        )
    path, plugin = Path(place).expanduser(), plugins[reader]
    source = plugin.value(path)
    if not isinstance(source, Source):
        raise FedBMError(f'the reader "{reader}" of {plugin.package} must return a Source, not {type(source).__name__}')
    known = {"reader": reader, "code": package_digest(plugin.value), "source": source.fingerprint}
    return path, Source(digest_of(known), source.scan)


def digits() -> Source:
    """Return scikit-learn's 1,797 digits, 8×8 with grey levels scaled from 0…16 to 0…255, without a split."""

    def scan() -> SampleIndex:
        from sklearn.datasets import load_digits

        bunch = load_digits()
        grey = np.rint(bunch.images * (255 / 16)).astype(np.uint8)
        return SampleIndex(
            classes=tuple(str(name) for name in bunch.target_names),
            labels=bunch.target.astype(np.int64),
            split=None,
            ids=[f"digit {i}" for i in range(len(grey))],
            stream=lambda: enumerate(grey),
            catalog_name="digits",
        )

    return Source(digest_of({"source": "scikit-learn digits"}), scan)


def _find_reader(path: Path, seed: int) -> Source:
    ending = path.suffix.lower()
    if ending == ".json" and not path.is_dir():
        return femnist.find_leaf({path: file_stamp(path)}, str(path), seed)
    if ending == ".npz" and zipfile.is_zipfile(path):
        return _find_arrays(path, seed)
    tree = _open_tree(path)
    json_files = sorted(file for file in tree.files if file.lower().endswith(".json"))
    has_images = any(file.lower().endswith(IMAGE_ENDINGS) for file in tree.files)
    # LEAF also writes copies of the same samples into other folders, such as all_data.
    if path.is_dir() and json_files and not has_images and tree.folders <= {"train", "test"}:
        return femnist.find_leaf({path / file: tree.files[file] for file in json_files}, str(path), seed)
    for file in tree.files:
        if file.lower() in _HAM10000_TABLES:
            return _find_ham10000(tree, file)
    return folder.find(tree)


def _find_ham10000(tree: FileTree, metadata: str) -> Source:
    """Return HAM10000 as published: a table, and ISIC_*.jpg in one or more folders. Some archives have copies of them.

    The split made for it keeps the images of a lesion together.
    """
    where = f"{metadata} in {tree.where}"
    rows = table.parse_table(load_bytes(next(tree.stream([metadata]))[1]), where)
    source = table.find(Path(where), "image_id", "dx", tree, rows)
    index, known = source.scan(), tuple(CATALOG["ham10000"].classes)
    if index.classes != known or "lesion_id" not in index.columns:
        raise FedBMError(
            f"{where} must have a column lesion_id and the diagnoses {', '.join(known)}, but it has the columns "
            f"{', '.join(rows)} and the diagnoses {', '.join(index.classes)}: download the table again"
        )
    note = "HAM10000's own files do not contain DermaMNIST's published split: use DermaMNIST's .npz to compare with it"
    ids = list(map(basename, index.ids))
    return Source(source.fingerprint, lambda: replace(index, ids=ids, catalog_name="ham10000", notes=(note,)))


def _open_tree(path: Path) -> FileTree:
    """Open a folder or an archive."""
    if path.is_dir():
        return open_folder(path)
    if zipfile.is_zipfile(path):
        return open_zip(path)
    with suppress(OSError, EOFError):  # of damaged files
        if tarfile.is_tarfile(path):
            return open_tar(path)
    raise FedBMError(
        f"{path} has an unknown format, or it is damaged or incomplete: use a folder, zip or tar with {folder.LAYOUT}, "
        "a CSV, Parquet or .xlsx table, an .npz file, or LEAF's json files"
    )


def _find_arrays(path: Path, seed: int) -> Source:
    keys = npz.array_names(path)
    name = path.stem.lower().partition("_")[0]  # the size may follow: bloodmnist.npz, bloodmnist_128.npz
    known = digest_of({"file": file_stamp(path), "name": name, "seed": seed})
    if keys >= npz.JPEG_ARRAYS:
        return Source(known, lambda: npz.scan_jpegs(path))
    if keys >= {*npz.PIXEL_ARRAYS, "writer"} and name == "chars74k":
        return Source(known, lambda: femnist.scan_chars74k(path, seed))
    if keys >= npz.PIXEL_ARRAYS:
        return Source(known, lambda: npz.scan_pixels(path))
    if keys >= npz.MEDMNIST_ARRAYS:
        return Source(known, lambda: npz.scan_medmnist(path, name))
    raise FedBMError(
        f"{path} contains the arrays {', '.join(sorted(keys))}, but it must contain "
        f"{npz.JPEG_LAYOUT}; or {npz.PIXEL_LAYOUT}; or {npz.MEDMNIST_LAYOUT}"
    )
