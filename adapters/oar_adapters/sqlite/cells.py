"""From SQLite's values to PostgreSQL's cells, each value checked. Pure.

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

from oar_adapters.cells import WrongValue, of_date, of_numeric, of_time, of_timestamp, wrong_value
from oar_adapters.interface import Cell, base_type

__all__ = ["DATE", "ENCODERS", "TIME", "TIMESTAMP", "WrongValue", "encode", "wrong_value"]

_int64 = struct.Struct("!q")
_float64 = struct.Struct("!d")

DATE: Final = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)
_CLOCK: Final = r"([01]\d|2[0-3]):\d{2}(:\d{2}(\.\d{1,6})?)?"
TIME: Final = re.compile(_CLOCK, re.ASCII)
TIMESTAMP: Final = re.compile(rf"\d{{4}}-\d{{2}}-\d{{2}}([ T]{_CLOCK})?", re.ASCII)
"""The ISO forms that denote one value without knowing a time zone or a locale. Not 24:00:
taken for the midnight that follows, it would be a text that no condition on that midnight finds."""


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
    return of_numeric(Decimal(repr(value)))


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
    return of_date(day)


@lru_cache(maxsize=65536)
def _timestamp(value: str) -> bytes:
    if not TIMESTAMP.fullmatch(value):
        raise WrongValue
    try:
        moment = datetime.datetime.fromisoformat(value)
    except ValueError:
        raise WrongValue from None
    return of_timestamp(moment)


@lru_cache(maxsize=65536)
def _time(value: str) -> bytes:
    if not TIME.fullmatch(value):
        raise WrongValue
    try:
        clock = datetime.time.fromisoformat(value)
    except ValueError:
        raise WrongValue from None
    return of_time(clock)


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
