"""Read and write files. Writes are atomic: a reader sees the old content or the new content, never a part of it."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fedbm.errors import FedBMError, did_you_mean


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a temporary path in the same folder. On success flush it and rename it to *path*, otherwise remove it."""
    temporary = path.with_name(f".{path.name}.{os.urandom(4).hex()}.part")  # machines may share the folder
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and not path.is_file():  # replacing a device such as /dev/null would remove it
            raise FedBMError(f"{path} is a folder or a device, not a file: choose another name")
        yield temporary
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        temporary.replace(path)
        _sync_folder(path.parent)
    except OSError as error:
        raise cannot_write(path, error) from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    """Make a rename survive a power failure."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def lock_file(descriptor: int, wait: bool = False, shared: bool = False) -> None:
    """Lock an open file against other processes until it is closed. Without *wait*, raise OSError if it is locked.

    Several processes can have a *shared* lock on one file.
    """
    fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))


def check_replaceable(path: Path, begin: str) -> None:
    """Raise FedBMError if *path* is a file that does not begin with *begin*: the command did not write it."""
    if os.path.isfile(path):  # Path.is_file() raises OSError if the name is too long
        with path.open("rb") as stream:
            found = stream.read(len(begin))
        if found.strip() and found != begin.encode():
            raise FedBMError(f"{path} exists and was not written by this command: choose another name, or remove it")


def make_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(path, error) from error


def cannot_write(path: Path, error: OSError) -> FedBMError:
    return FedBMError(f"cannot write {path}: {error.strerror or error}; free some space or choose another folder")


def write_text(path: Path, text: str) -> None:
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Write standard JSON. Floats keep all their digits; NaN and infinities raise ValueError."""
    write_text(path, json.dumps(value, indent=1, allow_nan=False, ensure_ascii=False) + "\n")


def read_text(path: Path) -> str:
    """Return the text of a UTF-8 file; raise FedBMError if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        others = [other.name for other in path.parent.glob("*.toml")] if path.suffix == ".toml" else []  # typed names
        raise FedBMError(f"there is no file {path}{did_you_mean(path.name, others)}") from error
    except (OSError, ValueError) as error:  # ValueError: it is not UTF-8
        raise FedBMError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error


def read_json(path: Path, remedy: str = "") -> Any:
    """Return the content of a JSON file. An error message ends with *remedy*."""
    try:
        return json.loads(read_text(path), object_pairs_hook=_unique_keys)
    except FedBMError as error:
        raise FedBMError(f"{error}{remedy}") from error
    except (ValueError, RecursionError) as error:  # not JSON, a number too long, or nested too deep
        raise FedBMError(f"cannot read {path}: {error}{remedy}") from error


def read_object(path: Path, format_: int, remedy: str = "") -> dict[str, Any]:
    """Return the object of a JSON file; raise FedBMError if its key "format" has another value.

    *remedy* is not advised for another format: the file is whole, and the version that wrote it reads it.
    """
    value = read_json(path, remedy)
    found = value.get("format") if isinstance(value, dict) else None
    if found is None:
        raise FedBMError(f"{path} states no format, so fedbm did not write it{remedy}")
    if found != format_:
        raise FedBMError(f"{path} has format {found}; this version of fedbm reads format {format_}")
    return dict(value)


def parse_toml(text: str, where: str) -> dict[str, Any]:
    """Return the content of a TOML text; raise FedBMError if it is not valid."""
    try:
        return tomllib.loads(text.removeprefix("\ufeff"))  # some editors write this mark
    except (ValueError, RecursionError) as error:  # a number too long, or nested too deep
        raise FedBMError(f"{where} is not valid TOML: {error}") from error


def _unique_keys(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Raise ValueError for a repeated key, as in two files merged by hand, because one of its values would be lost."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {json.dumps(key)} occurs twice")
        found[key] = value
    return found


def sha256_file(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def digest_of(value: Mapping[str, Any]) -> str:
    """Return the SHA-256 of the canonical JSON of *value*: sorted keys, no spaces."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()
