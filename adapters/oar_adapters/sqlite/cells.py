"""Between SQLite's values and PostgreSQL's cells, checked in both directions. Pure.

SQLite lets any column hold any kind of value, so each value is compared with the published type
on its way out (rule R43): a wrong one fails the query, whatever the rest of the column holds.
"""

from __future__ import annotations

import datetime
import re
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import Any, Final

from psycopg.types.numeric import DecimalBinaryDumper, NumericBinaryLoader

from oar_adapters.interface import Cell, OwnerError, OwnerErrorKind, base_type

_int64 = struct.Struct("!q")
_int32 = struct.Struct("!i")
_float64 = struct.Struct("!d")

_EPOCH: Final = datetime.datetime(2000, 1, 1)
_EPOCH_DAY: Final = _EPOCH.toordinal()
_MICROSECOND: Final = datetime.timedelta(microseconds=1)

DATE: Final = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)
TIME: Final = re.compile(r"\d{2}:\d{2}(:\d{2}(\.\d{1,6})?)?", re.ASCII)
TIMESTAMP: Final = re.compile(r"\d{4}-\d{2}-\d{2}([ T]\d{2}:\d{2}(:\d{2}(\.\d{1,6})?)?)?", re.ASCII)
"""The ISO forms that denote one value without knowing a time zone or a locale."""


class WrongValue(ValueError):
    """A value that is not of the published type. Carries nothing of it."""


@dataclass(frozen=True, slots=True)
class Encoder:
    """How one published type is encoded: the Python types SQLite may give, and each value."""

    kinds: frozenset[type]
    one: Callable[[Any], bytes]


def encode(type_: str, values: Sequence[Any]) -> list[Cell]:
    """Encode a column. Raises :class:`WrongValue` at the first value of another type."""
    encoder = ENCODERS[base_type(type_)]
    kinds = set(map(type, values))
    nulls = type(None) in kinds
    kinds.discard(type(None))
    if not kinds <= encoder.kinds:
        raise WrongValue
    one = encoder.one
    if nulls:
        return [None if value is None else one(value) for value in values]
    return list(map(one, values))


def wrong_value(place: str, type_: str) -> OwnerError:
    """Make the error that names where a value of another type was met, and never the value."""
    return OwnerError(
        OwnerErrorKind.WRONG_VALUE, f"{place}: a value is not of the published type {type_}"
    )


def _text(value: str) -> bytes:
    if "\0" in value:  # PostgreSQL's text cannot hold it.
        raise WrongValue
    return value.encode()


def _double(value: float) -> bytes:
    # An expression in a view may give an integer; one that a double cannot hold is another value.
    if isinstance(value, int) and int(float(value)) != value:
        raise WrongValue
    return _float64.pack(value)


@lru_cache(maxsize=65536)
def _numeric(value: float) -> bytes:
    """Encode a stored number as ``numeric``.

    SQLite keeps decimals as doubles; the decimal meant is the shortest one that rounds to it.
    """
    decimal = Decimal(repr(value))
    cell = DecimalBinaryDumper(Decimal).dump(decimal)
    if cell is None or not decimal.is_finite():
        raise WrongValue
    return bytes(cell)


def _boolean(value: int) -> bytes:
    if value not in (0, 1):
        raise WrongValue
    return b"\1" if value else b"\0"


@lru_cache(maxsize=65536)
def _date(value: str) -> bytes:
    if not DATE.fullmatch(value):
        raise WrongValue
    try:
        day = datetime.date.fromisoformat(value)
    except ValueError:
        raise WrongValue from None
    return _int32.pack(day.toordinal() - _EPOCH_DAY)


@lru_cache(maxsize=65536)
def _timestamp(value: str) -> bytes:
    if not TIMESTAMP.fullmatch(value):
        raise WrongValue
    try:
        moment = datetime.datetime.fromisoformat(value)
    except ValueError:
        raise WrongValue from None
    return _int64.pack((moment - _EPOCH) // _MICROSECOND)


@lru_cache(maxsize=65536)
def _time(value: str) -> bytes:
    if not TIME.fullmatch(value):
        raise WrongValue
    try:
        clock = datetime.time.fromisoformat(value)
    except ValueError:
        raise WrongValue from None
    return _int64.pack((datetime.datetime.combine(_EPOCH, clock) - _EPOCH) // _MICROSECOND)


ENCODERS: Final = {
    "bigint": Encoder(frozenset({int}), _int64.pack),
    "double precision": Encoder(frozenset({float, int}), _double),
    "numeric": Encoder(frozenset({int, float}), _numeric),
    "text": Encoder(frozenset({str}), _text),
    "bytea": Encoder(frozenset({bytes}), bytes),
    "boolean": Encoder(frozenset({int}), _boolean),
    "date": Encoder(frozenset({str}), _date),
    "timestamp without time zone": Encoder(frozenset({str}), _timestamp),
    "time without time zone": Encoder(frozenset({str}), _time),
}
"""The types this adapter publishes."""


# --- keys: cells back to what SQLite compares -------------------------------------------------


def integer(cell: bytes) -> int:
    """Decode a ``smallint``, ``integer`` or ``bigint``."""
    return int.from_bytes(cell, "big", signed=True)


def double(cell: bytes) -> float:
    """Decode a ``real`` or ``double precision``."""
    value: float = (_float64 if len(cell) == 8 else struct.Struct("!f")).unpack(cell)[0]
    return value


def numeric(cell: bytes) -> Decimal:
    """Decode a ``numeric``."""
    return NumericBinaryLoader(0).load(cell)


def boolean(cell: bytes) -> int:
    """Decode a ``boolean``."""
    return cell[0]


def date(cell: bytes) -> str | None:
    """Decode a ``date`` to its ISO text; None for one outside the years 1 to 9999."""
    try:
        return datetime.date.fromordinal(integer(cell) + _EPOCH_DAY).isoformat()
    except (ValueError, OverflowError):
        return None


def timestamp(cell: bytes) -> str | None:
    """Decode a ``timestamp`` to ISO text with a blank; None for one out of Python's range."""
    try:
        return (_EPOCH + integer(cell) * _MICROSECOND).isoformat(sep=" ")
    except OverflowError:
        return None


def time(cell: bytes) -> str | None:
    """Decode a ``time`` to ISO text; None for 24:00:00, which no stored text denotes."""
    moment = _EPOCH + integer(cell) * _MICROSECOND
    return moment.time().isoformat() if moment.date() == _EPOCH.date() else None
