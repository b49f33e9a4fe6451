"""The tables the conformance suite wants an owner to hold, and what their cells mean.

Rows are plain Python values; :func:`decode` turns an adapter's cells back into them, so that one
list of rows is the reference for every technology.
"""

from __future__ import annotations

import datetime
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Final, Literal

from psycopg.types.numeric import NumericBinaryLoader

from oar_adapters.interface import Cell, base_type

Kind = Literal["integer", "float", "text", "numeric", "boolean", "date", "timestamp", "bytes"]
Value = (
    int
    | float
    | str
    | Decimal
    | bool
    | datetime.date
    | datetime.time
    | datetime.datetime
    | bytes
    | None
)
Row = tuple[Value, ...]

_EPOCH: Final = datetime.datetime(2000, 1, 1)

TYPES: Final[dict[Kind, frozenset[str]]] = {
    "integer": frozenset({"smallint", "integer", "bigint"}),
    "float": frozenset({"double precision"}),
    "text": frozenset({"text", "character varying"}),
    "numeric": frozenset({"numeric"}),
    "boolean": frozenset({"boolean"}),
    "date": frozenset({"date"}),
    "timestamp": frozenset({"timestamp without time zone"}),
    "bytes": frozenset({"bytea"}),
}
"""The published types (without modifier) each kind of sample column may have."""


@dataclass(frozen=True, slots=True)
class SampleColumn:
    """One column; the owner's declared type is the author's choice among the kind's."""

    name: str
    kind: Kind
    not_null: bool = False


@dataclass(frozen=True, slots=True)
class SampleTable:
    """One table. Its first column is its primary key, enforced by the owner if it can."""

    name: str
    columns: tuple[SampleColumn, ...]
    rows: tuple[Row, ...]

    def declarations(self, types: Mapping[Kind, str]) -> str:
        """Write the columns for CREATE TABLE, each kind as the owner's type for it."""
        return ", ".join(
            f"{column.name} {types[column.kind]}"
            + (" PRIMARY KEY" if number == 0 else " NOT NULL" if column.not_null else "")
            for number, column in enumerate(self.columns)
        )

    def kind(self, name: str) -> Kind:
        """Return the kind of a column. Raises ``KeyError``."""
        for column in self.columns:
            if column.name == name:
                return column.kind
        raise KeyError(name)

    def position(self, name: str) -> int:
        """Return the place of a column in each row."""
        return [column.name for column in self.columns].index(name)


def decode(type_: str, cell: Cell) -> Value:
    """Turn a cell into a Python value. Raises ``ValueError`` for a type no sample has."""
    if cell is None:
        return None
    plain = base_type(type_)
    if plain in TYPES["integer"]:
        return int.from_bytes(cell, "big", signed=True)
    if plain in TYPES["text"]:
        return cell.decode()
    match plain:
        case "double precision":
            value: float = struct.unpack("!d", cell)[0]
            return value
        case "numeric":
            return NumericBinaryLoader(0).load(cell)
        case "boolean":
            return cell == b"\1"
        case "date":
            return (
                _EPOCH + datetime.timedelta(days=int.from_bytes(cell, "big", signed=True))
            ).date()
        case "timestamp without time zone":
            return _EPOCH + datetime.timedelta(
                microseconds=int.from_bytes(cell, "big", signed=True)
            )
        case "time without time zone":
            return (_EPOCH + datetime.timedelta(microseconds=int.from_bytes(cell, "big"))).time()
        case "bytea":
            return bytes(cell)
    raise ValueError(f"no sample column is published as {plain}")


def spell(value: Value) -> str:
    """Write a value in PostgreSQL's text format."""
    match value:
        case None:
            raise ValueError("NULL has no text form")
        case bool():
            return "t" if value else "f"
        case bytes():
            return "\\x" + value.hex()
        case datetime.datetime():
            return value.isoformat(sep=" ")
        case datetime.date():
            return value.isoformat()
        case float():
            return repr(value)
        case _:
            return str(value)


