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
Entries = dict[str, Stamp | None]  # path from the root with slashes → stamp of a file, None for a folder

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
    where: str
    entries: Callable[[str], Entries]  # folder ('' is the root) → its visible files and folders, sorted by name
    stream: Callable[[Sequence[str]], Iterator[tuple[int, Encoded]]]  # paths → files with positions, fastest order

    def folders(self, folder: str) -> list[str]:
        return [path for path, stamp in self.entries(folder).items() if stamp is None]

    def files(self, folder: str) -> list[str]:
        return [path for path, stamp in self.entries(folder).items() if stamp is not None]


def open_folder(root: Path) -> FileTree:
    def entries(folder: str) -> Entries:
        place = root / folder
        try:
            names = sorted(filter(is_visible, os.listdir(place)))
        except OSError as error:
            raise FedBMError(f"cannot list {place}: {error.strerror}") from error
        return {
            f"{folder}/{name}" if folder else name: None if os.path.isdir(place / name) else file_stamp(place / name)
            for name in names
        }

    return FileTree(str(root), entries, lambda paths: ((i, root / path) for i, path in enumerate(paths)))


def open_zip(path: Path) -> FileTree:
    with explain_damage(path):
        archive = zipfile.ZipFile(path)
    members: list[tuple[str, Stamp | None]] = []
    name_of = {}
    for info in archive.infolist():
        if info.flag_bits & 1:
            raise FedBMError(f"{path} is encrypted: unpack it, or create it without a password")
        inside = _check_member(path, _decode_name(info), stat.S_ISLNK(info.external_attr >> 16))
        is_folder = info.filename.endswith(("/", "\\"))  # some programs write backslashes
        members.append((inside, None if is_folder else (info.file_size, info.CRC)))
        name_of[inside] = info.filename

    def read(inside: str) -> bytes:
        with explain_damage(path):
            return archive.read(name_of[inside])

    entries = _arrange_members(str(path), members)
    return FileTree(str(path), entries, lambda paths: ((i, partial(read, inside)) for i, inside in enumerate(paths)))


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

    return FileTree(str(path), _arrange_members(str(path), members), stream)


def find_image_root(tree: FileTree) -> str:
    """Return the folder of the images, since archives often contain a single folder, or nested ones, around them."""
    root = ""
    while len(inside := tree.folders(root)) == 1 and tree.folders(inside[0]):
        root = inside[0]
    return root


def list_files(tree: FileTree, folder: str = "", outer: frozenset[str] = frozenset()) -> dict[str, Stamp]:
    """Return all files under a folder that may be images.

    Links are followed, unless they lead to one of the folders that contain them (*outer*).
    """
    place = os.path.realpath(os.path.join(tree.where, folder))
    files: dict[str, Stamp] = {}
    for path, stamp in tree.entries(folder).items() if place not in outer else ():
        if stamp is None:
            files |= list_files(tree, path, outer | {place})
        elif not is_document(path):
            files[path] = stamp
    return files


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


def _arrange_members(where: str, members: Sequence[tuple[str, Stamp | None]]) -> Callable[[str], Entries]:
    """Arrange the members of an archive by folder. Folders that are not members follow from the paths of files."""
    check_distinct([path for path, _ in members], where)
    inside: dict[str, Entries] = {}
    for path, stamp in members:
        while path:
            folder = path.rpartition("/")[0]
            if (inside.setdefault(folder, {}).setdefault(path, stamp) is None) != (stamp is None):
                raise FedBMError(f'"{path}" in {where} is both a file and a folder: create the archive again')
            path, stamp = folder, None
    return lambda folder: {
        path: stamp for path, stamp in sorted(inside.get(folder, {}).items()) if is_visible(path.rpartition("/")[2])
    }


def _decode_name(info: zipfile.ZipInfo) -> str:
    """Return the intended name of a member: many programs write UTF-8 without setting its flag (0x800)."""
    if info.flag_bits & 0x800:
        return info.filename
    try:
        return info.filename.encode("cp437").decode("utf-8")  # zipfile decodes names without the flag as cp437
    except UnicodeError:
        return info.filename


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
