"""A certificate authority in a directory, and server certificates under it.

The directory holds::

    ca.crt      the authority's certificate, PEM: what clients trust
    ca.cer      the same, DER: what Windows imports by a double click
    ca.key      the authority's key, needed to renew and by nothing that runs
    server.crt  the proxy's certificate, then the authority's, PEM
    server.key  its key
"""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from oar_proxy.cert import SERVER_DAYS, KeyKind
from oar_proxy.settings import ConfigurationError

AUTHORITY: Final = "ca.crt"
AUTHORITY_DER: Final = "ca.cer"
AUTHORITY_KEY: Final = "ca.key"
SERVER: Final = "server.crt"
SERVER_KEY: Final = "server.key"

AUTHORITY_DAYS: Final = 3650

_CLOCKS_DIFFER: Final = datetime.timedelta(hours=1)
"""A client whose clock is behind would find a certificate of this moment not valid yet."""

_LABEL: Final = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)", re.IGNORECASE)

Key = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey


@dataclass(frozen=True, slots=True)
class Made:
    """What a directory holds now."""

    directory: Path
    hosts: tuple[str, ...]
    authority: x509.Certificate
    server: x509.Certificate

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the authority's certificate, as operating systems show it."""
        return self.authority.fingerprint(hashes.SHA256()).hex(":").upper()

    @property
    def thumbprint(self) -> str:
        """SHA-1 of it, by which Windows names a certificate."""
        return self.authority.fingerprint(hashes.SHA1()).hex()  # noqa: S303 - a name, proves nothing


@dataclass(frozen=True, slots=True)
class _Issuer:
    certificate: x509.Certificate
    key: Key = field(repr=False)


def make(
    directory: Path, hosts: Sequence[str], kind: KeyKind, days: int, *, replace: bool = False
) -> Made:
    """Make an authority and a server certificate. Raises ``ConfigurationError``, ``OSError``.

    ``hosts`` are names and addresses that clients connect to. Nothing is overwritten without
    ``replace``: clients that trust the authority would trust it no more.
    """
    names = _alternative_names(hosts)
    there = [
        name
        for name in (AUTHORITY, AUTHORITY_DER, AUTHORITY_KEY, SERVER, SERVER_KEY)
        if (directory / name).exists()
    ]
    if there and not replace:
        raise ConfigurationError(
            f"{directory} has {', '.join(there)} already",
            hint="oar cert renew makes a new server certificate that the same clients trust; "
            "--force makes a new authority, which each of them has to import",
        )
    directory.mkdir(parents=True, exist_ok=True)
    key = _new_key(kind)
    authority = _authority(key)
    _write(directory / AUTHORITY_KEY, _key_pem(key), private=True)
    _write(directory / AUTHORITY, _pem(authority))
    _write(directory / AUTHORITY_DER, authority.public_bytes(serialization.Encoding.DER))
    return _issue(directory, names, kind, days, _Issuer(authority, key))


def renew(
    directory: Path, hosts: Sequence[str] = (), kind: KeyKind | None = None, days: int = SERVER_DAYS
) -> Made:
    """Make a new key and server certificate under the authority that is there.

    For the same hosts, and with a key of the same kind, unless others are given. Raises
    ``ConfigurationError`` and ``OSError``.
    """
    authority = _read_certificate(directory / AUTHORITY)
    key = _read_key(directory / AUTHORITY_KEY)
    if key.public_key() != authority.public_key():
        raise ConfigurationError(f"{directory / AUTHORITY_KEY} is not the key of {AUTHORITY}")
    left = authority.not_valid_after_utc - _now()
    if left < datetime.timedelta(days=1):
        raise ConfigurationError(
            f"{directory / AUTHORITY} is valid until {authority.not_valid_after_utc:%Y-%m-%d}",
            hint="oar cert make --force makes a new authority, which clients have to import",
        )
    before = _read_certificate(directory / SERVER)
    names = _alternative_names(hosts) if hosts else _names_of(before)
    if kind is None:
        kind = KeyKind.rsa if isinstance(before.public_key(), rsa.RSAPublicKey) else KeyKind.ecdsa
    return _issue(directory, names, kind, min(days, left.days), _Issuer(authority, key))


