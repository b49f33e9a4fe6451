"""The packets that open a connection: no type byte, a length, and a code (54.2.1).

Reading is in two steps, so that a length is checked before anything of that length is awaited:
:func:`packet_length` once the first four bytes are there, :func:`decode` on the whole packet.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Final

from oar_proxy.errors import FeatureNotSupported, ProtocolViolation

_INT32: Final = struct.Struct("!I")

MAXIMUM: Final = 10_000
"""Bytes of the largest startup packet: PostgreSQL's ``MAX_STARTUP_PACKET_LENGTH``."""

REQUEST_LENGTH: Final = 8
"""Bytes of SSLRequest and GSSENCRequest, and of the fixed part of every packet."""

TLS_RECORD: Final = 0x16
"""First byte of a TLS ClientHello. As a length it would be over 369 million."""

ALPN: Final = "postgresql"
"""The protocol name that direct TLS has to agree on (54.2.10)."""

_CANCEL: Final = (1234, 5678)
_SSL: Final = (1234, 5679)
_GSSENC: Final = (1234, 5680)
_MAJOR: Final = 3

_LONGEST_KEY: Final = 256


@dataclass(frozen=True, slots=True)
class SSLRequest:
    """The client asks for TLS."""


@dataclass(frozen=True, slots=True)
class GSSENCRequest:
    """The client asks for GSSAPI encryption."""


@dataclass(frozen=True, slots=True)
class CancelRequest:
    """The client asks to cancel what another connection is doing."""

    pid: int
    secret: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class StartupMessage:
    """The client wants a session. ``raw`` is the packet as it came, for the hub."""

    minor: int
    parameters: tuple[tuple[bytes, bytes], ...] = field(repr=False)
    raw: bytes = field(repr=False)

    @property
    def database(self) -> bytes:
        """The database asked for: without a name, the one that is called as the user is."""
        given = dict(self.parameters)
        return given.get(b"database") or given[b"user"]


Packet = SSLRequest | GSSENCRequest | CancelRequest | StartupMessage


def packet_length(head: bytes) -> int:
    """Return the length a packet declares in its first four bytes.

    Raises :class:`~oar_proxy.errors.ProtocolViolation` when no packet has that length.
    """
    length: int = _INT32.unpack_from(head)[0]
    if not REQUEST_LENGTH <= length <= MAXIMUM:
        raise ProtocolViolation("invalid length of startup packet")
    return length


def decode(packet: bytes) -> Packet:
    """Read one whole startup packet.

    Raises :class:`~oar_proxy.errors.ProtocolViolation` for a malformed one, and
    :class:`~oar_proxy.errors.FeatureNotSupported` for one we do not serve.
    """
    if len(packet) < REQUEST_LENGTH or packet_length(packet) != len(packet):
        raise ProtocolViolation("invalid length of startup packet")
    major, minor = struct.unpack_from("!HH", packet, 4)
    match (major, minor):
        case code if code == _SSL:
            return _request(packet, SSLRequest())
        case code if code == _GSSENC:
            return _request(packet, GSSENCRequest())
        case code if code == _CANCEL:
            return _cancel(packet)
        case _ if major == _MAJOR:
            return _startup(packet, minor)
    raise FeatureNotSupported(
        f"unsupported frontend protocol {major}.{minor}: server supports 3.0 and later"
    )


def encode_cancel(pid: int, secret: bytes) -> bytes:
    """Write a CancelRequest."""
    return struct.pack("!IHHI", 12 + len(secret), *_CANCEL, pid) + secret


def _request(packet: bytes, request: SSLRequest | GSSENCRequest) -> Packet:
    if len(packet) != REQUEST_LENGTH:
        raise ProtocolViolation("invalid length of encryption request")
    return request


def _cancel(packet: bytes) -> CancelRequest:
    secret = packet[12:]
    if not 4 <= len(secret) <= _LONGEST_KEY:
        raise ProtocolViolation("invalid length of cancel request")
    return CancelRequest(_INT32.unpack_from(packet, 8)[0], secret)


def _startup(packet: bytes, minor: int) -> StartupMessage:
    if not packet.endswith(b"\0"):
        raise ProtocolViolation("invalid startup packet layout: expected terminator as last byte")
    fields = packet[REQUEST_LENGTH:-1].split(b"\0")
    # Every name and every value ends with a zero byte, so a well-formed list ends empty.
    if fields.pop() or len(fields) % 2 or b"" in fields[::2]:
        raise ProtocolViolation("invalid startup packet layout: names and values do not pair up")
    parameters = tuple(zip(fields[::2], fields[1::2], strict=True))
    given = dict(parameters)
    if not _is_false(given.get(b"replication", b"off")):
        raise FeatureNotSupported("replication connections are not supported")
    if b"user" not in given:
        raise ProtocolViolation("no user name in startup packet")
    return StartupMessage(minor, parameters, packet)


def _is_false(value: bytes) -> bool:
    """Tell whether PostgreSQL takes a value for false: also by its first letters."""
    word = value.lower()
    return word in (b"0", b"of", b"off", b"n", b"no", *(b"false"[:end] for end in range(1, 6)))
