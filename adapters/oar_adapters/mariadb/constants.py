"""Constants and keys as MariaDB has to compare them. Pure."""

from __future__ import annotations

import datetime
import re
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from math import isfinite
from typing import Final

from oar_adapters import cells as decode
from oar_adapters.interface import base_type
from oar_adapters.mariadb.schema import Family, Trait
from oar_adapters.predicates import (
    FLOATS,
    INTEGERS,
    NUMBERS,
    TEXTS,
    decimal_constant,
    double_constant,
)
from oar_adapters.sqltext import string

Convert = Callable[[bytes], str | None]
"""Writes a key as a literal; None for one that no stored value can equal."""

_PRECISION, _SCALE = 65, 30
"""Digits a number may have here, all in all and behind the point."""

_DATE: Final = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)

_CLOCK: Final = re.compile(r"\d{2}:\d{2}:\d{2}(\.\d{1,6})?", re.ASCII)

_NUMERIC: Final = frozenset({Family.INTEGER, Family.YEAR, Family.DECIMAL, Family.DOUBLE})


@dataclass(frozen=True, slots=True)
class Operand:
    """A constant as it is written.

    ``as_double``: the column is compared as a double. ``places``: its digits behind the point.
    """

    text: str
    as_double: bool = False
    places: int = 0


def operand(trait: Trait, value: str, type_: str) -> Operand | None:
    """Turn a constant in PostgreSQL's text format into SQL; None where that cannot be."""
    plain = base_type(type_)
    convert = _OPERANDS.get(trait.family)
    return None if convert is None or "\0" in value else convert(value, plain)


def _double(value: float) -> str:
    """Write a double; without an exponent it would be a decimal. A zero has no sign here."""
    text = repr(value + 0.0)
    return text if "e" in text else f"{text}e0"


def _decimal(number: Decimal) -> str | None:
    """Write a number exactly and in one way; None for one with more digits than a server takes."""
    text = format(number, "f")
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    whole, _, fraction = text.lstrip("-").partition(".")
    if len(fraction) > _SCALE or len(whole.lstrip("0")) + len(fraction) > _PRECISION:
        return None
    return "0" if text == "-0" else text


def _places(text: str) -> int:
    """Count the digits behind the point, without zeros at their end."""
    return len(text.partition(".")[2].rstrip("0"))


def _to_number(value: str, plain: str) -> Operand | None:
    if plain == "double precision":
        double = _to_double(value, plain)
        return None if double is None else Operand(double.text, as_double=True)
    number = decimal_constant(value)
    if plain not in INTEGERS | {"numeric"} or number is None or abs(number.adjusted()) > 100:
        return None
    text = _decimal(number)
    return None if text is None else Operand(text, places=_places(text))


def _to_double(value: str, plain: str) -> Operand | None:
    double = double_constant(value, plain)
    return None if double is None or not isfinite(double) else Operand(_double(double))


def _to_boolean(value: str, plain: str) -> Operand | None:
    known = {"t": "1", "true": "1", "f": "0", "false": "0"}
    return Operand(known[value]) if plain == "boolean" and value in known else None


def _to_text(value: str, plain: str) -> Operand | None:
    if plain not in TEXTS:
        return None
    # PostgreSQL turns a char(n) constant to text by dropping the padding (rule R44).
    return Operand(string(value.rstrip(" ") if plain in ("character", "bpchar") else value))


def _to_bytes(value: str, plain: str) -> Operand | None:
    if plain != "bytea" or not re.fullmatch(r"\\x([0-9a-fA-F]{2})*", value):
        return None
    return Operand(f"x'{value[2:]}'")


def _to_datetime(value: str, plain: str) -> Operand | None:
    """Write a date or a timestamp for a column of timestamps."""
    day, _, clock = value.partition(" ")
    if not _DATE.fullmatch(day) or day.startswith("0000"):
        return None
    if plain == "date" and not clock:
        return Operand(f"DATE'{day}'")
    if plain == "timestamp without time zone" and _CLOCK.fullmatch(clock):
        return Operand(f"TIMESTAMP'{value}'", places=_places(clock))
    return None


def _to_date(value: str, plain: str) -> Operand | None:
    """Write a date or a timestamp for a column of dates, where a time of day is as a fraction."""
    right = _to_datetime(value, plain)
    if right is None or plain == "date" or value[11:].strip("0:.") == "":
        return right
    return Operand(right.text, places=6)


