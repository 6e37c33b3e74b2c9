"""Decoding images of all kinds, in parallel."""

from __future__ import annotations

import io
import os
import warnings
from dataclasses import replace
from threading import Thread

import numpy as np
import pytest
from pictures import cut_jpeg, encoded, flat_folder, scan, shades
from PIL import Image

from fedbm.data.dataset import load
from fedbm.data.decode import DecodeError, decode_image, decode_images
from fedbm.errors import FedBMError


def test_an_image_of_the_right_size_is_not_resampled() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (16, 16, 3), dtype=np.uint8)
    assert (decode_image(encoded(Image.fromarray(pixels)), 16, 3) == pixels).all()


def test_exif_orientation_is_applied() -> None:
    """Orientation 6: the image is stored rotated to the left."""
    pixels = np.zeros((16, 16), dtype=np.uint8)
    pixels[:, :8] = 255  # stored: left half white; rotated clockwise: upper half white
    exif = Image.Exif()
    exif[0x0112] = 6
    upright = decode_image(encoded(Image.fromarray(pixels), "JPEG", exif=exif, quality=100), 16, 1)[..., 0]
    assert upright[:7].min() > 250
    assert upright[9:].max() < 5


@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA", "P", "CMYK", "1", "LA"])
@pytest.mark.parametrize("channels", [1, 3])
def test_colour_and_grey_are_converted(mode, channels) -> None:
    kind = "JPEG" if mode == "CMYK" else "PNG"
    white = encoded(Image.new("L", (16, 16), 255).convert("RGB").convert(mode), kind)
    image = decode_image(white, 16, channels)
    assert image.shape == (16, 16, channels)
    assert image.min() >= 254


def test_sixteen_bit_grey_is_scaled_not_clipped() -> None:
    levels = np.full((16, 16), 0x8000, dtype=np.uint16)
    assert (decode_image(encoded(Image.fromarray(levels)), 16, 1) == 0x80).all()


def test_reduced_decoding_of_a_large_jpeg_is_nearly_exact() -> None:
    ramp = np.tile(np.linspace(0, 255, 800), (600, 1)).astype(np.uint8)
    jpeg = encoded(Image.fromarray(ramp), "JPEG", quality=95)
    full = Image.open(io.BytesIO(jpeg)).resize((32, 32), Image.Resampling.BILINEAR)
    assert np.abs(decode_image(jpeg, 32, 1)[..., 0].astype(int) - np.asarray(full)).max() <= 2


def test_files_that_are_not_images_are_refused() -> None:
    with pytest.raises(DecodeError, match="not an image"):
        decode_image(b"a letter", 16, 3)
    with pytest.raises(DecodeError, match="not an image"):
        decode_image(encoded(Image.new("L", (4, 4)), "GIF"), 16, 3)
    with pytest.raises(DecodeError, match="truncated"):
        decode_image(cut_jpeg(), 16, 3)


def test_pillow_does_not_speak_to_the_user(tmp_path, monkeypatch) -> None:
    """It warns of large images and of palettes with transparency, which it reads correctly."""
    palette = Image.new("P", (20, 20), 1)
    palette.putpalette([0, 0, 0, 7, 7, 7])
    image = encoded(palette, "PNG", transparency=b"\x00\xff")
    index = replace(scan(flat_folder(tmp_path)), stream=lambda: ((i, image) for i in range(6)))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 300)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert (decode_image(image, 20, 3) == 7).all()
        assert (decode_images(index, 20, 3).images == 7).all()
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(DecodeError, match=r"^Image size \(400 pixels\) exceeds limit of 200 pixels"):
        decode_image(image, 20, 3)


def test_pixels_and_functions_are_decoded_too() -> None:
    pixels = np.arange(256, dtype=np.uint8).reshape(16, 16)
    assert (decode_image(pixels, 16, 1)[..., 0] == pixels).all()
    assert (decode_image(pixels, 16, 3) == pixels[..., None]).all()
    assert (decode_image(lambda: encoded(Image.fromarray(pixels)), 16, 1)[..., 0] == pixels).all()
    with pytest.raises(DecodeError, match="a reason"):
        decode_image(lambda: (_ for _ in ()).throw(OSError("a reason")), 16, 1)


def test_images_may_arrive_in_any_order(tmp_path) -> None:
    index = scan(flat_folder(tmp_path))
    backwards = replace(index, stream=lambda: reversed(list(index.stream())))
    assert shades(decode_images(backwards, 16, 1)) == [0, 1, 2, 100, 101, 102]


def test_an_index_of_some_samples_reads_only_those(tmp_path) -> None:
    index = replace(scan(flat_folder(tmp_path)), columns={"site": np.array(list("abcdef"))})
    some = index.select(np.array([1, 5]))
    assert (some.ids, some.labels.tolist()) == (["cat/1.png", "dog/2.png"], [0, 1])
    assert some.columns["site"].tolist() == ["b", "f"]
    assert shades(decode_images(some, 16, 1)) == [1, 102]


def test_progress_is_called_for_every_image(tmp_path) -> None:
    calls = []
    decode_images(scan(flat_folder(tmp_path)), 16, 3, progress=lambda done, total: calls.append((done, total)))
    assert calls == [(i, 6) for i in range(1, 7)]


