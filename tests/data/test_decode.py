from __future__ import annotations

import io
from dataclasses import replace

import numpy as np
import pytest
from pictures import cut_jpeg, encoded, flat_folder, scan, shades
from PIL import Image

from fedbm.data.decode import Undecodable, decode, read
from fedbm.errors import FedBMError


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


def test_pixels_and_bytes_at_call_are_images_too() -> None:
    pixels = np.arange(256, dtype=np.uint8).reshape(16, 16)
    assert (decode(pixels, 16, 1)[..., 0] == pixels).all()
    assert (decode(pixels, 16, 3) == pixels[..., None]).all()
    assert (decode(lambda: encoded(Image.fromarray(pixels)), 16, 1)[..., 0] == pixels).all()
    with pytest.raises(Undecodable, match="a reason"):
        decode(lambda: (_ for _ in ()).throw(OSError("a reason")), 16, 1)


def test_images_take_their_places_in_whatever_order_they_come(tmp_path) -> None:
    listing = scan(flat_folder(tmp_path))
    backwards = replace(listing, stream=lambda: reversed(list(listing.stream())))
    assert shades(read(backwards, 16, 1)) == [0, 1, 2, 100, 101, 102]


def test_a_listing_of_some_samples_reads_those(tmp_path) -> None:
    listing = replace(scan(flat_folder(tmp_path)), columns={"site": np.array(list("abcdef"))})
    some = listing.only(np.array([1, 5]))
    assert (some.ids, some.labels.tolist()) == (["cat/1.png", "dog/2.png"], [0, 1])
    assert some.columns["site"].tolist() == ["b", "f"]
    assert shades(read(some, 16, 1)) == [1, 102]


def test_progress_is_told_of_every_image(tmp_path) -> None:
    told = []
    read(scan(flat_folder(tmp_path)), 16, 3, progress=lambda done, total: told.append((done, total)))
    assert told == [(i, 6) for i in range(1, 7)]


def test_an_interruption_stops_at_once(tmp_path) -> None:
    class Interrupted(Exception):
        pass

    listing = scan(flat_folder(tmp_path))
    images = [image for _, image in listing.stream()] * 1000
    fetched = []
    many = replace(
        listing,
        ids=[str(i) for i in range(6000)],
        stream=lambda: ((i, image) for i, image in enumerate(images) if not fetched.append(i)),
    )

    def interrupt(done: int, total: int) -> None:
        raise Interrupted

    with pytest.raises(Interrupted):
        read(many, 16, 3, progress=interrupt)
    assert len(fetched) < 6000


def test_images_that_do_not_fit_into_memory_are_refused(tmp_path) -> None:
    with pytest.raises(FedBMError, match="6 images of 100000000×100000000 do not fit into memory"):
        read(scan(flat_folder(tmp_path)), 10**8, 3)
