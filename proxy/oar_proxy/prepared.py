"""What a prepared statement gets: parameters of the protocol, and arguments of EXECUTE.

The client's own hub session reads and writes all of them, by the types and settings it has.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from oar_proxy.errors import FeatureNotSupported, WrongParameters
from oar_proxy.federation import HubLink, Parameter
from oar_proxy.predicate import array_elements
from oar_proxy.sql.parse import parse, parse_one
from oar_proxy.sql.text import (
    SyntaxFault,
    argument_list,
    execute_extent,
    prepared_query,
    quote_literal,
    splice,
)
from oar_proxy.sql.tree import ast

_FLOATS: Final = frozenset({"real", "double precision"})

_DATES: Final = {
    "date": 1082,
    "timestamp without time zone": 1114,
    "timestamp with time zone": 1184,
}
_DATE_OIDS: Final = frozenset(_DATES.values())
_HOLDS_DATES: Final = re.compile(r"^(date|timestamp|ts|tstz)(\b|range|multirange)")

_UNMODIFIED: Final = {"character": "bpchar", "bit": '"bit"'}
"""Names that mean another type without a modifier: SQL's ``character`` is ``character(1)``, and a
cast to that cuts a value short."""


@dataclass(frozen=True, slots=True)
class Argument:
    """A client's parameter: its text (None for NULL) and its type, as the hub writes them."""

    value: str | None
    type: str

    @property
    def literal(self) -> str:
        """The value as a typed literal."""
        written = "NULL" if self.value is None else quote_literal(self.value)
        return f"({written}::{self.type})"


async def client_arguments(link: HubLink, parameters: Sequence[Parameter]) -> dict[int, Argument]:
    """The client's parameters by number, written by the client's own hub session."""
    if not parameters:
        return {}
    numbers = range(1, len(parameters) + 1)
    texts = (
        _iso(f"${n}") if parameter.oid in _DATE_OIDS else f"${n}::pg_catalog.text"
        for n, parameter in enumerate(parameters, start=1)
    )
    wanted = ", ".join(f"{t}, pg_catalog.pg_typeof(${n})::text" for n, t in enumerate(texts, 1))
    (cells,) = await link.query(f"SELECT {wanted}", parameters)
    arguments: dict[int, Argument] = {}
    for number in numbers:
        value, kind = cells[2 * number - 2], cells[2 * number - 1]
        assert kind is not None
        text = None if value is None else value.decode()
        arguments[number] = Argument(text, _castable(kind.decode()))
    await _require_legible((argument.type for argument in arguments.values()), link)
    return arguments


# --- SQL-level EXECUTE --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NamedQuery:
    """The query that is prepared under a name, and the types of its parameters.

    ``reading`` are the settings by which its constants were read, where that is noted.
    """

    sql: str
    types: tuple[str, ...]
    reading: Mapping[str, str] | None = None


_NOTED: Final = re.compile(r" /\* read by (\{.*\}) \*/\Z")


def reading_note(reading: Mapping[str, str]) -> str:
    """Return the comment that tells, behind a prepared statement, how its constants were read.

    The hub keeps it for as long as the statement, whatever becomes of names meanwhile.
    """
    # No value may end the comment, or begin another one.
    noted = json.dumps(reading).replace("/", "\\u002f")
    return f" /* read by {noted} */"


def executed(node: Any) -> Any | None:
    """The EXECUTE of ``EXECUTE``, ``EXPLAIN EXECUTE`` and ``CREATE TABLE AS EXECUTE``."""
    if isinstance(node, ast.ExecuteStmt):
        return node
    if isinstance(node, (ast.ExplainStmt, ast.CreateTableAsStmt)):
        return executed(node.query)
    return None


