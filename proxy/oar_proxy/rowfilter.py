"""What an owner's policy says of rows and columns in SQL, read when its schema is.

A row filter is read as PostgreSQL's planner prints it over the table's columns: names and types are
settled, constants folded. What then is no list of comparisons is an error of the policy, and the
table is not published. Neither is it where a mask is no value of its column's type.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from oar_adapters.interface import Adapter, Not, OwnerSchema, Predicate, Table, base_type

from oar_proxy import catalog
from oar_proxy import predicate as predicates
from oar_proxy.decision import SentFilter
from oar_proxy.hub.planner import Planner, PlanningFailed
from oar_proxy.sql.parse import parse_expression
from oar_proxy.sql.text import quote_identifier, quote_literal
from oar_proxy.sql.tree import ast, children, names_a_moment

_SETTINGS: Final = {"DateStyle": "ISO, MDY", "TimeZone": "UTC", "search_path": "pg_catalog"}
"""What a policy's text is read under: built-in names only, the same for every session."""

_TABLE: Final = "t"


class Unreadable(Exception):
    """A row filter or a mask that means nothing over the table its policy writes it for."""


async def read_filter(
    condition: str, table: Table, adapter: Adapter, planner: Planner
) -> SentFilter:
    """Read a row filter. Raises :class:`Unreadable`."""
    predicate = await _predicate(condition, table, planner)
    # An owner that may negate it keeps no row more than PostgreSQL would.
    faithful = adapter.supports(table, predicate) and adapter.supports(table, Not(predicate))
    return SentFilter(condition, predicate if faithful else None)


async def _predicate(condition: str, table: Table, planner: Planner) -> Predicate:
    node = parse_expression(condition)
    if node is None:
        raise Unreadable("its row_filter is not one condition in SQL")
    waiting = [node]
    while waiting:
        part = waiting.pop()
        if names_a_moment(part):
            raise Unreadable("its row_filter depends on the day it is asked")
        if isinstance(part, ast.SubLink):
            raise Unreadable("its row_filter looks at other rows than the table's own")
        waiting.extend(children(part))
    columns = ", ".join(f"{quote_identifier(c.name)} {c.type}" for c in table.columns)
    rows = f"oar_internal.any_table() AS {_TABLE}({columns})"
    # A line break ends a comment that may close the condition.
    (explained,) = await _explained(f"SELECT FROM {rows} WHERE ({condition}\n)", planner)
    plan = explained["Plan"]
    # Another node on top would hold a part of the condition, or all of it.
    printed = plan.get("Filter") if plan["Node Type"] == "Function Scan" else None
    published = catalog.build([("", "", OwnerSchema((table,)))]).tables["", table.name]
    read = None if printed is None else predicates.read(printed, published, _TABLE)
    if read is None:
        raise Unreadable(
            "its row_filter is more than comparisons of a column with a constant (of numbers, "
            "texts, booleans, dates, timestamps and uuids), IN, LIKE, IS NULL, AND, OR and NOT"
        )
    return read


_OF_TIME: Final = frozenset(
    {
        "date",
        "interval",
        "time with time zone",
        "time without time zone",
        "timestamp with time zone",
        "timestamp without time zone",
    }
)
"""Types whose text a session's settings may read otherwise."""


async def read_masks(
    masks: Mapping[str, str | None], table: Table, planner: Planner
) -> dict[str, str | None]:
    """Return masks as every session reads them. Raises :class:`Unreadable`.

    Each has to be a value of its column's type.
    """
    read = dict(masks)
    for column in table.columns:
        value = masks.get(column.name)
        if value is None:
            continue
        constant = f"CAST({quote_literal(value)} AS {column.type})"
        (explained,) = await _explained(f"SELECT {constant}", planner)
        if base_type(column.type) not in _OF_TIME:
            continue
        if names_a_moment(parse_expression(quote_literal(value))):
            raise Unreadable(f"its mask of {column.name} depends on the day it is asked")
        # Such as '2027-02-01'::date: a day that 02/01/2027 is in some sessions.
        printed = parse_expression(explained["Plan"]["Output"][0])
        if isinstance(printed, ast.TypeCast) and isinstance(printed.arg.val, ast.String):
            read[column.name] = printed.arg.val.sval
    return read


async def _explained(statement: str, planner: Planner) -> list[dict[str, Any]]:
    try:
        return await planner.explain(statement, _SETTINGS)
    except PlanningFailed as failure:
        raise Unreadable(failure.message) from failure