def read(directory: Path) -> Made:
    """Return what a directory holds. Raises ``ConfigurationError``."""
    server = _read_certificate(directory / SERVER)
    authority = _read_certificate(directory / AUTHORITY)
    return Made(directory, _spell(_names_of(server)), authority, server)


def _issue(
    directory: Path,
    names: Sequence[x509.GeneralName],
    kind: KeyKind,
    days: int,
    issuer: _Issuer,
) -> Made:
    authority = issuer.certificate
    key = _new_key(kind)
    identifier = authority.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    certificate = (
        _begun(_subject(_spell(names)[0]), authority.subject, key, days)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(enciphers=kind is KeyKind.rsa), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier),
            critical=False,
        )
        .sign(issuer.key, hashes.SHA256())
    )
    # The key last: a proxy that looks between the two finds a pair that does not match, and keeps
    # the one it has.
    _write(directory / SERVER, _pem(certificate) + _pem(authority))
    _write(directory / SERVER_KEY, _key_pem(key), private=True)
    return Made(directory, _spell(names), authority, certificate)


def _authority(key: Key) -> x509.Certificate:
    number = os.urandom(4).hex()  # two of them must not have one name: clients look it up by that
    name = _subject(f"oar certificate authority {number}")
    return (
        _begun(name, name, key, AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs=True), critical=True)
        .sign(key, hashes.SHA256())
    )


def _begun(subject: x509.Name, issuer: x509.Name, key: Key, days: int) -> x509.CertificateBuilder:
    now = _now()
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCKS_DIFFER)
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])


def _key_usage(*, signs: bool = False, enciphers: bool = False) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        content_commitment=False,
        key_encipherment=enciphers,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def _new_key(kind: KeyKind) -> Key:
    if kind is KeyKind.rsa:
        return rsa.generate_private_key(public_exponent=65537, key_size=3072)
    return ec.generate_private_key(ec.SECP256R1())


def _alternative_names(hosts: Sequence[str]) -> list[x509.GeneralName]:
    return [_alternative_name(host) for host in dict.fromkeys(hosts)]


def _alternative_name(host: str) -> x509.GeneralName:
    with contextlib.suppress(ValueError):
        return x509.IPAddress(ipaddress.ip_address(host.strip("[]")))
    try:
        name = host.encode("idna").decode("ascii")
    except UnicodeError:
        name = ""
    labels = name.removeprefix("*.").split(".")
    if not all(_LABEL.fullmatch(label) for label in labels):
        raise ConfigurationError(
            f"{host!r} is neither a host name nor an address",
            hint="without scheme and port: db.example.com or 10.0.0.5",
        )
    return x509.DNSName(name.lower())


def _names_of(certificate: x509.Certificate) -> list[x509.GeneralName]:
    found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return list(found)


def _spell(names: Sequence[x509.GeneralName]) -> tuple[str, ...]:
    return tuple(str(name.value) for name in names)


def _read_certificate(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(_read(path))
    except ValueError:
        raise ConfigurationError(f"{path} is no certificate in PEM") from None


def _read_key(path: Path) -> Key:
    try:
        key = serialization.load_pem_private_key(_read(path), password=None)
    except (TypeError, ValueError):
        raise ConfigurationError(f"{path} is no key in PEM, or an encrypted one") from None
    if not isinstance(key, Key):
        raise ConfigurationError(f"{path} is neither an RSA nor an ECDSA key")
    return key


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigurationError(
            f"{path} cannot be read: {error.strerror}", hint="oar cert make makes it"
        ) from None


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: Key) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _write(path: Path, content: bytes, *, private: bool = False) -> None:
    """Put a file in place as a whole; a private one could never be read by others."""
    fresh = path.with_name(path.name + ".new")
    fresh.unlink(missing_ok=True)
    mode = 0o600 if private else 0o644
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(descriptor)
    if path.exists():
        # Whoever runs the proxy may be another user than the one who renews.
        there = path.stat()
        if (there.st_uid, there.st_gid) != (os.geteuid(), os.getegid()):
            os.chown(fresh, there.st_uid, there.st_gid)
    fresh.replace(path)


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)
