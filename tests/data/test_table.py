"""Tables of paths, labels and further columns."""

from __future__ import annotations

import math
import re
import shutil
import sys
import zipfile
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from pictures import read_at, save, scan, shades

from fedbm.data.dataset import load
from fedbm.data.readers.dispatch import detect
from fedbm.data.readers.table import match_names
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


@pytest.mark.parametrize(
    "text",
    [
        "\n\npath;label\nimages/0.png;cat\n",
        'path;label;"age, sex, site"\nimages/0.png;cat;x\n',
        ",path,label\n0,images/0.png,cat\n",  # pandas writes its index without a name
        "path,label,,\nimages/0.png,cat,,\n",
    ],
)
def test_blank_lines_commas_in_names_and_columns_without_a_name(tmp_path, text) -> None:
    make(tmp_path)
    (tmp_path / "table.csv").write_text(text)
    index = detect(tmp_path / "table.csv").scan()
    assert (index.ids, index.classes, "" in index.columns) == (["images/0.png"], ("cat",), False)


def test_two_spellings_of_a_path_are_one_image(tmp_path) -> None:
    """Otherwise an image could be in train and in test."""
    with pytest.raises(FedBMError, match='contains the sample "images/0.png" twice'):
        scan(make(tmp_path, [*ROWS, f"./{ROWS[0].replace('train', 'test')}"]))


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
        (
            ROWS,
            "where,label,split,site",
            r'needs one column "path", but its columns are where, label, split, site: name one by --path-column',
        ),
        (ROWS, "path,lable,split,site", r'needs one column "label" \(did you mean "lable"\?\)'),
        (ROWS, "path,label,split,split", "must contain unique column names"),
        ([], "path,label", "has no rows"),
        ([*ROWS, "a.png,cat"], "path,label,split,site", r"row 7 of .* has 2 values for 4 columns \(a.png"),
        ([*ROWS, ROWS[0]], "path,label,split,site", 'contains the sample "images/0.png" twice'),
        ([*ROWS, "a.png,,train,x"], "path,label,split,site", "row 7 of .* has no label"),
        (
            [*ROWS, "a.png,cat,tarin,x"],
            "path,label,split,site",
            r'row 7 of .* has the split "tarin" \(did you mean "train"\?\), but it must be train',
        ),
        (
            [*ROWS, "a.png,cat,,x"],
            "path,label,split,site",
            r'row 7 of .* has the split "", but it must be train, val or test',
        ),
        ([*ROWS, "a.png,cow,test,x"], "path,label,split,site", 'no training image of class "cow"'),
        (without(2, 3)[:4], "path,label", 'too few images of class "cat": 2'),
        ([row.replace("dog", "cat") for row in ROWS], "path,label,split,site", r"has 1 class \(cat\)"),
        ([*ROWS, 'a.png,"cat,train,x'], "path,label,split,site", "is not a valid CSV table"),
    ],
)
def test_wrong_tables_are_refused(tmp_path, lines, head, sentence) -> None:
    with pytest.raises(FedBMError, match=sentence) as caught:
        scan(make(tmp_path, lines, head))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("name", "encoding"), [("Bär.png", "latin-1"), ("a.png", "utf-16"), ("a.png", "utf-16-le")])
def test_a_table_in_another_encoding_is_refused(tmp_path, name, encoding) -> None:
    (tmp_path / "t.csv").write_bytes(f"path,label\n{name},cat".encode(encoding))
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


def test_parquet_needs_pyarrow_and_is_read_like_csv(tmp_path, monkeypatch) -> None:
    make(tmp_path)
    (tmp_path / "table.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(
        FedBMError, match=r'table.parquet needs pyarrow: pip install "fedbm\[parquet\]", or save it as CSV'
    ):
        detect(tmp_path / "table.parquet")

    sites = [None, math.nan, " a ", "b", 1.0, 1.5]
    columns = {"path": [f"images/{i}.png" for i in range(6)], "label": [10.0, 9.0] * 3, " site ": sites}
    fake = ModuleType("pyarrow.parquet")
    fake.read_table = lambda path: SimpleNamespace(to_pydict=lambda: columns)
    monkeypatch.setitem(sys.modules, "pyarrow", ModuleType("pyarrow"))
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", fake)
    index = scan(tmp_path / "table.parquet")
    assert index.classes == ("9", "10")
    assert index.columns["site"].tolist() == ["", "", "a", "b", "1", "1.5"]


