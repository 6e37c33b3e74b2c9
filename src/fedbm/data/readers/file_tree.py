"""The files of a folder, a zip or a tar behind one interface. Archives are not unpacked.

Members of a zip are read one by one, in parallel. A tar may be compressed as a whole, so it is read from start to end
twice: to list its members, and to decode its images.
"""

from __future__ import annotations

import os
import stat
import tarfile
import unicodedata
import zipfile
import zlib
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from lzma import LZMAError
from pathlib import Path, PurePosixPath, PureWindowsPath

from fedbm.data.readers.sample_index import Encoded, check_distinct
from fedbm.errors import FedBMError

Stamp = tuple[int, int]  # two numbers that change when the file changes
Stream = Callable[[Sequence[str]], Iterator[tuple[int, Encoded]]]  # paths → files with positions, in the fastest order

IMAGE_ENDINGS = (".jpg", ".jpeg", ".png", ".tif", ".tiff", ".bmp", ".webp")
_IGNORED = {"thumbs.db", "ehthumbs.db", "desktop.ini", "__macosx", "@eadir"}  # written by file browsers and servers
# texts, documents and tables that people keep next to images
_DOCUMENTS = (
    *(".txt", ".md", ".rtf", ".pdf", ".doc", ".docx", ".csv", ".tsv", ".xls", ".xlsx", ".json", ".xml", ".html"),
    *(".yaml", ".yml", ".toml", ".ini", ".log", ".db", ".py", ".ipynb", "readme", "license", "dicomdir"),
)
# RuntimeError: a member of a zip is compressed by an unknown method.
_BROKEN = (OSError, EOFError, ValueError, RuntimeError, zlib.error, LZMAError, zipfile.BadZipFile, tarfile.TarError)


@dataclass(frozen=True)
class FileTree:
    """Visible files and folders. Paths begin at the root and have slashes."""

    where: str
    files: dict[str, Stamp]
    folders: set[str]
    stream: Stream

    def images(self) -> list[str]:
        """Return the files that may be images."""
        return sorted(path for path in self.files if not is_document(path))


def open_folder(root: Path) -> FileTree:
    """List a folder. Links are followed, unless they lead to a folder that contains them."""
    files: dict[str, Stamp] = {}
    folders: set[str] = set()

    def visit(folder: str, outer: frozenset[str]) -> None:
        place = os.path.realpath(root / folder)
        for name in filter(is_visible, os.listdir(place) if place not in outer else ()):
            path = f"{folder}/{name}" if folder else name
            if os.path.isdir(root / path):
                folders.add(path)
                visit(path, outer | {place})
            else:
                files[path] = file_stamp(root / path)

    visit("", frozenset())
    return FileTree(str(root), files, folders, lambda paths: ((i, root / path) for i, path in enumerate(paths)))


def open_zip(path: Path) -> FileTree:
    with explain_damage(path):
        try:  # many programs write UTF-8 without the flag for it
            archive = zipfile.ZipFile(path, metadata_encoding="utf-8")
        except UnicodeDecodeError:
            archive = zipfile.ZipFile(path)
    members: list[tuple[str, Stamp | None]] = []
    info_of = {}
    for info in archive.infolist():
        if info.flag_bits & 1:
            raise FedBMError(f"{path} is encrypted: unpack it, or create it without a password")
        inside = _check_member(path, info.filename, stat.S_ISLNK(info.external_attr >> 16))
        is_folder = info.filename.endswith(("/", "\\"))  # some programs write backslashes
        members.append((inside, None if is_folder else (info.file_size, info.CRC)))
        info_of[inside] = info

    def read(inside: str) -> bytes:
        with explain_damage(path):
            return archive.read(info_of[inside])

    return _make_tree(path, members, lambda paths: ((i, partial(read, inside)) for i, inside in enumerate(paths)))


