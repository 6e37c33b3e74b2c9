"""Find the reader for a path; and the digits, which are always available."""

from __future__ import annotations

import os
import tarfile
import zipfile
from pathlib import Path

import numpy as np

from fedbm.data.readers import chars74k, femnist_leaf, folder, ham10000, medmnist, npz, npz_arrays, npz_jpeg, table
from fedbm.data.readers.archive import TarTree, ZipTree, find_image_root
from fedbm.data.readers.file_tree import FolderTree, Tree
from fedbm.data.readers.sample_index import SampleIndex, Source, make_stream
from fedbm.errors import FedBMError, did_you_mean, join_words
from fedbm.utils.io import digest_of


def detect(path: Path, seed: int = 0) -> Source:
    """Return the source at *path*. The *seed* is used by sources of which a part is drawn."""
    if not os.path.exists(path):  # unlike Path.exists, False if access is denied
        siblings = os.listdir(path.parent) if os.access(path.parent, os.R_OK) and path.parent.is_dir() else []
        raise FedBMError(f"{path} does not exist or cannot be accessed{did_you_mean(path.name, siblings)}")
    if path.is_dir():
        files = femnist_leaf.json_files(path)
        return femnist_leaf.find(files, str(path), seed) if files else _images(FolderTree(path))
    path.open("rb").close()  # report a file that cannot be opened as such, not as unknown
    if zipfile.is_zipfile(path):
        return _arrays(path, seed) if path.suffix.lower() == ".npz" else _archive(ZipTree(path))
    if path.suffix.lower() in table.ENDINGS:
        return table.find(path)
    if path.suffix.lower() == ".json":
        return femnist_leaf.find([path], str(path), seed)
    if _is_tar(path):
        return _archive(TarTree(path))
    raise FedBMError(
        f"{path} has an unknown format: use a folder, zip or tar with {folder.LAYOUT}, a CSV or Parquet table, "
        "an .npz file, or LEAF's json files"
    )


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
            stream=make_stream(list(grey)),
            known_as="digits",
        )

    return Source(digest_of({"source": "scikit-learn digits"}), scan)


def _archive(tree: Tree) -> Source:
    return _images(tree, find_image_root(tree))


def _images(tree: Tree, root: str = "") -> Source:
    metadata = ham10000.find_metadata(tree, root)
    return folder.find(tree, root) if metadata is None else ham10000.find(tree, metadata, root)


def _arrays(path: Path, seed: int) -> Source:
    keys = npz.keys(path)
    if "jpeg" in keys or "offsets" in keys:
        return npz_jpeg.find(path)
    if any(key.startswith(("train_", "val_", "test_")) for key in keys):
        return medmnist.find(path)
    if keys >= npz_arrays.KEYS:
        return chars74k.find(path, seed) if chars74k.matches(path, keys) else npz_arrays.find(path)
    raise FedBMError(
        f"{path} contains {join_words(sorted(keys), 'and') if keys else 'no arrays'}, but it must contain "
        f"{npz_jpeg.LAYOUT}; or {npz_arrays.LAYOUT}; or {medmnist.LAYOUT}"
    )


def _is_tar(path: Path) -> bool:
    try:
        return tarfile.is_tarfile(path)
    except (OSError, EOFError):
        return False
