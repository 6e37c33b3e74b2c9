from __future__ import annotations

import io
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedbm.data import folder, packed
from fedbm.data.decode import Undecodable, decode, read
from fedbm.data.sources import detect, digits
from fedbm.errors import FedBMError

SHARED = Path(__file__).resolve().parents[2] / ".." / "shared" / "data"
HAM10000 = SHARED / "ham10000_128.npz"


def save(path: Path, value: int = 128, size: tuple[int, int] = (20, 20), mode: str = "RGB") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, (value,) * 3 if mode == "RGB" else value).save(path)
    return path


def encoded(image: Image.Image, kind: str = "PNG", **options) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def cut_jpeg() -> bytes:
    noise = np.random.default_rng(0).integers(0, 256, (64, 64), dtype=np.uint8)
    return encoded(Image.fromarray(noise), "JPEG")[:-400]


def split_folder(root: Path, *names: str) -> Path:
    for side in names or ("train", "val", "test"):
        for shade, name in enumerate(("cat", "dog")):
            save(root / side / name / "1.png", 10 * shade)
    return root


def flat_folder(root: Path) -> Path:
    for shade, name in enumerate(("cat", "dog")):
        for i in range(3):
            save(root / name / f"{i}.png", 100 * shade + i)
    return root


# --- one image ---------------------------------------------------------------------------------------------


def test_an_image_of_the_right_size_is_not_resampled() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (16, 16, 3), dtype=np.uint8)
    assert (decode(encoded(Image.fromarray(pixels)), 16, 3) == pixels).all()


def test_exif_orientation_is_turned() -> None:
    """Orientation 6: the camera was held upright, the picture is stored lying on its left side."""
    pixels = np.zeros((16, 16), dtype=np.uint8)
    pixels[:, :8] = 255  # stored: left half white; turned clockwise: upper half white
    exif = Image.Exif()
    exif[0x0112] = 6
    upright = decode(encoded(Image.fromarray(pixels), "JPEG", exif=exif, quality=100), 16, 1)[..., 0]
    assert upright[:7].min() > 250
    assert upright[9:].max() < 5


@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA", "P", "CMYK", "1", "LA"])
@pytest.mark.parametrize("channels", [1, 3])
def test_colour_and_grey_become_each_other(mode, channels) -> None:
    kind = "JPEG" if mode == "CMYK" else "PNG"
    white = encoded(Image.new("L", (16, 16), 255).convert("RGB").convert(mode), kind)
    image = decode(white, 16, channels)
    assert image.shape == (16, 16, channels)
    assert image.min() >= 254


def test_sixteen_bit_grey_is_scaled_not_clipped() -> None:
    levels = np.full((16, 16), 0x8000, dtype=np.uint16)
    assert (decode(encoded(Image.fromarray(levels)), 16, 1) == 0x80).all()


def test_a_large_jpeg_shrinks_to_nearly_what_a_full_decode_gives() -> None:
    ramp = np.tile(np.linspace(0, 255, 800), (600, 1)).astype(np.uint8)
    jpeg = encoded(Image.fromarray(ramp), "JPEG", quality=95)
    full = Image.open(io.BytesIO(jpeg)).resize((32, 32), Image.Resampling.BILINEAR)
    assert np.abs(decode(jpeg, 32, 1)[..., 0].astype(int) - np.asarray(full)).max() <= 2


def test_what_is_no_image_is_said_to_be_none() -> None:
    with pytest.raises(Undecodable, match="not an image"):
        decode(b"a letter", 16, 3)
    with pytest.raises(Undecodable, match="GIF, not JPEG or PNG"):
        decode(encoded(Image.new("L", (4, 4)), "GIF"), 16, 3)
    with pytest.raises(Undecodable, match="truncated"):
        decode(cut_jpeg(), 16, 3)


# --- folders -----------------------------------------------------------------------------------------------


def test_a_folder_with_splits_is_read_in_order(tmp_path) -> None:
    for name in ("Train", "validation", "test"):
        save(tmp_path / name / "b" / "2.JPG", 200)
        save(tmp_path / name / "b" / "1.jpeg", 100)
        save(tmp_path / name / "a" / "x.PnG", 50)
    (tmp_path / "Train" / "b" / ".DS_Store").write_bytes(b"")
    (tmp_path / "Train" / "b" / "Thumbs.db").write_bytes(b"")
    (tmp_path / "readme.txt").write_text("about")
    raw = read(folder.scan(tmp_path), 16, 3)
    assert raw.classes == ("a", "b")
    assert raw.images.shape == (9, 16, 16, 3)
    assert raw.labels.tolist() == [0, 1, 1] * 3
    assert raw.split.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert raw.ids[:3] == ["Train/a/x.PnG", "Train/b/1.jpeg", "Train/b/2.JPG"]
    assert raw.images[:3, 8, 8, 0].tolist() == pytest.approx([50, 100, 200], abs=1)
    assert raw.skipped == []


