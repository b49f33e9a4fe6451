"""Single protocol messages: what a session reads from them and the ones it writes itself.

A decoder takes the whole message, type byte and length included, and raises
:class:`~oar_proxy.errors.ProtocolViolation` for every body that is not exactly what its type
prescribes. Encoders return whole messages.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Final

from oar_adapters.encodings import UTF8
from oar_adapters.interface import Cell

from oar_proxy.errors import LimitExceeded, OarError, ProtocolViolation
from oar_proxy.federation import Parameter, Pieces
from oar_proxy.wire.encodings import encoded

HEADER: Final = struct.Struct("!BI")
"""Type byte and length; the length counts itself but not the type byte."""

_INT16: Final = struct.Struct("!H")
_INT32: Final = struct.Struct("!I")
_SIGNED: Final = struct.Struct("!i")
_FIELD: Final = struct.Struct("!IHIhiH")

SMALL_MESSAGE: Final = 10_000
"""Bytes a message may have that carries names only: PostgreSQL's ``PQ_SMALL_MESSAGE_LIMIT``."""

LARGEST_MESSAGE: Final = 0x3FFFFFFF
"""Bytes of the largest message PostgreSQL reads (``MaxAllocSize``)."""

LARGE_CLIENT_MESSAGES: Final = b"QPBFd"
SMALL_CLIENT_MESSAGES: Final = b"CDEHSXcf"

SYNC: Final = b"S\0\0\0\4"
FLUSH: Final = b"H\0\0\0\4"
TERMINATE: Final = b"X\0\0\0\4"
COPY_DONE: Final = b"c\0\0\0\4"
COPY_HEADER: Final = b"PGCOPY\n\xff\r\n\0" + bytes(4 + 4)
"""Signature, no flags and no extension: what every PostgreSQL begins a binary COPY with."""
COPY_TRAILER: Final = b"\xff\xff"
"""Ends the rows of a binary COPY, where a row begins with its number of columns."""

# Authentication requests (message 'R') that a relay has to recognise.
AUTHENTICATION_OK: Final = 0
AUTHENTICATION_SASL: Final = 10
AUTHENTICATION_SASL_CONTINUE: Final = 11
AUTHENTICATION_SASL_FINAL: Final = 12


class _Body:
    """Reads a message body front to back."""

    __slots__ = ("_at", "_content")

    def __init__(self, message: bytes) -> None:
        self._content = message
        self._at = HEADER.size
        if len(message) < HEADER.size or HEADER.unpack_from(message)[1] + 1 != len(message):
            raise ProtocolViolation("invalid message: its length is not what it says")

    def string(self) -> bytes:
        end = self._content.find(b"\0", self._at)
        if end < 0:
            raise ProtocolViolation("invalid string in message: no terminator")
        value = self._content[self._at : end]
        self._at = end + 1
        return value

    def take(self, size: int) -> bytes:
        end = self._at + size
        if end > len(self._content):
            raise ProtocolViolation("insufficient data left in message")
        value = self._content[self._at : end]
        self._at = end
        return value

    def int16(self) -> int:
        value: int = _INT16.unpack(self.take(2))[0]
        return value

    def int32(self) -> int:
        value: int = _INT32.unpack(self.take(4))[0]
        return value

    def signed(self) -> int:
        value: int = _SIGNED.unpack(self.take(4))[0]
        return value

    def cell(self) -> Cell:
        size = self.signed()
        if size == -1:
            return None
        if size < 0:
            raise ProtocolViolation("invalid value length in message")
        return self.take(size)

    def formats(self) -> tuple[int, ...]:
        return tuple(self.int16() for _ in range(self.int16()))

    def end(self) -> None:
        if self._at != len(self._content):
            raise ProtocolViolation("invalid message format: bytes left over")