def integer_key(value: int) -> bytes:
    """Make the cell of a ``bigint`` key."""
    return value.to_bytes(8, "big", signed=True)


def _day(text: str) -> datetime.date:
    return datetime.date.fromisoformat(text)


def _moment(text: str) -> datetime.datetime:
    return datetime.datetime.fromisoformat(text)


def _things() -> Sequence[Row]:
    # Values that tell one meaning from another: case, order of bytes against order of a
    # dictionary, blanks, patterns' own characters, integers past 2**53, decimals that no double
    # holds, the ends of each range.
    words = ("", " ", "a", "A", "B", "b", "ab", "a b", "a ", "a%b", "a_b", "a\\b", "a*b", "a?b",
             "a[b", "é", "e\u0301", "Ж", "ж", "\U0001f600", "z'z", 'z"z', "007", "7", "NULL",
             "ВЕСНА25", "naïve", "tab\tnewline\n")  # fmt: skip
    integers = (0, 1, -1, 7, 2**31 - 1, -(2**31), 2**31, 2**53, 2**53 + 1, 2**53 - 1, 2**63 - 1,
                -(2**63))  # fmt: skip
    floats = (0.0, 0.1, 0.30000000000000004, -1.5, 1e300, -1e300, 5e-324, 9007199254740992.0,
              3.0, 1 / 3)  # fmt: skip
    decimals = ("0", "0.1", "1.5", "-2.25", "100", "12345678.9", "99999.99", "3")
    days = ("2000-01-01", "1999-12-31", "2024-02-29", "0001-01-01", "9999-12-31", "2026-07-14")
    moments = ("2000-01-01 00:00:00", "1999-12-31 23:59:59", "2024-02-29 12:30:00",
               "2024-02-29 12:30:00.500000", "0001-01-01 00:00:00")  # fmt: skip
    octets = (b"", b"\0", b"a", b"\xff\x00", b"A")

    def pick(values: Sequence[Value], number: int) -> Value:
        return (
            None
            if number % (len(values) + 1) == len(values)
            else values[number % (len(values) + 1)]
        )

    return [
        (
            number,
            pick(integers, number),
            pick(floats, number),
            pick(words, number),
            pick([Decimal(text) for text in decimals], number),
            pick((True, False), number),
            pick([_day(text) for text in days], number),
            pick([_moment(text) for text in moments], number),
            pick(octets, number),
        )
        for number in range(60)
    ]


THINGS: Final = SampleTable(
    "things",
    (
        SampleColumn("id", "integer", not_null=True),
        SampleColumn("n", "integer"),
        SampleColumn("x", "float"),
        SampleColumn("s", "text"),
        SampleColumn("m", "numeric"),
        SampleColumn("b", "boolean"),
        SampleColumn("d", "date"),
        SampleColumn("t", "timestamp"),
        SampleColumn("o", "bytes"),
    ),
    tuple(_things()),
)
"""One column a kind, with NULL in each but the key."""

NUMBERS: Final = SampleTable(
    "numbers",
    (
        SampleColumn("id", "integer", not_null=True),
        SampleColumn("k", "integer"),
        SampleColumn("label", "text"),
    ),
    tuple(
        (number, None if number % 10 == 0 else number * 3, f"слово {number}")
        for number in range(1, 60_001)
    ),
)
"""Enough rows for several batches and for long key lists."""

EVENTS: Final = SampleTable(
    "events",
    (SampleColumn("id", "integer", not_null=True), SampleColumn("note", "text")),
    ((1, "first"), (2, "second"), (3, None)),
)
"""What the suite tries to write to, and has a writer add to."""

FRAGILE: Final = SampleTable(
    "fragile",
    (SampleColumn("id", "integer", not_null=True), SampleColumn("v", "integer")),
    ((1, 10), (2, 20), (3, 30)),
)
"""What the suite has the owner damage: a wrong value, a column that goes."""

TABLES: Final = (THINGS, NUMBERS, EVENTS, FRAGILE)