def test_a_folder_of_classes_is_left_to_be_split(tmp_path) -> None:
    listing = detect(flat_folder(tmp_path))
    assert listing.classes == ("cat", "dog")
    assert listing.split is None
    assert read(listing, 16, 1).images[:, 0, 0, 0].tolist() == [0, 1, 2, 100, 101, 102]


def test_names_in_any_script_and_in_either_spelling_of_accents(tmp_path) -> None:
    composed, decomposed = "n\u00e6vus-\u00e9", "n\u00e6vus-e\u0301"
    for side, name in (("train", composed), ("val", decomposed), ("test", composed)):
        save(tmp_path / side / name / "фото 1.png")
        save(tmp_path / side / "正常" / "眼底.jpg")
    listing = detect(tmp_path)
    assert listing.classes == (composed, "正常")
    assert listing.labels.tolist() == [0, 1] * 3
    assert listing.ids[1] == "train/正常/眼底.jpg"


def test_names_that_are_no_utf8_can_be_written_down(tmp_path) -> None:
    flat_folder(tmp_path)
    try:
        Path(os.fsdecode(os.fsencode(tmp_path / "cat") + b"/\xff.png")).write_bytes(b"bad")
    except OSError:
        pytest.skip("this file system holds UTF-8 names only")
    assert read(detect(tmp_path), 16, 3, "skip").skipped == ["cat/\\xff.png"]


def test_bad_files_are_refused_by_name_and_number(tmp_path) -> None:
    flat_folder(tmp_path)
    (tmp_path / "cat" / "3.jpg").write_bytes(cut_jpeg())
    (tmp_path / "dog" / "notes.txt").write_text("not an image")
    with pytest.raises(FedBMError, match=r"2 of 8 images .* the first is cat/3.jpg \(.*truncated.*on_bad"):
        read(detect(tmp_path), 16, 3)
    raw = read(detect(tmp_path), 16, 3, "skip")
    assert raw.skipped == ["cat/3.jpg", "dog/notes.txt"]
    assert raw.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert raw.images[:, 0, 0, 0].tolist() == [0, 1, 2, 100, 101, 102]
    assert len(raw.ids) == 6


def test_links_that_lead_in_circles_end(tmp_path) -> None:
    flat_folder(tmp_path)
    (tmp_path / "cat" / "up").symlink_to(tmp_path, target_is_directory=True)
    (tmp_path / "cat" / "self.png").symlink_to(tmp_path / "cat" / "self.png")
    with pytest.raises(FedBMError, match=r"2 of 8 images .* the first is cat/self.png"):
        read(detect(tmp_path), 16, 3)
    assert read(detect(tmp_path), 16, 3, "skip").skipped == ["cat/self.png", "cat/up"]


def test_progress_is_told_of_every_image(tmp_path) -> None:
    told = []
    read(detect(flat_folder(tmp_path)), 16, 3, progress=lambda done, total: told.append((done, total)))
    assert told == [(i, 6) for i in range(1, 7)]


def test_an_interruption_stops_at_once(tmp_path) -> None:
    class Interrupted(Exception):
        pass

    fetched = []
    listing = detect(flat_folder(tmp_path))
    many = replace(listing, ids=listing.ids * 1000, fetch=lambda i: fetched.append(i) or listing.fetch(i % 6))

    def interrupt(done: int, total: int) -> None:
        raise Interrupted

    with pytest.raises(Interrupted):
        read(many, 16, 3, progress=interrupt)
    assert len(fetched) < 6000


def test_images_that_do_not_fit_into_memory_are_refused(tmp_path) -> None:
    with pytest.raises(FedBMError, match="6 images of 100000000×100000000 do not fit into memory"):
        read(detect(flat_folder(tmp_path)), 10**8, 3)


def test_identity_moves_with_the_content(tmp_path) -> None:
    first = detect(flat_folder(tmp_path)).identity
    assert detect(tmp_path).identity == first
    save(tmp_path / "cat" / "new.png")
    assert detect(tmp_path).identity != first


