"""Which occurrences an owner may count instead of sending: partial aggregates, proved on the tree.

An occurrence stands in the FROM of a SELECT that aggregates, or gives distinct rows. Its columns
that are used as the bare argument of ``count``, ``sum``, ``min``, ``max`` or ``avg`` there, and
nowhere else, are *aggregated*; all others that are used are *plain*. Rows that agree on the plain
columns take part in the same joins, pass the same conditions and fall into the same groups,
equally often. So each of those aggregates is what it is when they are replaced by as many rows with
the same plain values whose aggregated columns have the same count, sum, minimum and maximum: the
statement is evaluated as it stands, over rows that are made up (see :mod:`oar_proxy.answer`).
Without an aggregated column the rows are the owner's own, said once with their number (R36).

A column that a name may mean is used by it: doubt makes a column plain, and costs rows only.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from oar_adapters.interface import (
    Adapter,
    Partial,
    PartialFunction,
    Scan,
    Table,
    base_type,
)

from oar_proxy.catalog import PublishedTable
from oar_proxy.sql.tree import ast, children
from oar_proxy.statement import FederatedStatement, Occurrence

_NEEDED: Final[dict[str, frozenset[PartialFunction]]] = {
    "count": frozenset(),
    "sum": frozenset({"sum"}),
    "avg": frozenset({"sum"}),
    "min": frozenset({"min"}),
    "max": frozenset({"max"}),
}

_INTEGERS: Final = frozenset({"smallint", "integer", "bigint"})
_DECIMAL: Final = re.compile(r"numeric\(\d+,-?\d+\)")
"""Numbers of one scale, which every sum of them has."""

_EXTREMES: Final = frozenset(
    {
        "text",
        "character varying",
        "date",
        "timestamp without time zone",
        "timestamp with time zone",
    }
)
"""Types, beside those that are summed, equal values of which are the same value."""

CONSTANTS: Final = {
    "smallint": "0",
    "integer": "0",
    "bigint": "0",
    "numeric": "0",
    "real": "0",
    "double precision": "0",
    "boolean": "false",
    "text": "''",
    "character varying": "''",
    "bytea": "''",
    "date": "'2000-01-01'",
    "timestamp without time zone": "'2000-01-01'",
    "timestamp with time zone": "'2000-01-01'",
    "uuid": "'00000000-0000-0000-0000-000000000000'",
    "json": "'null'",
    "jsonb": "'null'",
    "interval": "'0'",
}
"""A value of each type whose columns may be counted: that it is not NULL is all that matters."""

_VOLATILE: Final = frozenset(
    {
        "clock_timestamp",
        "currval",
        "gen_random_uuid",
        "lastval",
        "nextval",
        "pg_sleep",
        "pg_sleep_for",
        "pg_sleep_until",
        "random",
        "random_normal",
        "set_config",
        "setseed",
        "setval",
        "timeofday",
        "uuidv4",
        "uuidv7",
    }
)
"""Functions that may tell rows of the same values apart (R30)."""


@dataclass(slots=True)
class Uses:
    """What a statement does with the columns of one occurrence."""

    plain: set[str] = field(default_factory=set)
    aggregated: dict[str, frozenset[PartialFunction]] = field(default_factory=dict)
    """What has to be known of a column beside how many of its values are not NULL."""


@dataclass(frozen=True, slots=True)
class Counted:
    """How an occurrence is counted: by which columns, and what its owners tell of others."""

    columns: frozenset[str]
    told: Mapping[str, frozenset[PartialFunction]]

    def scan(self, scan: Scan) -> Scan:
        """Turn a scan of a holder's rows into the counted one."""
        columns = scan.table.columns
        partials = (Partial(c, self.told[c.name]) for c in columns if c.name in self.told)
        return replace(
            scan,
            columns=tuple(c for c in columns if c.name in self.columns),
            counted=True,
            partials=tuple(partials),
        )


def countable(statement: FederatedStatement) -> dict[int, Uses]:
    """Return the occurrences (by number) whose rows a statement needs counted only."""
    if statement.state.shadows_built_ins:
        return {}  # an aggregate's name may then be another's than PostgreSQL's
    reader = _Reader(statement.occurrences)
    reader.visit(statement.parsed.node, ())
    return dict(reader.countable())


