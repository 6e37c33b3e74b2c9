"""Downloads from a local test server: resuming, checksums and error messages."""

from __future__ import annotations

import hashlib
import re
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from fedbm.data.catalog import download
from fedbm.data.catalog.download import SIZES, fetch, find_download, get
from fedbm.data.catalog.entries import CATALOG
from fedbm.errors import FedBMError

CONTENT = bytes(range(256)) * 4000  # 1 MB
MD5 = hashlib.md5(CONTENT).hexdigest()


@dataclass
class Served:
    """The behaviour of the test server, and the requests it received."""

    url: str = ""
    content: bytes = CONTENT
    cut_after: int | None = None  # bytes of a response before the connection is closed
    ranges: bool = True
    length: bool = True
    chunked: bool = False
    status: int = 200
    requests: list[tuple[str, str | None]] = field(default_factory=list)  # (path, Range)


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    monkeypatch.setenv("no_proxy", "*")
    state = Served()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            wanted = self.headers.get("Range")
            state.requests.append((self.path, wanted))
            if state.status != 200:
                self.send_error(state.status)
                return
            start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and state.ranges else 0
            if start >= len(state.content):
                self.send_error(416)
                return
            body = state.content[start:]
            self.send_response(206 if start else 200)
            if state.length:
                self.send_header("Content-Length", str(len(body)))
            if state.chunked:
                self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            if state.chunked:
                self.wfile.write(f"{len(body):x}\r\n".encode())
            self.wfile.write(body[: state.cut_after])

        def log_message(self, *_: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        def handle_error(self, *_: object) -> None:  # a client may hang up
            pass

    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    state.url = f"http://127.0.0.1:{server.server_port}"
    yield state
    server.shutdown()
    server.server_close()
    thread.join()


def files_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*"))


def test_a_file_is_downloaded_once(served: Served, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    target = tmp_path / "new" / "a.npz"
    fetch(f"{served.url}/a", target, MD5, lambda done, total: seen.append((done, total)))
    assert target.read_bytes() == CONTENT
    assert files_in(tmp_path) == ["a.npz", "new"]
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    fetch(f"{served.url}/a", target, MD5)
    assert len(served.requests) == 1


def test_an_interrupted_download_is_resumed(served: Served, tmp_path: Path) -> None:
    target = tmp_path / "a.npz"
    served.cut_after = 300_000
    with pytest.raises(FedBMError, match="lost after 300,000 bytes .* run the same command to resume"):
        fetch(f"{served.url}/a", target, MD5)
    assert files_in(tmp_path) == ["a.npz.part"]
    with pytest.raises(FedBMError, match="lost after 600,000 bytes"):
        fetch(f"{served.url}/a", target, MD5)
    served.cut_after = None
    fetch(f"{served.url}/a", target, MD5)
    assert target.read_bytes() == CONTENT
    assert files_in(tmp_path) == ["a.npz"]
    assert [wanted for _, wanted in served.requests] == [None, "bytes=300000-", "bytes=600000-"]


def test_a_server_without_ranges_sends_the_whole_file_again(served: Served, tmp_path: Path) -> None:
    (tmp_path / "a.npz.part").write_bytes(b"something else")
    served.ranges = False
    fetch(f"{served.url}/a", tmp_path / "a.npz", MD5)
    assert (tmp_path / "a.npz").read_bytes() == CONTENT


def test_a_complete_partial_file_is_not_downloaded_again(served: Served, tmp_path: Path) -> None:
    (tmp_path / "a.npz.part").write_bytes(CONTENT)
    fetch(f"{served.url}/a", tmp_path / "a.npz", MD5)
    assert files_in(tmp_path) == ["a.npz"]


def test_a_server_without_content_length(served: Served, tmp_path: Path) -> None:
    served.length = False
    seen: list[tuple[int, int]] = []
    fetch(f"{served.url}/a", tmp_path / "a.npz", MD5, lambda done, total: seen.append((done, total)))
    assert (tmp_path / "a.npz").read_bytes() == CONTENT


def test_a_lost_connection_is_noticed_without_content_length(served: Served, tmp_path: Path) -> None:
    served.length, served.chunked, served.cut_after = False, True, 300_000
    with pytest.raises(FedBMError, match=r"lost after 262,144 bytes of .* run the same command to resume"):
        fetch(f"{served.url}/a", tmp_path / "a.npz", MD5)
    served.chunked, served.cut_after = False, None
    fetch(f"{served.url}/a", tmp_path / "a.npz", MD5)
    assert [wanted for _, wanted in served.requests] == [None, "bytes=262144-"]


@pytest.mark.parametrize("begun", [b"", CONTENT[:5000], b"of another file", CONTENT + b"too much"])
def test_a_file_with_a_wrong_checksum_is_deleted(served: Served, tmp_path: Path, begun: bytes) -> None:
    served.content = CONTENT[:-1] + b"?"
    if begun:
        (tmp_path / "a.npz.part").write_bytes(begun)
    with pytest.raises(FedBMError, match=f"has MD5 .*, but {MD5} is expected: it was deleted, try again"):
        fetch(f"{served.url}/a", tmp_path / "a.npz", MD5)
    assert files_in(tmp_path) == []


def test_an_existing_different_file_is_kept(served: Served, tmp_path: Path) -> None:
    (tmp_path / "a.npz").write_text("mine")
    with pytest.raises(FedBMError, match="exists but has different content: move it away"):
        fetch(f"{served.url}/a", tmp_path / "a.npz", MD5)
    assert (tmp_path / "a.npz").read_text() == "mine"
    assert served.requests == []


def test_offline_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the port of a stopped server, and a name that cannot be resolved."""
    monkeypatch.setenv("no_proxy", "*")
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as stopped:
        port = stopped.server_port
    with pytest.raises(FedBMError, match=rf"cannot reach 127.0.0.1:{port} \(.*refused\): is this machine online\?"):
        fetch(f"http://127.0.0.1:{port}/a", tmp_path / "a.npz", MD5)

    def no_address(*_: object, **__: object) -> None:
        raise socket.gaierror(-3, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", no_address)
    with pytest.raises(
        FedBMError, match=r"cannot reach zenodo.org \(.*Temporary failure in name resolution\): is this"
    ):
        fetch("http://zenodo.org/a", tmp_path / "a.npz", MD5)
    assert files_in(tmp_path) == []


def test_an_http_error_is_reported(served: Served, tmp_path: Path) -> None:
    served.status = 404
    with pytest.raises(FedBMError, match="127.0.0.1:[0-9]+ returned 404 Not Found for http"):
        fetch(f"{served.url}/a", tmp_path / "a.npz", MD5)
    assert files_in(tmp_path) == []


def test_an_unwritable_disk_is_reported(served: Served, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FedBMError, match="cannot write .*file/a.npz: "):
        fetch(f"{served.url}/a", tmp_path / "file" / "a.npz", MD5)
    assert files_in(tmp_path) == ["file"]


# --- by name --------------------------------------------------------------------------------------------------------


def test_every_data_set_has_a_checksum_or_instructions() -> None:
    assert [name for name, entry in CATALOG.items() if not entry.md5 and not entry.by_hand] == ["digits"]
    downloads = [entry for entry in CATALOG.values() if entry.md5]
    assert {tuple(entry.md5) for entry in downloads} == {SIZES}
    sums = [md5 for entry in downloads for md5 in entry.md5.values()]
    assert len(set(sums)) == 4 * len(downloads)
    assert all(re.fullmatch("[0-9a-f]{32}", md5) for md5 in sums)


def serve_as(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Expect the content of the test server for the data set *name*."""
    monkeypatch.setitem(CATALOG, name, replace(CATALOG[name], md5=dict.fromkeys(SIZES, MD5)))


def test_the_file_depends_on_name_and_size(served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "MEDMNIST", f"{served.url}/files")
    serve_as(monkeypatch, "bloodmnist")
    assert get("bloodmnist", tmp_path) == tmp_path / "bloodmnist_128.npz"
    assert get("bloodmnist", tmp_path, size=28) == tmp_path / "bloodmnist.npz"
    assert [path for path, _ in served.requests] == [
        "/files/bloodmnist_128.npz?download=1",
        "/files/bloodmnist.npz?download=1",
    ]
    assert files_in(tmp_path) == ["bloodmnist.npz", "bloodmnist_128.npz"]


def test_a_restrictive_licence_must_be_accepted(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "MEDMNIST", served.url)
    serve_as(monkeypatch, "dermamnist")
    with pytest.raises(FedBMError, match="has the licence CC BY-NC 4.0, .*: add --accept-licence to accept it"):
        get("dermamnist", tmp_path)
    assert served.requests == []
    assert get("dermamnist", tmp_path, accept=True).exists()


@pytest.mark.parametrize(
    ("name", "size", "sentence"),
    [
        ("bloodmist", None, 'no data set is called "bloodmist" (did you mean "bloodmnist"?)'),
        ("bloodmnist", 32, "bloodmnist is published at 28, 64, 128 or 224 pixels, not at 32"),
        ("digits", None, "digits is built into scikit-learn, nothing to download"),
        ("oct-c8", None, "download the archive and save it as DIR/oct-c8.zip"),
        ("kvasir", None, "https://datasets.simula.no/downloads/kvasir/kvasir-dataset-v2.zip"),
        ("ham10000", None, "https://doi.org/10.7910/DVN/DBW86T"),
        ("pbc", None, "https://doi.org/10.17632/snkd93bnjr.1"),
        ("femnist", None, "move the folders data/train and data/test into DIR/femnist"),
    ],
)
def test_other_data_sets_come_with_instructions(name: str, size: int | None, sentence: str) -> None:
    with pytest.raises(FedBMError, match=re.escape(sentence)) as caught:
        get(name, Path("DIR"), size=size)
    assert "\n" not in str(caught.value)


def test_downloads_are_found_by_name_and_size(tmp_path: Path) -> None:
    """The smallest file with enough pixels is used, but a folder or archive with that name comes first."""
    assert find_download("bloodmnist", tmp_path) is None
    for size in ("_64", "_224", ""):
        (tmp_path / f"bloodmnist{size}.npz").touch()
    (tmp_path / "bloodmnist_128.npz.part").touch()
    found = {size: find_download("bloodmnist", tmp_path, size) for size in (16, 28, 32, 64, 100, 224)}
    assert {size: path.name for size, path in found.items() if path} == {
        16: "bloodmnist.npz",
        28: "bloodmnist.npz",
        32: "bloodmnist_64.npz",
        64: "bloodmnist_64.npz",
        100: "bloodmnist_224.npz",
        224: "bloodmnist_224.npz",
    }
    with pytest.raises(FedBMError, match=r"at 224 × 224 pixels, but size is 300: .*bloodmnist_224.npz as --data"):
        find_download("bloodmnist", tmp_path, 300)
    for file in tmp_path.glob("*224.npz"):
        file.unlink()
    assert find_download("bloodmnist", tmp_path) == tmp_path / "bloodmnist_64.npz"
    with pytest.raises(
        FedBMError,
        match=r"^bloodmnist is here at 64 × 64 pixels, but size is 100: get a larger file, or give "
        r".*bloodmnist_64.npz as --data to enlarge it$",
    ):
        find_download("bloodmnist", tmp_path, 100)
    for name in ("kvasir_v1_128.npz", "kvasir_v1_512.npz", "kvasir_v1_notes.txt", "kvasirx_128.npz"):
        (tmp_path / name).touch()
    assert find_download("kvasir", tmp_path) == tmp_path / "kvasir_v1_128.npz"
    assert find_download("kvasir", tmp_path, 256) == tmp_path / "kvasir_v1_512.npz"
    (tmp_path / "pbc_128.npz").touch()
    with pytest.raises(FedBMError, match=r"but size is 224: .*pbc_128.npz as --data to enlarge it$"):
        find_download("pbc", tmp_path, 224)  # 'fedbm data get' cannot fetch it
    (tmp_path / "pbc.zip").touch()
    assert find_download("pbc", tmp_path) == tmp_path / "pbc.zip"
    (tmp_path / "pbc").mkdir()
    assert find_download("pbc", tmp_path) == tmp_path / "pbc"
