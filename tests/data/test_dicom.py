"""DICOM files: pixels against values computed by hand, frames, patients, and what is missing."""

from __future__ import annotations

import sys
import zipfile

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("pydicom")

from dicoms import compress, dicom_folder, item, make_dicom
from pictures import encoded, make_zip, save
from pydicom.encaps import encapsulate
from pydicom.uid import JPEG2000Lossless, JPEGBaseline8Bit, JPEGLSLossless, RLELossless

from fedbm.data.dataset import load
from fedbm.data.decode import DecodeError, decode_image
from fedbm.data.readers.sample_index import Frame
from fedbm.data.splits import find_shared_groups
from fedbm.errors import FedBMError

RAMP = np.arange(256, dtype=np.uint16).reshape(16, 16) * 16  # 0, 16, … 4080


def grey(content: bytes, value_range=()) -> np.ndarray:
    return decode_image(content, 16, 1, value_range)[..., 0]


def scaled(values: np.ndarray, low: float, high: float) -> np.ndarray:
    return np.rint(255 * np.clip((values.astype(float) - low) / (high - low), 0, 1))


def test_twelve_bits_are_scaled_by_the_range_of_the_stored_bits() -> None:
    assert (grey(make_dicom(RAMP, bits=12)) == scaled(RAMP, 0, 4095)).all()
    assert len(np.unique(grey(make_dicom(RAMP, bits=12)))) == 255


def test_the_first_window_of_the_file_is_used() -> None:
    """A linear window of width w around c has the ends c - 0.5 ± (w - 1)/2 (DICOM PS3.3, C.11.2.1.2.1)."""
    content = make_dicom(RAMP, bits=12, WindowCenter=[1000, 9], WindowWidth=[801, 9])
    assert np.abs(grey(content) - scaled(RAMP, 599.5, 1399.5)).max() <= 1
    exact = make_dicom(RAMP, bits=12, WindowCenter=1000, WindowWidth=800, VOILUTFunction="LINEAR_EXACT")
    assert np.abs(grey(exact) - scaled(RAMP, 600, 1400)).max() <= 1


def test_values_are_rescaled_before_the_window() -> None:
    signed = RAMP.astype(np.int16) - 2000
    more = {"RescaleSlope": 2, "RescaleIntercept": -100}
    units = 2.0 * signed - 100
    content = make_dicom(signed, bits=13, WindowCenter=-600, WindowWidth=1501, **more)
    assert np.abs(grey(content) - scaled(units, -1350.5, 149.5)).max() <= 1
    assert (grey(content, (-1000, 0)) == scaled(units, -1000, 0)).all()
    assert (grey(make_dicom(signed, bits=13, **more)) == scaled(units, 2 * -4096 - 100, 2 * 4095 - 100)).all()


@pytest.mark.parametrize("more", [{}, {"WindowCenter": -2047.5, "WindowWidth": 4096}])
def test_the_smallest_value_is_black_if_the_slope_is_negative(more) -> None:
    content = make_dicom(RAMP, bits=12, RescaleSlope=-1, RescaleIntercept=0, **more)
    found, expected = (image.astype(int) for image in (grey(content), scaled(-RAMP.astype(int), -4095, 0)))
    assert np.abs(found - expected).max() <= 1


def test_an_invalid_window_can_be_replaced() -> None:
    content = make_dicom(RAMP, bits=12, WindowCenter=10, WindowWidth=0)
    with pytest.raises(DecodeError, match="Window Width must be .*; --value-range LOW,HIGH replaces the window"):
        grey(content)
    assert (grey(content, (0, 2000)) == scaled(RAMP, 0, 2000)).all()


def test_monochrome1_is_inverted() -> None:
    content = make_dicom(RAMP, bits=12, PhotometricInterpretation="MONOCHROME1")
    assert (grey(content) == 255 - scaled(RAMP, 0, 4095)).all()
    assert (grey(content, (0, 2000)) == scaled(-RAMP.astype(int), -2000, 0)).all()


def test_a_lookup_table_of_values_is_applied() -> None:
    table = item(LUTDescriptor=[4096, 0, 16], LUTData=(np.arange(4096, dtype=np.uint16)[::-1] * 16).tobytes())
    content = make_dicom(RAMP, bits=12, VOILUTSequence=[table])
    assert (grey(content) == scaled(16 * (4095 - RAMP.astype(int)), 0, 65535)).all()


