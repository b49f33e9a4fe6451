"""Connections to the hub that are not libpq's: those of client sessions, and of cancellations.

Over TCP they are as safe as the proxy's own connection, which libpq makes as ``hub.dsn`` says. Was
that encrypted, so are they, and the server's certificate is verified as libpq does it for the
``sslmode`` in force (PostgreSQL's manual, 32.19, "SSL Support"). What cannot be done the same way
is refused when the hub is first reached.
"""

from __future__ import annotations

import asyncio
import ssl
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import psycopg

from oar_proxy.hub.address import Encryption, HubAddress, HubError

ALPN: Final = "postgresql"
_SSL_REQUEST: Final = struct.pack("!II", 8, 80877103)
_VERSIONS: Final = {f"TLSv1.{n}": ssl.TLSVersion[f"TLSv1_{n}"] for n in (2, 3)}
_DEFAULT_ROOT: Final = Path("~/.postgresql/root.crt")


class NoEncryption(OSError):
    """The hub does not take TLS, or what it says instead is nothing to go on with."""


def encryption(connection: psycopg.Connection | psycopg.AsyncConnection) -> Encryption | None:
    """Tell how to encrypt connections to where this one leads; None: it is not encrypted either.

    Raises :class:`HubError` where that cannot be done as it was done for this one.
    """
    used = {
        option.keyword.decode(): option.val.decode()
        for option in connection.pgconn.info
        if option.val
    }
    if used.get("gssencmode") == "require":
        raise HubError(
            "hub.dsn has gssencmode=require, which sessions of clients cannot have",
            hint="use TLS: gssencmode=disable sslmode=verify-full",
        )
    if not connection.pgconn.ssl_in_use:
        return None
    try:
        context = _context(used)
    except (OSError, KeyError) as error:  # SSLError is an OSError
        raise _not_honoured(error, "sslrootcert, sslcrl and ssl_min_protocol_version") from error
    told = context.check_hostname or used.get("sslsni", "1") == "1"
    name = connection.info.host if told else ""
    return Encryption(context, name, used.get("sslnegotiation") == "direct")


def _context(used: Mapping[str, str]) -> ssl.SSLContext:
    mode, root = used.get("sslmode", "prefer"), used.get("sslrootcert")
    if root is None and (default := _DEFAULT_ROOT.expanduser()).is_file():
        root = str(default)
    if root == "system":
        mode = "verify-full"
    elif mode == "require" and root is not None:
        mode = "verify-ca"  # as libpq has it, for compatibility with what it did before
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = _VERSIONS[used.get("ssl_min_protocol_version", "TLSv1.2")]
    if "ssl_max_protocol_version" in used:
        context.maximum_version = _VERSIONS[used["ssl_max_protocol_version"]]
    context.set_alpn_protocols([ALPN])
    context.check_hostname = mode == "verify-full"
    if not mode.startswith("verify-"):
        context.verify_mode = ssl.CERT_NONE
        return context
    if root == "system":
        context.load_default_certs()
    else:
        context.load_verify_locations(root)
    if "sslcrl" in used or "sslcrldir" in used:
        context.load_verify_locations(used.get("sslcrl"), used.get("sslcrldir"))
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_CHAIN
    return context


async def connect(
    address: HubAddress, protocol: Callable[[], asyncio.Protocol]
) -> asyncio.Transport:
    """Connect to the hub, ready for the first packet. Raises ``OSError``."""
    loop = asyncio.get_running_loop()
    if address.host.startswith("/"):
        path = f"{address.host}/.s.PGSQL.{address.port}"
        transport, _ = await loop.create_unix_connection(protocol, path)
        return transport
    tls = address.encryption
    if tls is None or tls.direct:
        transport, _ = await loop.create_connection(
            protocol,
            address.host,
            address.port,
            ssl=None if tls is None else tls.context,
            server_hostname=None if tls is None else tls.name,
        )
        return transport
    transport, asking = await loop.create_connection(_Asking, address.host, address.port)
    try:
        transport.write(_SSL_REQUEST)
        await asking.allowed
        encrypted = await loop.start_tls(
            transport, protocol(), tls.context, server_hostname=tls.name
        )
    except BaseException:
        transport.abort()
        raise
    if encrypted is None:
        raise NoEncryption("the hub closed the connection")
    return encrypted


async def require_encryption(address: HubAddress) -> None:
    """Raise :class:`HubError` where the hub cannot be reached with the encryption it needs."""
    closing = Closing()
    try:
        transport = await connect(address, lambda: closing)
    except OSError as error:
        raise _not_honoured(error, "sslmode, sslrootcert and the host's name") from error
    transport.abort()
    await closing.closed.wait()


def _not_honoured(error: Exception, cause: str) -> HubError:
    return HubError(
        f"sessions of clients cannot be encrypted as hub.dsn says: {type(error).__name__}",
        hint=f"look at {cause}",
    )


class Closing(asyncio.Protocol):
    """Waits until the connection is closed."""

    def __init__(self) -> None:
        self.closed = asyncio.Event()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self.closed.set()


class _Asking(asyncio.Protocol):
    """Waits for the hub to allow TLS. What comes along with that, in clear, is not believed."""

    def __init__(self) -> None:
        self.allowed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        if self.allowed.done():
            return
        if data == b"S":
            self.allowed.set_result(None)
        else:
            self.allowed.set_exception(NoEncryption("the hub does not allow TLS"))

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.allowed.done():
            self.allowed.set_exception(exc or NoEncryption("the hub closed the connection"))
