"""Downloads against a server of the test's own: what is cut goes on, what is wrong is refused, nothing half is left."""

from __future__ import annotations

import hashlib
import re
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from fedbm.data.catalog import download
from fedbm.data.catalog.download import BY_HAND, SIZES, SUMS, fetch, find_download, get
from fedbm.data.catalog.lookup import CATALOG
from fedbm.errors import FedBMError

CONTENT = bytes(range(256)) * 4000  # 1 MB
MD5 = hashlib.md5(CONTENT).hexdigest()


@dataclass
class Served:
    """What the server does, and what it was asked."""

    url: str = ""
    content: bytes = CONTENT
    cut_after: int | None = None  # bytes of an answer, then the connection is closed
    ranges: bool = True
    length: bool = True
    status: int = 200
    asked: list[tuple[str, str | None]] = field(default_factory=list)  # (path, Range)


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    monkeypatch.setenv("no_proxy", "*")
    state = Served()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            wanted = self.headers.get("Range")
            state.asked.append((self.path, wanted))
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
            self.end_headers()
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


def left_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*"))


def test_a_file_is_fetched_once(served: Served, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    target = tmp_path / "new" / "a.npz"
    fetch(f"{served.url}/a", target, MD5, lambda done, total: seen.append((done, total)))
    assert target.read_bytes() == CONTENT
    assert left_in(tmp_path) == ["a.npz", "new"]
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    fetch(f"{served.url}/a", target, MD5)
    assert len(served.asked) == 1


def test_a_cut_download_goes_on_where_it_ended(served: Served, tmp_path: Path) -> None:
    target = tmp_path / "a.npz"
    served.cut_after = 300_000
    with pytest.raises(FedBMError, match="cut after 300,000 of 1,024,000 bytes .* the same command goes on from there"):
        fetch(f"{served.url}/a", target, MD5)
    assert left_in(tmp_path) == ["a.npz.part"]
    with pytest.raises(FedBMError, match="cut after 600,000 of 1,024,000 bytes"):
        fetch(f"{served.url}/a", target, MD5)
    served.cut_after = None
    fetch(f"{served.url}/a", target, MD5)
    assert target.read_bytes() == CONTENT
    assert left_in(tmp_path) == ["a.npz"]
    assert [wanted for _, wanted in served.asked] == [None, "bytes=300000-", "bytes=600000-"]


def test_a_server_that_cannot_go_on_sends_all_again(served: Served, tmp_path: Path) -> None:
    (tmp_path / "a.npz.part").write_bytes(b"something else")
    served.ranges = False
    fetch(f"{served.url}/a", tmp_path / "a.npz", MD5)
    assert (tmp_path / "a.npz").read_bytes() == CONTENT


def test_a_download_that_was_whole_but_not_named_is_not_fetched_again(served: Served, tmp_path: Path) -> None:
    (tmp_path / "a.npz.part").write_bytes(CONTENT)
    fetch(f"{served.url}/a", tmp_path / "a.npz", MD5)
    assert left_in(tmp_path) == ["a.npz"]


def test_a_server_that_does_not_say_how_much(served: Served, tmp_path: Path) -> None:
    served.length = False
    seen: list[tuple[int, int]] = []
    fetch(f"{served.url}/a", tmp_path / "a.npz", MD5, lambda done, total: seen.append((done, total)))
    assert (tmp_path / "a.npz").read_bytes() == CONTENT


@pytest.mark.parametrize("begun", [b"", CONTENT[:5000], b"of another file", CONTENT + b"too much"])
def test_a_wrong_checksum_is_refused_and_nothing_is_left(served: Served, tmp_path: Path, begun: bytes) -> None:
    served.content = CONTENT[:-1] + b"?"
    if begun:
        (tmp_path / "a.npz.part").write_bytes(begun)
    with pytest.raises(FedBMError, match=f"serves is another file .*, not {MD5}\\): nothing was kept, try again"):
        fetch(f"{served.url}/a", tmp_path / "a.npz", MD5)
    assert left_in(tmp_path) == []


def test_another_file_in_its_place_is_left_alone(served: Served, tmp_path: Path) -> None:
    (tmp_path / "a.npz").write_text("mine")
    with pytest.raises(FedBMError, match="is there already but is another file: move it away"):
        fetch(f"{served.url}/a", tmp_path / "a.npz", MD5)
    assert (tmp_path / "a.npz").read_text() == "mine"
    assert served.asked == []


def test_offline_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody listens on the port of a server that is gone; and without a network no host has an address."""
    monkeypatch.setenv("no_proxy", "*")
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as gone:
        port = gone.server_port
    with pytest.raises(FedBMError, match=rf"cannot reach 127.0.0.1:{port} \(.*refused\): is this machine online\?"):
        fetch(f"http://127.0.0.1:{port}/a", tmp_path / "a.npz", MD5)

    def no_address(*_: object, **__: object) -> None:
        raise socket.gaierror(-3, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", no_address)
    with pytest.raises(FedBMError, match=r"cannot reach zenodo.org \(Temporary failure in name resolution\): is this"):
        fetch("http://zenodo.org/a", tmp_path / "a.npz", MD5)
    assert left_in(tmp_path) == []


def test_a_refusal_is_said(served: Served, tmp_path: Path) -> None:
    served.status = 404
    with pytest.raises(FedBMError, match="127.0.0.1:[0-9]+ answers 404 Not Found to http"):
        fetch(f"{served.url}/a", tmp_path / "a.npz", MD5)
    assert left_in(tmp_path) == []


def test_a_disk_that_is_full_or_closed(served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FedBMError, match="cannot write .*file/a.npz: "):
        fetch(f"{served.url}/a", tmp_path / "file" / "a.npz", MD5)
    monkeypatch.setattr(download.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 1000}))
    with pytest.raises(FedBMError, match="has not the 0.0 GB free that http"):
        fetch(f"{served.url}/a", tmp_path / "a.npz", MD5)
    assert left_in(tmp_path) == ["file"]


# --- by name --------------------------------------------------------------------------------------------------------


def test_every_catalogued_set_can_be_had_somehow() -> None:
    assert set(CATALOG) == {"digits", *SUMS, *BY_HAND}
    sums = [md5 for by_size in SUMS.values() for md5 in by_size.values()]
    assert len(set(sums)) == 4 * len(SUMS)
    assert all(re.fullmatch("[0-9a-f]{32}", md5) for md5 in sums)


def test_a_name_and_a_size_make_the_file(served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "MEDMNIST", f"{served.url}/files")
    monkeypatch.setitem(SUMS, "bloodmnist", dict.fromkeys(SIZES, MD5))
    assert get("bloodmnist", tmp_path) == tmp_path / "bloodmnist_128.npz"
    assert get("bloodmnist", tmp_path, size=28) == tmp_path / "bloodmnist.npz"
    assert [path for path, _ in served.asked] == [
        "/files/bloodmnist_128.npz?download=1",
        "/files/bloodmnist.npz?download=1",
    ]
    assert left_in(tmp_path) == ["bloodmnist.npz", "bloodmnist_128.npz"]


def test_a_licence_that_limits_use_is_accepted_first(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "MEDMNIST", served.url)
    monkeypatch.setitem(SUMS, "dermamnist", dict.fromkeys(SIZES, MD5))
    with pytest.raises(FedBMError, match="under CC BY-NC 4.0, .*: to accept that, say --accept-licence"):
        get("dermamnist", tmp_path)
    assert served.asked == []
    assert get("dermamnist", tmp_path, accept=True).exists()


@pytest.mark.parametrize(
    ("name", "size", "sentence"),
    [
        ("bloodmist", None, 'no data set is called "bloodmist" (did you mean "bloodmnist"?)'),
        ("bloodmnist", 32, "bloodmnist is published at 28, 64, 128 or 224 pixels, not at 32"),
        ("digits", None, "there is nothing to get: digits is built into scikit-learn"),
        ("oct-c8", None, "download the archive and save it as DIR/oct-c8.zip"),
        ("kvasir", None, "https://datasets.simula.no/downloads/kvasir/kvasir-dataset-v2.zip"),
        ("ham10000", None, "https://doi.org/10.7910/DVN/DBW86T"),
        ("pbc", None, "https://doi.org/10.17632/snkd93bnjr.1"),
        ("femnist", None, "move the folders data/train and data/test into DIR/femnist"),
    ],
)
def test_what_cannot_be_fetched_says_what_to_do(name: str, size: int | None, sentence: str) -> None:
    with pytest.raises(FedBMError, match=re.escape(sentence)) as caught:
        get(name, Path("DIR"), size=size)
    assert "\n" not in str(caught.value)


def test_a_folder_that_cannot_be_looked_into_is_said_so(tmp_path: Path) -> None:
    (tmp_path / "downloads").touch()  # a file, which has no entries
    with pytest.raises(FedBMError, match=r"^cannot look into .*downloads: Not a directory$"):
        find_download("bloodmnist", tmp_path / "downloads")


def test_what_is_here_is_found_by_name_and_size(tmp_path: Path) -> None:
    """The smallest file that has the pixels asked for; a folder or archive of that name before any of them."""
    assert find_download("bloodmnist", tmp_path) is None
    for size in ("_64", "_224", ""):
        (tmp_path / f"bloodmnist{size}.npz").touch()
    (tmp_path / "bloodmnist_128.npz.part").touch()
    found = {size: find_download("bloodmnist", tmp_path, size) for size in (16, 28, 32, 64, 100, 300)}
    assert {size: path.name for size, path in found.items() if path} == {
        16: "bloodmnist.npz",
        28: "bloodmnist.npz",
        32: "bloodmnist_64.npz",
        64: "bloodmnist_64.npz",
        100: "bloodmnist_224.npz",
        300: "bloodmnist_224.npz",
    }
    for file in tmp_path.glob("*224.npz"):
        file.unlink()
    assert find_download("bloodmnist", tmp_path) == tmp_path / "bloodmnist_64.npz"
    with pytest.raises(
        FedBMError,
        match=r"^bloodmnist is here with 64 pixels a side, not with 100: get it with 'fedbm data get bloodmnist "
        r"--size 128', or give .*bloodmnist_64.npz as --data to have it enlarged$",
    ):
        find_download("bloodmnist", tmp_path, 100)
    for name in ("kvasir_v1_128.npz", "kvasir_v1_notes.txt", "kvasirx_128.npz"):
        (tmp_path / name).touch()
    assert find_download("kvasir", tmp_path) == tmp_path / "kvasir_v1_128.npz"
    (tmp_path / "pbc.zip").touch()
    assert find_download("pbc", tmp_path) == tmp_path / "pbc.zip"
    (tmp_path / "pbc").mkdir()
    assert find_download("pbc", tmp_path) == tmp_path / "pbc"
