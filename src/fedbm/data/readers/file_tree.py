"""A common interface to the files of a folder or an archive."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from fedbm.data.readers.sample_index import Encoded
from fedbm.errors import FedBMError

_IGNORED = {"thumbs.db", "desktop.ini", "__macosx"}  # written by file browsers


class Node(NamedTuple):
    path: str  # from the root, with slashes
    is_folder: bool

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]


class Tree(Protocol):
    where: str

    def entries(self, folder: str) -> list[Node]:
        """Return the visible files and folders in *folder* ('' is the root), sorted by name."""

    def stamp(self, path: str) -> tuple[int, int]:
        """Return two numbers that change when the file changes."""

    def stream(self, paths: Sequence[str]) -> Iterator[tuple[int, Encoded]]:
        """Yield the files with their positions in *paths*, in the order that is fastest to read."""

    def read(self, path: str) -> bytes: ...


class FolderTree:
    def __init__(self, root: Path) -> None:
        self.root, self.where = root, str(root)

    def entries(self, folder: str) -> list[Node]:
        place = self.root / folder
        try:
            names = sorted(filter(is_visible, os.listdir(place)))
        except OSError as error:
            raise FedBMError(f"cannot list {place}: {error.strerror}") from error
        return [Node(f"{folder}/{name}" if folder else name, os.path.isdir(place / name)) for name in names]

    def stamp(self, path: str) -> tuple[int, int]:
        return file_stamp(self.root / path)

    def stream(self, paths: Sequence[str]) -> Iterator[tuple[int, Encoded]]:
        return ((i, self.root / path) for i, path in enumerate(paths))

    def read(self, path: str) -> bytes:
        try:
            return (self.root / path).read_bytes()
        except OSError as error:
            raise FedBMError(f"cannot read {self.root / path}: {error.strerror}") from error


def list_folders(tree: Tree, folder: str = "") -> list[Node]:
    return [node for node in tree.entries(folder) if node.is_folder]


def list_files(tree: Tree, folder: str = "") -> list[Node]:
    return [node for node in tree.entries(folder) if not node.is_folder]


def is_visible(name: str) -> bool:
    return not name.startswith(".") and name.lower() not in _IGNORED


def normalize_name(name: str) -> str:
    """Return a name with composed accents, and with escapes for bytes that are not UTF-8."""
    return unicodedata.normalize("NFC", os.fsencode(name).decode("utf-8", "backslashreplace"))


def file_stamp(path: Path) -> tuple[int, int]:
    """Return length and modification time, which change when the file changes."""
    try:
        status = path.stat()
    except OSError:  # a broken or circular link, which is reported when it is decoded
        return (-1, -1)
    return (status.st_size, status.st_mtime_ns)