def test_names_with_dots_are_found_without_their_ending(tmp_path) -> None:
    """DICOM files are often named by identifiers such as 1.2.840.7."""
    for i in range(2):
        save(tmp_path / "scans" / "deep" / f"1.2.840.{i}.png", i)
        save(tmp_path / "bare" / "deep" / f"1.2.840.{i}.png", i).rename(tmp_path / "bare" / "deep" / f"1.2.840.{i}")
    (tmp_path / "t.csv").write_text("file,dx\n1.2.840.1,dog\n1.2.840.0,cat\n")
    for folder, ending in (("scans", ".png"), ("bare", "")):
        index = detect(tmp_path / folder, labels=tmp_path / "t.csv", label_column="dx").scan()
        assert index.ids == [f"deep/1.2.840.{i}{ending}" for i in (1, 0)]
    (tmp_path / "t.csv").write_text("file,dx\na.b,dog\n")
    save(tmp_path / "few" / "a.png")
    save(tmp_path / "few" / "a.b.png")
    assert detect(tmp_path / "few", labels=tmp_path / "t.csv", label_column="dx").scan().ids == ["a.b.png"]


@pytest.mark.parametrize(
    ("head", "options", "note"),
    [
        ("Path,LABEL,Split,site", {}, "table.csv: the paths are in column Path, the labels in LABEL"),
        ("image,dx,split,site", {}, "table.csv: the paths are in column image, the labels in dx"),
        ("File Name,Diagnosis,split,site", {}, "table.csv: the paths are in column File Name, the labels in Diagnosis"),
        ("where,what,split,site", {"path_column": "where", "label_column": "WHAT"}, "the labels in what"),
        ("path,class,split,label", {"label_column": "class"}, "the labels in class"),
    ],
)
def test_columns_are_recognised_or_named(tmp_path, head, options, note) -> None:
    index = detect(make(tmp_path, head=head), **options).scan()
    assert index.classes == ("cat", "dog")
    assert index.split.tolist() == [0, 0, 1, 1, 2, 2]
    assert list(index.columns) == [head.split(",")[3]]
    assert note in index.notes[0]


@pytest.mark.parametrize(
    ("head", "options", "sentence"),
    [
        (
            "path,dx,diagnosis,site",
            {},
            'needs one column "label", but its columns are path, dx, diagnosis, site: name one by --label-c',
        ),
        (
            "path,kind,split,site",
            {},
            'needs one column "label", but its columns are path, kind, split, site: name one by --l',
        ),
        (
            "path,label,split,site",
            {"label_column": "lable"},
            r'one column "lable" \(did you mean "label"\?\), but its columns',
        ),
        (
            "path,label,split,site",
            {"path_column": "image"},
            'needs one column "image", but its columns are path, label',
        ),
    ],
)
def test_ambiguous_and_unknown_columns_are_refused(tmp_path, head, options, sentence) -> None:
    with pytest.raises(FedBMError, match=sentence):
        detect(make(tmp_path, head=head), **options)


def test_windows_separators_and_missing_endings_are_understood(tmp_path) -> None:
    decoded = read_at(make(tmp_path, [row.replace("/", "\\") for row in ROWS]))
    assert decoded.index.ids == [f"images/{i}.png" for i in range(6)]
    assert shades(decoded) == list(range(6))
    (tmp_path / "images" / "0.txt").write_text("about 0.png")
    decoded = read_at(make(tmp_path, [row.replace(".png", "") for row in ROWS]))
    assert decoded.index.ids == [f"images/{i}.png" for i in range(6)]
    assert shades(decoded) == list(range(6))
    for i, ending in enumerate((".JPG", ".dicom", ".png", ".TIFF", ".dcm", ".bmp")):
        (tmp_path / "images" / f"{i}.png").rename(tmp_path / "images" / f"{i}{ending}")
    assert scan(tmp_path / "table.csv").ids[:2] == ["images/0.JPG", "images/1.dicom"]