def test_an_interruption_stops_decoding(tmp_path) -> None:
    class Interrupted(Exception):
        pass

    index = scan(flat_folder(tmp_path))
    images = [image for _, image in index.stream()] * 1000
    read = []
    many = replace(
        index,
        ids=[str(i) for i in range(6000)],
        stream=lambda: ((i, image) for i, image in enumerate(images) if not read.append(i)),
    )

    def interrupt(done: int, total: int) -> None:
        raise Interrupted

    with pytest.raises(Interrupted):
        decode_images(many, 16, 3, progress=interrupt)
    assert len(read) < 6000


def test_images_that_do_not_fit_into_memory_are_refused(tmp_path) -> None:
    with pytest.raises(FedBMError, match="6 images of 100000000×100000000 do not fit into memory"):
        decode_images(scan(flat_folder(tmp_path)), 10**8, 3)


@pytest.mark.parametrize(("kind", "options"), [("TIFF", {}), ("BMP", {}), ("WEBP", {"lossless": True})])
def test_tiff_bmp_and_webp_are_read(kind, options) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (16, 16, 3), dtype=np.uint8)
    assert (decode_image(encoded(Image.fromarray(pixels), kind, **options), 16, 3) == pixels).all()


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_a_value_range_keeps_all_grey_levels_of_twelve_bits(kind) -> None:
    levels = (np.arange(256, dtype=np.uint16) * 16).reshape(16, 16)
    image = encoded(Image.fromarray(levels), kind)
    assert len(np.unique(decode_image(image, 16, 1))) == 16
    found = decode_image(image, 16, 1, (0, 4080))[..., 0]
    assert (found == np.arange(256).reshape(16, 16)).all()
    found = decode_image(image, 16, 1, (1600, 3200))
    assert (found[0].max(), found[-1].min()) == (0, 255)


def test_values_without_a_usual_range_need_one() -> None:
    values = np.linspace(-1, 1, 256, dtype=np.float32).reshape(16, 16)
    image = encoded(Image.fromarray(values), "TIFF")
    with pytest.raises(DecodeError, match="values from -1 to 1, which need --value-range LOW,HIGH"):
        decode_image(image, 16, 1)
    assert (decode_image(image, 16, 1, (-1, 1))[..., 0] == np.arange(256).reshape(16, 16)).all()
    values[0, 0] = np.nan
    for value_range in ((), (-1, 1)):
        with pytest.raises(DecodeError, match="^values from nan to nan"):
            decode_image(encoded(Image.fromarray(values), "TIFF"), 16, 1, value_range)
    large = encoded(Image.fromarray(np.full((16, 16), 70000, dtype=np.int32)), "TIFF")
    with pytest.raises(DecodeError, match="values from 70000 to 70000"):
        decode_image(large, 16, 1)


def test_a_value_range_without_effect_or_order_is_refused(tmp_path) -> None:
    flat_folder(tmp_path / "pets")
    with pytest.raises(FedBMError, match="value_range has no effect, because no image is grey with more than 8 bits"):
        load(tmp_path / "pets", size=16, cache=tmp_path / "cache", value_range=(0, 4095))
    for wrong, shown in (((5, 1), "5,1"), ((0, float("inf")), "0,inf")):
        with pytest.raises(FedBMError, match=f"value_range must be LOW,HIGH, such as 0,4095, not {shown}"):
            load(tmp_path / "pets", size=16, cache=tmp_path / "cache", value_range=wrong)


def test_a_value_range_is_kept_for_predictions(tmp_path) -> None:
    for name in ("cat", "dog"):
        (tmp_path / "ct" / name).mkdir(parents=True)
        for i in range(3):
            Image.fromarray(np.full((20, 20), 4000 - i, dtype=np.uint16)).save(tmp_path / "ct" / name / f"{i}.png")
    data = load(tmp_path / "ct", size=16, cache=tmp_path / "cache", value_range=(0, 4095))
    assert data.images[0, 0, 0, 0] == round(255 * 4000 / 4095)
    assert data.value_range == (0, 4095)


def test_only_the_first_page_of_a_tiff_is_used(tmp_path) -> None:
    flat_folder(tmp_path / "pets")
    pages = [Image.new("RGB", (16, 16), (shade,) * 3) for shade in (50, 60, 70)]
    pages[0].save(tmp_path / "pets" / "cat" / "stack.tif", save_all=True, append_images=pages[1:])
    data = load(tmp_path / "pets", size=16, cache=tmp_path / "cache")
    assert data.images[3, 0, 0, 0] == 50
    assert "TIFF files of which only the first page is used: 1" in data.notes


def test_nothing_waits_for_a_named_pipe(tmp_path) -> None:
    """Neither for one among the images nor for one in place of a data set."""
    pipe = tmp_path / "pipe.png"
    os.mkfifo(pipe)
    found: list[str] = []

    def read() -> None:
        for use in (lambda: decode_image(pipe, 16, 1), lambda: load(pipe, size=16)):
            with pytest.raises((DecodeError, FedBMError)) as error:
                use()
            found.append(str(error.value))

    thread = Thread(target=read, daemon=True)
    thread.start()
    thread.join(10)
    assert found == ["a named pipe, not a file", f"{pipe} is a named pipe: give a file or a folder"]
