"""Read a zip or tar of image folders without unpacking it.

Members of a zip are read one by one, in parallel. A tar may be compressed as a whole, so it is read from start to end
twice: to list its members, and to decode its images.
"""

from __future__ import annotations

import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from lzma import LZMAError
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import NamedTuple

from fedbm.data.readers.file_tree import Node, Tree, file_stamp, is_visible, list_folders
from fedbm.data.readers.sample_index import Encoded, check_distinct
from fedbm.errors import FedBMError

_BROKEN = (OSError, EOFError, ValueError, zlib.error, LZMAError, zipfile.BadZipFile, tarfile.TarError)


class Member(NamedTuple):
    key: str  # its name in the archive
    path: str  # its path, checked and with slashes
    is_folder: bool
    stamp: tuple[int, int]


class _ArchiveTree:
    """The folders given by the members' names. Subclasses implement reading a member."""

    def __init__(self, path: Path, members: Sequence[Member]) -> None:
        self.path, self.where = path, str(path)
        check_distinct([member.path for member in members], self.where)
        self._keys = {member.path: member.key for member in members}
        self._stamps = {member.path: member.stamp for member in members}
        self._inside: dict[str, dict[str, bool]] = {"": {}}
        for member in members:
            here, is_folder = member.path, member.is_folder
            while here:
                above, _, name = here.rpartition("/")
                if self._inside.setdefault(above, {}).setdefault(name, is_folder) != is_folder:
                    raise FedBMError(f'"{here}" in {path} is both a file and a folder: create the archive again')
                here, is_folder = above, True

    def entries(self, folder: str) -> list[Node]:
        inside = sorted(self._inside.get(folder, {}).items())
        return [
            Node(f"{folder}/{name}" if folder else name, is_folder) for name, is_folder in inside if is_visible(name)
        ]

    def stamp(self, path: str) -> tuple[int, int]:
        return self._stamps[path]


class ZipTree(_ArchiveTree):
    def __init__(self, path: Path) -> None:
        try:
            self._zip = zipfile.ZipFile(path)
        except _BROKEN as error:
            raise _cannot_read(path, error) from error
        members = []
        for info in self._zip.infolist():
            place = _check_member(path, _decode_name(info), stat.S_ISLNK(info.external_attr >> 16))
            members.append(Member(info.filename, place, info.is_dir(), (info.file_size, info.CRC)))
        super().__init__(path, members)

    def stream(self, paths: Sequence[str]) -> Iterator[tuple[int, Encoded]]:
        return ((i, partial(self.read, path)) for i, path in enumerate(paths))

    def read(self, path: str) -> bytes:
        try:
            return self._zip.read(self._keys[path])
        except (*_BROKEN, RuntimeError) as error:  # RuntimeError: encrypted, or compressed by an unknown method
            raise _cannot_read(self.path, error) from error


class TarTree(_ArchiveTree):
    def __init__(self, path: Path) -> None:
        changed = file_stamp(path)[1]  # the times inside may be the same in two versions of the archive
        members = []
        for info, _ in _iterate_tar(path, wanted=()):
            place = _check_member(path, info.name, not (info.isfile() or info.isdir()))
            members.append(Member(info.name, place, info.isdir(), (info.size, changed)))
        super().__init__(path, members)

    def stream(self, paths: Sequence[str]) -> Iterator[tuple[int, bytes]]:
        positions = {self._keys[path]: i for i, path in enumerate(paths)}
        for info, content in _iterate_tar(self.path, positions):
            if info.name in positions:
                yield positions[info.name], content

    def read(self, path: str) -> bytes:
        return next(content for _, content in self.stream([path]))


def find_image_root(tree: Tree) -> str:
    """Return the folder of the images, since archives often contain a single folder, or nested ones, around them."""
    root = ""
    while len(inside := list_folders(tree, root)) == 1 and list_folders(tree, inside[0].path):
        root = inside[0].path
    return root


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
    inside = PurePosixPath(name.replace("\\", "/"))  # some programs write backslashes
    if ".." in inside.parts or inside.is_absolute() or PureWindowsPath(name).drive:
        raise FedBMError(f'{path} has a member "{name}" outside of the archive: do not trust it, or create it again')
    if is_link:
        raise FedBMError(f'{path} has a member "{name}" that is a link or a special file: pack the files themselves')
    return str(inside)


def _iterate_tar(path: Path, wanted: Iterable[str]) -> Iterator[tuple[tarfile.TarInfo, bytes]]:
    """Yield every member, with its content if it is *wanted*, reading the whole archive once."""
    names = set(wanted)
    try:
        with tarfile.open(path) as tar:
            for info in tar:
                stream = tar.extractfile(info) if info.name in names else None
                yield info, stream.read() if stream else b""
            _check_complete(tar)
    except _BROKEN as error:
        raise _cannot_read(path, error) from error


def _check_complete(tar: tarfile.TarFile) -> None:
    """Raise EOFError if the empty blocks after the members are missing; tarfile does not notice a truncated file."""
    assert tar.fileobj is not None
    while tar.fileobj.read(1 << 20):
        pass
    if tar.fileobj.tell() < tar.offset + tarfile.BLOCKSIZE:
        raise EOFError("its end is missing")


def _cannot_read(path: Path, error: Exception) -> FedBMError:
    return FedBMError(f"cannot read {path}: {error}; the file is damaged or incomplete, get it again")
