"""From MariaDB's and MySQL's text protocol to PostgreSQL's cells, each value checked. Pure."""

from __future__ import annotations

import datetime
import re
import struct
import uuid
from collections.abc import Callable, Sequence
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from typing import Final

from oar_adapters.cells import WrongValue, of_date, of_numeric, of_timestamp
from oar_adapters.interface import Cell, base_type

_int64 = struct.Struct("!q")
_int32 = struct.Struct("!i")
_int16 = struct.Struct("!h")
_float64 = struct.Struct("!d")
_float32 = struct.Struct("!f")

_DATE: Final = re.compile(rb"\d{4}-\d{2}-\d{2}")
_TIMESTAMP: Final = re.compile(rb"\d{4}-\d{2}-\d{2} \d{2}:\d{2}:\d{2}(\.\d{1,6})?")
_INTERVAL: Final = re.compile(rb"(-?\d{2,3}:\d{2}:\d{2})(\.\d{1,6})?")
_BITS: Final = re.compile(r"bit\((\d+)\)")


def encode(type_: str, values: Sequence[bytes | None]) -> list[Cell]:
    """Encode a column. Raises :class:`WrongValue` at the first value that is not of the type."""
    one = _encoder(type_)
    try:
        return [None if value is None else one(value) for value in values]
    except (ValueError, ArithmeticError, struct.error):
        # A number out of range, a zero date, a byte that is not UTF-8.
        raise WrongValue from None


def _encoder(type_: str) -> Callable[[bytes], bytes]:
    bits = _BITS.fullmatch(type_)
    if bits:
        width = int(bits[1])
        return lambda value: _bits(value, width)
    return ENCODERS[base_type(type_)]


def _bits(value: bytes, width: int) -> bytes:
    digits = f"{int.from_bytes(value, 'big'):0{width}b}"
    if len(digits) != width:
        raise WrongValue
    return digits.encode()


def _text(value: bytes) -> bytes:
    if b"\0" in value:  # PostgreSQL's text cannot hold it.
        raise WrongValue
    value.decode()
    return value


def _boolean(value: bytes) -> bytes:
    # A bit column comes as a byte, a number as digits.
    try:
        return _BOOLEANS[value]
    except KeyError:
        raise WrongValue from None


_BOOLEANS: Final = {b"\0": b"\0", b"\1": b"\1", b"0": b"\0", b"1": b"\1"}


@lru_cache(maxsize=65536)
def _numeric(value: bytes) -> bytes:
    try:
        return of_numeric(Decimal(value.decode("ascii")))
    except InvalidOperation:
        raise WrongValue from None


@lru_cache(maxsize=65536)
def _date(value: bytes) -> bytes:
    if not _DATE.fullmatch(value):
        raise WrongValue
    return of_date(datetime.date.fromisoformat(value.decode()))


@lru_cache(maxsize=65536)
def _timestamp(value: bytes) -> bytes:
    if not _TIMESTAMP.fullmatch(value):
        raise WrongValue
    return of_timestamp(datetime.datetime.fromisoformat(value.decode()))


def _interval(value: bytes) -> bytes:
    """Write a time as PostgreSQL writes an interval: no zeros at the end of a fraction."""
    parts = _INTERVAL.fullmatch(value)
    if not parts:
        raise WrongValue
    return parts[1] + (parts[2] or b"").rstrip(b"0").rstrip(b".")


def _real(value: bytes) -> bytes:
    # Read as a double, which holds every float; the server's own digits of a float are rounded.
    return _float32.pack(float(value))


ENCODERS: Final[dict[str, Callable[[bytes], bytes]]] = {
    "smallint": lambda value: _int16.pack(int(value)),
    "integer": lambda value: _int32.pack(int(value)),
    "bigint": lambda value: _int64.pack(int(value)),
    "numeric": _numeric,
    "double precision": lambda value: _float64.pack(float(value)),
    "real": _real,
    "boolean": _boolean,
    "text": _text,
    "json": _text,
    "bytea": bytes,
    "date": _date,
    "timestamp without time zone": _timestamp,
    "timestamp with time zone": _timestamp,
    "interval": _interval,
    "uuid": lambda value: uuid.UUID(value.decode("ascii")).bytes,
}
"""The types this adapter publishes, apart from ``bit(n)``."""