def counted(
    occurrence: Occurrence,
    uses: Uses,
    keys: Collection[str],
    adapters: Mapping[str, Adapter],
) -> Counted | None:
    """Decide how an occurrence is counted; None where its owners cannot, or little is gained.

    ``keys`` are columns whose values go to other owners. A column that some owner does not tell of
    is one to count by.
    """
    holders = occurrence.table.holders

    def can(how: Counted) -> bool:
        return all(adapters[h.owner].counts(how.scan(Scan(h.table, ()))) for h in holders)

    told = {
        name: functions
        for name, functions in uses.aggregated.items()
        if name not in keys and can(Counted(frozenset(), {name: functions}))
    }
    how = Counted(frozenset({*uses.plain, *keys, *uses.aggregated} - told.keys()), told)
    # A subquery that its owner answers gives groups, or the first rows, already.
    worth = all(h.table.derived is None and _fewer_groups(h.table, how.columns) for h in holders)
    return how if worth and can(how) else None


WORTH: Final = 2.0
"""Rows a group at least: a group is a wider row, and takes the owner longer to make."""


UNKNOWN_UP_TO: Final = 20_000
"""Rows of a table that is grouped on trust. Measured on 1,000,000 rows without statistics, each a
group of its own: 38 s, and 2.8 s as rows."""


def _fewer_groups(table: Table, columns: frozenset[str]) -> bool:
    """Tell whether there may be fewer groups than rows, by what is known of a holder's table.

    Conditions leave as few of the values of their columns, which are counted by, as of the rows.
    """
    if any(key and columns.issuperset(key) for key in (table.primary_key, *table.unique_keys)):
        return False
    counts = [c.distinct for c in table.columns if c.name in columns]
    if None in counts and table.row_estimate > UNKNOWN_UP_TO:
        return False
    # Of a column without statistics there may be one value only.
    groups = math.prod(max(1.0, count or 1.0) for count in counts)
    return groups * WORTH <= max(table.row_estimate, WORTH)


# --- reading the tree -----------------------------------------------------------------------------


@dataclass(slots=True)
class _Level:
    """One SELECT: what its FROM names (None: not an occurrence), and whether it aggregates."""

    named: dict[str, list[Occurrence | None]] = field(default_factory=dict)
    aggregates: bool = False

    def name(self, name: str, item: Occurrence | None) -> None:
        """Add an item of FROM. Tables of two schemas may have one name."""
        self.named.setdefault(name, []).append(item)

    def owners_of(self, path: Sequence[str]) -> list[Occurrence]:
        """Return the occurrences here that a column of such a name may be of."""
        *qualifiers, name = path
        named = [self.named.get(qualifiers[-1], [])] if qualifiers else self.named.values()
        return [o for items in named for o in items if o is not None and _has(o.table, name)]

    def explains(self, path: Sequence[str]) -> bool:
        """Tell whether a name means something here, so that it means nothing further out."""
        if len(path) > 2:  # with a schema: an alias of the same name is not meant
            return False
        return path[0] in self.named if len(path) == 2 else bool(self.owners_of(path))


_Scope = tuple[tuple[_Level, bool], ...]
"""Levels from the outermost in, each with whether the place is inside its FROM: a name there may
mean what stands beside it in FROM, or pass that by."""

_SELECTED: Final = ("targetList", "havingClause", "sortClause")
"""Where the aggregates of a SELECT stand."""