# --- what clients send --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Parse:
    """A statement, its name (empty: the unnamed one) and the types the client declares."""

    name: bytes
    query: bytes = field(repr=False)
    oids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Bind:
    """A portal made of a statement and values. Formats as they came: none, one, or one each."""

    portal: bytes
    statement: bytes
    formats: tuple[int, ...]
    values: tuple[Cell, ...] = field(repr=False)
    result_formats: tuple[int, ...]

    def value_formats(self) -> tuple[int, ...]:
        """One format per value: no code means text, a single code stands for all."""
        if len(self.formats) == len(self.values):
            return self.formats
        if not self.formats:
            return (0,) * len(self.values)
        if len(self.formats) == 1:
            return self.formats * len(self.values)
        raise ProtocolViolation("bind message has another number of formats than of values")


def decode_parse(message: bytes) -> Parse:
    """Read a Parse message."""
    body = _Body(message)
    name, query = body.string(), body.string()
    oids = tuple(body.int32() for _ in range(body.int16()))
    body.end()
    return Parse(name, query, oids)


def decode_bind(message: bytes) -> Bind:
    """Read a Bind message."""
    body = _Body(message)
    portal, statement = body.string(), body.string()
    formats = body.formats()
    values = tuple(body.cell() for _ in range(body.int16()))
    result_formats = body.formats()
    body.end()
    return Bind(portal, statement, formats, values, result_formats)


def bind_names(message: bytes) -> tuple[bytes, bytes]:
    """Return portal and statement of a Bind message without reading its values."""
    body = _Body(message)
    return body.string(), body.string()


def decode_execute(message: bytes) -> tuple[bytes, int]:
    """Return the portal and the greatest number of rows (0: all) of an Execute message."""
    body = _Body(message)
    portal, rows = body.string(), body.signed()
    body.end()
    return portal, max(rows, 0)  # as PostgreSQL reads it


def decode_target(message: bytes) -> tuple[int, bytes]:
    """Return what a Describe or Close message names: ``S`` or ``P`` (its code), and the name."""
    body = _Body(message)
    kind, name = body.take(1)[0], body.string()
    body.end()
    if kind not in b"SP":
        raise ProtocolViolation("invalid describe or close subtype")
    return kind, name


def decode_sasl_initial(message: bytes) -> tuple[bytes, bytes | None]:
    """Return the mechanism of a SASLInitialResponse and its data, None without any."""
    body = _Body(message)
    mechanism, initial = body.string(), body.cell()
    body.end()
    return mechanism, initial


# --- what the hub sends --------------------------------------------------------------------


def decode_parameter_description(message: bytes) -> tuple[int, ...]:
    """Return the type of each parameter."""
    body = _Body(message)
    oids = tuple(body.int32() for _ in range(body.int16()))
    body.end()
    return oids


def decode_row_description(message: bytes) -> tuple[tuple[bytes, int], ...]:
    """Return name and type of each column."""
    body = _Body(message)
    columns = []
    for _ in range(body.int16()):
        name = body.string()
        type_oid = _FIELD.unpack(body.take(_FIELD.size))[2]
        columns.append((name, type_oid))
    body.end()
    return tuple(columns)


def decode_data_row(message: bytes) -> tuple[Cell, ...]:
    """Return the cells of one row."""
    body = _Body(message)
    cells = tuple(body.cell() for _ in range(body.int16()))
    body.end()
    return cells


def after_copy_header(data: bytes) -> bytes:
    """Return what follows the header of a binary COPY."""
    if not data.startswith(COPY_HEADER):
        raise ProtocolViolation("invalid header of a binary COPY from the hub")
    return data.removeprefix(COPY_HEADER)


def decode_command_complete(message: bytes) -> bytes:
    """Return the command tag, such as ``SELECT 5``."""
    body = _Body(message)
    tag = body.string()
    body.end()
    return tag


def decode_backend_key(message: bytes) -> tuple[int, bytes]:
    """Return process id and secret; the secret has 4 bytes, or up to 256 since protocol 3.2."""
    body = _Body(message)
    pid = body.int32()
    secret = body.take(len(message) - HEADER.size - 4)
    if not 4 <= len(secret) <= 256:
        raise ProtocolViolation("invalid length of a cancellation key")
    return pid, secret


def decode_authentication(message: bytes) -> int:
    """Return the kind of an Authentication message."""
    return _Body(message).int32()


