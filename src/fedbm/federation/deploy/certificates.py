"""Keys and certificates, by which the sites of a federation recognise each other.

    ca.key    signs server.pem, then stays with the operator; nodes recognise the server by ca.crt
    node.key  signs every request of a node; the server recognises the node by node.pub

All keys are on the curve P-384. Only the owner of a private key can read it.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_ssh_private_key,
    load_ssh_public_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedbm.errors import FedBMError
from fedbm.utils.io import atomic_write, write_text

AUTHORITY_DAYS = 3650
SERVER_DAYS = 730
WARN_DAYS = 30  # a certificate that ends sooner causes a warning
CLOCK_TOLERANCE = timedelta(minutes=5)


def make_authority(folder: Path, name: str, now: datetime | None = None) -> None:
    """Write ca.key and ca.crt: an authority that can sign servers, but no further authority."""
    key = _make_key(folder / "ca.key", PrivateFormat.PKCS8)
    subject = _common_name(f"{name} federation authority")
    builder = _builder(subject, subject, key.public_key(), AUTHORITY_DAYS, now, is_authority=True)
    certificate = builder.sign(key, hashes.SHA384())
    write_text(folder / "ca.crt", certificate.public_bytes(Encoding.PEM).decode())


def make_server(
    authority: Path, folder: Path, hosts: Sequence[str], days: int = SERVER_DAYS, now: datetime | None = None
) -> None:
    """Write server.key and server.pem, valid for these names and addresses and signed with *authority*'s ca.key."""
    path = authority / "ca.key"
    check_private(path)
    issuer = read_certificate(authority / "ca.crt")
    try:
        signer = load_pem_private_key(path.read_bytes(), None)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:  # TypeError: it has a passphrase
        raise FedBMError(f"cannot read the authority's key {path}: {error}") from error
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    key = _make_key(folder / "server.key", PrivateFormat.PKCS8)
    issuer_id = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    certificate = (
        _builder(_common_name(hosts[0]), issuer.subject, key.public_key(), days, now, is_authority=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([_alternative_name(host) for host in hosts]), critical=False)
        .add_extension(issuer_id, critical=False)
        .sign(signer, hashes.SHA384())
    )
    write_text(folder / "server.pem", certificate.public_bytes(Encoding.PEM).decode())


def make_node(folder: Path, name: str) -> None:
    """Write node.key and node.pub in OpenSSH's format, which Flower reads."""
    key = _make_key(folder / "node.key", PrivateFormat.OpenSSH)
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    write_text(folder / "node.pub", f"{public.decode()} {name}\n")


def check_certificate(path: Path, now: datetime | None = None) -> datetime:
    """Return when the certificate ends, in UTC; raise FedBMError if it is not valid *now*."""
    certificate, now = read_certificate(path), now or datetime.now(UTC)
    start, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now < start - CLOCK_TOLERANCE:
        raise FedBMError(f"{path} is valid only from {format_time(start)}; check this machine's clock")
    if now > end:
        raise FedBMError(f"{path} ended on {format_time(end)}; the operator renews it with 'fedbm federation renew'")
    return end


def check_signed(path: Path, authority: Path) -> None:
    """Raise FedBMError unless *authority* signed the certificate at *path*."""
    try:
        read_certificate(path).verify_directly_issued_by(read_certificate(authority))
    except Exception as error:
        raise FedBMError(f"{path} was not signed by {authority}; they belong to two federations") from error


def check_node_key(private: Path, public: Path) -> None:
    """Raise FedBMError unless *private* is a P-384 key that only its owner can read, and *public* its public half."""
    check_private(private)
    try:
        key = load_ssh_private_key(private.read_bytes(), None).public_key()
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:  # TypeError: it has a passphrase
        raise FedBMError(f"cannot read the key {private}: {error}") from error
    if key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode() != read_public_key(public):
        raise FedBMError(f"{public} is not the public half of {private.name}; they belong to two nodes")


def read_public_key(path: Path) -> str:
    """Return a node's public key in OpenSSH's format, without its comment; raise FedBMError if it is not P-384."""
    try:
        content = path.read_bytes()
        key = load_ssh_public_key(content)
    except (OSError, ValueError, UnsupportedAlgorithm) as error:
        raise FedBMError(f"cannot read {path}, the public key of a node: {error}; copy its node.pub again") from error
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP384R1):
        raise FedBMError(f"{path} is not a key on the curve P-384; make one with ssh-keygen -t ecdsa -b 384")
    return b" ".join(content.split()[:2]).decode()  # a comment may have any encoding


def check_private(path: Path) -> None:
    """Raise FedBMError if the file is missing or anyone but its owner can read it."""
    try:
        mode = path.stat().st_mode & 0o777
    except OSError as error:
        raise FedBMError(f"there is no key {path}; ask the operator for this folder again") from error
    if os.name == "posix" and mode & 0o077:
        raise FedBMError(f"others can read the private key {path} (mode {mode:o}); run: chmod 600 {path}")


def read_certificate(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not a certificate"
        raise FedBMError(f"cannot read the certificate {path}: {why}; ask for the file again") from error


def format_time(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%d %H:%M UTC")


def write_private(path: Path, content: bytes) -> None:
    """Write a file that others can never read, not even while it is written."""
    with atomic_write(path) as temporary:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)


def _make_key(path: Path, form: PrivateFormat) -> ec.EllipticCurvePrivateKey:
    key = ec.generate_private_key(ec.SECP384R1())
    write_private(path, key.private_bytes(Encoding.PEM, form, NoEncryption()))
    return key


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    days: int,
    now: datetime | None,
    is_authority: bool,
) -> x509.CertificateBuilder:
    start = now or datetime.now(UTC)
    usage = x509.KeyUsage(
        digital_signature=not is_authority,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(start - CLOCK_TOLERANCE)
        .not_valid_after(start + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=0 if is_authority else None), critical=True)
        .add_extension(usage, critical=True)
    )


def _common_name(name: str) -> x509.Name:
    short = name.encode()[:64].decode(errors="ignore")  # X.509 allows 64 bytes
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, short)])


def _alternative_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
