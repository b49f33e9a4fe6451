"""Subqueries that one owner answers by itself, inside a statement that several answer.

Such a unit is a table like any other to the rest of the line: its owner is asked for its rows, keys
are looked up among its outputs and taken from them. Nothing leaves but the subquery's own rows:
groups instead of what they are made of, the first few instead of all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from oar_adapters.interface import (
    Agreement,
    Capabilities,
    Column,
    Derived,
    Statement,
    Table,
    base_type,
)

from oar_proxy.catalog import Holder, PublishedColumn, PublishedTable
from oar_proxy.hub.planreading import Origin
from oar_proxy.predicate import family
from oar_proxy.pushdown import Whole, whole_query
from oar_proxy.sql.parse import parse
from oar_proxy.sql.text import Edit, bracketed_queries, quote_identifier, splice
from oar_proxy.sql.tree import ast, calls_plainly, enums, most_rows, picks
from oar_proxy.statement import FederatedStatement, Occurrence

_NAME: Final = "oar subquery"
"""What stands for a unit in the text of the statement, with a number behind it."""

_GROUPED: Final = 0.1
"""Guessed groups for each row; only orders steps."""

_FLOATS: Final = frozenset({"real", "double precision"})


@dataclass(frozen=True, slots=True)
class Unit:
    """A subquery in the statement's text, and what its owner would get."""

    whole: Whole
    text: str
    node: Any
    occurrences: tuple[Occurrence, ...]


def units(
    statement: FederatedStatement,
    capabilities: Mapping[str, Capabilities],
    parameters: Sequence[Edit],
) -> Iterator[Unit]:
    """Yield the subqueries that may go to their one owner whole, outer ones first.

    They may still refer to a query outside of them; the hub's planner knows.
    """
    text = statement.parsed.text
    if _NAME in text:
        return
    for start, end in bracketed_queries(text):
        inside = tuple(o for o in statement.occurrences if start <= o.relation.start < end)
        if not inside or any(start <= x.relation.start < end for x in statement.others):
            continue
        if any(start <= call.start < end for call in statement.calls):
            continue
        parsed = parse(text[start:end])
        node = parsed[0].node if len(parsed) == 1 else None
        if not isinstance(node, ast.SelectStmt):
            continue
        # Any other name in FROM is a CTE of an outer query.
        if not {r.start for r in parsed[0].relations} <= {o.relation.start - start for o in inside}:
            continue
        whole = whole_query(
            statement,
            inside,
            node,
            (start, end),
            capabilities=capabilities,
            parameters=parameters,
        )
        if isinstance(whole, Whole) and _is_worth_it(node, capabilities[whole.owner]):
            yield Unit(whole, text[start:end], node, inside)


def _is_worth_it(node: Any, can: Capabilities) -> bool:
    """Tell whether fewer rows come out than go in."""
    if node.limitCount is not None or node.limitOffset is not None:
        return True
    if node.op != enums.SetOperation.SETOP_NONE:
        return False
    return bool(node.groupClause or node.distinctClause) or _aggregates(node, can)


def _aggregates(node: Any, can: Capabilities) -> bool:
    return any(calls_plainly(target, can.aggregates) for target in node.targetList or ())


def as_table(
    unit: Unit,
    query: Statement,
    origins: Sequence[Origin | None],
    can: Capabilities,
) -> PublishedTable | None:
    """Describe a unit as a table of its owner; None where two outputs have one name."""
    names = [output.name for output in query.outputs]
    if not names or len(set(names)) < len(names) or "" in names:
        return None
    occurrences = {o.number: o for o in unit.occurrences}
    columns: list[Column] = []
    traced: list[tuple[str, str, str]] = []
    for output, origin in zip(query.outputs, origins, strict=True):
        column = Column(output.name, output.type, output.name)
        if origin is not None:
            table = occurrences[origin.occurrence].table.holders[0].table
            source = table.column(origin.column)
            traced.append((output.name, table.name, source.name))
            unique = (source.name,) in (table.primary_key, *table.unique_keys)
            column = replace(
                column,
                equality=source.equality,
                ordered=source.ordered,
                distinct=table.row_estimate if unique else source.distinct,
                null_fraction=source.null_fraction,
            )
        elif can.dialect == "postgres" and base_type(output.type) not in _FLOATS:
            ordered = family(output.type) != "text"
            column = replace(column, equality=Agreement.EXACT, ordered=ordered)
        columns.append(column)
    listed = ", ".join(dict.fromkeys(o.table.name for o in unit.occurrences))
    table = Table(
        name=f"a subquery of {listed}",
        columns=tuple(columns),
        source_name="t",
        row_estimate=_row_estimate(unit, can),
        derived=Derived(query.sql, query.tables, tuple(traced), not picks(unit.node)),
    )
    return PublishedTable(
        schema=unit.occurrences[0].table.schema,
        name=table.name,
        columns=tuple(PublishedColumn(c.name, c.type, False, None) for c in columns),
        holders=(Holder(unit.whole.owner, table),),
        planning_name="",
    )


def _row_estimate(unit: Unit, can: Capabilities) -> float:
    node = unit.node
    most = most_rows(node)
    if most is not None:
        return float(max(most, 1))
    held = max(o.table.row_estimate for o in unit.occurrences)
    if node.groupClause or node.distinctClause:
        return max(held * _GROUPED, 1.0)
    return 1.0 if _aggregates(node, can) else held


def with_tables(
    statement: FederatedStatement, found: Sequence[tuple[Unit, PublishedTable]]
) -> FederatedStatement:
    """Put the tables in the place of their units: the same text twice is the same table."""
    names = {unit.text: f"{_NAME} {number}" for number, (unit, _) in enumerate(found, start=1)}
    edits = [
        Edit(u.whole.start, u.whole.end, f"SELECT * FROM {quote_identifier(names[u.text])}")
        for u, _ in found
    ]
    tables = {names[unit.text]: table for unit, table in found}
    return statement.with_text(splice(statement.parsed.text, edits), tables)
