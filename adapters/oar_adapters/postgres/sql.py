"""The SQL a PostgreSQL owner is sent. Pure: queries in, text out.

Everything that is not a keyword goes through :func:`identifier`, :func:`literal` or
:func:`type_name`; keys are array parameters and never text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import count
from typing import Final

from oar_adapters import sqltext
from oar_adapters.encodings import UTF8, holds
from oar_adapters.interface import (
    BINARY_TYPES,
    Agreement,
    Column,
    Comparison,
    KeyFilter,
    Membership,
    NullTest,
    Partial,
    PartialFunction,
    PatternMatch,
    Predicate,
    Query,
    Scan,
    SemiJoin,
    Statement,
    Table,
    base_type,
    is_binary,
)
from oar_adapters.predicates import FLOATS, INTEGERS, TEXTS, Leaf

TEXT_FORMAT_TYPES: Final = frozenset(
    {
        "bit",
        "bit varying",
        "box",
        "bpchar",
        "cidr",
        "circle",
        "datemultirange",
        "daterange",
        "inet",
        "int4multirange",
        "int4range",
        "int8multirange",
        "int8range",
        "interval",
        "json",
        "jsonb",
        "jsonpath",
        "line",
        "lseg",
        "macaddr",
        "macaddr8",
        "nummultirange",
        "numrange",
        "oid",
        "path",
        "pg_lsn",
        "point",
        "polygon",
        "time with time zone",
        "tsmultirange",
        "tsquery",
        "tsrange",
        "tstzmultirange",
        "tstzrange",
        "tsvector",
        "xid8",
    }
)
"""Types published as they are, with cells in text format, besides arrays of publishable types.

Each has one text form a value under the settings of our connections, which the hub reads back.
``money`` (depends on the locale), ``xml`` (not in every build), names of objects (``regclass``
and its kin) and everything from extensions are published as ``text``.
"""

MAX_BLOCK: Final = 2**32 - 1
"""No block of a table has a number as high."""

_MODIFIER: Final = re.compile(r"\(\d{1,5}(,-?\d{1,4})?\)")

_SPELLINGS: Final = {"character": "bpchar", "bit": '"bit"'}
"""Names that mean another type without their modifier: SQL's ``character`` is ``character(1)``."""


def plain_type(name: str) -> str:
    """Return a type's name without any modifier: ``interval day to second(3)`` → ``interval``."""
    plain = base_type(name)
    return "interval" if plain.startswith("interval ") else plain


def publishable(name: str) -> bool:
    """Tell whether a ``format_type`` name is one the hub has and reads back unchanged."""
    plain = plain_type(name.removesuffix("[]"))
    return plain in BINARY_TYPES or plain in TEXT_FORMAT_TYPES


def identifier(name: str) -> str:
    """Quote a name. Raises ``ValueError`` for one PostgreSQL cannot hold."""
    if not name or "\0" in name:
        raise ValueError("not a PostgreSQL name: empty, or holds a NUL")
    return sqltext.quoted(name)


def literal(value: str, type_: str) -> str:
    """Write a constant of a type from its text form (``standard_conforming_strings`` is on).

    The type's modifier is dropped: a cast to ``varchar(3)`` would truncate in silence.
    """
    if "\0" in value:
        raise ValueError("not a PostgreSQL value: holds a NUL")
    return f"{sqltext.string(value)}::{type_name(plain_type(type_))}"


def type_name(name: str) -> str:
    """Spell a ``format_type`` name so that SQL reads the same type back.

    Raises ``ValueError`` for anything but the types we publish and their arrays.
    """
    element, array = (name[:-2], "[]") if name.endswith("[]") else (name, "")
    modifiers = re.findall(r"\([^)]*\)", element)
    if not publishable(name) or not all(map(_MODIFIER.fullmatch, modifiers)):
        raise ValueError("not the name of a type this adapter publishes")
    return _SPELLINGS.get(element, element) + array


def value_of(column: Column, alias: str = "") -> str:
    """Write a column (of the relation ``alias``, where that is said) as its published type.

    A column published as ``text`` may be of a type the hub does not have (an enumeration,
    ``citext``): the cast makes the owner compare what the hub compares. On ``text`` itself it
    is nothing, and leaves indexes usable.
    """
    name = identifier(column.source_name)
    name = f"{alias}.{name}" if alias else name
    return f"{name}::text" if column.type == "text" else name