class _Reader:
    def __init__(self, occurrences: Sequence[Occurrence]) -> None:
        self._occurrences = occurrences
        self._uses: dict[int, Uses] = {}
        self._levels: dict[int, _Level] = {}
        self._merged: set[str] = set()
        self._volatile = False

    def countable(self) -> Iterator[tuple[int, Uses]]:
        times = Counter(occurrence.number for occurrence in self._occurrences)
        for occurrence in self._occurrences:
            number = occurrence.number
            level = self._levels.get(number)
            if level is None or not level.aggregates or times[number] > 1:
                continue
            if occurrence.relation.whole:
                continue
            found = self._uses[number]
            plain = found.plain | {n for n in self._merged if _has(occurrence.table, n)}
            if self._volatile:
                # Which rows it takes may differ between rows of the same values (R30).
                plain |= found.aggregated.keys()
            aggregated = {n: f for n, f in found.aggregated.items() if n not in plain}
            yield number, Uses(plain, aggregated)

    def visit(self, node: Any, scope: _Scope, *, selected: bool = False) -> None:
        """Read a node. ``selected``: an aggregate here is one of the innermost level."""
        if isinstance(node, ast.SelectStmt):
            self._select(node, scope)
            return
        if isinstance(node, ast.ColumnRef):
            self._refer(node, scope)
            return
        if isinstance(node, ast.JoinExpr):
            self._merged.update(name.sval for name in node.usingClause or ())
        elif isinstance(node, ast.FuncCall):
            self._called(node)
            if selected and self._aggregate(node, scope):
                return
        for child in children(node):
            self.visit(child, scope, selected=selected)

    def _select(self, node: Any, outer: _Scope) -> None:
        level = _Level(aggregates=bool(node.groupClause or node.distinctClause))
        for item in node.fromClause or ():
            self._name(item, level)
        inner = (*outer, (level, False))
        for part in node:
            below = getattr(node, part)
            if part in ("withClause", "larg", "rarg"):
                self.visit(below, outer)
            elif part == "fromClause":
                self.visit(below, (*outer, (level, True)))
            elif part == "sortClause":
                self.visit(_not_outputs(node), inner, selected=True)
            else:
                self.visit(below, inner, selected=part in _SELECTED)

    def _name(self, item: Any, level: _Level, *, renamed: bool = False) -> None:
        """Note what an item of FROM is called. Below a join with an alias nothing has a name."""
        if isinstance(item, ast.JoinExpr):
            renamed = renamed or item.alias is not None
            for side in (item.larg, item.rarg):
                self._name(side, level, renamed=renamed)
            for alias in (item.alias, item.join_using_alias):
                if alias is not None:
                    level.name(alias.aliasname, None)
            return
        alias = getattr(item, "alias", None)
        if isinstance(item, ast.RangeVar):
            found = None if renamed else self._at(item.location)
            level.name(alias.aliasname if alias else item.relname, found)
            if found is not None:
                self._levels[found.number] = level
                self._uses.setdefault(found.number, Uses())
        elif alias is not None:
            level.name(alias.aliasname, None)

    def _at(self, position: int) -> Occurrence | None:
        for occurrence in self._occurrences:
            if occurrence.relation.start <= position < occurrence.relation.end:
                return occurrence
        return None

    def _refer(self, node: Any, scope: _Scope) -> None:
        """Take a column for one of every occurrence it may be of. Whole rows are known already."""
        path = _path(node)
        if path is None:
            return
        for level, in_from in reversed(scope):
            for occurrence in level.owners_of(path):
                self._uses[occurrence.number].plain.add(path[-1])
            if level.explains(path) and not in_from:
                return

    def _called(self, node: Any) -> None:
        *schema, name = (part.sval for part in node.funcname)
        if schema not in ([], ["pg_catalog"]) or name in _VOLATILE:
            self._volatile = True

    def _aggregate(self, node: Any, scope: _Scope) -> bool:
        """Read a call that is an aggregate of one column here; False for every other call."""
        name = node.funcname[-1].sval
        if name not in _NEEDED or node.over is not None:
            return False
        level, _ = scope[-1]
        level.aggregates = True
        if node.agg_order or node.agg_distinct or node.agg_within_group or node.func_variadic:
            return False
        arguments: Any = node.args or ()
        if len(arguments) != 1 or not isinstance(arguments[0], ast.ColumnRef):
            return False
        path = _path(arguments[0])
        owners = level.owners_of(path) if path is not None else []
        if path is None or len(owners) != 1:
            return False
        column = path[-1]
        aggregated = self._uses[owners[0].number].aggregated
        functions = aggregated.get(column, frozenset()) | _NEEDED[name]
        if not _told(owners[0].table.column(column).type, functions):
            return False
        aggregated[column] = functions
        self.visit(node.agg_filter, scope)
        return True


def _not_outputs(select: Any) -> tuple[Any, ...]:
    """ORDER BY without what names an output: that is no column of a relation."""
    outputs = {target.name for target in select.targetList or () if target.name is not None}

    def is_output(node: Any) -> bool:
        path = _path(node) if isinstance(node, ast.ColumnRef) else None
        return path is not None and len(path) == 1 and path[0] in outputs

    return tuple(item for item in select.sortClause or () if not is_output(item.node))


def _path(node: Any) -> tuple[str, ...] | None:
    """The names of a column reference; None for a star."""
    if not all(isinstance(part, ast.String) for part in node.fields):
        return None
    return tuple(part.sval for part in node.fields)


def _has(table: PublishedTable, name: str) -> bool:
    return any(column.name == name for column in table.columns)


def _told(type_name: str, functions: Collection[PartialFunction]) -> bool:
    """Tell whether values of a type can be made up that have the same aggregates."""
    base = base_type(type_name)
    if base in _INTEGERS or _DECIMAL.fullmatch(type_name):
        return True
    if base not in CONSTANTS or "sum" in functions:
        return False
    return not functions or base in _EXTREMES
