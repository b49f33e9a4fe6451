"""What a statement does with the columns of each published table in it, read on the parse tree.

An occurrence stands in the FROM of a SELECT that aggregates, or gives distinct rows. Its columns
that are used as the bare argument of ``count``, ``sum``, ``min``, ``max`` or ``avg`` there, and
nowhere else, are *aggregated*; all others that are used are *plain*.

A column that a name may mean is used by it: doubt makes a column plain, and costs rows only.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from oar_adapters.interface import PartialFunction, base_type

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


def countable(
    statement: FederatedStatement, without: Collection[int] = ()
) -> tuple[dict[int, Uses], frozenset[int]]:
    """Return the occurrences (by number) whose rows a statement needs counted only, and the unused.

    ``without`` are nodes (by ``id``) that are passed over, of a join what its USING says. No column
    of an unused occurrence is named by what is left.
    """
    if statement.state.foreign_names is not None:
        return {}, frozenset()  # an aggregate's name may then be another's than PostgreSQL's
    reader = _Reader(statement.occurrences, without)
    reader.visit(statement.parsed.node, ())
    return dict(reader.countable()), frozenset(reader.unused())


@dataclass(slots=True)
class Level:
    """One SELECT: what its FROM names (None: not an occurrence), and whether it aggregates."""

    named: dict[str, list[Occurrence | None]] = field(default_factory=dict)
    aggregates: bool = False

    def name(self, name: str, item: Occurrence | None) -> None:
        """Add an item of FROM. Tables of two schemas may have one name."""
        self.named.setdefault(name, []).append(item)

    def enter(self, item: Any, occurrences: Sequence[Occurrence], *, renamed: bool = False) -> None:
        """Note what an item of FROM is called. Below a join with an alias nothing has a name."""
        if isinstance(item, ast.JoinExpr):
            renamed = renamed or item.alias is not None
            for side in (item.larg, item.rarg):
                self.enter(side, occurrences, renamed=renamed)
            for alias in (item.alias, item.join_using_alias):
                if alias is not None:
                    self.name(alias.aliasname, None)
            return
        alias = getattr(item, "alias", None)
        if isinstance(item, ast.RangeVar):
            found = None if renamed else occurrence_at(item, occurrences)
            self.name(alias.aliasname if alias else item.relname, found)
        elif alias is not None:
            self.name(alias.aliasname, None)

    def occurrences(self) -> Iterator[Occurrence]:
        """Yield the occurrences that have a name here."""
        return (o for items in self.named.values() for o in items if o is not None)

    def owners_of(self, path: Sequence[str]) -> list[Occurrence]:
        """Return the occurrences here that a column of such a name may be of."""
        *qualifiers, name = path
        named = [self.named.get(qualifiers[-1], [])] if qualifiers else self.named.values()
        return [o for items in named for o in items if o is not None and has_column(o.table, name)]

    def explains(self, path: Sequence[str]) -> bool:
        """Tell whether a name means something here, so that it means nothing further out."""
        if len(path) > 2:  # with a schema: an alias of the same name is not meant
            return False
        return path[0] in self.named if len(path) == 2 else bool(self.owners_of(path))


_Scope = tuple[tuple[Level, bool], ...]
"""Levels from the outermost in, each with whether the place is inside its FROM: a name there may
mean what stands beside it in FROM, or pass that by."""

_SELECTED: Final = ("targetList", "havingClause", "sortClause")
"""Where the aggregates of a SELECT stand."""


class _Reader:
    def __init__(self, occurrences: Sequence[Occurrence], without: Collection[int]) -> None:
        self._occurrences = occurrences
        self._without = without
        self._uses: dict[int, Uses] = {}
        self._levels: dict[int, Level] = {}
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
            plain = found.plain | self._merged_in(occurrence)
            if self._volatile:
                # Which rows it takes may differ between rows of the same values (R30).
                plain |= found.aggregated.keys()
            aggregated = {n: f for n, f in found.aggregated.items() if n not in plain}
            yield number, Uses(plain, aggregated)

    def unused(self) -> Iterator[int]:
        """Yield what no column is named of."""
        times = Counter(occurrence.number for occurrence in self._occurrences)
        for occurrence in self._occurrences:
            found = self._uses.get(occurrence.number)
            if found is None or times[occurrence.number] > 1:
                continue
            if occurrence.relation.whole or occurrence.relation.as_value:
                continue
            if not (found.plain or found.aggregated or self._merged_in(occurrence)):
                yield occurrence.number

    def _merged_in(self, occurrence: Occurrence) -> set[str]:
        return {name for name in self._merged if has_column(occurrence.table, name)}

    def visit(self, node: Any, scope: _Scope, *, selected: bool = False) -> None:
        """Read a node. ``selected``: an aggregate here is one of the innermost level."""
        if id(node) in self._without and not isinstance(node, ast.JoinExpr):
            return
        if isinstance(node, ast.SelectStmt):
            self._select(node, scope)
            return
        if isinstance(node, ast.ColumnRef):
            self._refer(node, scope)
            return
        if isinstance(node, ast.JoinExpr) and id(node) not in self._without:
            self._merged.update(name.sval for name in node.usingClause or ())
        elif isinstance(node, ast.FuncCall):
            self._called(node)
            if selected and self._aggregate(node, scope):
                return
        for child in children(node):
            self.visit(child, scope, selected=selected)

    def _select(self, node: Any, outer: _Scope) -> None:
        level = Level(aggregates=bool(node.groupClause or node.distinctClause))
        for item in node.fromClause or ():
            level.enter(item, self._occurrences)
        for occurrence in level.occurrences():
            self._levels[occurrence.number] = level
            self._uses.setdefault(occurrence.number, Uses())
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

    def _refer(self, node: Any, scope: _Scope) -> None:
        """Take a column for one of every occurrence it may be of. Whole rows are known already."""
        path = column_path(node)
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
        path = column_path(arguments[0])
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
        path = column_path(node) if isinstance(node, ast.ColumnRef) else None
        return path is not None and len(path) == 1 and path[0] in outputs

    return tuple(item for item in select.sortClause or () if not is_output(item.node))


def occurrence_at(relation: Any, occurrences: Sequence[Occurrence]) -> Occurrence | None:
    """Return the occurrence that a name in FROM is; None for another relation."""
    for occurrence in occurrences:
        if occurrence.relation.start <= relation.location < occurrence.relation.end:
            return occurrence
    return None


def column_path(node: Any) -> tuple[str, ...] | None:
    """The names of a column reference; None for a star."""
    if not all(isinstance(part, ast.String) for part in node.fields):
        return None
    return tuple(part.sval for part in node.fields)


def has_column(table: PublishedTable, name: str) -> bool:
    """Tell whether a table has a column of that name."""
    return any(column.name == name for column in table.columns)


def _told(type_name: str, functions: Collection[PartialFunction]) -> bool:
    """Tell whether values of a type can be made up that have the same aggregates."""
    base = base_type(type_name)
    if base in _INTEGERS or _DECIMAL.fullmatch(type_name):
        return True
    if base not in CONSTANTS or "sum" in functions:
        return False
    return not functions or base in _EXTREMES
