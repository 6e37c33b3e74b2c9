from __future__ import annotations

import numpy as np
import pytest
from pictures import SHARED, encoded, read_at, scan
from PIL import Image

from fedbm.data.decode import decode
from fedbm.data.readers import npz_jpeg as packed
from fedbm.data.readers.dispatch import detect
from fedbm.errors import FedBMError


def packed_arrays() -> dict[str, np.ndarray]:
    jpegs = [encoded(Image.new("RGB", (16, 16), (40 * i,) * 3), "JPEG", quality=95) for i in range(6)]
    return {
        "jpeg": np.frombuffer(b"".join(jpegs), dtype=np.uint8),
        "offsets": np.cumsum([0, *map(len, jpegs)]),
        "labels": np.array([0, 1, 0, 1, 0, 1], dtype=np.uint8),
        "split": np.array([0, 0, 1, 1, 2, 2], dtype=np.uint8),
        "classes": np.array(["cat", "dog"]),
        "ids": np.array([f"{i}.jpg" for i in range(6)]),
    }


def test_packed_jpegs_are_read(tmp_path) -> None:
    np.savez(tmp_path / "cats.npz", **packed_arrays())
    decoded = read_at(tmp_path / "cats.npz")
    listing = decoded.listing
    assert listing.classes == ("cat", "dog")
    assert listing.labels.tolist() == [0, 1, 0, 1, 0, 1]
    assert listing.labels.dtype == np.int64
    assert listing.split.tolist() == [0, 0, 1, 1, 2, 2]
    assert decoded.images[:, 5, 5, 1].tolist() == pytest.approx([0, 40, 80, 120, 160, 200], abs=2)


def test_packed_jpegs_without_a_split_are_left_to_be_split(tmp_path) -> None:
    arrays = packed_arrays()
    del arrays["split"]
    np.savez(tmp_path / "cats.npz", **arrays)
    assert scan(tmp_path / "cats.npz").split is None


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"offsets": None, "ids": None}, "has no offsets and no ids; it must hold jpeg"),
        ({"jpeg": np.zeros(9)}, "jpeg is not one row of bytes"),
        ({"offsets": np.zeros(7)}, "offsets are not whole numbers"),
        ({"offsets": np.array([0, 20, 10, 30, 40, 50, 60])}, "offsets go backwards"),
        ({"offsets": np.array([0, 1, 2, 3, 4, 5, 10**9])}, "offsets lie outside jpeg"),
        ({"labels": np.array([0, 1, 0, 1, 0, 2])}, "labels point outside classes"),
        ({"labels": np.array([0, 1, 0, 1, 0])}, "labels are not 6 whole numbers"),
        ({"split": np.array([0, 0, 1, 1, 2, 3])}, "split holds other values than 0, 1 and 2"),
        ({"split": np.array([0, 0])}, "split is not 6 whole numbers"),
        ({"classes": np.array(["cat", "cat"])}, "classes are not distinct names"),
        ({"ids": np.arange(6)}, "ids are not 6 names"),
        ({"ids": np.array(list("abcdea"))}, 'names the sample "a" twice'),
        ({"ids": np.array([{}], dtype=object)}, "cannot read .*Object arrays cannot be loaded"),
    ],
)
def test_a_wrong_packed_file_is_refused_in_one_sentence(tmp_path, change, sentence) -> None:
    arrays = {key: value for key, value in (packed_arrays() | change).items() if value is not None}
    np.savez(tmp_path / "cats.npz", **arrays)
    with pytest.raises(FedBMError, match=sentence):
        packed.scan(tmp_path / "cats.npz")


def test_a_cut_packed_file_is_refused(tmp_path) -> None:
    path = tmp_path / "cats.npz"
    np.savez(path, **packed_arrays())
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(FedBMError, match="is not understood"):
        detect(path)


def test_flipped_bits_in_a_packed_file_are_noticed(tmp_path) -> None:
    path = tmp_path / "cats.npz"
    np.savez(path, **packed_arrays())
    content = bytearray(path.read_bytes())
    content[400] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(FedBMError, match="cannot read"):
        scan(path)


@pytest.mark.parametrize(
    ("name", "sizes", "classes"),
    [
        ("ham10000_128.npz", [7007, 1003, 2005], [[228, 359, 769, 80, 779, 4693, 99], [33, 52, 110, 12, 111, 671, 14]]),
        ("pbc_128.npz", [11959, 1712, 3421], [[852, 2181, 1085, 2026, 849, 993, 2330, 1643]]),
        ("kvasir_v1_128.npz", [2800, 400, 800], [[350] * 8, [50] * 8, [100] * 8]),
    ],
)
def test_real_files_have_their_published_counts(name, sizes, classes) -> None:
    if not (SHARED / name).exists():
        pytest.skip(f"needs ../shared/data/{name}")
    listing = scan(SHARED / name)
    counts = [np.bincount(listing.labels[listing.split == side]).tolist() for side in range(3)]
    assert counts[: len(classes)] == classes
    assert [sum(side) for side in counts] == sizes
    (_, first), *_ = listing.stream()
    assert decode(first, 128, 3).shape == (128, 128, 3)