def test_if_no_file_exists_the_error_says_where_they_were_looked_for(tmp_path) -> None:
    with pytest.raises(
        FedBMError, match=r"none of the 6 files in .*table.csv exists, the first is .*/elsewhere/0.png: .*"
    ):
        detect(make(tmp_path, [row.replace("images", "elsewhere") for row in ROWS]))


def test_one_hot_columns_are_labels(tmp_path) -> None:
    head = "image,cat,dog,cow,age"
    rows = [f"images/{i}.png,{float(i % 2 == 0)},{float(i % 2)},0.0,{40 + i}" for i in range(6)]
    index = scan(make(tmp_path, rows, head))
    assert index.classes == ("cat", "dog")
    assert index.labels.tolist() == [0, 1] * 3
    assert list(index.columns) == ["age"]
    with_sex = [f"{row},{i % 3 // 2}" for i, row in enumerate(rows)]
    with pytest.raises(
        FedBMError, match="row 3 of .* one 1 and otherwise 0 in the columns cat, dog, cow, sex: .* not supported"
    ):
        scan(make(tmp_path, with_sex, f"{head},sex"))
    index = detect(make(tmp_path, with_sex, f"{head},sex"), label_column="cat, dog").scan()
    assert (index.classes, list(index.columns)) == (("cat", "dog"), ["cow", "age", "sex"])
    as_words = [row.replace("1.0", "True").replace("0.0", "False") for row in rows]  # as pandas writes them
    assert detect(make(tmp_path, as_words, head), label_column="cat,dog").scan().labels.tolist() == [0, 1] * 3
    with pytest.raises(FedBMError, match="row 2 of .* must have one 1 and otherwise 0"):
        detect(make(tmp_path, rows, head), label_column="cat,cow")
    with pytest.raises(FedBMError, match="row 1 of .* must have one 1 and otherwise 0 in the columns cat, age"):
        detect(make(tmp_path, rows, head), label_column="cat,age")


@pytest.mark.parametrize("name", ["{i}.png", "{i}", "images/part {p}/{i}.png", ".\\images\\part {p}\\{i}"])
@pytest.mark.parametrize("archive", [False, True])
def test_labels_of_a_folder_may_be_in_another_file(tmp_path, name, archive) -> None:
    for i in range(30):
        save(tmp_path / "images" / f"part {i % 2}" / f"{i}.png", i)
    save(tmp_path / "images" / "unlabelled.png")
    (tmp_path / "images" / "notes.txt").write_text("about")
    if not archive:  # two links to a folder that contains them lead to endless paths
        for link in "xy":
            (tmp_path / "images" / link).symlink_to(tmp_path / "images")
    rows = [f"p{i // 3},{name.format(i=i, p=i % 2)},{('nv', 'mel')[i % 2]}" for i in reversed(range(30))]
    table = tmp_path / "labels.csv"
    table.write_text("\n".join(["patient,image_id,dx", *rows]))
    source = (
        shutil.make_archive(str(tmp_path / "images"), "zip", tmp_path / "images") if archive else tmp_path / "images"
    )
    data = load(source, size=16, metadata=table, label_column="dx", cache=tmp_path / "cache")
    assert data.classes == ("mel", "nv")
    assert data.ids[0] == "part 1/29.png"
    assert data.images[:, 0, 0, 0].tolist() == list(reversed(range(30)))
    assert data.labels.tolist() == [0, 1] * 15
    assert list(data.columns) == ["patient"]
    assert "files that are not used, because labels.csv has no row for them: 1" in data.notes


