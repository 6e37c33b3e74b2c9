"""Which reader a path needs, found by looking; and the one data set that is always at hand."""

from __future__ import annotations

import os
import tarfile
import zipfile
from pathlib import Path

import numpy as np

from fedbm.data.readers import chars74k, folder, ham10000, medmnist, npz, table
from fedbm.data.readers import femnist_leaf as leaf
from fedbm.data.readers import npz_arrays as arrays
from fedbm.data.readers import npz_jpeg as packed
from fedbm.data.readers.archive import TarTree, ZipTree, top
from fedbm.data.readers.file_tree import FolderTree, Tree
from fedbm.data.readers.sample_index import SampleIndex, Source, make_stream
from fedbm.errors import FedBMError, did_you_mean, join_words
from fedbm.utils.io import digest_of


def detect(path: Path, seed: int = 0) -> Source:
    """What lies at *path*. The *seed* is for sources of which a part is drawn."""
    if not os.path.exists(path):  # unlike Path.exists, False for whatever cannot be reached
        beside = os.listdir(path.parent) if os.access(path.parent, os.R_OK) and path.parent.is_dir() else []
        raise FedBMError(f"{path} does not exist or cannot be reached{did_you_mean(path.name, beside)}")
    if path.is_dir():
        files = leaf.json_files(path)
        return leaf.find(files, str(path), seed) if files else _images(FolderTree(path))
    path.open("rb").close()  # what cannot be opened is said to be so, not taken for something unknown
    if zipfile.is_zipfile(path):
        return _arrays(path, seed) if path.suffix.lower() == ".npz" else _archive(ZipTree(path))
    if path.suffix.lower() in table.ENDINGS:
        return table.find(path)
    if path.suffix.lower() == ".json":
        return leaf.find([path], str(path), seed)
    if _is_tar(path):
        return _archive(TarTree(path))
    raise FedBMError(
        f"{path} is not understood: give a folder, zip or tar that holds {folder.LAYOUT}, a CSV or Parquet table, "
        "an .npz file, or LEAF's json files"
    )


def digits() -> Source:
    """scikit-learn's 1,797 digits, 8×8 with grey levels 0…16 brought to 0…255, still to be split."""

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
    return _images(tree, top(tree))


def _images(tree: Tree, root: str = "") -> Source:
    metadata = ham10000.metadata_in(tree, root)
    return folder.find(tree, root) if metadata is None else ham10000.find(tree, metadata, root)


def _arrays(path: Path, seed: int) -> Source:
    held = npz.keys(path)
    if "jpeg" in held or "offsets" in held:
        return packed.find(path)
    if any(key.startswith(("train_", "val_", "test_")) for key in held):
        return medmnist.find(path)
    if held >= arrays.KEYS:
        return chars74k.find(path, seed) if chars74k.is_it(path, held) else arrays.find(path)
    raise FedBMError(
        f"{path} holds {join_words(sorted(held)) if held else 'no arrays'}, which is not understood: it must hold "
        f"{packed.LAYOUT}; or {arrays.LAYOUT}; or {medmnist.LAYOUT}"
    )


def _is_tar(path: Path) -> bool:
    try:
        return tarfile.is_tarfile(path)
    except (OSError, EOFError):
        return False