def test_colours_are_read() -> None:
    rgb = np.random.default_rng(0).integers(0, 256, (16, 16, 3), dtype=np.uint8)
    assert (decode_image(make_dicom(rgb), 16, 3) == rgb).all()
    ybr = np.asarray(Image.fromarray(rgb).convert("YCbCr"))
    found = decode_image(make_dicom(ybr, PhotometricInterpretation="YBR_FULL"), 16, 3)
    assert np.abs(found.astype(int) - rgb).max() <= 3
    levels = (RAMP // 16).astype(np.uint8)
    palette = {f"{name}PaletteColorLookupTableDescriptor": [256, 0, 16] for name in ("Red", "Green", "Blue")}
    for factor, name in ((256, "Red"), (128, "Green"), (0, "Blue")):
        palette[f"{name}PaletteColorLookupTableData"] = (np.arange(256, dtype=np.uint16) * factor).tobytes()
    found = decode_image(make_dicom(levels, PhotometricInterpretation="PALETTE COLOR", **palette), 16, 3)
    assert (found[..., 0] == levels).all()
    assert (found[..., 1] == levels // 2).all()
    assert found[..., 2].max() == 0


def test_compressed_files_are_read_if_pillow_or_pydicom_can(tmp_path) -> None:
    smooth = Image.fromarray((RAMP // 16).astype(np.uint8))
    pixels = np.asarray(smooth)
    jpeg = compress(smooth, "JPEG", quality=95)
    assert np.abs(grey(make_dicom(pixels, syntax=JPEGBaseline8Bit, PixelData=jpeg)).astype(int) - pixels).max() < 12
    lossless = compress(smooth, "JPEG2000", no_jp2=True)
    assert (grey(make_dicom(pixels, syntax=JPEG2000Lossless, PixelData=lossless)) == pixels).all()
    from pydicom import dcmread

    (tmp_path / "plain").write_bytes(make_dicom(RAMP, bits=12))
    file = dcmread(tmp_path / "plain")
    file.compress(RLELossless)
    file.save_as(tmp_path / "rle")
    assert (decode_image(tmp_path / "rle", 16, 1)[..., 0] == scaled(RAMP, 0, 4095)).all()
    with pytest.raises(DecodeError, match=r'a DICOM file with JPEG-LS Lossless .*: pip install "pylibjpeg\[all\]"'):
        grey(make_dicom(pixels, syntax=JPEGLSLossless, PixelData=jpeg))


def test_every_frame_is_a_sample_with_the_values_of_its_own_group(tmp_path) -> None:
    frames = np.stack([RAMP, RAMP // 2])
    window = [item(FrameVOILUTSequence=[item(WindowCenter=c, WindowWidth=201)]) for c in (500, 1000)]
    shared = [item(PixelValueTransformationSequence=[item(RescaleSlope=1, RescaleIntercept=100)])]
    groups = {"PerFrameFunctionalGroupsSequence": window, "SharedFunctionalGroupsSequence": shared}
    content = make_dicom(frames, bits=12, **groups)
    for number, centre in enumerate((500, 1000)):
        found = decode_image(Frame(content, number), 16, 1)[..., 0]
        assert np.abs(found - scaled(frames[number] + 100.0, centre - 100.5, centre + 99.5)).max() <= 1
    with pytest.raises(DecodeError, match="a DICOM file with 2 frames, but one image is expected"):
        grey(content)


def test_a_folder_of_dicom_files_is_split_by_patient_and_its_copy_contains_no_patient_id(tmp_path) -> None:
    data = load(dicom_folder(tmp_path / "clinic"), size=16, cache=tmp_path / "cache")
    assert data.columns["patient"].tolist() == [str(1 + i // 2) for i in range(24)]
    assert find_shared_groups(data.split, data.columns["patient"]) == []
    assert data.notes[1].startswith("24 files are DICOM: 0 without PatientID")
    assert data.images[0, 0, 0, 0] == round(255 * 100 / 4095)
    copies = [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    assert len(copies) > 4
    assert not any(b"SECRET" in path.read_bytes().replace(b"\0", b"") for path in copies)


def test_frames_of_a_file_stay_together(tmp_path) -> None:
    """Without PatientID a file is a patient of its own."""
    for name in ("cat", "dog"):
        (tmp_path / "clinic" / name).mkdir(parents=True)
        for i in range(6):
            frames = np.stack([np.full((20, 20), 10 * i + k, dtype=np.uint8) for k in range(1 + i % 3)])
            content = make_dicom(frames, BurnedInAnnotation="YES" if i == 0 else "NO")
            (tmp_path / "clinic" / name / f"{i}.dcm").write_bytes(content)
    save(tmp_path / "clinic" / "dog" / "9.png", 255)
    (tmp_path / "clinic" / "dog" / "DICOMDIR").write_bytes(b"\0" * 128 + b"DICM")
    data = load(tmp_path / "clinic", size=16, cache=tmp_path / "cache")
    assert data.ids[:4].tolist() == ["cat/0.dcm", "cat/1.dcm#1", "cat/1.dcm#2", "cat/2.dcm#1"]
    assert data.images[:6, 0, 0, 0].tolist() == [0, 10, 11, 20, 21, 22]
    assert data.ids[-1] == "dog/9.png"
    assert len(data.labels) == 25
    files = np.array([name.partition("#")[0] for name in data.ids])
    assert find_shared_groups(data.split, files) == []
    assert data.notes[2] == (
        "12 files are DICOM: 12 without PatientID (each counts as a patient), 8 with several frames (each is a "
        "sample), 2 with text in the image, which may name patients or give the label away"
    )
    separated = load(tmp_path / "clinic", size=16, cache=tmp_path / "cache", split="stratified")
    assert "values of patient are in more than one of train, val and test" in separated.notes[-1]


def test_a_table_of_dicom_files_keeps_its_own_patients(tmp_path) -> None:
    dicom_folder(tmp_path)
    rows = [f"{name}/IM{i},{name},{i}" for name in ("cat", "dog") for i in range(12)]
    (tmp_path / "table.csv").write_text("\n".join(["path,label,Patient ID", *rows]))
    data = load(tmp_path / "table.csv", size=16, cache=tmp_path / "cache")
    assert list(data.columns) == ["Patient ID"]
    assert len(set(data.columns["Patient ID"])) == 12


def test_metadata_names_files_not_frames(tmp_path) -> None:
    root = dicom_folder(tmp_path / "clinic")
    (root / "cat" / "IM0").write_bytes(make_dicom(np.zeros((3, 20, 20), np.uint8), PatientID="x"))
    rows = [f"{name}/IM{i},site {i % 2}" for name in ("cat", "dog") for i in range(12)]
    (tmp_path / "about.csv").write_text("\n".join(["file,site", *rows]))
    data = load(root, size=16, metadata=tmp_path / "about.csv", cache=tmp_path / "cache")
    assert data.columns["site"][:4].tolist() == ["site 0"] * 3 + ["site 1"]


@pytest.mark.parametrize("on_bad_file", ["refuse", "skip"])
def test_without_pydicom_the_error_says_what_to_install(tmp_path, monkeypatch, on_bad_file) -> None:
    save(dicom_folder(tmp_path / "clinic") / "dog" / "1.png")
    monkeypatch.setitem(sys.modules, "pydicom", None)
    sentence = r'24 of 25 files are DICOM, the first is cat/IM0: reading it needs pydicom: pip install "fedbm\[dicom\]"'
    with pytest.raises(FedBMError, match=sentence):
        load(tmp_path / "clinic", size=16, cache=tmp_path / "cache", on_bad_file=on_bad_file)
    with pytest.raises(DecodeError, match="a DICOM file: reading it needs pydicom"):
        decode_image(tmp_path / "clinic" / "cat" / "IM0", 16, 1)


def test_a_damaged_dicom_file_is_a_bad_file(tmp_path) -> None:
    root = dicom_folder(tmp_path / "clinic")
    (root / "cat" / "IM3").write_bytes((root / "cat" / "IM3").read_bytes()[:-300])
    with pytest.raises(FedBMError, match=r"1 of 24 images cannot be read, the first is cat/IM3 \("):
        load(root, size=16, cache=tmp_path / "cache")
    assert len(load(root, size=16, cache=tmp_path / "cache", on_bad_file="skip").labels) == 23


def test_dicom_files_in_an_archive_are_read(tmp_path) -> None:
    root = dicom_folder(tmp_path / "clinic")
    members = {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("IM*"))}
    data = load(make_zip(tmp_path / "clinic.zip", members), size=16, cache=tmp_path / "cache")
    assert (data.images == load(root, size=16, cache=tmp_path / "cache").images).all()
    assert len(set(data.columns["patient"])) == 12
    archive = tmp_path / "clinic.zip"
    content = archive.read_bytes()
    with zipfile.ZipFile(archive) as file:
        at = file.getinfo("dog/IM5").header_offset + 60
    archive.write_bytes(content[:at] + b"????????" + content[at + 8 :])
    with pytest.raises(FedBMError, match=r"1 of 24 images cannot be read, the first is dog/IM5 \("):
        load(archive, size=16, cache=tmp_path / "new cache")


def test_an_image_that_ends_in_dcm_is_an_image(tmp_path) -> None:
    (tmp_path / "x.dcm").write_bytes(encoded(Image.new("L", (16, 16), 7)))
    assert (decode_image(tmp_path / "x.dcm", 16, 1) == 7).all()


def test_an_error_of_pydicom_is_one_line() -> None:
    with pytest.raises(DecodeError) as caught:
        grey(make_dicom(np.zeros((16, 16), np.uint8), syntax=JPEGBaseline8Bit, PixelData=encapsulate([b"not a JPEG"])))
    assert "\n" not in str(caught.value)
