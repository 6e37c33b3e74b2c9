"""Read DICOM files through pydicom: frames, patients and pixels.

Every frame of a file is a sample. Patients are numbered in the order of the files, so that a prepared copy contains
neither a PatientID nor a hash of one. No other personal attribute is read.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedbm.data.readers.file_tree import IMAGE_ENDINGS
from fedbm.data.readers.sample_index import Encoded, Frame, SampleIndex, load_bytes, text_array
from fedbm.data.splits import find_group_columns
from fedbm.errors import FedBMError

MISSING = 'reading it needs pydicom: pip install "fedbm[dicom]"'
_MAGIC = slice(128, 132)  # these bytes of a DICOM file are DICM


class _Header(NamedTuple):
    frames: int = 1
    patient: str = ""
    burnt: bool = False  # whether the file declares text in the image


def is_dicom(content: bytes | Path) -> bool:
    """Return whether a file is DICOM. Its name does not matter: many DICOM files have no ending."""
    if isinstance(content, bytes):
        return content[_MAGIC] == b"DICM"
    if content.is_fifo():  # reading it would wait for a program that writes to it
        raise OSError("a named pipe, not a file")
    with content.open("rb") as stream:
        return stream.read(_MAGIC.stop)[_MAGIC] == b"DICM"


def expand_frames(index: SampleIndex) -> SampleIndex:
    """Return the index with one sample per DICOM frame. Add a column of patients if there is none."""
    looks = [PurePosixPath(name).suffix.lower() not in IMAGE_ENDINGS for name in index.ids]
    headers: dict[int, _Header] = {}
    for i, encoded in index.stream() if any(looks) else ():
        if isinstance(encoded, np.ndarray | Frame):  # such sources have no files
            return index
        if looks[i] and (header := _read_header(encoded)):
            headers[i] = header
    if not headers:
        return index
    if find_spec("pydicom") is None:
        first = index.ids[min(headers)]
        raise FedBMError(f"{len(headers)} of {len(looks)} files are DICOM, the first is {first}: {MISSING}")
    found = [headers.get(i, _Header()) for i in range(len(looks))]
    counts = np.array([header.frames for header in found])
    file_of = np.repeat(np.arange(len(counts)), counts)
    start = np.cumsum(counts) - counts

    def stream() -> Iterator[tuple[int, Encoded | Frame]]:
        for i, encoded in index.stream():
            for k in range(counts[i]):
                assert not isinstance(encoded, Frame)
                yield int(start[i]) + k, Frame(encoded, k) if i in headers else encoded

    expanded = index.select(file_of)
    columns = dict(expanded.columns)
    if not any(name.lower().startswith("patient") for name in find_group_columns(columns)):
        patients = [header.patient or i for i, header in enumerate(found)]
        number_of = {patient: number for number, patient in enumerate(dict.fromkeys(patients), start=1)}
        columns["patient"] = text_array([number_of[patients[i]] for i in file_of])
    unknown, burnt = sum(not header.patient for header in headers.values()), sum(header.burnt for header in found)
    note = (
        f"{len(headers)} files are DICOM: {unknown} without PatientID (each counts as a patient), {(counts > 1).sum()} "
        f"with several frames (each is a sample), {burnt} with text in the image, which may name patients or give the "
        "label away"
    )
    return replace(
        expanded,
        ids=[
            index.ids[i] if counts[i] == 1 else f"{index.ids[i]}#{place - start[i] + 1}"
            for place, i in enumerate(file_of.tolist())
        ],
        stream=stream,
        columns=columns,
        notes=(*index.notes, note),
    )


def read_frame(
    content: bytes | Path, number: int | None, value_range: tuple[float, ...] = ()
) -> tuple[NDArray[Any], tuple[float, float] | None]:
    """Return the pixels of a frame, and for a grey image the values that become black and white.

    Grey values are rescaled as the file requires, for example to Hounsfield units. Black and white are *value_range*
    if it is given, otherwise the ends of the file's window, otherwise the range of its stored bits. Raise ValueError
    if the frame cannot be read.
    """
    if find_spec("pydicom") is None:
        raise ValueError(f"a DICOM file: {MISSING}")
    pixels = import_module("pydicom.pixels")
    file = import_module("pydicom").dcmread(content if isinstance(content, Path) else io.BytesIO(content))
    if number is None and int(file.get("NumberOfFrames") or 1) > 1:
        raise ValueError(f"a DICOM file with {file.NumberOfFrames} frames, but one image is expected")
    syntax = file.file_meta.TransferSyntaxUID
    if syntax.is_compressed and not pixels.get_decoder(syntax).is_available:
        raise ValueError(f'a DICOM file with {syntax.name}: pip install "pylibjpeg[all]"')
    array = np.asarray(pixels.pixel_array(file, index=number or 0))
    if file.PhotometricInterpretation == "PALETTE COLOR":
        array = pixels.apply_color_lut(array, file)
        return array >> (8 if array.dtype == np.uint16 else 0), None
    if array.ndim == 3:
        return array >> max(file.BitsStored - 8, 0), None
    for name in ("SharedFunctionalGroupsSequence", "PerFrameFunctionalGroupsSequence"):  # of files with many frames
        groups = file.get(name) or [{}]
        values = groups[min(number or 0, len(groups) - 1)]
        for key in ("PixelValueTransformationSequence", "FrameVOILUTSequence"):
            file.update(values[key].value[0] if key in values else {})
    array = pixels.apply_modality_lut(array, file)
    low = -(1 << (file.BitsStored - 1)) if file.PixelRepresentation else 0
    stored = np.array([low, low + (1 << file.BitsStored) - 1])
    lut = file.get("ModalityLUTSequence")
    if not value_range and file.get("VOILUTSequence"):
        lut, array = file.VOILUTSequence, np.rint(array).astype(np.int64)
    if not value_range:
        try:
            array = pixels.apply_voi_lut(array, file)  # the result of a window has the range of the stored bits
        except ValueError as error:  # such as a width of 0
            raise ValueError(f"{error}; --value-range LOW,HIGH replaces the window of the file") from error
    ends = pixels.apply_rescale(stored, file)
    if "WindowWidth" not in file:
        ends = np.sort(ends)  # the smallest value is black, also if the slope is negative; a window takes care of that
    black, white = value_range or ((0, 2 ** lut[0].LUTDescriptor[2] - 1) if lut else ends)
    return array, (white, black) if file.PhotometricInterpretation == "MONOCHROME1" else (black, white)


def _read_header(encoded: Encoded) -> _Header | None:
    """Return the header, or None if the file is not DICOM."""
    try:
        content = encoded if isinstance(encoded, Path) else load_bytes(encoded)
        if not is_dicom(content):
            return None
    except (OSError, FedBMError):  # a missing file or a corrupt member, reported when it is decoded
        return None
    try:
        stream = content if isinstance(content, Path) else io.BytesIO(content)
        tags = ["NumberOfFrames", "PatientID", "BurnedInAnnotation"]
        file = import_module("pydicom").dcmread(stream, stop_before_pixels=True, specific_tags=tags)
        burnt = str(file.get("BurnedInAnnotation") or "").upper() == "YES"
        frames = max(int(file.get("NumberOfFrames") or 1), 1)
        return _Header(frames, str(file.get("PatientID") or "").strip(), burnt)
    except Exception:  # a damaged file raises many kinds of errors, and is reported when it is decoded
        return _Header()