def cell_of(expression: str, type_: str) -> str:
    """Write what makes an expression arrive in the format its cells have."""
    if type_ == "bpchar":
        # The cast would take the blanks away that a value without a length ends with.
        return f"pg_catalog.textin(pg_catalog.bpcharout({expression}))"
    return expression if is_binary(type_) or type_ == "text" else f"{expression}::text"


def named(table: Table) -> str:
    """Write a table's qualified name: the search path of our connections is ``pg_catalog``."""
    name = identifier(table.source_name)
    return f"{identifier(table.source_schema)}.{name}" if table.source_schema else name


def relation(table: Table) -> str:
    """Write a table as it stands in FROM.

    A derived table's outputs get the types the hub expects, as those of a whole statement do.
    """
    if table.derived is not None:
        inner = ", ".join(f"c{number}" for number in range(1, len(table.columns) + 1))
        cells = ", ".join(
            f"q.c{number}::{type_name(column.type)} AS {identifier(column.source_name)}"
            for number, column in enumerate(table.columns, start=1)
        )
        return f"(SELECT {cells} FROM (\n{table.derived.sql}\n) AS q({inner}))"
    return f"ONLY {named(table)}" if table.only else named(table)


def written(query: Query) -> str:
    """Write a query. Raises ``ValueError`` for what PostgreSQL could not read back."""
    return scan(query) if isinstance(query, Scan) else statement(query)


def scan(query: Scan) -> str:
    """Write a scan; key lists are ``$1``, ``$2``, … in the order of :func:`keys`.

    Without columns the owner counts: one row, one ``bigint``.
    """
    where = _where(query, count(1))
    limit = "" if query.limit is None else f" LIMIT {query.limit:d}"
    aliased = query.table.derived is not None or query.order
    rows = f" FROM {relation(query.table)}{' AS t' if aliased else ''}{where}"
    if query.counted:
        return _counted(query, rows) + limit
    cells = [cell_of(value_of(column), column.type) for column in query.columns]
    body = f"SELECT {once(query)}{', '.join(cells)}{rows}{_order(query)}{limit}"
    if cells:
        return body
    return f"SELECT pg_catalog.count(*) FROM ({body}) AS q"


def _order(query: Scan) -> str:
    # A bare name in ORDER BY would be that of an output, which may be the text of the column.
    items = []
    for key in query.order:
        column = query.table.column(key.column)
        collate = ' COLLATE pg_catalog."C"' if base_type(column.type) in TEXTS else ""
        direction = "DESC" if key.descending else "ASC"
        nulls = "FIRST" if key.nulls_first else "LAST"
        items.append(f"{value_of(column, 't')}{collate} {direction} NULLS {nulls}")
    return f" ORDER BY {', '.join(items)}" if items else ""


def _where(query: Scan, numbers: Iterator[int], depth: int = 0) -> str:
    """Write the conditions of a scan; one inside a semi-join says whose each column is.

    Else PostgreSQL would take a column that is gone for one of the scan outside.
    """
    alias = _nested_alias(depth) if depth else ""
    conditions = [condition(query.table, predicate, alias) for predicate in query.predicates]
    conditions += [
        _membership_of_keys(query.table, key_filter, numbers, alias)
        for key_filter in query.key_filters
    ]
    conditions += [
        f"{_row(query.table, (column for column, _ in each.pairs), alias)}"
        f" IN ({_keys_of(each, numbers, depth)})"
        for each in query.semi_joins
    ]
    return sqltext.where(conditions)


def _keys_of(semi_join: SemiJoin, numbers: Iterator[int], depth: int) -> str:
    alias = _nested_alias(depth + 1)
    table = semi_join.source.table
    outputs = ", ".join(_compared(table.column(column), alias) for _, column in semi_join.pairs)
    where = _where(semi_join.source, numbers, depth + 1)
    return f"SELECT {outputs} FROM {relation(table)} AS {alias}{where}"


def _compared(column: Column, alias: str) -> str:
    # Two collations do not compare. The default one is deterministic, and the one of most indexes.
    collate = ' COLLATE pg_catalog."default"' if base_type(column.type) in TEXTS else ""
    return value_of(column, alias) + collate


def _row(table: Table, columns: Iterable[str], alias: str) -> str:
    """Write the columns that are compared together."""
    return sqltext.row([value_of(table.column(column), alias) for column in columns])


def _nested_alias(depth: int) -> str:
    return f"s{depth}"


def once(query: Scan) -> str:
    """Write DISTINCT where the owner tells apart all that PostgreSQL would."""
    exact = all(column.equality is Agreement.EXACT for column in query.columns)
    return "DISTINCT " if query.distinct and query.columns and exact else ""


