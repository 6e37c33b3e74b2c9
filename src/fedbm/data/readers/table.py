"""Read samples from a CSV or Parquet table path,label[,split][,site][,patient…].

Paths are relative to the table. Every further column is kept.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedbm.data.readers.file_tree import file_stamp, normalize_name
from fedbm.data.readers.sample_index import SampleIndex, Source, check_distinct, encode_labels, make_stream, text_array
from fedbm.data.splits import SPLIT_CODES, SPLITS, check_usable
from fedbm.errors import FedBMError, did_you_mean, join_words
from fedbm.utils.io import digest_of

LAYOUT = "the columns path and label, and optionally split (train, val or test) and others such as site or patient"
ENDINGS = (".csv", ".tsv", ".parquet")

Table = Mapping[str, Sequence[str]]  # columns by name, all of one length


def find(path: Path) -> Source:
    table = read_table(path)
    for name in ("path", "label"):
        if name not in table:
            raise FedBMError(f"{path} has no column {name}{did_you_mean(name, table)}; it must contain {LAYOUT}")
    names = list(table["path"])
    _check_filled(path, table, "path")
    _check_filled(path, table, "label")
    check_distinct(names, str(path))
    classes, labels = encode_labels([normalize_name(label) for label in table["label"]])
    split = _read_split(path, table) if "split" in table else None
    check_usable(labels, split, classes, str(path))
    files = [path.parent / name for name in names]
    columns = {key: text_array(values) for key, values in table.items() if key not in ("path", "label", "split")}
    index = SampleIndex(classes, labels, split, list(map(normalize_name, names)), make_stream(files), columns)
    stamps = [[name, *file_stamp(file)] for name, file in zip(names, files, strict=True)]
    return Source(digest_of({"table": {k: list(v) for k, v in table.items()}, "files": stamps}), lambda: index)


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
    first = text.partition("\n")[0]
    delimiter = max(",;\t", key=first.count)
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


def _read_parquet(path: Path) -> Table:
    columns: dict[str, list[Any]]
    try:
        columns = import_module("pyarrow.parquet").read_table(path).to_pydict()
    except ImportError as error:
        raise FedBMError(f"reading {path} needs pyarrow: install it, or save the table as CSV") from error
    except (OSError, ValueError) as error:  # pyarrow's errors are subclasses of these
        raise FedBMError(f"cannot read {path}: {str(error).splitlines()[0]}") from error
    if not columns or not any(columns.values()):
        raise FedBMError(f"{path} has no rows: it needs one per image")
    return {str(name): ["" if value is None else str(value) for value in values] for name, values in columns.items()}


def _read_split(path: Path, table: Table) -> NDArray[np.uint8]:
    codes = []
    for name, word in zip(table["path"], table["split"], strict=True):
        if word.lower() not in SPLIT_CODES:
            raise FedBMError(
                f'the split of {name} in {path} is "{word}"{did_you_mean(word.lower(), SPLIT_CODES)}: it must be '
                f"{join_words(SPLITS)}"
            )
        codes.append(SPLIT_CODES[word.lower()])
    return np.array(codes, dtype=np.uint8)


def _check_filled(path: Path, table: Table, name: str) -> None:
    if "" in table[name]:
        row = list(table[name]).index("") + 1
        raise FedBMError(f"row {row} of {path} has no {name}: fill it in, or remove the row")
