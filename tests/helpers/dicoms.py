"""Small DICOM files for tests."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from pydicom.dataset import Dataset, FileDataset, FileMetaDataset
from pydicom.encaps import encapsulate
from pydicom.uid import UID, ExplicitVRLittleEndian, SecondaryCaptureImageStorage, generate_uid


def make_dicom(
    pixels: np.ndarray, *, bits: int | None = None, syntax: UID = ExplicitVRLittleEndian, **more: Any
) -> bytes:
    """Return a file with pixels [H,W], [H,W,3] or [frames,H,W]; *more* are further attributes."""
    meta = FileMetaDataset()
    meta.MediaStorageSOPClassUID = SecondaryCaptureImageStorage
    meta.MediaStorageSOPInstanceUID = generate_uid(entropy_srcs=["tests"])
    meta.TransferSyntaxUID = syntax
    file = FileDataset("", {}, file_meta=meta, preamble=b"\0" * 128)
    file.SOPClassUID, file.SOPInstanceUID = meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID
    colour = pixels.ndim == 3 and pixels.shape[2] == 3
    height, width = pixels.shape[:2] if colour else pixels.shape[-2:]
    file.Rows, file.Columns = height, width
    file.BitsAllocated = 8 * pixels.dtype.itemsize
    file.BitsStored = bits or file.BitsAllocated
    file.HighBit = file.BitsStored - 1
    file.PixelRepresentation = int(pixels.dtype.kind == "i")
    file.SamplesPerPixel = 3 if colour else 1
    file.PhotometricInterpretation = "RGB" if colour else "MONOCHROME2"
    if colour:
        file.PlanarConfiguration = 0
    elif pixels.ndim == 3:
        file.NumberOfFrames = len(pixels)
    file.PixelData = pixels.tobytes()
    for name, value in more.items():
        setattr(file, name, value)
    stream = io.BytesIO()
    file.save_as(stream, enforce_file_format=True)
    return stream.getvalue()


def compress(image: Image.Image, kind: str, **options: Any) -> bytes:
    """Return the image as the encapsulated pixel data of a DICOM file."""
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return encapsulate([stream.getvalue()])


def item(**values: Any) -> Dataset:
    """Return an item of a sequence."""
    made = Dataset()
    for name, value in values.items():
        setattr(made, name, value)
    return made


def dicom_folder(root: Path, per_class: int = 12, **more: Any) -> Path:
    """Write cat/IM0… and dog/IM0…, without file ending, two files of each patient: SECRET-cat-0, …"""
    for level, name in enumerate(("cat", "dog")):
        (root / name).mkdir(parents=True, exist_ok=True)
        for i in range(per_class):
            pixels = np.full((20, 20), 1000 * level + 100 + i, dtype=np.uint16)
            patient = {"PatientID": f"SECRET-{name}-{i // 2}", "PatientName": "SECRET^Name"}
            (root / name / f"IM{i}").write_bytes(make_dicom(pixels, bits=12, **patient, **more))
    return root
