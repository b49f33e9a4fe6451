"""Constants and keys as SQLite has to compare them. Pure."""

from __future__ import annotations

import hmac
import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from oar_adapters import cells as decode
from oar_adapters.interface import Agreement, Column, base_type
from oar_adapters.predicates import (
    FLOATS,
    INTEGERS,
    NUMBERS,
    TEXTS,
    decimal_constant,
    double_constant,
)
from oar_adapters.sqlite import cells

Key = int | str
"""A key as JSON holds it."""

INT64: Final = range(-(2**63), 2**63)

_CLOCK: Final = re.compile(r"\d{2}:\d{2}:\d{2}(\.\d{1,6})?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Operand:
    """A constant as SQLite has to compare it, and how far that agrees.

    ``as_double`` compares the column's value as a double, as PostgreSQL does with a double.
    """

    value: int | float | str | bytes
    equality: Agreement = Agreement.EXACT
    order: Agreement = Agreement.EXACT
    as_double: bool = False


def operand(column: Column, value: str, type_: str) -> Operand | None:
    """Turn a constant in PostgreSQL's text format into what SQLite compares; None: it cannot be.

    The comparison is the one PostgreSQL makes between the column's type and ``type_``.
    """
    plain = base_type(type_)
    if "\0" in value:
        return None
    convert = _OPERANDS.get(column.type)
    return None if convert is None else convert(value, plain)


def _int64(number: Decimal) -> int | None:
    """Return a number that is a 64-bit integer as one."""
    if number.adjusted() > 18 or number != number.to_integral_value():
        return None
    whole = int(number)
    return whole if whole in INT64 else None


def _to_bigint(value: str, plain: str) -> Operand | None:
    if plain == "double precision":
        double = double_constant(value, plain)
        return None if double is None else Operand(double, as_double=True)
    number = decimal_constant(value)
    if plain not in INTEGERS | {"numeric"} or number is None:
        return None
    whole = _int64(number)
    if whole is not None:
        return Operand(whole)
    # Past 64 bits a stored integer would be compared with a rounded one.
    return None if number == number.to_integral_value() else _shortest(number)


def _to_numeric(value: str, plain: str) -> Operand | None:
    if plain == "double precision":
        return _to_bigint(value, plain)
    number = decimal_constant(value)
    if plain not in INTEGERS | {"numeric"} or number is None:
        return None
    whole = _int64(number)
    return _shortest(number) if whole is None else Operand(whole)


def _shortest(number: Decimal) -> Operand | None:
    """Compare by the double nearest to a decimal.

    A stored double is published as the shortest decimal that rounds to it. Where the constant is
    itself such a decimal, order and equality of the doubles are those of the decimals, also
    against stored integers; any other constant equals none of them.
    """
    double = float(number)
    if double in (float("inf"), float("-inf")):
        return None
    if Decimal(repr(double)) == number:
        return Operand(double)
    return Operand(double, equality=Agreement.SUPERSET, order=Agreement.NONE)


def _to_double(value: str, plain: str) -> Operand | None:
    double = double_constant(value, plain)
    return None if double is None else Operand(double)


def _to_text(value: str, plain: str) -> Operand | None:
    if plain not in TEXTS:
        return None
    # PostgreSQL turns a char(n) constant to text by dropping the padding (rule R44).
    return Operand(value.rstrip(" ") if plain in ("character", "bpchar") else value)


def _to_bytea(value: str, plain: str) -> Operand | None:
    if plain != "bytea" or not re.fullmatch(r"\\x([0-9a-fA-F]{2})*", value):
        return None
    return Operand(bytes.fromhex(value[2:]))


def _to_boolean(value: str, plain: str) -> Operand | None:
    known = {"t": 1, "true": 1, "f": 0, "false": 0}
    return Operand(known[value]) if plain == "boolean" and value in known else None


def _to_date(value: str, plain: str) -> Operand | None:
    usable = plain == "date" and cells.DATE.fullmatch(value) and value[:4] != "0000"
    return Operand(value) if usable else None


def _to_timestamp(value: str, plain: str) -> Operand | None:
    if plain == "date" and _to_date(value, plain):
        return Operand(f"{value} 00:00:00")
    day, _, clock = value.partition(" ")
    usable = (
        plain == "timestamp without time zone" and _to_date(day, "date") and _CLOCK.fullmatch(clock)
    )
    return Operand(_trimmed(value)) if usable else None


def _to_time(value: str, plain: str) -> Operand | None:
    usable = plain == "time without time zone" and _CLOCK.fullmatch(value)
    return Operand(_trimmed(value)) if usable else None


def _trimmed(clock: str) -> str:
    """Drop a fraction of zeros, so that the text compares with one that has no fraction."""
    return clock.rstrip("0").rstrip(".") if "." in clock else clock


_OPERANDS: Final[dict[str, Callable[[str, str], Operand | None]]] = {
    "bigint": _to_bigint,
    "numeric": _to_numeric,
    "double precision": _to_double,
    "text": _to_text,
    "bytea": _to_bytea,
    "boolean": _to_boolean,
    "date": _to_date,
    "timestamp without time zone": _to_timestamp,
    "time without time zone": _to_time,
}


# JSON's reading of decimal digits is not always the nearest double, and it has no bytes: such keys
# are strings there, which a function of ours reads inside SQLite, once a query.
PLAIN: Final = "{}"
DOUBLE: Final = "oar_double({})"
NUMBER: Final = "oar_number({})"
BLOB: Final = "oar_blob({})"


def read_number(text: str) -> int | float:
    """Read a key the way :func:`spell_number` wrote it."""
    return float.fromhex(text) if "x" in text or "n" in text else int(text)


def spell_number(number: float) -> str:
    """Write an integer in decimal digits, a double in hexadecimal ones: both exactly."""
    return str(number) if isinstance(number, int) else number.hex()


FUNCTIONS: Final[dict[str, Callable[[str], int | float | bytes]]] = {
    "oar_double": float.fromhex,
    "oar_number": read_number,
    "oar_blob": bytes.fromhex,
}
"""What each connection is given; they are called with keys and nothing else. Beside them there is
``oar_hmac``, of a secret and a value."""


DIGESTED: Final = INTEGERS | {"text", "character varying"}
"""Types of keys that are looked up as digests: of a column's equal values there is one text."""


def keyed_digest(secret: str, value: object) -> str | None:
    """Return the HMAC-SHA-256 of a stored value's text, secret and digest in hex.

    None of a value that is neither an integer nor text.
    """
    if not isinstance(value, int | str):
        return None
    return hmac.digest(bytes.fromhex(secret), str(value).encode(), "sha256").hex()


def accepts_keys(column: Column, type_: str) -> bool:
    """Tell whether a list of keys of a type can be compared with a column as PostgreSQL would."""
    if column.type in NUMBERS:
        return type_ in NUMBERS
    return (column.type, type_) in _DECODERS


def conversion(column: Column, type_: str) -> tuple[Callable[[bytes], Key | None], str]:
    """Return what turns a key into one that JSON can hold, and how SQLite reads it back.

    It makes None of a key that no stored value can equal.
    """
    if column.type in NUMBERS:
        return _number_conversion(column, type_)
    return _DECODERS[(column.type, type_)], BLOB if column.type == "bytea" else PLAIN


def _number_conversion(column: Column, type_: str) -> tuple[Callable[[bytes], Key | None], str]:
    if type_ in FLOATS:
        return lambda key: decode.double(key).hex(), DOUBLE
    if column.type == "double precision":
        read = decode.integer if type_ in INTEGERS else decode.numeric
        return lambda key: _hexadecimal(read(key)), DOUBLE
    if type_ in INTEGERS:
        return decode.integer, PLAIN
    if column.type == "bigint":
        return lambda key: _whole(decode.numeric(key)), PLAIN
    return lambda key: _spelled(decode.numeric(key)), NUMBER


def _hexadecimal(number: int | Decimal) -> str | None:
    return None if isinstance(number, Decimal) and number.is_nan() else float(number).hex()


def _whole(number: Decimal) -> int | None:
    return _int64(number) if number.is_finite() else None


def _spelled(number: Decimal) -> str | None:
    return None if number.is_nan() else spell_number(_nearest(number))


def _nearest(number: Decimal) -> int | float:
    whole = _int64(number) if number.is_finite() else None
    return float(number) if whole is None else whole


def _padded(key: bytes) -> str:
    return key.decode().rstrip(" ")


_DECODERS: Final[dict[tuple[str, str], Callable[[bytes], int | str | None]]] = {
    ("text", "text"): bytes.decode,
    ("text", "character varying"): bytes.decode,
    ("text", "character"): _padded,
    ("text", "bpchar"): _padded,
    ("bytea", "bytea"): bytes.hex,
    ("boolean", "boolean"): decode.boolean,
    ("date", "date"): decode.date,
    ("timestamp without time zone", "timestamp without time zone"): decode.timestamp,
    ("time without time zone", "time without time zone"): decode.time,
}
