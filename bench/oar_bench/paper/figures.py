"""What a table is, and its two written forms: text for people, tidy records for programs.

Every command of ``oar bench paper`` describes what it found as :class:`Table`; a plot is drawn
from the same (:mod:`oar_bench.paper.plots`).
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import groupby
from pathlib import Path
from textwrap import wrap
from typing import Final, Literal

from oar_bench.paper.statistics import Estimate

Unit = Literal["count", "%", "points", "calls", "tokens", "seconds", "USD", "times"]

_FORMS: Final[dict[Unit, str]] = {
    "count": ".0f",
    "%": "z.1f",
    "points": "+z.1f",
    "calls": ".1f",
    "tokens": ".0f",
    "seconds": ".1f",
    "USD": ".5f",
    "times": ".2f",
}
"""One digit, as the paper prints accuracies and points."""

_DIGITS: Final = 4
"""Digits after the point in the tidy records, but for money, of which a question costs little."""

_MONEY_DIGITS: Final = 8

_NOTE_WIDTH: Final = 100

HIGHEST: Final = "*"
"""The highest figure of its row, bold in the paper."""

ABOVE: Final = "†"
"""The interval of the difference from the best fixed protocol lies above zero."""

MISSING: Final = "–"


@dataclass(frozen=True, slots=True)
class Figure:
    """One cell: a value in its column's unit, with its 95 % interval where there is one."""

    value: float
    low: float | None = None
    high: float | None = None
    marks: str = ""


@dataclass(frozen=True, slots=True)
class Column:
    """One column; neighbours of one ``group`` stand under its name."""

    name: str
    unit: Unit = "%"
    group: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """One row: its setting, what part of it (a protocol, a stratum), a figure for each column."""

    setting: str
    figures: tuple[Figure | None, ...]
    part: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """One table. ``name`` is the paper's number, or what ``--table`` calls it.

    ``part`` heads the second label of the rows, empty where they have one only. ``note`` says what
    the abbreviations and marks mean.
    """

    name: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    part: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Record:
    """One figure in tidy form: a line of the CSV file, an object of the last line of JSON."""

    table: str
    setting: str
    part: str
    group: str
    column: str
    unit: Unit
    value: float
    low: float | None
    high: float | None
    marks: str


def estimated(estimate: Estimate | None, marks: str = "") -> Figure | None:
    """Return an estimate as a figure."""
    if estimate is None:
        return None
    return Figure(estimate.value, estimate.low, estimate.high, marks)


def figure(value: float | None) -> Figure | None:
    """Return a value without an interval as a figure."""
    return None if value is None else Figure(value)


def records(tables: Iterable[Table]) -> Iterator[Record]:
    """Return every figure of the tables, in their order; a missing one has no record."""
    for table in tables:
        for row in table.rows:
            for column, one in zip(table.columns, row.figures, strict=True):
                if one is not None:
                    yield Record(
                        table.name,
                        row.setting,
                        row.part,
                        column.group,
                        column.name,
                        column.unit,
                        _rounded(one.value, column.unit),
                        None if one.low is None else _rounded(one.low, column.unit),
                        None if one.high is None else _rounded(one.high, column.unit),
                        one.marks,
                    )


def write_csv(path: Path, tables: Iterable[Table]) -> None:
    """Write the records of all tables to one file, with a line of names."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Record)])
        writer.writeheader()
        writer.writerows(asdict(record) for record in records(tables))


def text(table: Table) -> str:
    """Return the table as lines of text; groups of columns stand apart under their names."""
    labels = ["setting", *([table.part] if table.part else [])]
    rows = [
        (
            [row.setting, row.part][: len(labels)],
            [
                MISSING if one is None else _shown(one, column.unit)
                for column, one in zip(table.columns, row.figures, strict=True)
            ],
        )
        for row in table.rows
    ]
    label_widths = [
        max(map(len, (label, *(row[0][place] for row in rows))))
        for place, label in enumerate(labels)
    ]
    widths = _widths(table.columns, [cells for _, cells in rows])
    left = "  ".join(" " * width for width in label_widths)
    grouped = _spans(table.columns, widths)
    lines = [_title(table)]
    if any(name for name, _ in grouped):
        lines.append(left + "".join(f"   {name:<{width}}" for name, width in grouped))
    names = [column.name for column in table.columns]
    lines += [
        "  ".join(f"{label:<{width}}" for label, width in zip(head, label_widths, strict=True))
        + _cells(table.columns, widths, cells)
        for head, cells in [(labels, names), *rows]
    ]
    lines += wrap(table.note, _NOTE_WIDTH)
    return "\n".join(line.rstrip() for line in lines)


def _title(table: Table) -> str:
    return f"Table {table.name}: {table.title}" if table.name.isdigit() else table.title


def _shown(one: Figure, unit: Unit) -> str:
    """Write a figure as of its record, so that a half is rounded the same way in both."""
    value = f"{_rounded(one.value, unit):{_FORMS[unit]}}{one.marks}"
    if one.low is None or one.high is None:
        return value
    low, high = (f"{_rounded(end, unit):{_FORMS[unit].lstrip('+')}}" for end in (one.low, one.high))
    return f"{value} [{low}, {high}]"


def _rounded(value: float, unit: Unit) -> float:
    return round(value, _MONEY_DIGITS if unit == "USD" else _DIGITS)


def _widths(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> list[int]:
    """Return the columns' widths, the last of a group so wide that the group's name has room."""
    widths = [
        max(map(len, (column.name, *(cells[place] for cells in rows))))
        for place, column in enumerate(columns)
    ]
    for name, places in _groups(columns):
        widths[places[-1]] += max(0, len(name) - _width(places, widths))
    return widths


def _spans(columns: Sequence[Column], widths: Sequence[int]) -> list[tuple[str, int]]:
    return [(name, _width(places, widths)) for name, places in _groups(columns)]


def _cells(columns: Sequence[Column], widths: Sequence[int], cells: Sequence[str]) -> str:
    return "".join(
        "   " + "  ".join(f"{cells[place]:>{widths[place]}}" for place in places)
        for _, places in _groups(columns)
    )


def _groups(columns: Sequence[Column]) -> list[tuple[str, list[int]]]:
    """Return the names of the groups and the places of their columns, in order."""
    places = groupby(range(len(columns)), key=lambda place: columns[place].group)
    return [(name, list(inside)) for name, inside in places]


def _width(places: Sequence[int], widths: Sequence[int]) -> int:
    return sum(widths[place] for place in places) + 2 * (len(places) - 1)
