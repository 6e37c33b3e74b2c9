"""Read a CSV, Parquet or Excel table: samples with paths, labels and further columns, or metadata to join to samples.

Paths are relative to the table, or they name files in a folder or archive. Every further column is kept.
"""

from __future__ import annotations

import csv
import io
import os
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path, PurePosixPath
from posixpath import basename
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedbm.data.readers.file_tree import FileTree, file_stamp, is_document, list_files, normalize_name
from fedbm.data.readers.sample_index import SampleIndex, Source, check_distinct, encode_labels, text_array
from fedbm.data.splits import SPLIT_CODES, SPLITS
from fedbm.errors import FedBMError, did_you_mean, join_words
from fedbm.utils.io import digest_of
from fedbm.utils.text import format_count

ENDINGS = (".csv", ".tsv", ".parquet", ".xlsx")

Table = Mapping[str, Sequence[str]]  # columns by name, all of one length

# Names of columns in lower case, without blanks, _ and -. The first one wins over the others.
_USUAL = {
    "path": ("path", "image", "file", "filename", "filepath", "imageid", "imagename", "imagepath", "imagefile", "img"),
    "label": ("label", "labels", "class", "classname", "category", "target", "dx", "diagnosis"),
    "split": ("split",),
}
_BITS = {"0": False, "0.0": False, "1": True, "1.0": True}
_NAMED_BITS = {**_BITS, "false": False, "true": True}  # not if the user does not name the columns


def _remove_ending(name: str) -> str:
    return str(PurePosixPath(name).with_suffix("")) if PurePosixPath(name).name else name


def _stem(name: str) -> str:
    return PurePosixPath(name).stem


# A table names a file exactly, without its ending or with another one, and with or without its folders. What to do with
# the name of the file and with the name in the table, which may contain dots without having an ending: 1.2.840.7.
_SPELLINGS: tuple[tuple[Callable[[str], str], Callable[[str], str]], ...] = (
    (str, str),
    (_remove_ending, str),
    (_remove_ending, _remove_ending),
    (basename, basename),
    (_stem, basename),
    (_stem, _stem),
)


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
    if not path_key:
        raise FedBMError(_describe_missing(table, "path", path))
    label_keys, labels = _read_labels(table, label_column, path_key, path)
    split_key = _find_column(table, "split", "", path)
    for key, values in ((path_key, table[path_key]), (label_keys[0], labels)):
        if "" in values:
            raise FedBMError(f"row {list(values).index('') + 1} of {path} has no {key}: fill it in, or remove the row")
    notes = []
    if (path_key, label_keys) != ("path", ["label"]):
        shown = label_keys[0] if len(label_keys) == 1 else f"{label_keys[0]} … {label_keys[-1]}"
        notes.append(f"{path.name}: the paths are in column {path_key}, the labels in {shown}")
    if images is None:
        names = _find_near_table(path, table[path_key], f"--metadata {path.name} --label-column {label_keys[0]}")
        files = [path.parent / name for name in names]
        stamps = [[name, *file_stamp(file)] for name, file in zip(names, files, strict=True)]
    else:
        stamp_of = list_files(images)
        names = _find_in_tree(path, table[path_key], images.where, sorted(stamp_of), is_unique=inner is None)
        stamps = [[name, *stamp_of[name]] for name in names]
        if unused := len(stamp_of) - len(set(names)):
            notes.append(f"not used, because {path.name} has no row for them: {format_count(unused, 'file')}")
    check_distinct(list(map(os.path.normpath, names)), str(path))
    classes, numbers = encode_labels([normalize_name(label) for label in labels])
    split = _read_split(path, names, table[split_key]) if split_key else None
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


def _find_column(table: Table, kind: str, given: str, where: Path) -> str:
    """Return the given column, or the one with a usual name, or "" if there is none."""

    def plain(name: str) -> str:
        return re.sub(r"[\s_-]", "", name.lower())

    if given in table:
        return given
    usual = _USUAL[kind]
    for names in ((plain(given),),) if given else (usual[:1], usual):
        found = [name for name in table if plain(name) in names]
        if len(found) > 1 and kind in found:
            return kind
        if len(found) > 1:
            raise FedBMError(f"{where} has the columns {join_words(found, 'and')}: name one by --{kind}-column")
        if found:
            return found[0]
    if given:
        near = did_you_mean(given, table)
        raise FedBMError(f'{where} has no column "{given}"{near}: its columns are {join_words(table, "and")}')
    return ""


def _describe_missing(table: Table, kind: str, where: Path) -> str:
    return (
        f"{where} has no column {kind}{did_you_mean(kind, table)}: its columns are {join_words(table, 'and')}; "
        f"name one by --{kind}-column"
    )


def _read_labels(table: Table, given: str, path_key: str, where: Path) -> tuple[list[str], Sequence[str]]:
    """Return the columns of the labels, and the label of each row."""
    several = given.split(",") if "," in given and given not in table else []
    if not several and (key := _find_column(table, "label", given, where)):
        return [key], table[key]
    bits = [key for key, values in table.items() if key != path_key and _BITS.keys() >= set(values)]
    keys = [_find_column(table, "label", name.strip(), where) for name in several] or bits
    if len(keys) < 2:
        raise FedBMError(_describe_missing(table, "label", where))
    labels = []
    for row, values in enumerate(zip(*(table[key] for key in keys), strict=True), start=1):
        if not _NAMED_BITS.keys() >= {value.lower() for value in values}:
            raise FedBMError(f"row {row} of {where} has a value other than 0 and 1 in {join_words(keys, 'and')}")
        ones = [key for key, value in zip(keys, values, strict=True) if _NAMED_BITS[value.lower()]]
        if len(ones) != 1:
            raise FedBMError(
                f"row {row} of {where} has {len(ones)} labels in the columns {join_words(keys, 'and')}, but an image "
                "must have one: several labels per image are not supported; --label-column A,B,… names the columns"
            )
        labels += ones
    return keys, labels