def _to_instant(value: str, plain: str) -> Operand | None:
    """Write a point in time; sessions run in UTC."""
    if plain != "timestamp with time zone":
        return None
    try:
        moment = datetime.datetime.fromisoformat(value)
        if moment.tzinfo is None:
            return None
        utc = moment.astimezone(datetime.UTC)
    except (ValueError, OverflowError):
        return None
    text = utc.replace(tzinfo=None).isoformat(sep=" ")
    return Operand(f"TIMESTAMP'{text}'", places=_places(text))


def _to_uuid(value: str, plain: str) -> Operand | None:
    if plain != "uuid":
        return None
    try:
        return Operand(string(str(uuid.UUID(value))))
    except ValueError:
        return None


_OPERANDS: Final[dict[Family, Callable[[str, str], Operand | None]]] = {
    Family.INTEGER: _to_number,
    Family.YEAR: _to_number,
    Family.DECIMAL: _to_number,
    Family.DOUBLE: _to_double,
    Family.BOOLEAN: _to_boolean,
    Family.TEXT: _to_text,
    Family.NAMED: _to_text,
    Family.BYTES: _to_bytes,
    Family.DATE: _to_date,
    Family.DATETIME: _to_datetime,
    Family.INSTANT: _to_instant,
    Family.UUID: _to_uuid,
}


def accepts_keys(trait: Trait, type_: str) -> bool:
    """Tell whether a list of keys of a type can be compared with a column as PostgreSQL would."""
    if trait.family in _NUMERIC:
        return type_ in NUMBERS
    return (trait.family, type_) in _DECODERS


def key_conversion(trait: Trait, type_: str) -> Convert:
    """Return what writes keys of a type. Raises ``ValueError`` for one that is not compared."""
    if not accepts_keys(trait, type_):
        raise ValueError(f"keys of type {type_} are not compared with this column")
    if trait.family in _NUMERIC:
        return _number_key(trait, type_)
    convert = _DECODERS[(trait.family, type_)]
    if trait.family not in (Family.DATETIME, Family.INSTANT):
        return convert
    scale = trait.scale or 0

    def fitting(key: bytes) -> str | None:
        text = convert(key)
        return text if text is not None and _places(text[:-1]) <= scale else None

    return fitting


def _number_key(trait: Trait, type_: str) -> Convert:
    if type_ in FLOATS:
        return lambda key: _finite(decode.double(key))
    if trait.family is Family.DOUBLE:
        read = decode.integer if type_ in INTEGERS else decode.numeric
        return lambda key: _finite(float(read(key)))
    if type_ in INTEGERS:
        return lambda key: str(decode.integer(key))
    return lambda key: _exact(decode.numeric(key), trait.scale or 0)


def _finite(value: float) -> str | None:
    return _double(value) if isfinite(value) else None


def _exact(number: Decimal, scale: int) -> str | None:
    text = _decimal(number) if number.is_finite() and abs(number.adjusted()) <= 100 else None
    return text if text is not None and _places(text) <= scale else None


def _text_key(key: bytes) -> str:
    return string(key.decode())


def _padded_key(key: bytes) -> str:
    return string(key.decode().rstrip(" "))


def _date_key(key: bytes) -> str | None:
    day = decode.date(key)
    return None if day is None else f"DATE'{day}'"


def _timestamp_key(key: bytes) -> str | None:
    moment = decode.timestamp(key)
    return None if moment is None else f"TIMESTAMP'{moment}'"


_DECODERS: Final[dict[tuple[Family, str], Callable[[bytes], str | None]]] = {
    **{
        (family, type_): _padded_key if type_ in ("character", "bpchar") else _text_key
        for family in (Family.TEXT, Family.NAMED)
        for type_ in TEXTS
    },
    (Family.BYTES, "bytea"): lambda key: f"x'{key.hex()}'",
    (Family.BOOLEAN, "boolean"): lambda key: str(decode.boolean(key)),
    (Family.DATE, "date"): _date_key,
    (Family.DATETIME, "timestamp without time zone"): _timestamp_key,
    (Family.INSTANT, "timestamp with time zone"): _timestamp_key,
    (Family.UUID, "uuid"): lambda key: string(str(uuid.UUID(bytes=key))),
}
