""".npz files of concatenated JPEGs."""

from __future__ import annotations

import numpy as np
import pytest
from pictures import SHARED, encoded, read_at, scan
from PIL import Image

from fedbm.data.decode import decode_image
from fedbm.data.readers.dispatch import detect
from fedbm.data.readers.npz import scan_jpegs
from fedbm.errors import FedBMError


def jpeg_arrays() -> dict[str, np.ndarray]:
    jpegs = [encoded(Image.new("RGB", (16, 16), (40 * i,) * 3), "JPEG", quality=95) for i in range(6)]
    return {
        "jpeg": np.frombuffer(b"".join(jpegs), dtype=np.uint8),
        "offsets": np.cumsum([0, *map(len, jpegs)]),
        "labels": np.array([0, 1, 0, 1, 0, 1], dtype=np.uint8),
        "split": np.array([0, 0, 1, 1, 2, 2], dtype=np.uint8),
        "classes": np.array(["cat", "dog"]),
        "ids": np.array([f"{i}.jpg" for i in range(6)]),
    }


def test_jpegs_are_read(tmp_path) -> None:
    np.savez(tmp_path / "cats.npz", **jpeg_arrays())
    decoded = read_at(tmp_path / "cats.npz")
    index = decoded.index
    assert index.classes == ("cat", "dog")
    assert index.labels.tolist() == [0, 1, 0, 1, 0, 1]
    assert index.labels.dtype == np.int64
    assert index.split.tolist() == [0, 0, 1, 1, 2, 2]
    assert decoded.images[:, 5, 5, 1].tolist() == pytest.approx([0, 40, 80, 120, 160, 200], abs=2)


def test_a_file_without_split_has_none(tmp_path) -> None:
    arrays = jpeg_arrays()
    del arrays["split"]
    np.savez(tmp_path / "cats.npz", **arrays)
    assert scan(tmp_path / "cats.npz").split is None


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"jpeg": np.zeros(9)}, "jpeg is not a vector of bytes"),
        ({"offsets": np.zeros(7)}, "offsets are not ascending positions in jpeg"),
        ({"offsets": np.array([0, 20, 10, 30, 40, 50, 60])}, "offsets are not ascending positions in jpeg"),
        ({"offsets": np.array([0, 1, 2, 3, 4, 5, 10**9])}, "offsets are not ascending positions in jpeg"),
        ({"labels": np.array([0, 1, 0, 1, 0, 2])}, "labels are not 6 whole numbers from 0 to 1"),
        ({"labels": np.array([0, 1, 0, 1, 0])}, "labels are not 6 whole numbers"),
        ({"split": np.array([0, 0, 1, 1, 2, 3])}, 'row 6 of .* has the split "3"'),
        ({"split": np.array([0, 0])}, "split does not have 6 values"),
        ({"classes": np.array(["cat", "cat"])}, "classes are not distinct names"),
        ({"ids": np.arange(6)}, "ids are not 6 names"),
        ({"ids": np.array(list("abcdea"))}, 'contains the sample "a" twice'),
        ({"ids": np.array([{}], dtype=object)}, "cannot read .*Object arrays cannot be loaded"),
    ],
)
def test_wrong_files_are_refused(tmp_path, change, sentence) -> None:
    arrays = {key: value for key, value in (jpeg_arrays() | change).items() if value is not None}
    np.savez(tmp_path / "cats.npz", **arrays)
    with pytest.raises(FedBMError, match=sentence):
        scan_jpegs(tmp_path / "cats.npz")


def test_a_truncated_file_is_refused(tmp_path) -> None:
    path = tmp_path / "cats.npz"
    np.savez(path, **jpeg_arrays())
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(FedBMError, match="cats.npz has an unknown format, or it is damaged or incomplete"):
        detect(path)


def test_flipped_bits_are_detected(tmp_path) -> None:
    path = tmp_path / "cats.npz"
    np.savez(path, **jpeg_arrays())
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
def test_real_files_have_the_published_counts(name, sizes, classes) -> None:
    if not (SHARED / name).exists():
        pytest.skip(f"needs ../shared/data/{name}")
    index = scan(SHARED / name)
    counts = [np.bincount(index.labels[index.split == code]).tolist() for code in range(3)]
    assert counts[: len(classes)] == classes
    assert [sum(row) for row in counts] == sizes
    (_, first), *_ = index.stream()
    assert decode_image(first, 128, 3).shape == (128, 128, 3)
