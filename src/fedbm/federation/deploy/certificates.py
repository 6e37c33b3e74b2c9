"""Keys and certificates, by which the sites of a federation recognise each other.

    ca.key    signs server.pem, then stays with the operator; nodes recognise the server by ca.crt
    node.key  signs every request of a node; the server recognises the node by node.pub

All keys are on the curve P-384. Only the owner of a private key can read it.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeVar, cast

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import CertificateIssuerPrivateKeyTypes
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

T = TypeVar("T")

AUTHORITY_DAYS = 3650
SERVER_DAYS = 730
WARN_DAYS = 30  # a certificate that ends sooner causes a warning
CLOCK_TOLERANCE = timedelta(minutes=5)


def make_authority(folder: Path, name: str) -> None:
    """Write ca.key and ca.crt: an authority that can sign servers, but no further authority."""
    key = _make_key(folder / "ca.key", PrivateFormat.PKCS8)
    subject = _common_name(f"{name} federation authority")
    usage = x509.KeyUsage(
        key_cert_sign=True,
        crl_sign=True,
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    critical = [x509.BasicConstraints(ca=True, path_length=0), usage]
    _sign(folder / "ca.crt", key, subject, subject, key.public_key(), AUTHORITY_DAYS, critical)


def make_server(authority: Path, folder: Path, hosts: Sequence[str], days: int = SERVER_DAYS) -> None:
    """Write server.key and server.pem, valid for these names and addresses and signed with *authority*'s ca.key."""
    issuer, signer = read_certificate(authority / "ca.crt").subject, _load_pem(authority / "ca.key")
    key = _make_key(folder / "server.key", PrivateFormat.PKCS8)
    others = [
        x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]),
        x509.SubjectAlternativeName([_alternative_name(host) for host in hosts]),
        x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()),
    ]
    critical = [x509.BasicConstraints(ca=False, path_length=None)]
    _sign(folder / "server.pem", signer, issuer, _common_name(hosts[0]), key.public_key(), days, critical, others)


def make_node(folder: Path, name: str) -> None:
    """Write node.key and node.pub in OpenSSH's format, which Flower reads."""
    key = _make_key(folder / "node.key", PrivateFormat.OpenSSH)
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    write_text(folder / "node.pub", f"{public.decode()} {name}\n")


def describe_validity(path: Path) -> str:
    """Return when a certificate ends, with a warning in its last days; raise FedBMError if it is not valid now."""
    certificate, now = read_certificate(path), datetime.now(UTC)
    start, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if not start - CLOCK_TOLERANCE <= now <= end:
        period = f"from {format_time(start)} to {format_time(end)}"
        raise FedBMError(f"{path} is valid {period}; check this machine's clock, or ask the operator to renew it")
    words = f"{path.name} is valid until {format_time(end)}"
    return f"warning: {words}; renew it soon" if end - now < timedelta(days=WARN_DAYS) else words


def check_server_key(folder: Path) -> None:
    """Raise FedBMError unless server.key belongs to server.pem, and ca.crt signed it."""
    key, certificate = _load_pem(folder / "server.key"), read_certificate(folder / "server.pem")
    try:
        certificate.verify_directly_issued_by(read_certificate(folder / "ca.crt"))
        belongs = certificate.public_key() == key.public_key()
    except (ValueError, TypeError, InvalidSignature):
        belongs = False
    if not belongs:
        files = f"server.key, server.pem and ca.crt in {folder}"
        raise FedBMError(f"{files} do not belong together; after 'fedbm federation renew', copy key and certificate")


def check_node_key(folder: Path) -> None:
    """Raise FedBMError unless node.key is a P-384 key that only its owner can read, and node.pub its public half."""
    key = _load(folder / "node.key", lambda content: load_ssh_private_key(content, None)).public_key()
    if key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode() != read_public_key(folder / "node.pub"):
        raise FedBMError(f"node.key and node.pub in {folder} do not belong together")


def read_public_key(path: Path) -> str:
    """Return a node's public key in OpenSSH's format, without its comment; raise FedBMError if it is not P-384."""
    key = _load(path, load_ssh_public_key, private=False)
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP384R1):
        raise FedBMError(f"{path} is not a key on the curve P-384; make one with ssh-keygen -t ecdsa -b 384")
    return key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()


def read_certificate(path: Path) -> x509.Certificate:
    return _load(path, x509.load_pem_x509_certificate, private=False)


def format_end(path: Path) -> str:
    """Return when a certificate ends."""
    return format_time(read_certificate(path).not_valid_after_utc)


def format_time(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%d %H:%M UTC")


def write_private(path: Path, content: bytes) -> None:
    """Write a file that others can never read, not even while it is written."""
    with atomic_write(path) as temporary:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)


def _load_pem(path: Path) -> CertificateIssuerPrivateKeyTypes:
    """Return a key of an authority or a server; an operator may use one of another kind than ours."""
    return cast(CertificateIssuerPrivateKeyTypes, _load(path, lambda content: load_pem_private_key(content, None)))


def _load(path: Path, load: Callable[[bytes], T], private: bool = True) -> T:
    """Return the key or certificate in a file; raise FedBMError if it cannot be read, or a private key by others."""
    try:
        mode = path.stat().st_mode & 0o777
        if private and os.name == "posix" and mode & 0o077:
            raise FedBMError(f"others can read the private key {path} (mode {mode:o}); run: chmod 600 {path}")
        return load(path.read_bytes())
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:  # TypeError: it has a passphrase
        raise FedBMError(f"cannot read {path}: {error}; ask the operator for the file again") from error


def _make_key(path: Path, form: PrivateFormat) -> ec.EllipticCurvePrivateKey:
    key = ec.generate_private_key(ec.SECP384R1())
    write_private(path, key.private_bytes(Encoding.PEM, form, NoEncryption()))
    return key


def _sign(
    path: Path,
    signer: CertificateIssuerPrivateKeyTypes,
    issuer: x509.Name,
    subject: x509.Name,
    key: ec.EllipticCurvePublicKey,
    days: int,
    critical: Sequence[x509.ExtensionType],
    others: Sequence[x509.ExtensionType] = (),
) -> None:
    """Write a certificate of *key* with these extensions."""
    start = datetime.now(UTC)
    first, last = start - CLOCK_TOLERANCE, start + timedelta(days=days)
    builder = x509.CertificateBuilder(issuer, subject, key, x509.random_serial_number(), first, last)
    for extension in (*critical, *others, x509.SubjectKeyIdentifier.from_public_key(key)):
        builder = builder.add_extension(extension, critical=extension in critical)
    write_text(path, builder.sign(signer, hashes.SHA384()).public_bytes(Encoding.PEM).decode())


def _common_name(name: str) -> x509.Name:
    short = name.encode()[:64].decode(errors="ignore")  # X.509 allows 64 bytes
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, short)])


def _alternative_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
