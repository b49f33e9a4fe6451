"""Rows that a model composed, in a statement: one JSON value, which the hub takes apart again."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from oar_proxy.errors import FeatureNotSupported, RunStopped
from oar_proxy.federation import Parameter
from oar_proxy.sql.parsed import Call
from oar_proxy.sql.text import Edit, quote_identifier, quote_literal

Value = str | int | float | bool | None
Rows = Sequence[Sequence[Value]]

_JSONB: Final = 3802
_MAX_BIGINT: Final = 2**63 - 1

_ROWS: Final = "pg_catalog.jsonb_to_recordset"
_ELEMENTS: Final = "pg_catalog.jsonb_array_elements"
_UNKNOWN: Final = (("column1", "text"),)
"""The columns of an answer without a row."""


@dataclass(slots=True)
class Binder:
    """Takes answers as parameters behind the client's own, or ``written`` into the text.

    A COPY has no parameters.
    """

    first: int
    written: bool
    parameters: list[Parameter] = field(default_factory=list)

    def bind(self, document: str) -> str:
        """Take an answer; return what stands for it in the statement."""
        if self.written:
            return f"{quote_literal(document)}::pg_catalog.jsonb"
        self.parameters.append(Parameter(_JSONB, 0, document.encode()))
        return f"${self.first + len(self.parameters) - 1}::pg_catalog.jsonb"


def put(call: Call, rows: Rows, bind: Callable[[str], str]) -> Edit:
    """Put an answer in the place of a call."""
    if call.columns:
        # The column definition list stays, and PostgreSQL casts to it.
        return Edit(call.start, call.end, f"{_ROWS}({bind(_document(rows, call.columns))})")
    columns = columns_of(rows)
    document = bind(_document(rows, [name for name, _ in columns]))
    if call.name == "oar_ask_json":
        name = quote_identifier(call.alias or call.name)
        return call.replace(f"SELECT r.row AS {name} FROM {_ELEMENTS}({document}) AS r(row)")
    return call.replace(f"SELECT * FROM {_ROWS}({document}) AS r({defined(columns)})")


def _document(rows: Rows, names: Sequence[str]) -> str:
    if rows and len(rows[0]) != len(names):
        raise FeatureNotSupported(
            f"the answer has {len(rows[0])} columns, and {len(names)} are named",
            hint="name as many, or leave out the column definition list to see them",
        )
    return json.dumps([dict(zip(names, row, strict=True)) for row in rows], ensure_ascii=False)


def columns_of(rows: Rows) -> Sequence[tuple[str, str]]:
    """Name the columns of an answer, and infer their types."""
    return [
        (f"column{number}", _type(values))
        for number, values in enumerate(zip(*rows, strict=True), start=1)
    ] or _UNKNOWN


def _type(values: Iterable[Value]) -> str:
    kinds = {type(value) for value in values if value is not None}
    if kinds == {bool}:
        return "bool"
    if not kinds or not kinds <= {int, float}:
        return "text"
    if float in kinds:
        return "numeric"
    whole = all(isinstance(v, int) and -_MAX_BIGINT <= v <= _MAX_BIGINT for v in values if v)
    return "int8" if whole else "numeric"


def defined(columns: Sequence[tuple[str, str]]) -> str:
    """Write a column definition list."""
    return ", ".join(f"{quote_identifier(name)} pg_catalog.{kind}" for name, kind in columns)


def require_table(rows: Rows) -> None:
    """Refuse rows that are no table, and text that PostgreSQL has not."""
    if rows and ({len(row) for row in rows} != {len(rows[0])} or not rows[0]):
        raise RunStopped("the model's answer is no table: its rows differ in length, or are empty")
    for value in (value for row in rows for value in row):
        if isinstance(value, str) and ("\0" in value or _has_surrogate(value)):
            raise RunStopped("the model's answer has a character that PostgreSQL's text has not")


def _has_surrogate(text: str) -> bool:
    return any("\ud800" <= character <= "\udfff" for character in text)