def decode_mechanisms(message: bytes) -> list[bytes]:
    """Return the mechanisms that an AuthenticationSASL message offers."""
    body = _Body(message)
    body.take(4)
    mechanisms = []
    while mechanism := body.string():
        mechanisms.append(mechanism)
    body.end()
    return mechanisms


def decode_fields(message: bytes) -> dict[str, bytes]:
    """Return the fields of an ErrorResponse or NoticeResponse by their code."""
    body = _Body(message)
    fields: dict[str, bytes] = {}
    while (code := body.take(1)) != b"\0":
        fields[chr(code[0])] = body.string()
    body.end()
    return fields


def sqlstate(response: bytes) -> str:
    """Return the SQLSTATE of an ErrorResponse."""
    return decode_fields(response).get("C", b"XX000").decode("ascii", errors="replace")


def with_position(message: bytes, shift: int | None) -> bytes:
    """Move the position an ErrorResponse points at by ``shift`` characters; None removes it."""
    fields = decode_fields(message)
    if "P" not in fields or shift == 0:
        return message
    if shift is None:
        del fields["P"]
    else:
        fields["P"] = b"%d" % (int(fields["P"]) + shift)
    return encode_fields(b"E", fields)


def without_context(message: bytes) -> bytes:
    """Leave out of an ErrorResponse in what the hub was when it failed."""
    fields = decode_fields(message)
    if fields.pop("W", None) is None:
        return message
    return encode_fields(b"E", fields)


_PRINTED: Final = re.compile(rb"(^|\n)[^\n]*\$1 = .*", re.DOTALL)
"""In a context: the line that begins with a portal's parameters, and all that follows."""


def without_parameters(message: bytes) -> bytes:
    """Leave the parameters of the portal out of an ErrorResponse's or NoticeResponse's context."""
    fields = decode_fields(message)
    if "W" not in fields:
        return message
    context = _PRINTED.sub(b"", fields["W"])
    if context == fields["W"]:
        return message
    del fields["W"]
    return encode_fields(message[:1], fields | ({"W": context} if context else {}))


def is_log(notice: bytes) -> bool:
    """Tell whether a NoticeResponse is of the hub's log, and about how it works."""
    return decode_fields(notice).get("V", b"").startswith((b"LOG", b"DEBUG"))


# --- what passes between the two while a client authenticates --------------------------------


def sasl_request(mechanisms: Sequence[bytes]) -> bytes:
    """Write an AuthenticationSASL message."""
    names = b"".join(name + b"\0" for name in mechanisms)
    return _message(b"R", _INT32.pack(AUTHENTICATION_SASL) + names + b"\0")


def sasl_final(content: bytes) -> bytes:
    """Write an AuthenticationSASLFinal message."""
    return _message(b"R", _INT32.pack(AUTHENTICATION_SASL_FINAL) + content)


def sasl_initial(mechanism: bytes, initial: bytes | None) -> bytes:
    """Write a SASLInitialResponse."""
    return _message(b"p", mechanism + b"\0" + b"".join(_parts(initial)))


def sasl_response(content: bytes) -> bytes:
    """Write a SASLResponse."""
    return _message(b"p", content)


# --- what a session writes ------------------------------------------------------------------


def _message(code: bytes, body: bytes) -> bytes:
    return code + _INT32.pack(len(body) + 4) + body


def encode_fields(code: bytes, fields: dict[str, bytes]) -> bytes:
    """Write an ErrorResponse (``E``) or NoticeResponse (``N``)."""
    body = b"".join(key.encode() + value + b"\0" for key, value in fields.items())
    return _message(code, body + b"\0")


def recoded(message: bytes, encoding: str) -> bytes:
    """Put an ErrorResponse or NoticeResponse, which came in UTF-8, into a client encoding."""
    fields = {
        code: encoded(value.decode(errors="replace"), encoding)
        for code, value in decode_fields(message).items()
    }
    return encode_fields(message[:1], fields)


def _text(value: str, encoding: str) -> bytes:
    return encoded(value.replace("\0", ""), encoding)


