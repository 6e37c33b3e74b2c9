"""Which reader a path needs, found by looking; and the one data set that is always at hand."""

from __future__ import annotations

import io
import os
import zipfile
from pathlib import Path

import numpy as np

from fedbm.data import folder, packed
from fedbm.data.decode import Listing
from fedbm.errors import FedBMError, did_you_mean
from fedbm.files import digest_of


def detect(path: Path) -> Listing:
    """The samples at *path*: an image folder or a file of packed JPEGs."""
    if not os.path.exists(path):  # unlike Path.exists, False for whatever cannot be reached
        beside = os.listdir(path.parent) if os.path.isdir(path.parent) else []
        raise FedBMError(f"{path} does not exist or cannot be reached{did_you_mean(path.name, beside)}")
    if path.is_dir():
        return folder.scan(path)
    if zipfile.is_zipfile(path):
        return packed.scan(path)
    raise FedBMError(
        f"{path} is not understood: give a folder that holds {folder.LAYOUT}, or an .npz file that holds "
        f"{packed.LAYOUT}"
    )


def digits() -> Listing:
    """scikit-learn's 1,797 digits, 8×8 with grey levels 0…16 brought to 0…255, still to be split."""
    from PIL import Image
    from sklearn.datasets import load_digits

    bunch = load_digits()
    grey = np.rint(bunch.images * (255 / 16)).astype(np.uint8)

    def fetch(i: int) -> bytes:  # as PNG, which loses nothing, so that digits go the way of all images
        encoded = io.BytesIO()
        Image.fromarray(grey[i]).save(encoded, "PNG")
        return encoded.getvalue()

    return Listing(
        classes=tuple(str(name) for name in bunch.target_names),
        labels=bunch.target.astype(np.int64),
        split=None,
        ids=[f"digit {i}" for i in range(len(grey))],
        fetch=fetch,
        identity=digest_of({"source": "scikit-learn digits"}),
    )
