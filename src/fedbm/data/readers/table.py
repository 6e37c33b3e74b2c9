"""Read a CSV, Parquet or Excel table: samples with paths, labels and further columns, or metadata to join to samples.

Paths are relative to the table, or they name files in a folder or archive. Every further column is kept.
"""

from __future__ import annotations

import csv
import io
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedbm.data.readers.file_tree import IMAGE_ENDINGS, FileTree, file_stamp, normalize_name
from fedbm.data.readers.sample_index import SampleIndex, Source, check_distinct, encode_labels, text_array
from fedbm.data.splits import SPLIT_CODES, parse_split
from fedbm.errors import FedBMError, did_you_mean, shorten_list
from fedbm.utils.io import digest_of

ENDINGS = (".csv", ".tsv", ".parquet", ".xlsx")
_PACKAGES = {".parquet": 'pyarrow: pip install "fedbm[parquet]"', ".xlsx": 'openpyxl: pip install "fedbm[excel]"'}
_IMAGE_ENDINGS = (*IMAGE_ENDINGS, ".dcm", ".dicom", ".ima")

Table = Mapping[str, Sequence[str]]  # columns by name, all of one length

# Names of columns in lower case, without blanks, _ and -. The first one wins over the others.
_USUAL = {
    "path": ("path", "image", "file", "filename", "filepath", "imageid", "imagename", "imagepath", "imagefile", "img"),
    "label": ("label", "labels", "class", "classname", "category", "target", "dx", "diagnosis"),
}
_BITS = {"0": False, "0.0": False, "1": True, "1.0": True, "false": False, "true": True}


def is_table(path: Path) -> bool:
    return path.suffix.lower() in ENDINGS and not path.is_dir()


def find(
    path: Path,
    path_column: str = "",
    label_column: str = "",
    images: FileTree | None = None,
    inner: Table | None = None,
) -> Source:
    """Return the samples that a table lists. Without *images*, paths are relative to the table.

    If no columns are given, those with usual names are used, or columns of 0 and 1 with one 1 in each row. *inner* is
    a table that *images* contains; of several files with the same name, it means the first.
    """
    table = read_table(path) if inner is None else inner
    path_key = _find_column(table, "path", path_column, path)
    label_keys, labels = _read_labels(table, label_column, path_key, path)
    split_key = next((key for key in table if _plain(key) == "split"), "")
    for key, values in ((path_key, table[path_key]), (label_keys[0], labels)):
        if "" in values:
            raise FedBMError(f"row {list(values).index('') + 1} of {path} has no {key}: fill it in, or remove the row")
    notes = []
    if (path_key, label_keys) != ("path", ["label"]):
        notes.append(f"{path.name}: the paths are in column {path_key}, the labels in {shorten_list(label_keys, 3)}")
    if images is None:
        names = _find_near_table(path, table[path_key])
        files = [path.parent / name for name in names]
        stamps = [[name, *file_stamp(file)] for name, file in zip(names, files, strict=True)]
    else:
        names = _find_in_tree(path, table[path_key], images, is_unique=inner is None)
        stamps = [[name, *images.files[name]] for name in names]
        if unused := len(set(images.images()) - set(names)):
            notes.append(f"files that are not used, because {path.name} has no row for them: {unused}")
    check_distinct(list(map(os.path.normpath, names)), str(path))
    classes, numbers = encode_labels([normalize_name(label) for label in labels])
    split = parse_split(table[split_key], str(path), SPLIT_CODES) if split_key else None
    used = (path_key, *label_keys, split_key)
    columns = {key: text_array(values) for key, values in table.items() if key not in used}
    index = SampleIndex(
        classes=classes,
        labels=numbers,
        split=split,
        ids=list(map(normalize_name, names)),
        stream=lambda: enumerate(files) if images is None else images.stream(names),
        columns=columns,
        notes=tuple(notes),
    )
    return Source(digest_of({"table": {k: list(v) for k, v in table.items()}, "files": stamps}), lambda: index)


def _plain(name: str) -> str:
    return re.sub(r"[\s_-]", "", name.lower())


def _find_column(table: Table, kind: str, given: str, where: Path) -> str:
    """Return the given column, or the only one with a usual name."""
    if given in table:
        return given
    usual = (_plain(given),) if given else _USUAL[kind]
    found = [name for name in table if _plain(name) == usual[0]] or [name for name in table if _plain(name) in usual]
    if len(found) != 1:
        raise FedBMError(
            f'{where} needs one column "{given or kind}"{did_you_mean(given or kind, table)}, but its columns are '
            f"{', '.join(table)}: name one by --{kind}-column"
        )
    return found[0]


