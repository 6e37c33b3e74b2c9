"""Download files with a known checksum, or explain what to download by hand.

A download is written to NAME.part, can be resumed, and is renamed only if its checksum is right.
"""

from __future__ import annotations

import hashlib
import os
import re
import urllib.request
from collections.abc import Callable
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urlsplit

from fedbm.data.catalog.entries import find_entry
from fedbm.errors import FedBMError, join_words
from fedbm.utils.io import cannot_write
from fedbm.version import __version__

Progress = Callable[[int, int], None]  # (bytes done, bytes in total or 0 if unknown)

MEDMNIST = "https://zenodo.org/records/10519652/files"
SIZES = (28, 64, 128, 224)
TIMEOUT = 60.0  # seconds without data after which a connection counts as lost


def get(
    name: str, to: Path, *, size: int | None = None, accept: bool = False, progress: Progress | None = None
) -> Path:
    """Download the data set *name* into the folder *to*, unless it is there, and return the file.

    Raise FedBMError with instructions if the user must download it or accept a licence first.
    """
    entry = find_entry(name)
    if not entry.md5:
        if not entry.by_hand:
            raise FedBMError(f"{name} is {entry.origin}")
        raise FedBMError(f"{name} cannot be downloaded automatically: {entry.by_hand.format(to=to / name)}")
    size = size or (entry.size if entry.size in SIZES else 128)
    if size not in SIZES:
        raise FedBMError(f"{name} is published at {join_words(map(str, SIZES))} pixels, not at {size}")
    if "NC" in entry.licence and not accept:
        raise FedBMError(
            f"{name} has the licence {entry.licence}, not for commercial use: add --accept-licence to accept it"
        )
    file = f"{name}.npz" if size == 28 else f"{name}_{size}.npz"
    fetch(f"{MEDMNIST}/{file}?download=1", to / file, entry.md5[size], progress)
    return to / file


def find_download(name: str, to: Path, size: int | None = None) -> Path | None:
    """Return the file or folder of data set *name* in the folder *to*, or None.

    Files are called NAME_SIZE.npz or NAME_WORDS_SIZE.npz (kvasir_v1_128.npz); MedMNIST's file of 28 pixels is NAME.npz.
    The smallest file with at least *size* pixels is chosen. If all files are smaller, raise FedBMError, because
    catalogued data is not enlarged. Without *size* use the catalogue's size, or else the largest file.
    """
    inside = os.listdir(to) if to.is_dir() else []
    for ending in ("", ".zip", ".tar", ".tar.gz", ".tgz"):
        if f"{name}{ending}" in inside:
            return to / f"{name}{ending}"
    pattern = re.compile(rf"{re.escape(name)}(?:_[a-z]\w*?)?(?:_(\d+))?\.npz")
    available = {int(found[1] or 28): to / found[0] for file in sorted(inside) if (found := pattern.fullmatch(file))}
    if not available:
        return None
    largest = max(available)
    enough = [pixels for pixels in available if pixels >= (size or find_entry(name).size)]
    if size and not enough:
        raise FedBMError(
            f"{name} is here at {largest} × {largest} pixels, but size is {size}: get a larger file, or give "
            f"{available[largest]} as --data to enlarge it"
        )
    return available[min(enough, default=largest)]


def fetch(url: str, target: Path, md5: str, progress: Progress | None = None) -> None:
    """Download *url* to *target* and check its MD5 sum; resume an interrupted download."""
    part = target.with_name(f"{target.name}.part")
    try:
        if target.exists():
            if _md5(target) != md5:
                raise FedBMError(f"{target} exists but has different content: move it away, or choose another folder")
            return
        part.parent.mkdir(parents=True, exist_ok=True)
        _append(url, part, progress)
        if (found := _md5(part)) != md5:
            part.unlink()
            raise FedBMError(f"the file at {url} has MD5 {found}, but {md5} is expected: it was deleted, try again")
        part.replace(target)
    except OSError as error:
        raise cannot_write(target, error) from error


def _append(url: str, part: Path, progress: Progress | None) -> None:
    """Append the missing bytes to *part*."""
    have = part.stat().st_size if part.exists() else 0
    headers = {"User-Agent": f"fedbm/{__version__}"} | ({"Range": f"bytes={have}-"} if have else {})
    host = urlsplit(url).netloc
    try:
        response: HTTPResponse = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=TIMEOUT)
    except HTTPError as error:
        if error.code == 416 and have:  # nothing is missing
            return
        raise FedBMError(f"{host} returned {error.code} {error.reason} for {url}: try again later") from error
    except (OSError, HTTPException) as error:
        raise FedBMError(f"cannot reach {host} ({getattr(error, 'reason', error)}): is this machine online?") from error
    with response:
        if response.status != 206:  # the server sends the whole file again
            have = 0
        total = have + int(response.headers.get("Content-Length") or 0)
        with part.open("ab" if have else "wb") as stream:
            while block := _read(response):
                have += stream.write(block)
                if progress:
                    progress(have, total)
            stream.flush()
            os.fsync(stream.fileno())
    if have < total or block is None:
        raise FedBMError(f"the connection was lost after {have:,} bytes of {url}: run the same command to resume")


def _read(response: HTTPResponse) -> bytes | None:
    """Return the next block, b"" at the end, or None if it is known that the connection was lost."""
    try:
        return response.read(1 << 18)
    except (OSError, HTTPException):
        return None


def _md5(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
