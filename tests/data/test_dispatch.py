"""Choosing the reader for a path."""

from __future__ import annotations

import numpy as np
import pytest

from fedbm.data.decode import decode_images
from fedbm.data.readers.dispatch import detect, digits
from fedbm.errors import FedBMError


def test_a_mistyped_path_suggests_the_nearest(tmp_path) -> None:
    (tmp_path / "kvasir").mkdir()
    with pytest.raises(FedBMError, match=r'kvazir does not exist .*\(did you mean "kvasir"\?\)'):
        detect(tmp_path / "kvazir")
    with pytest.raises(FedBMError, match="does not exist"):
        detect(tmp_path / "nowhere" / "at" / "all")


def test_digits_equal_scikit_learn() -> None:
    from sklearn.datasets import load_digits

    index = digits().scan()
    original = load_digits()
    assert (decode_images(index, 8, 1).images[..., 0] == np.rint(original.images * 255 / 16)).all()
    assert (index.labels == original.target).all()
    assert index.classes == tuple("0123456789")
    assert index.split is None


def test_unknown_formats_are_refused(tmp_path) -> None:
    (tmp_path / "letter.txt").write_text("a letter")
    with pytest.raises(
        FedBMError, match=r"letter.txt has an unknown format, or .*: use a folder, zip or tar with one folder"
    ):
        detect(tmp_path / "letter.txt")
    np.savez(tmp_path / "other.npz", a=np.zeros(3))
    with pytest.raises(FedBMError, match=r"other.npz contains the arrays a, but it must contain jpeg .*; or images"):
        detect(tmp_path / "other.npz")