async def named_query(name: str, link: HubLink) -> NamedQuery | None:
    """Look up what the session has prepared under a name; None: nothing that may be ours."""
    rows = await link.query(
        "SELECT statement, parameter_types::pg_catalog.text[]::pg_catalog.text FROM "
        f"pg_catalog.pg_prepared_statements WHERE name = {quote_literal(name)}"
    )
    if not rows or rows[0][0] is None:
        return None
    text = rows[0][0].decode()
    types = array_elements((rows[0][1] or b"{}").decode()) or ()
    noted = _NOTED.search(text)
    reading = json.loads(noted[1]) if noted else None
    query = _prepared_body(text)
    return None if query is None else NamedQuery(query, tuple(map(_castable, types)), reading)


async def inlined(text: str, node: Any, named: NamedQuery, link: HubLink) -> str:
    """Put a query, with its arguments, in the place of the EXECUTE in a text.

    Raises :class:`WrongParameters`, and what the hub says of an argument.
    """
    arguments = await _argument_texts(text, node, named.types, link)
    # Places are those in the statement's own text, which leaves comments out.
    parsed = parse_one(named.sql)
    query = splice(parsed.text, parsed.given(dict(enumerate(arguments, start=1))))
    start, end = execute_extent(text)
    return text[:start] + query + text[end:]


async def _argument_texts(text: str, node: Any, types: Sequence[str], link: HubLink) -> list[str]:
    """Evaluate the arguments of EXECUTE in the session, as typed literals."""
    given = node.params or ()
    if not types:
        return []  # PostgreSQL does not look at arguments that nothing takes
    if len(given) != len(types):
        raise WrongParameters(
            f'wrong number of parameters for prepared statement "{node.name}"',
            detail=f"Expected {len(types)} parameters but got {len(given)}.",
        )
    await _require_legible(types, link)
    listed = argument_list(text)
    rows = await link.query(
        "SELECT "
        + ", ".join(
            _exactly(f"(({argument})::{kind})", kind)
            for argument, kind in zip(listed, types, strict=True)
        )
    )
    return [
        f"({'NULL' if cell is None else quote_literal(_exact_text(cell, kind))}::{kind})"
        for cell, kind in zip(rows[0], types, strict=True)
    ]


def _prepared_body(text: str) -> str | None:
    """The query of ``PREPARE name (types) AS query``; a protocol-level statement is its own.

    None where the text is not one statement: a string with one of ours is run piece by piece, and
    what cannot be parsed here passed through, so that the hub alone knows what it is.
    """
    try:
        statements = parse(text)
    except SyntaxFault:
        return None
    if len(statements) != 1:
        return None
    (parsed,) = statements
    return prepared_query(parsed.text) if parsed.kind == "PrepareStmt" else text


def _castable(kind: str) -> str:
    """Spell a type that PostgreSQL named without its modifier so that a cast changes no value."""
    element = kind.removesuffix("[]")
    return _UNMODIFIED.get(element, element) + kind[len(element) :]


async def _require_legible(types: Iterable[str], link: HubLink) -> None:
    """Refuse types whose text the session would not read back. Dates by themselves are ISO's."""
    holding = [t for t in types if _HOLDS_DATES.search(t) and t not in _DATES]
    if holding and not (await link.state()).reads_its_dates:
        raise FeatureNotSupported(
            f"parameters of type {holding[0]} need a DateStyle that prints dates as it reads them",
            hint="SET DateStyle TO ISO",
        )


def _iso(value: str) -> str:
    """SQL for the text of a date or a timestamp that is read the same by every ``DateStyle``."""
    return f"(pg_catalog.to_json({value}) OPERATOR(pg_catalog.#>>) '{{}}'::pg_catalog.text[])"


def _exactly(value: str, kind: str) -> str:
    """SQL for a value's text; a float's bits, whose text ``extra_float_digits`` may cut short."""
    if kind in _DATES:
        return _iso(value)
    if kind in _FLOATS:
        return f"pg_catalog.encode(pg_catalog.float8send({value}::pg_catalog.float8), 'hex')"
    return f"{value}::pg_catalog.text"


def _exact_text(cell: bytes, kind: str) -> str:
    """Read what :func:`_exactly` had printed."""
    if kind in _FLOATS:
        (value,) = struct.unpack("!d", bytes.fromhex(cell.decode()))
        return repr(value)
    return cell.decode()