def _read_labels(table: Table, given: str, path_key: str, where: Path) -> tuple[list[str], Sequence[str]]:
    """Return the columns of the labels, and the label of each row."""
    bits = [key for key, values in table.items() if key != path_key and _BITS.keys() >= set(map(str.lower, values))]
    if "," in given and given not in table:
        bits = [_find_column(table, "label", name.strip(), where) for name in given.split(",")]
    elif given or len(bits) < 2 or any(_plain(name) in _USUAL["label"] for name in table):
        key = _find_column(table, "label", given, where)
        return [key], table[key]
    labels = []
    for row, values in enumerate(zip(*(table[key] for key in bits), strict=True), start=1):
        ones = [key for key, value in zip(bits, values, strict=True) if _BITS.get(value.lower(), True)]
        if len(ones) != 1 or not _BITS.keys() >= set(map(str.lower, values)):
            raise FedBMError(
                f"row {row} of {where} must have one 1 and otherwise 0 in the columns {', '.join(bits)}: several "
                "labels per image are not supported; --label-column A,B,… names the columns"
            )
        labels += ones
    return bits, labels


def _find_near_table(path: Path, names: Sequence[str]) -> list[str]:
    """Return the paths as they are on disk. In the table they may have backslashes or no file ending."""

    @cache
    def endings(folder: Path) -> dict[str, list[str]]:
        of_stem = defaultdict(list)
        for stem, ending in map(os.path.splitext, os.listdir(folder) if folder.is_dir() else ()):
            if ending.lower() in _IMAGE_ENDINGS:
                of_stem[stem].append(ending)
        return of_stem

    found = []
    for name in names:
        if not (path.parent / name).exists():
            name = name.replace("\\", "/")
            file = path.parent / name
            # Of several files, such as an image and its mask, none is chosen.
            if not file.exists() and len(same := endings(file.parent).get(file.name, [])) == 1:
                name += same[0]
        found.append(name)
    if not any(os.path.lexists(path.parent / name) for name in found):
        raise FedBMError(
            f"none of the {len(found)} files in {path} exists, the first is {path.parent / found[0]}: paths are "
            f"relative to the table; for images in another folder use --data FOLDER --metadata {path.name} "
            "--label-column COLUMN"
        )
    return found


def _find_in_tree(path: Path, names: Sequence[str], images: FileTree, is_unique: bool) -> list[str]:
    """Return the file of each name. Without *is_unique*, it is the first of several."""
    files = images.images()
    matches = match_names(names, files)
    missing = [name for name, numbers in zip(names, matches, strict=True) if not numbers]
    if missing:
        raise FedBMError(
            f"{len(missing)} of the {len(names)} images in {path} are missing in {images.where}, the first is "
            f"{missing[0]}: add them, remove their rows, or name the column of file names by --path-column"
        )
    if is_unique and (several := [numbers for numbers in matches if len(numbers) > 1]):
        twice = " and ".join(files[number] for number in several[0])
        raise FedBMError(
            f"{path} names an image that is twice in {images.where}, {twice}: write folder and file ending"
        )
    return [files[numbers[0]] for numbers in matches]


def match_names(names: Sequence[str], files: Sequence[str]) -> list[list[int]]:
    """Return the numbers of the files that each name may mean.

    A name may have other folders in front than the path of the file, and another file ending or none. But
    if some names have the same folders as their files, all must: p3/1.jpg is not p4/1.jpg.
    """
    number_of, whole = defaultdict(list), defaultdict(list)
    for number, file in enumerate(files):
        whole[file].append(number)
        for form in _shorten(file):
            number_of[form].append(number)
    number_of |= whole  # the whole path wins
    found = [next((number_of[form] for form in _shorten(name) if form in number_of), []) for name in names]
    agreed = [
        [number for number in numbers if _has_same_folders(name, files[number])]
        for name, numbers in zip(names, found, strict=True)
    ]
    return agreed if any(agreed) else found


def _has_same_folders(name: str, file: str) -> bool:
    """Return whether the folders of one path are the last folders of the other."""
    first, second = (os.path.normpath(path.replace("\\", "/")).split("/")[-2::-1] for path in (name, file))
    return all(one == other for one, other in zip(first, second, strict=False))


