"""A zip or tar of image folders, read where it lies: nothing is unpacked to the disk.

Members of a zip are fetched one by one, in parallel; a tar, which may be compressed as a whole, is passed through
once to see what it holds and once more when its images are decoded.
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
    path: str
    is_folder: bool
    stamp: tuple[int, int]


class _ArchiveTree:
    """The folders that the members' names make; how a member is read is the subclass's."""

    def __init__(self, path: Path, members: Iterable[Member]) -> None:
        self.path, self.where = path, str(path)
        self._stamps: dict[str, tuple[int, int]] = {}
        self._inside: dict[str, dict[str, bool]] = {"": {}}
        for member in members:
            if not member.is_folder:
                self._stamps[member.path] = member.stamp
            here, is_folder = member.path, member.is_folder
            while here:
                above, _, name = here.rpartition("/")
                if self._inside.setdefault(above, {}).setdefault(name, is_folder) != is_folder:
                    raise FedBMError(f'"{here}" in {path} is a file and a folder at once: pack it anew')
                here, is_folder = above, True

    def entries(self, folder: str) -> list[Node]:
        held = sorted(self._inside.get(folder, {}).items())
        return [Node(f"{folder}/{name}" if folder else name, is_folder) for name, is_folder in held if is_visible(name)]

    def stamp(self, path: str) -> tuple[int, int]:
        return self._stamps.get(path, (-1, -1))


class ZipTree(_ArchiveTree):
    def __init__(self, path: Path) -> None:
        try:
            self._zip = zipfile.ZipFile(path)
        except _BROKEN as error:
            raise _cannot_read(path, error) from error
        infos = self._zip.infolist()
        places = _places(path, [(_name(info), stat.S_ISLNK(info.external_attr >> 16)) for info in infos])
        self._names = {place: info.filename for place, info in zip(places, infos, strict=True)}
        stamps = ((info.is_dir(), (info.file_size, info.CRC)) for info in infos)
        super().__init__(path, (Member(place, *rest) for place, rest in zip(places, stamps, strict=True)))

    def stream(self, paths: Sequence[str]) -> Iterator[tuple[int, Encoded]]:
        return ((i, partial(self.read, path)) for i, path in enumerate(paths))

    def read(self, path: str) -> bytes:
        try:
            return self._zip.read(self._names[path])
        except (*_BROKEN, RuntimeError) as error:  # RuntimeError: it is encrypted, or packed in an unknown way
            raise _cannot_read(self.path, error) from error


class TarTree(_ArchiveTree):
    def __init__(self, path: Path) -> None:
        infos = [info for info, _ in _pass_through(path, wanted=())]
        places = _places(path, [(info.name, not (info.isfile() or info.isdir())) for info in infos])
        changed = file_stamp(path)[1]  # the times inside need not tell one packing from the next
        pairs = zip(places, infos, strict=True)
        super().__init__(path, (Member(place, info.isdir(), (info.size, changed)) for place, info in pairs))
        self._names = {place: info.name for place, info in zip(places, infos, strict=True)}

    def stream(self, paths: Sequence[str]) -> Iterator[tuple[int, Encoded]]:
        positions = {self._names[path]: i for i, path in enumerate(paths)}
        for info, content in _pass_through(self.path, positions):
            if info.name in positions:
                yield positions[info.name], content

    def read(self, path: str) -> bytes:
        name = self._names[path]
        return next(content for info, content in _pass_through(self.path, [name]) if info.name == name)


def top(tree: Tree) -> str:
    """Where the images begin: archives often hold one folder, or one in another, that holds all."""
    root = ""
    while len(inside := list_folders(tree, root)) == 1 and list_folders(tree, inside[0].path):
        root = inside[0].path
    return root


def _name(info: zipfile.ZipInfo) -> str:
    """The member's name as its packer meant it: many write UTF-8 without the flag (0x800) that says so."""
    if info.flag_bits & 0x800:
        return info.filename
    try:
        return info.filename.encode("cp437").decode("utf-8")  # zipfile reads names without the flag as cp437
    except UnicodeError:
        return info.filename


def _places(path: Path, members: Sequence[tuple[str, bool]]) -> list[str]:
    """Where each member lies in the archive; what would lie outside it, or leads elsewhere, is refused."""
    places = []
    for name, is_link in members:
        place = PurePosixPath(name.replace("\\", "/"))  # some programs pack with backslashes
        if ".." in place.parts or place.is_absolute() or PureWindowsPath(name).drive:
            raise FedBMError(
                f'{path} has a member "{name}" that would lie outside of it: do not trust it, pack it anew'
            )
        if is_link:
            raise FedBMError(f'{path} has a member "{name}" that is a link or no plain file: pack the files themselves')
        places.append(str(place))
    check_distinct(places, str(path))
    return places


def _pass_through(path: Path, wanted: Iterable[str]) -> Iterator[tuple[tarfile.TarInfo, bytes]]:
    """Every member, with its content where it is *wanted*, from the first to the last byte of the archive."""
    names = set(wanted)
    try:
        with tarfile.open(path) as tar:
            for info in tar:
                stream = tar.extractfile(info) if info.name in names else None
                yield info, stream.read() if stream else b""
            _refuse_cut(tar)
    except _BROKEN as error:
        raise _cannot_read(path, error) from error


def _refuse_cut(tar: tarfile.TarFile) -> None:
    """tarfile takes any end for the end; a whole archive goes on with empty blocks where the members end."""
    assert tar.fileobj is not None
    while tar.fileobj.read(1 << 20):
        pass
    if tar.fileobj.tell() < tar.offset + tarfile.BLOCKSIZE:
        raise EOFError("its end is missing")


def _cannot_read(path: Path, error: Exception) -> FedBMError:
    return FedBMError(f"cannot read {path}: {error}; it is damaged or not wholly there, get it again")
