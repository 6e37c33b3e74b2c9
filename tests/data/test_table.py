"""Tables of paths, labels and further columns."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from pictures import read_at, save, scan, shades

from fedbm.data.dataset import load
from fedbm.data.readers.dispatch import detect
from fedbm.errors import FedBMError

ROWS = [f"images/{i}.png,{('cat', 'dog')[i % 2]},{('train', 'val', 'test')[i // 2]},clinic {i % 3}" for i in range(6)]


def make(root: Path, lines: list[str] = ROWS, head: str = "path,label,split,site") -> Path:
    for i in range(6):
        save(root / "images" / f"{i}.png", i)
    table = root / "table.csv"
    table.write_text("\n".join([head, *lines]) + "\n", encoding="utf-8")
    return table


def without(*columns: int) -> list[str]:
    return [",".join(v for i, v in enumerate(row.split(",")) if i not in columns) for row in ROWS]


def test_a_table_is_read_with_its_split_and_columns(tmp_path) -> None:
    decoded = read_at(make(tmp_path))
    index = decoded.index
    assert index.classes == ("cat", "dog")
    assert index.labels.tolist() == [0, 1] * 3
    assert index.split.tolist() == [0, 0, 1, 1, 2, 2]
    assert index.ids == [f"images/{i}.png" for i in range(6)]
    assert {name: values.tolist() for name, values in index.columns.items()} == {
        "site": ["clinic 0", "clinic 1", "clinic 2"] * 2
    }
    assert shades(decoded) == list(range(6))


@pytest.mark.parametrize("delimiter", [";", "\t"])
def test_semicolons_tabs_quotes_and_a_byte_order_mark_are_accepted(tmp_path, delimiter) -> None:
    lines = [row.replace(",", delimiter).replace("cat", f'"cat{delimiter} grey"') for row in ROWS]
    table = make(tmp_path, ["", *lines, ""], delimiter.join(["\ufeffpath", "label", "split", "site"]))
    assert scan(table).classes == (f"cat{delimiter} grey", "dog")


def test_numeric_labels_are_sorted_by_value(tmp_path) -> None:
    lines = [row.replace("cat", "10").replace("dog", "9") for row in ROWS]
    assert scan(make(tmp_path, lines)).classes == ("9", "10")


def test_without_a_split_patients_are_kept_together(tmp_path) -> None:
    for i in range(20):
        save(tmp_path / f"{i}.png", i)
    lines = [f"{i}.png,{'cat' if i % 2 else 'dog'},{i // 2}" for i in range(20)]
    (tmp_path / "t.csv").write_text("\n".join(["path,label,patient_id", *lines]))
    data = load(tmp_path / "t.csv", size=16, cache=tmp_path / "cache")
    assert data.counts().tolist() == [[7, 7], [1, 1], [2, 2]]
    assert "each of the 10 values of patient_id is in one subset" in data.notes[-1]
    assert data.ids[3] == "3.png"
    assert data.columns["patient_id"].tolist() == [str(i // 2) for i in range(20)]


def test_missing_files_are_bad_files(tmp_path) -> None:
    table = make(tmp_path)
    (tmp_path / "images" / "2.png").unlink()
    with pytest.raises(FedBMError, match=r"1 of 6 images .* images/2.png \(No such file"):
        read_at(table)


@pytest.mark.parametrize(
    ("lines", "head", "sentence"),
    [
        (ROWS, "file,label,split,site", r"has no column path: it must contain the columns path and label"),
        (ROWS, "path,lable,split,site", r'has no column label \(did you mean "lable"\?\)'),
        (ROWS, "path,label,split,split", "must contain unique column names"),
        ([], "path,label", "has no rows"),
        ([*ROWS, "a.png,cat"], "path,label,split,site", r"row 7 of .* has 2 values for 4 columns \(a.png"),
        ([*ROWS, ROWS[0]], "path,label,split,site", 'contains the sample "images/0.png" twice'),
        ([*ROWS, "a.png,,train,x"], "path,label,split,site", "row 7 of .* has no label"),
        (
            [*ROWS, "a.png,cat,tarin,x"],
            "path,label,split,site",
            r'is "tarin" \(did you mean "train"\?\): it must be train',
        ),
        (
            [*ROWS, "a.png,cat,,x"],
            "path,label,split,site",
            r'the split of a.png in .* is "": it must be train, val or test',
        ),
        ([*ROWS, "a.png,cow,test,x"], "path,label,split,site", 'no training image of class "cow"'),
        (without(2, 3)[:4], "path,label", 'class "cat" of .* has 2 images'),
        ([row.replace("dog", "cat") for row in ROWS], "path,label,split,site", r"has 1 class \(cat\)"),
        ([*ROWS, 'a.png,"cat,train,x'], "path,label,split,site", "is not a valid CSV table"),
    ],
)
def test_wrong_tables_are_refused(tmp_path, lines, head, sentence) -> None:
    with pytest.raises(FedBMError, match=sentence) as caught:
        scan(make(tmp_path, lines, head))
    assert "\n" not in str(caught.value)


def test_a_table_in_another_encoding_is_refused(tmp_path) -> None:
    (tmp_path / "t.csv").write_bytes("path,label\nBär.png,cat".encode("latin-1"))
    with pytest.raises(FedBMError, match="is not UTF-8 text: save it as CSV in UTF-8"):
        detect(tmp_path / "t.csv")


def test_fingerprint_changes_with_the_table_and_the_images(tmp_path) -> None:
    first = detect(make(tmp_path)).fingerprint
    assert detect(tmp_path / "table.csv").fingerprint == first
    save(tmp_path / "images" / "0.png", 77, (21, 21))
    second = detect(tmp_path / "table.csv").fingerprint
    assert second != first
    (tmp_path / "table.csv").write_text((tmp_path / "table.csv").read_text().replace("clinic 0", "clinic 9"))
    assert detect(tmp_path / "table.csv").fingerprint != second


def test_parquet_needs_pyarrow(tmp_path, monkeypatch) -> None:
    make(tmp_path)
    (tmp_path / "table.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(FedBMError, match=r"table.parquet needs pyarrow: install it, or save .* CSV"):
        detect(tmp_path / "table.parquet")

    columns = {"path": [f"images/{i}.png" for i in range(6)], "label": [0, 1] * 3, "site": [None, *"abcde"]}
    fake = ModuleType("pyarrow.parquet")
    fake.read_table = lambda path: SimpleNamespace(to_pydict=lambda: columns)
    monkeypatch.setitem(sys.modules, "pyarrow", ModuleType("pyarrow"))
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", fake)
    index = scan(tmp_path / "table.parquet")
    assert index.classes == ("0", "1")
    assert index.columns["site"].tolist() == ["", *"abcde"]