def test_a_typing_mistake_in_a_path_is_met_with_the_nearest(tmp_path) -> None:
    (tmp_path / "kvasir").mkdir()
    with pytest.raises(FedBMError, match=r'kvazir does not exist .*\(did you mean "kvasir"\?\)'):
        detect(tmp_path / "kvazir")
    with pytest.raises(FedBMError, match="does not exist"):
        detect(tmp_path / "nowhere" / "at" / "all")


def make_empty(root: Path) -> None:
    root.mkdir(exist_ok=True)


def make_loose_images(root: Path) -> None:
    save(root / "1.png")


def make_one_class(root: Path) -> None:
    for i in range(5):
        save(root / "cat" / f"{i}.png")


def make_too_deep(root: Path) -> None:
    flat_folder(root / "data" / "images")


def make_empty_class(root: Path) -> None:
    flat_folder(root)
    (root / "mouse").mkdir()


def make_class_not_in_train(root: Path) -> None:
    save(split_folder(root) / "test" / "mouse" / "1.png")


def make_empty_train_class(root: Path) -> None:
    (split_folder(root) / "train" / "mouse").mkdir()


def make_no_val(root: Path) -> None:
    split_folder(root, "train", "test")


def make_no_train(root: Path) -> None:
    split_folder(root, "val", "test")


def make_two_vals(root: Path) -> None:
    split_folder(root, "train", "val", "valid", "test")


def make_empty_test(root: Path) -> None:
    split_folder(root, "train", "val")
    (root / "test").mkdir()


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (make_empty, "has no folders in it: it should hold one folder of JPEG or PNG images per class"),
        (make_loose_images, "has no folders in it"),
        (make_one_class, r"holds 1 class \(cat\), learning needs at least 2"),
        (make_too_deep, "holds no images where they are looked for"),
        (make_empty_class, 'class "mouse" of .* has 0 images'),
        (make_class_not_in_train, 'has no training image of class "mouse"'),
        (make_empty_train_class, 'has no training image of class "mouse"'),
        (make_no_val, "has no folder for val"),
        (make_no_train, "has no folder for train"),
        (make_two_vals, "has val and valid for val"),
        (make_empty_test, "has no test images"),
    ],
)
def test_a_folder_that_cannot_be_used_is_refused_in_one_sentence(tmp_path, make, sentence) -> None:
    make(tmp_path)
    with pytest.raises(FedBMError, match=sentence) as caught:
        detect(tmp_path)
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


# --- packed JPEGs ------------------------------------------------------------------------------------------


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
    raw = read(detect(tmp_path / "cats.npz"), 16, 3)
    assert raw.classes == ("cat", "dog")
    assert raw.labels.tolist() == [0, 1, 0, 1, 0, 1]
    assert raw.labels.dtype == np.int64
    assert raw.split.tolist() == [0, 0, 1, 1, 2, 2]
    assert raw.images[:, 5, 5, 1].tolist() == pytest.approx([0, 40, 80, 120, 160, 200], abs=2)


def test_packed_jpegs_without_a_split_are_left_to_be_split(tmp_path) -> None:
    arrays = packed_arrays()
    del arrays["split"]
    np.savez(tmp_path / "cats.npz", **arrays)
    assert detect(tmp_path / "cats.npz").split is None


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
        detect(path)


def test_an_unknown_kind_of_file_is_told_what_is_understood(tmp_path) -> None:
    (tmp_path / "table.csv").write_text("a,b")
    with pytest.raises(FedBMError, match=r"is not understood: give a folder that holds .* or an \.npz file"):
        detect(tmp_path / "table.csv")


# --- digits and real data ----------------------------------------------------------------------------------


def test_digits_are_scikit_learns() -> None:
    from sklearn.datasets import load_digits

    raw = read(digits(), 8, 1)
    original = load_digits()
    assert (raw.images[..., 0] == np.rint(original.images * 255 / 16)).all()
    assert (raw.labels == original.target).all()
    assert raw.classes == tuple("0123456789")
    assert raw.split is None


@pytest.mark.skipif(not HAM10000.exists(), reason="needs ../shared/data/ham10000_128.npz")
def test_ham10000_has_its_published_split_and_counts() -> None:
    listing = detect(HAM10000)
    counts = [np.bincount(listing.labels[listing.split == side]).tolist() for side in range(3)]
    assert counts == [
        [228, 359, 769, 80, 779, 4693, 99],
        [33, 52, 110, 12, 111, 671, 14],
        [66, 103, 220, 23, 223, 1341, 29],
    ]
    assert [sum(side) for side in counts] == [7007, 1003, 2005]
    assert listing.ids[0] == "ISIC_0027615.jpg"
    assert decode(listing.fetch(0), 128, 3).shape == (128, 128, 3)
