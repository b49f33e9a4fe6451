"""What a query touches at its owner, held against what the owner's policy shows of it.

Of a scan every column can be told; into the text of a statement nobody looks, so it counts as
touching all that it may use.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from oar_adapters.interface import (
    And,
    Comparison,
    KeyFilter,
    Membership,
    Not,
    Or,
    Predicate,
    Query,
    Scan,
    Table,
)
from oar_policies.decide import column_visible, table_visible
from oar_policies.model import Policy
from oar_policies.names import write_name

from oar_proxy.decision import Decisions, no_longer_published
from oar_proxy.errors import InsufficientPrivilege, InternalError


def require_permitted(decisions: Decisions, owner: str, query: Query) -> tuple[str, ...]:
    """Check that a query touches what is published only, filtered and masked as it is ruled.

    Returns the tables that it reads. Raises :class:`InsufficientPrivilege`.
    """
    policy = decisions.policy(owner)
    touched = tuple(dict.fromkeys(_touched(query)))
    tables = tuple(dict.fromkeys(table for table, _ in touched))
    _require_visible(policy, touched)
    _require_filters(policy, query)
    _require_views(decisions, owner, query, tables)
    return tables


def _require_visible(policy: Policy, touched: Iterable[tuple[str, str | None]]) -> None:
    for table, column in touched:
        permitted = (
            table_visible(policy, table)
            if column is None
            else column_visible(policy, table, column)
        )
        if not permitted:
            raise no_longer_published(policy.owner)


def _require_filters(policy: Policy, query: Query) -> None:
    """Refuse to read a table that asks for a filter without one."""
    for table, restricted in _restrictions(query):
        rule = policy.tables.get(table)
        if (
            rule is None
            or not rule.require_filter
            or not restricted.isdisjoint(rule.require_filter)
        ):
            continue
        listed = ", ".join(write_name(column) for column in rule.require_filter)
        raise InsufficientPrivilege(
            f"table {write_name(table)} of owner {policy.owner} is read with a filter only",
            detail=f"rule {policy.owner}/tables.{write_name(table)}.require_filter: {listed}",
            hint=f"compare one of these columns with a value or a list, or join by it: {listed}",
        )


def _require_views(decisions: Decisions, owner: str, query: Query, tables: Sequence[str]) -> None:
    """Check that each scan is filtered as its table demands and touches nothing that is masked."""
    if not isinstance(query, Scan):
        _require_unviewed(decisions, owner, query.tables)
        return
    masked = any(decisions.masked(owner, table) for table in tables)
    for scan in query.parts():
        demanded: tuple[Predicate, ...] = ()
        if scan.table.derived is not None:
            _require_unviewed(decisions, owner, scan.table.derived.tables)
        else:
            demanded = decisions.row_filter(owner, scan.table.name)
        if not all(predicate in scan.predicates for predicate in demanded):
            raise decisions.not_as_ruled(owner, scan.table.name)
        if not masked:
            continue
        # The filter itself may look at a masked column. What is inside comes by itself.
        rest = tuple(p for p in scan.predicates if p not in demanded)
        inside = tuple(
            replace(each, source=Scan(each.source.table, ())) for each in scan.semi_joins
        )
        touched = _touched(replace(scan, predicates=rest, semi_joins=inside))
        sorted_by = (published_column(scan.table, key.column) for key in scan.order)
        for table, column in (*touched, *sorted_by):
            if column in decisions.masked(owner, table):
                raise decisions.not_as_ruled(owner, table, column)


def _require_unviewed(decisions: Decisions, owner: str, tables: Sequence[Table]) -> None:
    """Refuse a query whose text nobody looks into, over tables of which less is shown."""
    for table in tables:
        if decisions.row_filter(owner, table.name):
            raise decisions.not_as_ruled(owner, table.name)
        for column in decisions.masked(owner, table.name):
            raise decisions.not_as_ruled(owner, table.name, column)
        if decisions.grouped(owner, table.name) is not None:
            # Its groups are counted at the hub, of rows that were scanned.
            raise decisions.not_as_ruled(owner, table.name, what="min_group")


def _restrictions(query: Query) -> Iterator[tuple[str, set[str]]]:
    """Yield each table a query reads, with the columns of which it names the values it wants."""
    if not isinstance(query, Scan):
        yield from ((table.name, set()) for table in query.tables)
        return
    for scan in query.parts():
        if scan.table.derived is not None:
            yield from ((table.name, set()) for table in scan.table.derived.tables)
            continue
        named = {key_filter.column for key_filter in key_columns(scan)}
        waiting = list(scan.predicates)
        while waiting:
            match waiting.pop():
                case And(arguments):
                    waiting.extend(arguments)
                case Membership(column=column) | Comparison(column=column, op="="):
                    named.add(column)
        yield scan.table.name, named


def _touched(query: Query) -> Iterator[tuple[str, str | None]]:
    """Yield every table (with None) and every column a query touches, as published."""
    if not isinstance(query, Scan):
        yield from _all_of(query.tables)
        return
    for scan in query.parts():
        name = scan.table.name
        if scan.table.derived is not None:
            # Whatever is asked of its outputs, it is made of these.
            yield from _all_of(scan.table.derived.tables)
        else:
            yield name, None
            yield from ((name, column.name) for column in scan.columns)
            yield from ((name, partial.column.name) for partial in scan.partials)
            yield from ((name, key_filter.column) for key_filter in key_columns(scan))
            yield from ((name, column) for column in _predicate_columns(scan.predicates))
        for semi_join in scan.semi_joins:
            for column, source_column in semi_join.pairs:
                yield published_column(scan.table, column)
                yield published_column(semi_join.source.table, source_column)


def key_columns(scan: Scan) -> Iterator[KeyFilter]:
    """Yield each column of each key list: what is looked up together is disclosed in each."""
    for key_filter in scan.key_filters:
        yield from key_filter.columns


def _all_of(tables: Sequence[Table]) -> Iterator[tuple[str, str | None]]:
    for table in tables:
        yield table.name, None
        yield from ((table.name, column.name) for column in table.columns)


def _predicate_columns(predicates: Sequence[Predicate]) -> Iterator[str]:
    # A stack, since a statement may nest conditions deeper than Python recurses.
    waiting = list(predicates)
    while waiting:
        predicate = waiting.pop()
        if isinstance(predicate, And | Or):
            waiting.extend(predicate.arguments)
        elif isinstance(predicate, Not):
            waiting.append(predicate.argument)
        else:
            yield predicate.column


def published_column(table: Table, column: str) -> tuple[str, str]:
    """Return the published table and column whose values a column of a scan has."""
    derived = table.derived
    if derived is None:
        return table.name, column
    for output, source, name in derived.origins:
        if output == column:
            return source, name
    raise InternalError("keys are compared with a column that no table has")
