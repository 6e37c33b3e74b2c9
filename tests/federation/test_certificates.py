"""Keys and certificates: what they are valid for, who can read them, and every refusal."""

from __future__ import annotations

import os
import shutil
import ssl
import subprocess
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from socket import socketpair
from types import SimpleNamespace

import pytest

from fedbm.errors import FedBMError

pytest.importorskip("cryptography", reason="needs the flower extra")

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_ssh_private_key,
)

from fedbm.federation.deploy import certificates
from fedbm.federation.deploy.certificates import (
    check_node_key,
    check_server_key,
    describe_validity,
    make_authority,
    make_node,
    make_server,
    read_certificate,
    write_private,
)

NOW = datetime(2030, 1, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys")
    make_authority(folder, "study")
    make_server(folder, folder, ["localhost", "127.0.0.1"])
    make_node(folder, "hospital-1")
    return folder


def test_the_authority_signs_servers_and_nothing_below(keys: Path) -> None:
    found = read_certificate(keys / "ca.crt").extensions.get_extension_for_class(x509.BasicConstraints).value
    assert (found.ca, found.path_length) == (True, 0)
    below = read_certificate(keys / "server.pem").extensions.get_extension_for_class(x509.BasicConstraints).value
    assert not below.ca
    check_server_key(keys)


def test_private_keys_are_their_owners_alone(keys: Path) -> None:
    for name in ("ca.key", "server.key", "node.key"):
        assert (keys / name).stat().st_mode & 0o777 == 0o600
    key = load_ssh_private_key((keys / "node.key").read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    assert key.curve.name == "secp384r1"


def shake_hands(keys: Path, name: str, trusts: Path) -> str | None:
    """The TLS version a client that trusts *trusts* and calls *name* agrees on with a server of these keys."""
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(keys / "server.pem", keys / "server.key")
    here, there = socketpair()

    def serve() -> None:
        try:
            with serving.wrap_socket(there, server_side=True) as secured:
                secured.recv(1)
        except OSError:
            pass

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with ssl.create_default_context(cafile=str(trusts)).wrap_socket(here, server_hostname=name) as secured:
            return secured.version()
    finally:
        here.close()
        thread.join()


def test_a_client_of_the_same_authority_trusts_the_server_by_its_names_only(keys: Path, tmp_path: Path) -> None:
    assert shake_hands(keys, "localhost", keys / "ca.crt") == "TLSv1.3"
    assert shake_hands(keys, "127.0.0.1", keys / "ca.crt") == "TLSv1.3"
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        shake_hands(keys, "fl.example.org", keys / "ca.crt")
    make_authority(tmp_path, "another")
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(keys, "localhost", tmp_path / "ca.crt")
    for name in ("server.pem", "server.key"):
        shutil.copy(keys / name, tmp_path)
    with pytest.raises(FedBMError, match="server.key, server.pem and ca.crt in .* do not belong together"):
        check_server_key(tmp_path)


def test_validity_is_stated_and_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def at(moment: datetime) -> None:
        monkeypatch.setattr(certificates, "datetime", SimpleNamespace(now=lambda zone: moment))

    at(NOW)
    make_authority(tmp_path, "study")
    make_server(tmp_path, tmp_path, ["localhost"], days=10)
    at(NOW + timedelta(days=9))
    assert "server.pem is valid until 2030-01-11 00:00 UTC" in describe_validity(tmp_path / "server.pem")
    for moment in (NOW + timedelta(days=11), NOW - timedelta(days=1)):
        at(moment)
        with pytest.raises(FedBMError, match="to 2030-01-11 00:00 UTC; check .* clock, .* renew"):
            describe_validity(tmp_path / "server.pem")
    at(NOW - timedelta(minutes=4))  # a clock that is behind a little
    describe_validity(tmp_path / "server.pem")


def test_a_node_s_keys_must_be_a_pair_of_the_right_kind(keys: Path, tmp_path: Path) -> None:
    check_node_key(keys)
    make_node(tmp_path, "hospital-2")
    private, public = tmp_path / "node.key", tmp_path / "node.pub"
    os.chmod(private, 0o640)
    with pytest.raises(FedBMError, match=r"others can read the private key .* \(mode 640\); run: chmod 600"):
        check_node_key(tmp_path)
    os.chmod(private, 0o600)
    shutil.copy(keys / "node.pub", public)
    with pytest.raises(FedBMError, match="node.key and node.pub in .* do not belong together"):
        check_node_key(tmp_path)
    other = ed25519.Ed25519PrivateKey.generate()
    write_private(private, other.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    public.write_bytes(other.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH))
    with pytest.raises(FedBMError, match="not a key on the curve P-384"):
        check_node_key(tmp_path)
    write_private(private, b"nonsense")
    with pytest.raises(FedBMError, match="cannot read .*node.key"):
        check_node_key(tmp_path)
    private.unlink()
    with pytest.raises(FedBMError, match="cannot read .*node.key: .*No such file"):
        check_node_key(tmp_path)


def test_a_servers_key_of_another_kind_is_compared_too(keys: Path, tmp_path: Path) -> None:
    for name in ("ca.crt", "server.pem"):
        shutil.copy(keys / name, tmp_path)
    key = rsa.generate_private_key(65537, 2048)
    write_private(tmp_path / "server.key", key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    with pytest.raises(FedBMError, match="do not belong together"):
        check_server_key(tmp_path)


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="needs ssh-keygen")
def test_a_key_with_a_passphrase_is_one_sentence(tmp_path: Path) -> None:
    command = ["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "secret", "-f", str(tmp_path / "node.key")]
    subprocess.run(command, check=True)
    with pytest.raises(FedBMError, match="cannot read .*password"):
        check_node_key(tmp_path)


@pytest.mark.parametrize("name", ["ö" * 60, "研" * 60, "x" * 100])
def test_a_long_name_of_a_folder_is_cut_in_certificates(name: str, tmp_path: Path) -> None:
    make_authority(tmp_path, name)
    [common] = read_certificate(tmp_path / "ca.crt").subject
    assert str(common.value).startswith(name[:20])
    assert len(str(common.value).encode()) <= 64


def test_what_is_no_certificate_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.crt").write_text("nonsense")
    with pytest.raises(FedBMError, match=r"cannot read .*x\.crt: .*; ask the operator for the file again"):
        read_certificate(tmp_path / "x.crt")
    with pytest.raises(FedBMError, match=r"cannot read .*y\.crt: .*No such file or directory.*; ask the operator"):
        read_certificate(tmp_path / "y.crt")