def open_tar(path: Path) -> FileTree:
    changed = file_stamp(path)[1]  # the times inside may be the same in two versions of the archive
    members: list[tuple[str, Stamp | None]] = []
    name_of = {}
    for info, _ in _iterate_tar(path, wanted=()):
        inside = _check_member(path, info.name, not (info.isfile() or info.isdir()))
        members.append((inside, None if info.isdir() else (info.size, changed)))
        name_of[inside] = info.name

    def stream(paths: Sequence[str]) -> Iterator[tuple[int, Encoded]]:
        position_of = {name_of[inside]: i for i, inside in enumerate(paths)}
        for info, content in _iterate_tar(path, position_of):
            if info.name in position_of:
                yield position_of[info.name], content

    return _make_tree(path, members, stream)


def is_visible(name: str) -> bool:
    return not name.startswith(".") and name.lower() not in _IGNORED


def is_document(path: str) -> bool:
    """Return whether the name of a file shows that it is not an image."""
    return path.lower().endswith(_DOCUMENTS)


def normalize_name(name: str) -> str:
    """Return a name with composed accents, and with escapes for bytes that are not UTF-8."""
    return unicodedata.normalize("NFC", os.fsencode(name).decode("utf-8", "backslashreplace"))


def file_stamp(path: Path) -> Stamp:
    """Return length and modification time, which change when the file changes."""
    try:
        status = path.stat()
    except OSError:  # a broken or circular link, which is reported when it is decoded
        return (-1, -1)
    return (status.st_size, status.st_mtime_ns)


@contextmanager
def explain_damage(path: Path, remedy: str = "the file is damaged or incomplete, get it again") -> Iterator[None]:
    """Raise FedBMError for the errors with which the standard library reports a damaged archive."""
    try:
        yield
    except _BROKEN as error:
        raise FedBMError(f"cannot read {path}: {error}; {remedy}") from error


def _make_tree(path: Path, members: Sequence[tuple[str, Stamp | None]], stream: Stream) -> FileTree:
    """Return the visible members of an archive. Folders are members without a stamp, and those in paths of files.

    Archives often contain a single folder, or nested ones, around the others. The innermost of them is the root.
    """
    check_distinct([inside for inside, _ in members], str(path))
    members = [(inside, stamp) for inside, stamp in members if all(map(is_visible, inside.split("/")))]
    files = {inside: stamp for inside, stamp in members if stamp is not None}
    folders = {inside for inside, stamp in members if stamp is None}
    folders |= {str(parent) for inside in files for parent in PurePosixPath(inside).parents[:-1]}
    root = ""
    while (
        len(inner := [folder for folder in folders if folder.startswith(root) and "/" not in folder[len(root) :]]) == 1
    ):
        if not any(folder.startswith(f"{inner[0]}/") for folder in folders):
            break
        root = f"{inner[0]}/"
    return FileTree(
        str(path),
        {inside.removeprefix(root): stamp for inside, stamp in files.items() if inside.startswith(root)},
        {folder.removeprefix(root) for folder in folders if folder.startswith(root)},
        lambda paths: stream([root + inside for inside in paths]),
    )


def _check_member(path: Path, name: str, is_link: bool) -> str:
    """Return the path of a member in the archive. Refuse links and paths outside of the archive."""
    inside = PurePosixPath(name.replace("\\", "/"))
    if ".." in inside.parts or inside.is_absolute() or PureWindowsPath(name).drive:
        raise FedBMError(f'{path} has a member "{name}" outside of the archive: do not trust it, or create it again')
    if is_link:
        raise FedBMError(f'{path} has a member "{name}" that is a link or a special file: pack the files themselves')
    return str(inside)


def _iterate_tar(path: Path, wanted: Container[str]) -> Iterator[tuple[tarfile.TarInfo, bytes]]:
    """Yield every member, with its content if it is *wanted*, reading the whole archive once."""
    with explain_damage(path), tarfile.open(path) as tar:
        for info in tar:
            stream = tar.extractfile(info) if info.name in wanted else None
            yield info, stream.read() if stream else b""
        # tarfile does not notice a truncated file, in which the empty blocks after the members are missing.
        assert tar.fileobj is not None
        while tar.fileobj.read(1 << 20):
            pass
        if tar.fileobj.tell() < tar.offset + tarfile.BLOCKSIZE:
            raise EOFError("its end is missing")