def _counted(query: Scan, rows: str) -> str:
    """Write a counted scan without its limit."""
    keys = [_bytewise(column) for column in query.columns]
    outputs = [cell_of(key, column.type) for key, column in zip(keys, query.columns, strict=True)]
    outputs.append("pg_catalog.count(*)")
    outputs += [output for partial in query.partials for output in _partial(partial)]
    shown = [f"{value_of(column)}::text" for column in query.columns if _shown_otherwise(column)]
    grouped = [*(str(number) for number, _ in enumerate(keys, start=1)), *shown]
    group = f" GROUP BY {', '.join(grouped)}" if grouped else ""
    return f"SELECT {', '.join(outputs)}{rows}{group}"


def _shown_otherwise(column: Column) -> bool:
    """Tell whether equal values may differ as text, as ``1.0`` and ``1.00`` or a zero's sign do."""
    return column.type == "numeric" or column.type in FLOATS


def _partial(partial: Partial) -> list[str]:
    column = partial.column
    outputs = [f"pg_catalog.count({value_of(column)})"]
    for output, function in (("sum", "numeric"), ("min", ""), ("max", "")):
        if output in partial.functions:
            type_ = function or type_name(plain_type(column.type))
            outputs.append(f"pg_catalog.{output}({_bytewise(column)})::{type_}")
    return outputs


def _bytewise(column: Column) -> str:
    """Write a column so that text is told apart and ordered by its bytes."""
    name = value_of(column)
    return f'{name} COLLATE pg_catalog."C"' if base_type(column.type) in TEXTS else name


EXTREMES: Final = INTEGERS | {
    "numeric",
    "text",
    "character varying",
    "date",
    "timestamp without time zone",
    "timestamp with time zone",
}
"""Types whose least and greatest value is one and the same whichever row it is taken from."""


def tells(partial: Partial) -> bool:
    """Tell whether the owner's aggregates of a column are PostgreSQL's over the published type."""
    plain = base_type(partial.column.type)
    can: set[PartialFunction] = set()
    if plain in INTEGERS | {"numeric"}:
        can.add("sum")
    if plain in EXTREMES and partial.column.ordered:
        can |= {"min", "max"}
    return partial.functions <= can


def packed_blocks(query: Scan) -> str:
    """Write a scan of some blocks of a table, as :func:`packed` writes its rows.

    Parameters are the first block and the first one left out, each as :func:`block` writes it.
    """
    conditions = [condition(query.table, predicate) for predicate in query.predicates]
    conditions += ["ctid >= $1::varchar::tid", "ctid < $2::varchar::tid"]
    cells = [cell_of(value_of(column), column.type) for column in query.columns]
    return _packed(cells, f"{relation(query.table)} WHERE {' AND '.join(conditions)}")


def packed(query: Query, rows: int) -> str:
    """Write a query of so many rows at most, which come as one.

    It has their number, an array of each column, and then a NULL of each column's type: that tells
    a column that has another type by now, which the array's bytes do not.
    """
    limit = rows if query.limit is None else min(rows, query.limit)
    names = [f"c{number}" for number in range(1, len(query.outputs) + 1)]
    source = written(replace(query, limit=limit))
    return _packed([f"q.{name}" for name in names], f"({source}) AS q({', '.join(names)})")


def _packed(cells: Sequence[str], source: str) -> str:
    arrays = [f"pg_catalog.array_agg({cell})" for cell in cells]
    outputs = [
        "pg_catalog.count(*)",
        *(f"pg_catalog.array_send({array})" for array in arrays),
        # No array that is made so has an element of that number.
        *(f"({array})[0]" for array in arrays),
    ]
    return f"SELECT {', '.join(outputs)} FROM {source}"


def block(number: int) -> bytes:
    """Write the address of a block's first row."""
    return b"(%d,0)" % number


def statement(query: Statement) -> str:
    """Wrap a whole statement so that its answer has the types the hub expects.

    The statement stands on lines of its own, so a comment at its end cannot swallow the wrapper.
    A subquery's ORDER BY survives a plain outer SELECT with at most a LIMIT: PostgreSQL adds no
    node that reorders.
    """
    names = [f"c{number}" for number in range(1, len(query.outputs) + 1)]
    cells = [
        cell_of(f"q.{name}::{type_name(output.type)}", output.type)
        for name, output in zip(names, query.outputs, strict=True)
    ]
    limit = "" if query.limit is None else f" LIMIT {query.limit:d}"
    alias = f"q({', '.join(names)})" if names else "q"
    if query.counted:
        rows = f"SELECT FROM (\n{query.sql}\n) AS {alias}{limit}"
        return f"SELECT pg_catalog.count(*) FROM ({rows}) AS q"
    return f"SELECT {', '.join(cells)} FROM (\n{query.sql}\n) AS {alias}{limit}"


