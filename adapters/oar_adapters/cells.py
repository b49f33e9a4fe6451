"""PostgreSQL's binary cells of Python values, and Python values of cells. Pure.

For adapters whose owner does not speak PostgreSQL's formats; see
:data:`~oar_adapters.interface.BINARY_TYPES`.
"""

from __future__ import annotations

import datetime
import struct
from decimal import Decimal
from typing import Final

from psycopg.types.numeric import DecimalBinaryDumper, NumericBinaryLoader

from oar_adapters.interface import OwnerError, OwnerErrorKind

_int64: Final = struct.Struct("!q")
_int32: Final = struct.Struct("!i")
_float64: Final = struct.Struct("!d")
_float32: Final = struct.Struct("!f")

_EPOCH: Final = datetime.datetime(2000, 1, 1)
_EPOCH_DAY: Final = _EPOCH.toordinal()
_MICROSECOND: Final = datetime.timedelta(microseconds=1)


class WrongValue(ValueError):
    """A value that is not of the published type. Carries nothing of it."""


def wrong_value(place: str, type_: str) -> OwnerError:
    """Make the error that names where a value of another type was met, and never the value."""
    return OwnerError(
        OwnerErrorKind.WRONG_VALUE, f"{place}: a value is not of the published type {type_}"
    )


# --- to cells -------------------------------------------------------------------------------------


def of_numeric(value: Decimal) -> bytes:
    """Encode a ``numeric``. Raises :class:`WrongValue` for what is not a finite number."""
    cell = DecimalBinaryDumper(Decimal).dump(value)
    if cell is None or not value.is_finite():
        raise WrongValue
    return bytes(cell)


def of_date(value: datetime.date) -> bytes:
    """Encode a ``date``."""
    return _int32.pack(value.toordinal() - _EPOCH_DAY)


def of_timestamp(value: datetime.datetime) -> bytes:
    """Encode a ``timestamp`` of either kind, from a value without a zone (UTC where it has one)."""
    return _int64.pack((value - _EPOCH) // _MICROSECOND)


def of_time(value: datetime.time) -> bytes:
    """Encode a ``time without time zone``."""
    return of_timestamp(datetime.datetime.combine(_EPOCH, value))


# --- from cells -----------------------------------------------------------------------------------


def integer(cell: bytes) -> int:
    """Decode a ``smallint``, ``integer`` or ``bigint``."""
    return int.from_bytes(cell, "big", signed=True)


def double(cell: bytes) -> float:
    """Decode a ``real`` or ``double precision``."""
    value: float = (_float64 if len(cell) == 8 else _float32).unpack(cell)[0]
    return value


def numeric(cell: bytes) -> Decimal:
    """Decode a ``numeric``."""
    return NumericBinaryLoader(0).load(cell)


def boolean(cell: bytes) -> int:
    """Decode a ``boolean`` to 0 or 1."""
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
