from __future__ import annotations

import numpy as np
import pytest

from fedbm.data.decode import decode_all
from fedbm.data.readers.dispatch import detect, digits
from fedbm.errors import FedBMError


def test_a_typing_mistake_in_a_path_is_met_with_the_nearest(tmp_path) -> None:
    (tmp_path / "kvasir").mkdir()
    with pytest.raises(FedBMError, match=r'kvazir does not exist .*\(did you mean "kvasir"\?\)'):
        detect(tmp_path / "kvazir")
    with pytest.raises(FedBMError, match="does not exist"):
        detect(tmp_path / "nowhere" / "at" / "all")


def test_digits_are_scikit_learns() -> None:
    from sklearn.datasets import load_digits

    index = digits().scan()
    original = load_digits()
    assert (decode_all(index, 8, 1).images[..., 0] == np.rint(original.images * 255 / 16)).all()
    assert (index.labels == original.target).all()
    assert index.classes == tuple("0123456789")
    assert index.split is None


def test_an_unknown_kind_of_file_is_told_what_is_understood(tmp_path) -> None:
    (tmp_path / "letter.txt").write_text("a letter")
    with pytest.raises(
        FedBMError, match=r"letter.txt is not understood: give a folder, zip or tar that holds one folder"
    ):
        detect(tmp_path / "letter.txt")
    np.savez(tmp_path / "other.npz", a=np.zeros(3))
    with pytest.raises(
        FedBMError, match=r"other.npz holds a, which is not understood: it must hold jpeg .*; or images"
    ):
        detect(tmp_path / "other.npz")
