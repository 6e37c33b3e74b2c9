"""How the sites of a federation know each other.

    ca.key   signs server.pem once, then stays with the operator; nodes hold ca.crt and so know the server
    node.key signs every request of a node; the server holds node.pub and so knows the node

All keys are on the curve P-384. Private ones are readable by their owner alone. Nothing here talks to a network.
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
from fedbm.utils.io import atomic_write

AUTHORITY_DAYS = 3650
SERVER_DAYS = 730
WARN_DAYS = 30  # before the end of validity a start is accompanied by a note
SKEW = timedelta(minutes=5)  # a site's clock may be behind by this much


def make_authority(folder: Path, name: str, now: datetime | None = None) -> None:
    """ca.key and ca.crt in *folder*: an authority that can sign servers, and nothing below them."""
    key = ec.generate_private_key(ec.SECP384R1())
    subject = _named(f"{name} federation authority")
    certificate = (
        _builder(subject, subject, key.public_key(), AUTHORITY_DAYS, now)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .sign(key, hashes.SHA384())
    )
    write_private(folder / "ca.key", key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    write_public(folder / "ca.crt", certificate.public_bytes(Encoding.PEM))


def make_server(
    authority: Path, folder: Path, hosts: Sequence[str], days: int = SERVER_DAYS, now: datetime | None = None
) -> None:
    """server.key and server.pem in *folder*, valid for these names and addresses, signed by *authority*'s ca.key."""
    signer, issuer = _authority_key(authority / "ca.key"), read_certificate(authority / "ca.crt")
    key = ec.generate_private_key(ec.SECP384R1())
    issuer_id = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    certificate = (
        _builder(_named(hosts[0]), issuer.subject, key.public_key(), days, now)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False)
        .add_extension(issuer_id, critical=False)
        .sign(signer, hashes.SHA384())
    )
    write_private(folder / "server.key", key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    write_public(folder / "server.pem", certificate.public_bytes(Encoding.PEM))


def make_node(folder: Path, name: str) -> None:
    """node.key and node.pub in *folder*, in OpenSSH's format, which is what Flower reads."""
    key = ec.generate_private_key(ec.SECP384R1())
    write_private(folder / "node.key", key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    write_public(folder / "node.pub", public + f" {name}\n".encode())


def check_certificate(path: Path, now: datetime | None = None) -> datetime:
    """When the certificate ends, in UTC; FedBMError if it is not valid *now*."""
    certificate, now = read_certificate(path), now or datetime.now(UTC)
    if now < certificate.not_valid_before_utc - SKEW:
        raise FedBMError(
            f"{path} is valid only from {stamp(certificate.not_valid_before_utc)}; is this machine's clock right?"
        )
    if now > certificate.not_valid_after_utc:
        raise FedBMError(
            f"{path} ended on {stamp(certificate.not_valid_after_utc)}; the operator makes a new one with "
            "'fedbm federation renew'"
        )
    return certificate.not_valid_after_utc


def check_signed(path: Path, authority: Path) -> None:
    """FedBMError unless *authority* signed the certificate at *path*."""
    try:
        read_certificate(path).verify_directly_issued_by(read_certificate(authority))
    except Exception as error:
        raise FedBMError(f"{path} was not signed by {authority}; they belong to two federations") from error


def check_node_key(private: Path, public: Path) -> None:
    """FedBMError unless *private* is a P-384 key that its owner alone can read, and *public* is its public half."""
    check_private(private)
    try:
        key = load_ssh_private_key(private.read_bytes(), None)
        other = load_ssh_public_key(public.read_bytes())
    except (OSError, ValueError, UnsupportedAlgorithm) as error:
        raise FedBMError(f"cannot read the keys {private} and {public.name}: {error}") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP384R1):
        raise FedBMError(f"{private} is no key on the curve P-384; ask the operator for this node's folder again")
    if key.public_key() != other:
        raise FedBMError(f"{public} is not the public half of {private.name}; they belong to two nodes")


def check_private(path: Path) -> None:
    """FedBMError if the file is missing or others than its owner can read it."""
    try:
        mode = path.stat().st_mode & 0o777
    except OSError as error:
        raise FedBMError(f"there is no key {path}; ask the operator for this folder again") from error
    if os.name == "posix" and mode & 0o077:
        raise FedBMError(f"others can read the private key {path} (mode {mode:o}); run: chmod 600 {path}")


def read_certificate(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except OSError as error:
        raise FedBMError(f"cannot read the certificate {path}: {error.strerror}; have it handed over again") from error
    except ValueError as error:
        raise FedBMError(f"cannot read the certificate {path}: it is none; have it handed over again") from error


def stamp(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%d %H:%M UTC")


def write_private(path: Path, content: bytes) -> None:
    """A file that never was readable by others, not even while it was written."""
    with atomic_write(path) as temporary:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)


def write_public(path: Path, content: bytes) -> None:
    with atomic_write(path) as temporary:
        temporary.write_bytes(content)


def _authority_key(path: Path) -> ec.EllipticCurvePrivateKey:
    check_private(path)
    try:
        key = load_pem_private_key(path.read_bytes(), None)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise FedBMError(f"cannot read the authority's key {path}: {error}") from error
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return key


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int, now: datetime | None
) -> x509.CertificateBuilder:
    begin = now or datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin - SKEW)
        .not_valid_after(begin + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _usage(signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
