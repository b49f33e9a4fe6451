"""The certificate that clients see: read at the start, and again when its files have changed."""

from __future__ import annotations

import datetime
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

from oar_proxy.settings import ConfigurationError, Listen
from oar_proxy.wire import startup

SOON: Final = datetime.timedelta(days=30)
"""Before a certificate ends, the log warns that it will."""

if TYPE_CHECKING:
    from cryptography import x509

_log = structlog.get_logger("oar.tls")

_Stamp = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class Served:
    """What a new connection uses. ``end_point``: the certificate's hash for channel binding.

    None where there is no such hash: RFC 5929 makes it with the hash function of the certificate's
    signature, and some signatures (Ed25519) have none of their own.
    """

    context: ssl.SSLContext
    end_point: bytes | None


class Certificate:
    """The certificate of ``listen.tls_certificate`` with its key, as a context for new connections.

    Raises ``ConfigurationError`` when it cannot be used.
    """

    def __init__(self, certificate: Path, key: Path) -> None:
        self._certificate = certificate
        self._key = key
        self._stamp = self._look()
        self._served = self._read()

    def served(self) -> Served:
        """Return what a new connection uses.

        Whoever renews a certificate replaces two files, one after the other: a pair that cannot
        be used is logged, and the one in force stays, until the files change again.
        """
        stamp = self._look()
        if stamp != self._stamp:
            self._stamp = stamp
            try:
                self._served = self._read()
            except ConfigurationError as error:
                _log.error("certificate not read: the one in force stays", reason=error.message)
            else:
                _log.info("certificate read again", file=str(self._certificate))
        return self._served

    def _look(self) -> _Stamp:
        """Return by what a change of the files shows; of a file that is gone, nothing does."""
        found = []
        for path in (self._certificate, self._key):
            try:
                status = path.stat()
            except OSError:
                found.append((0, 0, 0))
            else:
                found.append((status.st_ino, status.st_mtime_ns, status.st_size))
        return tuple(found)

    def _read(self) -> Served:
        contents = _contents("tls_certificate", self._certificate)
        _contents("tls_key", self._key)
        certificate = _first(contents)
        ends = certificate.not_valid_after_utc
        now = datetime.datetime.now(datetime.UTC)
        if ends <= now:
            raise ConfigurationError(
                f"listen.tls_certificate: the certificate ended on {ends:%Y-%m-%d %H:%M} UTC",
                hint="put a new one there; oar cert renew makes one where oar cert made this one",
            )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_cert_chain(self._certificate, self._key, password=_no_password)
        except ssl.SSLError as error:
            fault = "no private key in PEM"
            if error.reason == "KEY_VALUES_MISMATCH":
                fault = "not the key of the first certificate in listen.tls_certificate"
            raise ConfigurationError(f"listen.tls_key: {fault}") from None
        if _contents("tls_certificate", self._certificate) != contents:
            raise ConfigurationError("listen.tls_certificate: the file is being replaced")
        if ends - now < SOON:
            _log.warning("certificate ends soon", ends=f"{ends:%Y-%m-%d %H:%M} UTC")
        context.set_alpn_protocols([startup.ALPN])
        return Served(context, _end_point(certificate))


def open_certificate(listen: Listen) -> Certificate | None:
    """Return the configured certificate, None when there is none. Raises as it does."""
    if listen.tls_certificate is None or listen.tls_key is None:
        return None
    return Certificate(listen.tls_certificate, listen.tls_key)


def _contents(field: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigurationError(
            f"listen.{field}: {path} cannot be read: {error.strerror}",
            hint="the OS user that runs oar serve has to be able to read it",
        ) from None


def _first(pem: bytes) -> x509.Certificate:
    """Return the certificate that clients are shown: the first of the file."""
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificate(pem)
    except ValueError:
        raise ConfigurationError("listen.tls_certificate: no certificate in PEM") from None


def _end_point(certificate: x509.Certificate) -> bytes | None:
    """Hash a certificate for ``tls-server-end-point`` (RFC 5929, 4.1)."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import hashes

    try:
        algorithm = certificate.signature_hash_algorithm
    except UnsupportedAlgorithm:
        return None
    if isinstance(algorithm, (hashes.MD5, hashes.SHA1)):
        algorithm = hashes.SHA256()
    return None if algorithm is None else certificate.fingerprint(algorithm)


def _no_password() -> str:
    """OpenSSL would ask the terminal otherwise, and wait."""
    raise ConfigurationError(
        "listen.tls_key: the key is encrypted",
        hint="openssl pkey -in KEY -out PLAIN-KEY takes the pass phrase off",
    )
