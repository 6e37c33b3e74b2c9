"""Read a CSV or Parquet table: samples from path,label[,split][,site][,patient…], or metadata to join to samples.

Paths are relative to the table. Every further column is kept.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedbm.data.readers.file_tree import file_stamp, normalize_name
from fedbm.data.readers.sample_index import SampleIndex, Source, check_distinct, encode_labels, text_array
from fedbm.data.splits import SPLIT_CODES, SPLITS
from fedbm.errors import FedBMError, did_you_mean, join_words
from fedbm.utils.io import digest_of

LAYOUT = "the columns path and label, and optionally split (train, val or test) and others such as site or patient"
ENDINGS = (".csv", ".tsv", ".parquet")

Table = Mapping[str, Sequence[str]]  # columns by name, all of one length

# Metadata names a sample exactly, without file ending, or without file ending and folders.
_SPELLINGS: tuple[Callable[[str], str], ...] = (
    lambda name: name,
    lambda name: str(PurePosixPath(name).with_suffix("")) if PurePosixPath(name).name else name,
    lambda name: PurePosixPath(name).stem,
)


def find(path: Path) -> Source:
    table = read_table(path)
    require_columns(table, ("path", "label"), str(path), f"it must contain {LAYOUT}")
    for name in ("path", "label"):
        if "" in table[name]:
            row = list(table[name]).index("") + 1
            raise FedBMError(f"row {row} of {path} has no {name}: fill it in, or remove the row")
    names = list(table["path"])
    check_distinct(names, str(path))
    classes, labels = encode_labels([normalize_name(label) for label in table["label"]])
    split = _read_split(path, table) if "split" in table else None
    files = [path.parent / name for name in names]
    columns = {key: text_array(values) for key, values in table.items() if key not in ("path", "label", "split")}
    index = SampleIndex(classes, labels, split, list(map(normalize_name, names)), lambda: enumerate(files), columns)
    stamps = [[name, *file_stamp(file)] for name, file in zip(names, files, strict=True)]
    return Source(digest_of({"table": {k: list(v) for k, v in table.items()}, "files": stamps}), lambda: index)


def join_metadata(path: Path, ids: Sequence[str]) -> dict[str, NDArray[np.str_]]:
    """Return the table's columns in the order of *ids*. One column must contain all ids, each exactly once."""
    table = read_table(path)
    most, problem = 0, f'no column of {path} contains the names of the samples, such as "{ids[0]}": add one'
    for key, values in table.items():
        for spell in _SPELLINGS:
            row_of = {spell(value): row for row, value in enumerate(values)}
            rows = [row_of.get(spell(sample), -1) for sample in ids]
            found = len(set(rows) - {-1})
            if found == len(ids):
                times = Counter(map(spell, values))
                if repeated := next((sample for sample in ids if times[spell(sample)] > 1), ""):
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
    try:
        return parse_table(path.read_bytes(), str(path))
    except OSError as error:
        raise FedBMError(f"cannot read {path}: {error.strerror}") from error


def parse_table(content: bytes, where: str) -> Table:
    """Parse CSV with commas, semicolons or tabs, whichever is most frequent in the first line."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FedBMError(f"{where} is not UTF-8 text: save it as CSV in UTF-8") from error
    delimiter = max(",;\t", key=text.partition("\n")[0].count)
    try:
        rows = [row for row in csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True) if any(row)]
    except csv.Error as error:
        raise FedBMError(f"{where} is not a valid CSV table: {error}") from error
    if len(rows) < 2:
        raise FedBMError(f"{where} has no rows: it needs a first line with column names and one line per image")
    heads = [head.strip() for head in rows[0]]
    if "" in heads or len(set(heads)) < len(heads):
        raise FedBMError(f"the first line of {where} must contain unique column names, not {', '.join(heads)}")
    for number, row in enumerate(rows[1:], start=1):
        if len(row) != len(heads):
            raise FedBMError(f"row {number} of {where} has {len(row)} values for {len(heads)} columns ({row[0]}, …)")
    return {head: [row[i].strip() for row in rows[1:]] for i, head in enumerate(heads)}


def require_columns(table: Table, names: Sequence[str], where: str, remedy: str) -> None:
    for name in names:
        if name not in table:
            raise FedBMError(f"{where} has no column {name}{did_you_mean(name, table)}: {remedy}")


def _read_parquet(path: Path) -> Table:
    columns: dict[str, list[Any]]
    try:
        columns = import_module("pyarrow.parquet").read_table(path).to_pydict()
    except ImportError as error:
        raise FedBMError(f"reading {path} needs pyarrow: install it, or save the table as CSV") from error
    except (OSError, ValueError) as error:  # pyarrow's errors are subclasses of these
        raise FedBMError(f"cannot read {path}: {str(error).splitlines()[0]}") from error
    if not any(columns.values()):
        raise FedBMError(f"{path} has no rows: it needs one per image")
    return {str(name): ["" if value is None else str(value) for value in values] for name, values in columns.items()}


def _read_split(path: Path, table: Table) -> NDArray[np.uint8]:
    for name, word in zip(table["path"], table["split"], strict=True):
        if word.lower() not in SPLIT_CODES:
            raise FedBMError(
                f'the split of {name} in {path} is "{word}"{did_you_mean(word.lower(), SPLIT_CODES)}: it must be '
                f"{join_words(SPLITS)}"
            )
    return np.array([SPLIT_CODES[word.lower()] for word in table["split"]], dtype=np.uint8)
