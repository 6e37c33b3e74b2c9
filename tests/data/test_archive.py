"""Zip and tar archives of image folders."""

from __future__ import annotations

import io
import tarfile
import zipfile
from pathlib import Path

import pytest
from pictures import FLAT, Members, cut_jpeg, make_zip, png, read_at, scan, shades

from fedbm.data.readers.dispatch import detect
from fedbm.errors import FedBMError


def make_tar(path: Path, members: Members) -> Path:
    with tarfile.open(
        path, {".gz": "w:gz", ".tgz": "w:gz", ".bz2": "w:bz2", ".xz": "w:xz"}.get(path.suffix, "w")
    ) as file:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            file.addfile(info, io.BytesIO(content))
    return path


def make(path: Path, members: Members) -> Path:
    return make_zip(path, members) if path.suffix == ".zip" else make_tar(path, members)


ENDINGS = [".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz"]


@pytest.mark.parametrize("ending", ENDINGS)
def test_an_archive_is_read_like_a_folder(tmp_path, ending) -> None:
    backwards = dict(reversed(FLAT.items()))  # not sorted
    decoded = read_at(make(tmp_path / f"pets{ending}", backwards))
    assert decoded.index.classes == ("cat", "dog")
    assert decoded.index.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert decoded.index.ids == list(FLAT)
    assert shades(decoded) == [0, 1, 2, 100, 101, 102]
    assert [path.name for path in tmp_path.iterdir()] == [f"pets{ending}"]  # nothing is unpacked


@pytest.mark.parametrize("ending", [".zip", ".tar.gz"])
def test_outer_folders_and_hidden_files_are_ignored(tmp_path, ending) -> None:
    sides = {f"OCT/data/{side}/{name}": content for side in ("train", "val", "test") for name, content in FLAT.items()}
    litter = {"OCT/readme.txt": b"about", "__MACOSX/OCT/._0.png": b"", "OCT/data/train/cat/.DS_Store": b"", ".x": b""}
    index = scan(make(tmp_path / f"pets{ending}", sides | litter))
    assert index.split.tolist() == [0] * 6 + [1] * 6 + [2] * 6
    assert index.ids[0] == "train/cat/0.png"


def test_backslashes_are_accepted(tmp_path) -> None:
    path = make_zip(tmp_path / "pets.zip", {"cat/": b"", **FLAT})
    path.write_bytes(path.read_bytes().replace(b"cat/", b"cat\\").replace(b"dog/", b"dog\\"))
    assert shades(read_at(path)) == [0, 1, 2, 100, 101, 102]


def zip_as_packed(path: Path, names: dict[str, bytes]) -> Path:
    """Write a zip of FLAT with these bytes as names and without the flag for UTF-8, as `zip -r` does."""
    make_zip(path, FLAT)
    content = path.read_bytes()
    for name, packed in names.items():
        content = content.replace(name.encode(), packed)
    path.write_bytes(content)
    return path


def test_utf8_names_are_read_without_the_flag(tmp_path) -> None:
    decoded = read_at(zip_as_packed(tmp_path / "pets.zip", {"cat/": "é1/".encode(), "dog/": "眼/".encode()}))
    assert decoded.index.classes == ("é1", "眼")
    assert shades(decoded) == [0, 1, 2, 100, 101, 102]


def test_other_names_are_read_as_cp437(tmp_path) -> None:
    decoded = read_at(zip_as_packed(tmp_path / "pets.zip", {"cat/": "caé/".encode("cp437")}))
    assert decoded.index.classes == ("caé", "dog")
    assert shades(decoded) == [0, 1, 2, 100, 101, 102]


@pytest.mark.parametrize("ending", [".zip", ".tar.gz"])
def test_bad_members_are_refused_or_skipped(tmp_path, ending) -> None:
    bad = {"cat/3.jpg": cut_jpeg(), "dog/letter": b"a letter", "dog/notes.txt": b"another"}
    path = make(tmp_path / f"pets{ending}", FLAT | bad)
    with pytest.raises(FedBMError, match=r"2 of 8 images .* the first is cat/3.jpg \(.*truncated"):
        read_at(path)
    decoded = read_at(path, on_bad_file="skip")
    assert decoded.index.notes[-1] == "skipped unreadable images: 2, the first is cat/3.jpg"
    assert shades(decoded) == [0, 1, 2, 100, 101, 102]


