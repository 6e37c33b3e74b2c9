"""What a node looks at before it says that it is ready: every lack is one sentence that says what to do."""

from __future__ import annotations

import shutil
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest

from fedbm.errors import FedBMError

pytest.importorskip("flwr", reason="needs the flower extra")

from fedbm.federation.deploy import certificates, flower
from fedbm.federation.deploy.certificates import check_server_key, describe_validity, make_authority, make_server
from fedbm.federation.deploy.preflight import (
    check_data,
    check_server,
    describe_policy,
    describe_versions,
)
from fedbm.federation.deploy.settings_files import NodeSettings, Policy


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys")
    make_authority(folder, "study")
    make_server(folder, folder, ["127.0.0.1"])
    return folder


@contextmanager
def answering(status: int, keys: Path | None) -> Iterator[int]:
    """A server that says *status* to whoever calls, over TLS if there are keys; its port."""
    listener = socket.create_server(("127.0.0.1", 0))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    if keys:
        context.load_cert_chain(keys / "server.pem", keys / "server.key")

    def serve() -> None:
        with suppress(OSError):
            caller, _ = listener.accept()
            with caller, context.wrap_socket(caller, server_side=True) if keys else caller as line:
                line.recv(4096)
                line.sendall(f"HTTP/1.1 {status} x\r\nContent-Length: 0\r\n\r\n".encode())

    thread = threading.Thread(target=serve)
    thread.start()
    yield listener.getsockname()[1]
    listener.close()
    thread.join()


def test_a_superlink_is_recognised(keys: Path) -> None:
    with answering(415, keys) as port:
        said = check_server(NodeSettings(server=f"127.0.0.1:{port}"), keys / "ca.crt")
    assert said == f"server 127.0.0.1:{port}: reached, its certificate is trusted"


def test_a_worker_that_ends_before_it_is_admitted_is_explained() -> None:
    assert "clock" in str(flower.explain_exit(f"{flower.SIGNED_OFF}\n"))
    assert flower.explain_exit(f"{flower.ADMITTED}\n{flower.SIGNED_OFF}\n") is None


@pytest.mark.parametrize(
    ("status", "tls", "sentence"),
    [
        (502, True, r"is not a SuperLink \(it answered 502\).* ask the operator to start the SuperLink"),
        (404, True, r"is not a SuperLink \(it answered 404\)"),
        (200, True, r"is not a SuperLink \(it answered 200\)"),
        (200, False, "no trusted server answers at 127.0.0.1"),
    ],
)
def test_what_else_may_answer(status: int, tls: bool, sentence: str, keys: Path) -> None:
    with answering(status, keys if tls else None) as port, pytest.raises(FedBMError, match=sentence):
        check_server(NodeSettings(server=f"127.0.0.1:{port}"), keys / "ca.crt")


def test_a_server_of_another_authority_or_name_is_not_trusted(keys: Path, tmp_path: Path) -> None:
    make_authority(tmp_path, "another")
    with (
        answering(415, keys) as port,
        pytest.raises(FedBMError, match="no trusted server .* unable to get local issuer"),
    ):
        check_server(NodeSettings(server=f"127.0.0.1:{port}"), tmp_path / "ca.crt")
    with answering(415, keys) as port, pytest.raises(FedBMError, match="no trusted server .* Hostname mismatch"):
        check_server(NodeSettings(server=f"localhost:{port}"), keys / "ca.crt")


@pytest.mark.parametrize(
    ("days", "why"),
    [(-40, "expired .* this machine's clock"), (40, "not yet valid .* this machine's clock")],
)
def test_a_certificate_out_of_its_time_is_named(
    days: int, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moments = iter([datetime.now(UTC) - timedelta(days=99), datetime.now(UTC) + timedelta(days=days)])
    monkeypatch.setattr(certificates, "datetime", SimpleNamespace(now=lambda zone: next(moments)))
    make_authority(tmp_path, "trial")
    make_server(tmp_path, tmp_path, ["127.0.0.1"], 30)
    with answering(415, tmp_path) as port, pytest.raises(FedBMError, match=why):
        check_server(NodeSettings(server=f"127.0.0.1:{port}"), tmp_path / "ca.crt")


def test_a_server_that_is_not_there(keys: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with pytest.raises(FedBMError, match=rf"no trusted server answers at 127.0.0.1:{port}: .*Connection refused"):
        check_server(NodeSettings(server=f"127.0.0.1:{port}"), keys / "ca.crt")
    with pytest.raises(FedBMError, match="no trusted server answers at nowhere.invalid:443: "):
        check_server(NodeSettings(server="nowhere.invalid:443"), keys / "ca.crt")


@pytest.mark.parametrize("address", ["127.0.0.1:x", "127.0.0.1:0", "127.0.0.1:70000", "fl..org:443", "a b:443"])
def test_an_address_is_host_and_port(address: str, keys: Path) -> None:
    with pytest.raises(FedBMError, match="no trusted server answers at .* must be host:port"):
        check_server(NodeSettings(server=address), keys / "ca.crt")


def test_the_last_days_of_a_certificate_are_a_warning(keys: Path, tmp_path: Path) -> None:
    assert describe_validity(keys / "server.pem").startswith("server.pem is valid until 20")
    make_server(keys, tmp_path, ["127.0.0.1"], days=3)
    assert describe_validity(tmp_path / "server.pem").startswith("warning: server.pem is valid until")


def test_images_are_counted_and_mistakes_named(tmp_path: Path) -> None:
    said = check_data(NodeSettings(size=16), "digits")
    assert said == "images: 1,797 of 10 classes, 1,258 of them for training, 16 pixels, grey"
    with pytest.raises(FedBMError, match="nowhere"):
        check_data(NodeSettings(), str(tmp_path / "nowhere"))
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(FedBMError, match="If an option helps"):
        check_data(NodeSettings(), str(tmp_path))


def test_advice_of_an_option_that_a_node_lacks_names_the_way_round(scans: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(scans, tmp_path / "scans")
    next((folder / "cyst").iterdir()).write_bytes(b"not a picture")
    prepare = rf"--on-bad-file skip\)\. If an option helps, run 'fedbm data prepare {folder}' with it"
    with pytest.raises(FedBMError, match=prepare):
        check_data(NodeSettings(size=16), str(folder))


def test_another_version_of_flower_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "flwr 1." in describe_versions()
    monkeypatch.setattr(flower, "version", lambda name: "1.43.0")
    with pytest.raises(FedBMError, match="flwr 1.43.0 is installed, but this version of fedbm needs flwr>=1.41,<1.43"):
        describe_versions()


def test_a_new_certificate_without_its_new_key_is_named(keys: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(keys, tmp_path / "server")
    check_server_key(folder)
    make_server(keys, tmp_path, ["127.0.0.1"])
    shutil.copy(tmp_path / "server.pem", folder)
    with pytest.raises(FedBMError, match="server.key, server.pem and ca.crt in .* do not belong together"):
        check_server_key(folder)


def test_a_misspelt_method_in_a_site_s_rules_is_named() -> None:
    assert describe_policy(NodeSettings()).startswith('policy: approval = true, methods = "all"')
    with pytest.raises(FedBMError, match=r'methods in \[policy\] .* no "fedmb" \(did you mean "fedbm"\?\)'):
        describe_policy(NodeSettings(policy=Policy(methods="fedavg, fedmb")))
