"""Download public files with a known checksum; for other data sets, explain what to download by hand.

A download is written to NAME.part, can be resumed, and is renamed only if its checksum is right.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import urllib.request
from collections.abc import Callable
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urlsplit

from fedbm.data.catalog.lookup import find
from fedbm.errors import FedBMError, join_words
from fedbm.utils.io import cannot_write
from fedbm.version import __version__

Progress = Callable[[int, int], None]  # (bytes done, bytes in total or 0 if unknown)

MEDMNIST = "https://zenodo.org/records/10519652/files"
SIZES = (28, 64, 128, 224)
TIMEOUT = 60.0  # seconds without data after which a connection counts as lost

# MD5 sums as MedMNIST 3.0.2 publishes them, in the order of SIZES.
_SUMS = {
    "pathmnist": "a8b06965200029087d5bd730944a56c1 55aa9c1e0525abe5a6b9d8343a507616 "
    "ac42d08fb904d92c244187169d1fd1d9 2c51a510bcdc9cf8ddb2af93af1eadec",
    "dermamnist": "0744692d530f8e62ec473284d019b0c7 b70a2f5635c6199aeaa28c31d7202e1f "
    "2defd784463fa5243564e855ed717de1 8974907d8e169bef5f5b96bc506ae45d",
    "octmnist": "c68d92d5b585d8d81f7112f81e2d0842 e229e9440236b774d9f0dfef9d07bdaf "
    "0a97e76651ace45c5d943ee3f65b63ae abc493b6d529d5de7569faaef2773ba3",
    "pneumoniamnist": "28209eda62fecd6e6a2d98b1501bb15f 8f4eceb4ccffa70c672198ea285246c6 "
    "05b46931834c231683c68f40c47b2971 d6a3c71de1b945ea11211b03746c1fe1",
    "retinamnist": "bd4c0672f1bba3e3a89f0e4e876791e4 afda852cc34dcda56f86ad2b2457dbcc "
    "e48e916a24454daf90583d4e6efb1a18 eae7e3b6f3fcbda4ae613ebdcbe35348",
    "breastmnist": "750601b1f35ba3300ea97c75c52ff8f6 742edef2a1fd1524b2efff4bd7ba9364 "
    "363e4b3f8d712e9b5de15470a2aaadf1 b56378a6eefa9fed602bb16d192d4c8b",
    "bloodmnist": "7053d0359d879ad8a5505303e11de1dc 2b94928a2ae4916078ca51e05b6b800b "
    "adace1e0ed228fccda1f39692059dd4c b718ff6835fcbdb22ba9eacccd7b2601",
    "tissuemnist": "ebe78ee8b05294063de985d821c1c34b 123ece2eba09d0aa5d698fda57103344 "
    "61b955355d7425a89687b06cca3ce0c2 b077128c4a949f0a4eb01517f9037b9c",
    "organamnist": "68e3f8846a6bd62f0c9bf841c0d9eacc 2dcccc29b88e6da5a01161ef20cda288 "
    "eeae80d0a227a8d099027e1b3cfd3b60 50747347e05c87dd3aaf92c49f9f3170",
    "organcmnist": "b9ceb9546e10131b32923c5bbeaea2b1 3ce34a8724ea6f548e6db4744d03b6a9 "
    "773c1f009daa3fe5d9a2a201b2a7ed94 050f5e875dc056f6768abf94ec9995d1",
    "organsmnist": "9ab87b696fb54e2a387ebe992d6ed5f1 53a6d115339d874c25e309a994ff46d3 "
    "ded0c5fa01a95dc4978b956f613e9b8e b354719e553fbbb2513d5533f52a4cb1",
}
SUMS = {name: dict(zip(SIZES, sums.split(), strict=True)) for name, sums in _SUMS.items()}

BY_HAND = {
    "oct-c8": "a Kaggle account is needed: sign in at https://www.kaggle.com/datasets/obulisainaren/retinal-oct-c8, "
    "download the archive and save it as {to}.zip",
    "kvasir": "Simula publishes no checksum: download "
    "https://datasets.simula.no/downloads/kvasir/kvasir-dataset-v2.zip (2.3 GB, for research and education only) "
    "with a browser and save it as {to}.zip",
    "ham10000": "the Harvard Dataverse has terms to accept (CC BY-NC 4.0): at https://doi.org/10.7910/DVN/DBW86T "
    "download HAM10000_images_part_1.zip, HAM10000_images_part_2.zip and HAM10000_metadata, and unpack both parts into "
    "the folder {to} next to the metadata; or run 'fedbm data get dermamnist' for the same images with the published "
    "split",
    "pbc": "Mendeley Data needs a browser: at https://doi.org/10.17632/snkd93bnjr.1 download "
    "PBC_dataset_normal_DIB.zip and save it as {to}.zip; or run 'fedbm data get bloodmnist' for the same cells with "
    "the published split",
    "chars74k": "its images must be converted: get EnglishHnd.tgz at "
    "http://www.ee.surrey.ac.uk/CVSSP/demos/chars74k/, convert the images to 28 pixels, grey, white ink on black, and "
    "save arrays images, labels, classes and writer as {to}_hnd_28.npz",
    "femnist": "LEAF creates it from NIST's files: in data/femnist of https://github.com/TalwalkarLab/leaf run "
    "'./preprocess.sh -s niid --sf 1.0 -k 0 -t sample' and move the folders data/train and data/test into {to}",
}


def get(
    name: str, to: Path, *, size: int | None = None, accept: bool = False, progress: Progress | None = None
) -> Path:
    """Download the data set *name* into the folder *to*, unless it is there, and return the file.

    Raise FedBMError with instructions if it must be downloaded by hand or if a licence must be accepted first.
    """
    entry = find(name)
    if name not in SUMS:
        if name not in BY_HAND:
            raise FedBMError(f"nothing to download: {name} is {entry.origin}")
        raise FedBMError(f"{name} cannot be downloaded automatically: {BY_HAND[name].format(to=to / name)}")
    size = size or (entry.size if entry.size in SIZES else 128)
    if size not in SIZES:
        raise FedBMError(f"{name} is published at {join_words(map(str, SIZES))} pixels, not at {size}")
    if "NC" in entry.licence and not accept:
        raise FedBMError(
            f"{name} has the licence {entry.licence}, not for commercial use: add --accept-licence to accept it"
        )
    file = f"{name}.npz" if size == 28 else f"{name}_{size}.npz"
    fetch(f"{MEDMNIST}/{file}?download=1", to / file, SUMS[name][size], progress)
    return to / file


def find_download(name: str, to: Path, size: int | None = None) -> Path | None:
    """Return the file or folder of data set *name* in the folder *to*, or None.

    Files are called NAME_SIZE.npz or NAME_WORDS_SIZE.npz (kvasir_v1_128.npz); MedMNIST's of 28 pixels is NAME.npz. The
    smallest file with at least *size* pixels is chosen, and smaller ones are refused: catalogued data is not enlarged.
    Without *size* the catalogue's size is preferred, or else the largest file.
    """
    try:
        inside = os.listdir(to)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise FedBMError(f"cannot list {to}: {error.strerror}") from error
    for ending in ("", ".zip", ".tar", ".tar.gz", ".tgz"):
        if f"{name}{ending}" in inside:
            return to / f"{name}{ending}"
    sized = {file: re.fullmatch(rf"{re.escape(name)}(?:_[a-z]\w*?)?(?:_(\d+))?\.npz", file) for file in sorted(inside)}
    available = {int(found[1] or 28): to / file for file, found in sized.items() if found}
    if not available:
        return None
    wanted = next((pixels for pixels in SIZES if pixels >= (size or find(name).size)), max(SIZES))
    if enough := [pixels for pixels in available if pixels >= wanted]:
        return available[min(enough)]
    if size:
        raise FedBMError(
            f"{name} is here with {max(available)} pixels, but {size} are needed: run 'fedbm data get {name} "
            f"--size {wanted}', or give {available[max(available)]} as --data to enlarge it"
        )
    return available[max(available)]


def fetch(url: str, target: Path, md5: str, progress: Progress | None = None) -> None:
    """Download *url* to *target* and check its MD5 sum; resume an interrupted download."""
    if target.exists():
        if _md5(target) != md5:
            raise FedBMError(f"{target} exists but has different content: move it away, or choose another folder")
        return
    part = target.with_name(f"{target.name}.part")
    try:
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
    response = _open(url, have)
    if response is None:  # nothing is missing
        return
    with response:
        if response.status != 206:  # the server sends the whole file again
            have = 0
        total = have + int(response.headers.get("Content-Length") or 0)
        if total - have > shutil.disk_usage(part.parent).free:
            raise FedBMError(f"{part.parent} has too little free space: {url} needs {(total - have) / 1e9:.1f} GB")
        with part.open("ab" if have else "wb") as stream:
            while block := _read(response):
                have += stream.write(block)
                if progress:
                    progress(have, total)
            stream.flush()
            os.fsync(stream.fileno())
    if have < total:
        raise FedBMError(
            f"the connection was lost after {have:,} of {total:,} bytes of {url}: run the same command to resume"
        )


def _open(url: str, have: int) -> HTTPResponse | None:
    """Request *url* from byte *have* on; return None if there is nothing more."""
    headers = {"User-Agent": f"fedbm/{__version__}"} | ({"Range": f"bytes={have}-"} if have else {})
    try:
        response: HTTPResponse = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=TIMEOUT)
        return response
    except HTTPError as error:
        if error.code == 416 and have:
            return None
        raise FedBMError(
            f"{urlsplit(url).netloc} returned {error.code} {error.reason} for {url}: try again later"
        ) from error
    except (OSError, HTTPException) as error:
        why = getattr(error, "reason", error)
        raise FedBMError(
            f"cannot reach {urlsplit(url).netloc} ({getattr(why, 'strerror', None) or why}): is this machine online?"
        ) from error


def _read(response: HTTPResponse) -> bytes:
    """Return the next block, empty at the end and if the connection is lost; the caller compares the length."""
    try:
        return response.read(1 << 18)
    except (OSError, HTTPException):
        return b""


def _md5(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