@pytest.mark.parametrize("ending", [".zip", ".tar.gz"])
def test_a_folder_inside_a_class_is_refused(tmp_path, ending) -> None:
    path = make(tmp_path / f"pets{ending}", FLAT | {"cat/more/4.png": png()})
    with pytest.raises(FedBMError, match=r"1 in deeper ones \(cat/more/4.png\): .* path,label,patient"):
        detect(path)


def test_a_corrupt_member_is_a_bad_file(tmp_path) -> None:
    path = make_zip(tmp_path / "pets.zip", FLAT)
    content = bytearray(path.read_bytes())
    content[content.index(b"cat/0.png") + 30] ^= 0xFF
    path.write_bytes(content)
    assert read_at(path, on_bad_file="skip").index.notes[-1].endswith(": 1, the first is cat/0.png")


@pytest.mark.parametrize("ending", ENDINGS)
def test_truncated_archives_are_refused(tmp_path, ending) -> None:
    whole = make(tmp_path / f"pets{ending}", {f"{name}{i}": b"" for name in FLAT for i in range(40)}).read_bytes()
    cut = tmp_path / f"cut{ending}"
    last = len(whole.rstrip(b"\0")) if ending == ".tar" else len(whole)  # a tar ends with empty blocks
    for length in [*range(1, last, last // 37), last - 1]:
        cut.write_bytes(whole[:length])
        with pytest.raises(FedBMError, match="has an unknown format, or it is damaged|cannot read .*get it again"):
            detect(cut)


def test_an_encrypted_archive_is_named_as_such(tmp_path) -> None:
    path = make_zip(tmp_path / "pets.zip", FLAT)
    content = path.read_bytes()
    place = content.index(b"PK\x01\x02") + 8  # the flags of the first member in the table of contents
    path.write_bytes(content[:place] + b"\x01" + content[place + 1 :])
    with pytest.raises(FedBMError, match="pets.zip is encrypted: unpack it, or create it without a password"):
        detect(path)


@pytest.mark.parametrize("ending", [".zip", ".tar"])
@pytest.mark.parametrize("name", ["../cat/9.png", "cat/../../9.png", "/cat/9.png", "..\\cat\\9.png", "C:\\cat\\9.png"])
def test_members_outside_of_the_archive_are_refused(tmp_path, ending, name) -> None:
    path = make(tmp_path / f"pets{ending}", FLAT | {name: png()})
    with pytest.raises(FedBMError, match="outside of the archive") as caught:
        detect(path)
    assert name in str(caught.value)


def test_links_in_archives_are_refused(tmp_path) -> None:
    path = make_tar(tmp_path / "pets.tar", FLAT)
    with tarfile.open(path, "a") as file:
        link = tarfile.TarInfo("cat/link.png")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        file.addfile(link)
    with pytest.raises(FedBMError, match='"cat/link.png" that is a link'):
        detect(path)
    path = make_zip(tmp_path / "pets.zip", FLAT)
    with zipfile.ZipFile(path, "a") as file:
        entry = zipfile.ZipInfo("cat/link.png")
        entry.external_attr = 0o120777 << 16
        file.writestr(entry, "/etc/passwd")
    with pytest.raises(FedBMError, match='"cat/link.png" that is a link'):
        detect(path)


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("ending", [".zip", ".tar"])
def test_repeated_names_are_refused(tmp_path, ending) -> None:
    path = make(tmp_path / f"pets{ending}", FLAT | {"./cat/0.png": png(7)})
    with pytest.raises(FedBMError, match='contains the sample "cat/0.png" twice'):
        detect(path)


@pytest.mark.parametrize("ending", [".zip", ".tar"])
def test_archives_without_classes_are_refused(tmp_path, ending) -> None:
    with pytest.raises(FedBMError, match="has 0 images in such folders"):
        detect(make(tmp_path / f"loose{ending}", {"1.png": png()}))
    with pytest.raises(FedBMError, match=r"has 1 class \(cat\)"):
        scan(make(tmp_path / f"one{ending}", {f"cat/{i}.png": png() for i in range(4)}))


@pytest.mark.parametrize("ending", [".zip", ".tar"])
def test_fingerprint_changes_with_the_content(tmp_path, ending) -> None:
    first = detect(make(tmp_path / f"pets{ending}", FLAT)).fingerprint
    assert detect(tmp_path / f"pets{ending}").fingerprint == first
    assert detect(make(tmp_path / f"pets{ending}", FLAT | {"cat/0.png": png(9)})).fingerprint != first