@pytest.mark.parametrize(
    ("rows", "options", "sentence"),
    [
        (["9,cat"], {}, r"1 of the 7 images in .*labels.csv are missing in .*images, the first is 9: add them"),
        (["0.png,cat"], {}, r'labels.csv contains the sample "0.png" twice'),
        (
            ["twice,cat"],
            {},
            r"names an image that is twice in .*images, a/twice.png and b/twice.png: write folder and file ending",
        ),
        ([], {"metadata": None}, "columns of a table, but .*images is not a table. Give .* as --metadata TABLE"),
    ],
)
def test_labels_that_do_not_fit_a_folder_are_refused(tmp_path, rows, options, sentence) -> None:
    make(tmp_path)
    for folder in "ab":
        save(tmp_path / "images" / folder / "twice.png")
    (tmp_path / "labels.csv").write_text("\n".join(["file,label", *(f"{i},{'ab'[i % 2]}" for i in range(6)), *rows]))
    options = {"metadata": tmp_path / "labels.csv", "label_column": "label", **options}
    with pytest.raises(FedBMError, match=sentence):
        load(tmp_path / "images", size=16, cache=tmp_path / "cache", **options)


def test_excel_tables_are_read(tmp_path, monkeypatch) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    make(tmp_path)
    book = openpyxl.Workbook()
    book.active["A3"] = ""  # the first two rows are empty
    for line in ["path,label,site,note", *(f"images/{i}.png,{i % 2},clinic {i},{i or ''}" for i in range(6))]:
        book.active.append([int(value) if value.isdecimal() else value or None for value in line.split(",")])
    book.active.append([None] * 6)
    book.save(tmp_path / "table.xlsx")
    decoded = read_at(tmp_path / "table.xlsx")
    assert shades(decoded) == list(range(6))
    assert decoded.index.classes == ("0", "1")
    assert decoded.index.columns["note"].tolist() == ["", *"12345"]
    (tmp_path / "broken.xlsx").write_bytes(b"PK")
    with pytest.raises(FedBMError, match="cannot read .*broken.xlsx: "):
        detect(tmp_path / "broken.xlsx")
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    with pytest.raises(FedBMError, match=r'table.xlsx needs openpyxl: pip install "fedbm\[excel\]", or save it as CSV'):
        detect(tmp_path / "table.xlsx")


def test_rows_of_a_sheet_that_does_not_state_its_size_may_end_anywhere(tmp_path) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    make(tmp_path)
    book = openpyxl.Workbook()
    for i, line in enumerate([("path", "label", "note"), *((f"images/{i}.png", i % 2) for i in range(6))]):
        book.active.append([*line, *["seen"] * (i == 3)])
    book.active["F2"].fill = openpyxl.styles.PatternFill("solid", fgColor="FF0000")  # an empty cell with a colour
    book.save(tmp_path / "stated.xlsx")
    with zipfile.ZipFile(tmp_path / "stated.xlsx") as stated, zipfile.ZipFile(tmp_path / "table.xlsx", "w") as table:
        for name in stated.namelist():
            table.writestr(name, re.sub(rb"<dimension[^>]*>", b"", stated.read(name)))
    decoded = read_at(tmp_path / "table.xlsx")
    assert shades(decoded) == list(range(6))
    assert decoded.index.columns["note"].tolist() == ["", "", "seen", "", "", ""]


def test_a_path_without_ending_that_fits_two_files_is_none_of_them(tmp_path) -> None:
    """Such as an image and its mask."""
    for name in ("a.jpg", "a.png", "b.png"):
        save(tmp_path / name)
    (tmp_path / "t.csv").write_text("path,label\na,x\nb,y\n")
    assert detect(tmp_path / "t.csv").scan().ids == ["a", "b.png"]


def test_an_image_of_another_folder_does_not_replace_a_missing_one() -> None:
    assert match_names(["p1/1.png", "p3/9.png"], ["p1/1.png", "p4/9.png"]) == [[0], []]
    assert match_names(["x/1.png", "x/9"], ["p1/1.png", "p4/9.png"]) == [[0], [1]]


def test_numbers_are_not_a_split_of_a_table(tmp_path) -> None:
    """They may be folds."""
    save(tmp_path / "a.png")
    (tmp_path / "t.csv").write_text("path,label,split\na.png,x,0\n")
    with pytest.raises(FedBMError, match='has the split "0", but it must be train, val or test$'):
        detect(tmp_path / "t.csv")