def error_response(
    error: OarError, severity: str = "ERROR", *, shift: int = 0, encoding: str = UTF8
) -> bytes:
    """Write the ErrorResponse of one of our errors, for a client of that encoding.

    ``shift`` is added to its position.
    """
    fields = {
        "S": severity.encode(),
        "V": severity.encode(),
        "C": error.sqlstate.encode(),
        "M": _text(error.message, encoding),
    }
    if error.detail is not None:
        fields["D"] = _text(error.detail, encoding)
    if error.hint is not None:
        fields["H"] = _text(error.hint, encoding)
    if error.position is not None:
        fields["P"] = b"%d" % (error.position + shift)
    if error.routine is not None:
        fields["R"] = error.routine.encode()
    return encode_fields(b"E", fields)


def notice_response(message: str, detail: str | None, *, encoding: str = UTF8) -> bytes:
    """Write a NoticeResponse of severity NOTICE, for a client of that encoding."""
    fields = {"S": b"NOTICE", "V": b"NOTICE", "C": b"00000", "M": _text(message, encoding)}
    if detail is not None:
        fields["D"] = _text(detail, encoding)
    return encode_fields(b"N", fields)


def command_complete(tag: bytes) -> bytes:
    """Write a CommandComplete message."""
    return _message(b"C", tag + b"\0")


def copy_data(row: bytes) -> bytes:
    """Write a CopyData message."""
    return _message(b"d", row)


def encode_parse(name: bytes, query: bytes, oids: Sequence[int] = ()) -> bytes:
    """Write a Parse message."""
    types = struct.pack(f"!H{len(oids)}I", len(oids), *oids)
    return _message(b"P", name + b"\0" + query + b"\0" + types)


def encode_bind(
    portal: bytes,
    statement: bytes,
    parameters: Sequence[Parameter] = (),
    result_formats: Sequence[int] = (),
) -> Iterator[bytes]:
    """Write a Bind message, in parts so that large values are not copied.

    Parameters that come in pieces give them away while the parts are taken. Raises
    :class:`~oar_proxy.errors.LimitExceeded` when PostgreSQL would not read it.
    """
    if len(parameters) > 0xFFFF:
        raise LimitExceeded("statement not run: it has more than 65535 parameters")
    count = len(parameters)
    formats = [parameter.format for parameter in parameters]
    head = portal + b"\0" + statement + b"\0" + struct.pack(f"!H{count}HH", count, *formats, count)
    tail = struct.pack(f"!H{len(result_formats)}H", len(result_formats), *result_formats)
    cells = [parameter.cell for parameter in parameters]
    length = 4 + len(head) + 4 * count + sum(map(_size, cells)) + len(tail)
    if length > LARGEST_MESSAGE:
        raise LimitExceeded(
            "statement not run: what the owners sent is larger than one message can be",
            detail=f"A message holds at most {LARGEST_MESSAGE} bytes.",
            hint="narrow the statement so that fewer rows are needed",
        )
    return chain((b"B" + _INT32.pack(length) + head,), *map(_parts, cells), (tail,))


def _size(cell: Cell | Pieces) -> int:
    if cell is None:
        return 0
    return len(cell) if isinstance(cell, bytes) else cell.size


def _parts(cell: Cell | Pieces) -> Iterator[bytes]:
    if cell is None:
        yield b"\xff\xff\xff\xff"
        return
    yield _INT32.pack(_size(cell))
    if isinstance(cell, bytes):
        yield cell
    else:
        yield from cell.take()


def encode_describe(kind: bytes, name: bytes) -> bytes:
    """Write a Describe message of a statement (``S``) or a portal (``P``)."""
    return _message(b"D", kind + name + b"\0")


def encode_close(kind: bytes, name: bytes) -> bytes:
    """Write a Close message of a statement (``S``) or a portal (``P``)."""
    return _message(b"C", kind + name + b"\0")


def encode_execute(portal: bytes, rows: int = 0) -> bytes:
    """Write an Execute message."""
    return _message(b"E", portal + b"\0" + _INT32.pack(rows))


def encode_query(text: bytes) -> bytes:
    """Write a Query message."""
    return _message(b"Q", text + b"\0")