def _find_near_table(path: Path, names: Sequence[str], other: str) -> list[str]:
    """Return the paths as they are on disk. In the table they may have backslashes or no file ending."""

    @cache
    def siblings(folder: Path) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for name in os.listdir(folder) if folder.is_dir() else ():
            if not is_document(name):
                found.setdefault(Path(name).stem, []).append(name)
        return found

    made = []
    for name in names:
        if not (path.parent / name).exists():
            name = name.replace("\\", "/")
            file = path.parent / name
            if not file.exists() and len(same := siblings(file.parent).get(file.name, [])) == 1:
                name += same[0].removeprefix(file.name)
        made.append(name)
    if not any(os.path.lexists(path.parent / name) for name in made):
        raise FedBMError(
            f"none of the {len(made)} files in {path} exists, the first is {path.parent / made[0]}: paths are relative "
            f"to the table; for images in another folder use --data FOLDER {other}"
        )
    return made


def _find_in_tree(path: Path, names: Sequence[str], where: str, files: Sequence[str], is_unique: bool) -> list[str]:
    """Return the file of each name. Names may start with the name of the folder, or omit folders and file ending."""
    top = f"{PurePosixPath(where).name}/"
    plain = [str(PurePosixPath(name.replace("\\", "/"))).removeprefix(top) for name in names]
    missing = list(names)
    for spell_file, spell in _SPELLINGS:
        places: dict[str, list[str]] = {}
        for file in files:
            places.setdefault(spell_file(file), []).append(file)
        rows = [places.get(spell(name), []) for name in plain]
        if is_unique and (twice := next((row for row in rows if len(row) > 1), [])):
            raise FedBMError(f"{path} names an image that is twice in {where}, {' and '.join(twice)}: write its folder")
        if all(rows):
            return [row[0] for row in rows]
        missing = min(missing, [name for name, row in zip(names, rows, strict=True) if not row], key=len)
    raise FedBMError(
        f"{len(missing)} of the {len(names)} images in {path} are missing in {where}, the first is {missing[0]}: add "
        "them, remove their rows, or name the column of file names by --path-column"
    )


def join_metadata(path: Path, ids: Sequence[str]) -> dict[str, NDArray[np.str_]]:
    """Return the table's columns in the order of *ids*. One column must contain all ids, each exactly once."""
    table = read_table(path)
    most, problem = 0, f'no column of {path} contains the names of the samples, such as "{ids[0]}": add one'
    for key, values in table.items():
        for spell_file, spell in _SPELLINGS:
            row_of = {spell(value): row for row, value in enumerate(values)}
            rows = [row_of.get(spell_file(sample), -1) for sample in ids]
            found = len(set(rows) - {-1})
            if found == len(ids):
                times = Counter(map(spell, values))
                if repeated := next((sample for sample in ids if times[spell_file(sample)] > 1), ""):
                    raise FedBMError(f'the column {key} of {path} contains "{repeated}" more than once: keep one row')
                return {name: text_array([some[row] for row in rows]) for name, some in table.items() if name != key}
            if found > most and -1 in rows:
                most = found
                problem = (
                    f"the column {key} of {path} contains {found} of the {len(ids)} samples, but not "
                    f'"{ids[rows.index(-1)]}": add the rest'
                )
    raise FedBMError(problem)


def read_table(path: Path) -> Table:
    """Return columns by name, every value as text and '' for a missing one."""
    if path.suffix.lower() == ".parquet":
        return _read_parquet(path)
    if path.suffix.lower() == ".xlsx":
        return _read_excel(path)
    try:
        return parse_table(path.read_bytes(), str(path))
    except OSError as error:
        raise FedBMError(f"cannot read {path}: {error.strerror}") from error


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


def _read_parquet(path: Path) -> Table:
    columns: dict[str, list[Any]]
    try:
        columns = import_module("pyarrow.parquet").read_table(path).to_pydict()
    except ImportError as error:
        raise FedBMError(f'reading {path} needs pyarrow: pip install "fedbm[parquet]", or save it as CSV') from error
    except (OSError, ValueError) as error:  # pyarrow's errors are subclasses of these
        raise FedBMError(f"cannot read {path}: {str(error).splitlines()[0]}") from error
    return _arrange_rows([list(columns), *zip(*columns.values(), strict=True)], str(path))


def _read_excel(path: Path) -> Table:
    """Read the first sheet."""
    try:
        sheet = import_module("openpyxl").load_workbook(path, read_only=True, data_only=True).worksheets[0]
        rows = list(sheet.iter_rows(values_only=True))
    except ImportError as error:
        raise FedBMError(f'reading {path} needs openpyxl: pip install "fedbm[excel]", or save it as CSV') from error
    except Exception as error:  # a damaged workbook raises many kinds of errors: BadZipFile, KeyError, ParseError, …
        raise FedBMError(f"cannot read {path}: {error}") from error
    width = max(map(len, rows), default=0)  # of a sheet that does not state it, rows end at their last cell
    return _arrange_rows([[*row, *[None] * (width - len(row))] for row in rows], str(path))


def _read_split(path: Path, names: Sequence[str], words: Sequence[str]) -> NDArray[np.uint8]:
    for name, word in zip(names, words, strict=True):
        if word.lower() not in SPLIT_CODES:
            raise FedBMError(
                f'the split of {name} in {path} is "{word}"{did_you_mean(word.lower(), SPLIT_CODES)}: it must be '
                f"{join_words(SPLITS)}"
            )
    return np.array([SPLIT_CODES[word.lower()] for word in words], dtype=np.uint8)