def condition(table: Table, predicate: Predicate, alias: str = "") -> str:
    """Write a predicate. The caller has asked ``supports`` first."""
    return sqltext.condition(
        predicate,
        lambda leaf: _leaf(table.column(leaf.column), leaf, alias),
        true="TRUE",
        false="FALSE",
    )


def _leaf(column: Column, leaf: Leaf, alias: str) -> str:
    value = value_of(column, alias)
    match leaf:
        case Comparison():
            return _comparison(value, column, leaf)
        case Membership(values=()):
            return "FALSE"
        case Membership():
            values = ", ".join(literal(each, leaf.type) for each in leaf.values)
            return f"{value} IN ({values})"
        case NullTest():
            return f"{value} IS NOT NULL" if leaf.negated else f"{value} IS NULL"
        case PatternMatch():
            operator = "NOT LIKE" if leaf.negated else "LIKE"
            return f"{value} {operator} {literal(leaf.pattern, 'text')}"


def _comparison(left: str, column: Column, predicate: Comparison) -> str:
    # Equality of a deterministic collation is that of bytes, and the column's own collation
    # keeps its indexes usable; order has to be asked for (rules R9, R47).
    ranged = predicate.op not in ("=", "<>") and base_type(column.type) in TEXTS
    collate = ' COLLATE pg_catalog."C"' if ranged else ""
    value = literal(predicate.value, predicate.type)
    return f"{left}{collate} {predicate.op} {value}"


def keys(query: Query, encoding: str = UTF8) -> list[tuple[bytes, ...]]:
    """Return the arrays of a query's parameters, in their order.

    Keys that a database of that encoding cannot hold are left out. Before digests stand the two
    pads that :func:`_digested` takes from there, longer than those.
    """
    if isinstance(query, Statement):
        return []
    return [
        column if hmac is None else (*sqltext.pads_of(hmac), *column)
        for part in query.parts()
        for key_filter in part.key_filters
        for column, hmac in zip(
            _held(key_filter, encoding), (c.hmac for c in key_filter.columns), strict=True
        )
    ]


def _held(key_filter: KeyFilter, encoding: str) -> list[tuple[bytes, ...]]:
    """Return the keys of each column without those at places where one cannot be held."""
    columns = key_filter.columns if encoding != UTF8 else ()
    told = [c.keys for c in columns if base_type(c.type) in TEXTS and c.hmac is None]
    strange = {
        place
        for column in told
        for place, key in enumerate(column)
        if holds(key.decode(), encoding) is False
    }
    if not strange:
        return [column.keys for column in key_filter.columns]
    return [
        tuple(key for place, key in enumerate(column.keys) if place not in strange)
        for column in columns
    ]


def _membership_of_keys(
    table: Table, key_filter: KeyFilter, numbers: Iterator[int], alias: str
) -> str:
    values: list[str] = []
    arrays: list[str] = []
    for part in key_filter.columns:
        value = value_of(table.column(part.column), alias)
        arrays.append(_array(part.type if part.hmac is None else "bytea", next(numbers)))
        values.append(value if part.hmac is None else _digested(value, arrays[-1]))
    row = sqltext.row(values)
    if len(arrays) == 1:
        return f"{row} = ANY ({arrays[0]})"
    # The search path is pg_catalog, and only the bare name takes several arrays.
    return f"{row} IN (SELECT * FROM unnest({', '.join(arrays)}))"


DIGESTED: Final = INTEGERS | {"text", "character varying", "uuid"}
"""Types whose equal values have one text."""


def _digested(value: str, array: str) -> str:
    """Write a value's HMAC-SHA-256 (RFC 2104); the pads are the array's first two elements."""
    text = f"pg_catalog.convert_to({value}::text, 'UTF8')"
    return f"pg_catalog.sha256(({array})[1] || pg_catalog.sha256(({array})[2] || {text}))"


def _array(key_type: str, number: int) -> str:
    type_ = type_name(plain_type(key_type))
    # asyncpg has a codec of its own for text[], which takes no undecoded cells; varchar[] is the
    # same on the wire, and the cast is free.
    cast = "::varchar[]" if type_ == "text" or not is_binary(key_type) else ""
    return f"${number}{cast}::{type_}[]"