def _shorten(path: str) -> Iterator[str]:
    """Yield a path with ever fewer folders in front, each time with and without the ending of an image."""
    *folders, name = path.replace("\\", "/").split("/")
    stem, ending = os.path.splitext(name)
    for start in range(len(folders) + 1):
        yield "/".join([*folders[start:], name])
        if ending.lower() in _IMAGE_ENDINGS:
            yield "/".join([*folders[start:], stem])


def join_metadata(path: Path, ids: Sequence[str]) -> dict[str, NDArray[np.str_]]:
    """Return the table's columns in the order of *ids*. One column must contain all ids, each exactly once."""
    table = read_table(path)
    most, problem = -1, ""
    for key, values in table.items():
        matches = match_names(ids, values)
        times = Counter(chain.from_iterable(matches))
        wrong = [sample for sample, rows in zip(ids, matches, strict=True) if [times[row] for row in rows] != [1]]
        if not wrong:
            rows = [rows[0] for rows in matches]
            return {name: text_array([some[row] for row in rows]) for name, some in table.items() if name != key}
        if len(ids) - len(wrong) > most:
            most = len(ids) - len(wrong)
            problem = f'the column {key} names {most} of the {len(ids)} samples exactly once, but not "{wrong[0]}"'
    raise FedBMError(f"no column of {path} names every sample exactly once: {problem}")


def read_table(path: Path) -> Table:
    """Return columns by name, every value as text and '' for a missing one."""
    ending = path.suffix.lower()
    if ending not in _PACKAGES:
        return parse_table(path.read_bytes(), str(path))
    try:
        rows = _read_parquet(path) if ending == ".parquet" else _read_excel(path)
    except ImportError as error:
        raise FedBMError(f"reading {path} needs {_PACKAGES[ending]}, or save it as CSV") from error
    except Exception as error:  # a damaged file raises many kinds of errors: BadZipFile, KeyError, ArrowInvalid, …
        raise FedBMError(f"cannot read {path}: {' '.join(str(error).split())}") from error
    return _arrange_rows(rows, str(path))


def parse_table(content: bytes, where: str) -> Table:
    """Parse CSV with commas, semicolons or tabs, whichever is most frequent in the names of the columns."""
    try:
        text = content.decode("utf-8-sig")
        if "\0" in text:  # UTF-16 without its mark, or a damaged file
            raise ValueError("null bytes")
    except ValueError as error:
        raise FedBMError(f"{where} is not UTF-8 text: save it as CSV in UTF-8") from error
    delimiter = max(",;\t", key=re.sub('"[^"]*"', "", text.lstrip("\r\n").partition("\n")[0]).count)
    try:
        rows = list(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True))
    except csv.Error as error:
        raise FedBMError(f"{where} is not a valid CSV table: {error}") from error
    return _arrange_rows(rows, where)


def _arrange_rows(rows: Sequence[Sequence[Any]], where: str) -> Table:
    """Return columns by name. The first row with values contains the names. Columns without a name are ignored."""
    heads, *texts = [row for row in ([_to_text(value) for value in row] for row in rows) if any(row)] or [[]]
    if not texts:
        raise FedBMError(f"{where} has no rows: it needs column names and one row per image")
    named = [head for head in heads if head]
    if len(set(named)) < len(named):
        raise FedBMError(f"{where} must contain unique column names, not {', '.join(named)}")
    for number, row in enumerate(texts, start=1):
        if len(row) != len(heads):
            raise FedBMError(f"row {number} of {where} has {len(row)} values for {len(heads)} columns ({row[0]}, …)")
    return {head: [row[i] for row in texts] for i, head in enumerate(heads) if head}


def _to_text(value: Any) -> str:
    """Return a value of any table as CSV contains it: '' for None and NaN, 1 for 1.0, and no spaces around a text."""
    if value is None or value != value:
        return ""
    return str(int(value) if isinstance(value, float) and value.is_integer() else value).strip()


def _read_parquet(path: Path) -> list[Sequence[Any]]:
    columns = import_module("pyarrow.parquet").read_table(path).to_pydict()
    return [list(columns), *zip(*columns.values(), strict=True)]


def _read_excel(path: Path) -> list[Sequence[Any]]:
    """Read the first sheet. If it does not state its width, rows end at their last cell."""
    sheet = import_module("openpyxl").load_workbook(path, read_only=True, data_only=True).worksheets[0]
    rows = list(sheet.iter_rows(values_only=True))
    return list(zip(*zip_longest(*rows), strict=True))
