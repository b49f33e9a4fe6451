"""How many rows and keys to expect, from what owners publish of their statistics. Pure.

Estimates order steps and decide what is worth asking; no answer ever depends on one. The model is
the textbook's (Selinger 1979; PostgreSQL's ``selfuncs.c`` has the same): values are spread evenly,
conditions are independent, and of two joined columns the one with fewer values has no others.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from oar_adapters.interface import (
    And,
    Comparison,
    Membership,
    Not,
    NullTest,
    Or,
    PatternMatch,
    Predicate,
    Table,
)

from oar_proxy.catalog import Holder, PublishedTable
from oar_proxy.hub import planreading
from oar_proxy.hub.planreading import KeyEdge, Origin
from oar_proxy.statement import Occurrence

_INPUTS: Final = frozenset({"Outer", "Inner", "Subquery", "Member"})
"""How EXPLAIN relates a node to those that its rows are made of."""

VALUES: Final = 200.0
"""Different values of a column without statistics: PostgreSQL's ``DEFAULT_NUM_DISTINCT``."""

NULLS: Final = 0.005
"""Share of NULLs where none is known: PostgreSQL's ``DEFAULT_UNK_SEL``."""

RANGE: Final = 1 / 3
"""Share that passes ``<`` or ``>``: PostgreSQL's ``DEFAULT_INEQ_SEL``. Where in a column's range a
constant lies, only its owner's histogram says, whose bounds are rows."""

PATTERN: Final = 0.1
"""Share that passes LIKE; a person who writes a pattern mostly means few of many rows."""


def distinct(table: Table, column: str) -> float:
    """Return about how many different values besides NULL a column has at one holder."""
    rows = max(table.row_estimate, 1.0)
    if (column,) in (table.primary_key, *table.unique_keys):
        return rows
    known = table.column(column).distinct
    return max(1.0, min(rows, VALUES if known is None else known))


def nulls(table: Table, column: str) -> float:
    """Return about which share of a column is NULL."""
    known = table.column(column)
    if known.not_null:
        return 0.0
    return NULLS if known.null_fraction is None else known.null_fraction


def selectivity(predicate: Predicate, table: Table) -> float:
    """Return about which share of a table's rows a predicate keeps."""
    match predicate:
        case And(arguments=arguments):
            kept = 1.0
            for argument in arguments:
                kept *= selectivity(argument, table)
            return kept
        case Or(arguments=arguments):
            lost = 1.0
            for argument in arguments:
                lost *= 1.0 - selectivity(argument, table)
            return 1.0 - lost
        case Not(argument=argument):
            return 1.0 - selectivity(argument, table)
        case NullTest():
            share = nulls(table, predicate.column)
            return 1.0 - share if predicate.negated else share
    values = 1.0 - nulls(table, predicate.column)
    match predicate:
        case Comparison(op="="):
            share = 1.0 / distinct(table, predicate.column)
        case Comparison(op="<>"):
            share = 1.0 - 1.0 / distinct(table, predicate.column)
        case Comparison():
            share = RANGE
        case Membership():
            share = min(1.0, len(predicate.values) / distinct(table, predicate.column))
        case PatternMatch():
            share = 1.0 - PATTERN if predicate.negated else PATTERN
    return values * share


def occurring(values: float, all_rows: float, rows: float) -> float:
    """Return how many of a column's different values some of its table's rows have among them.

    Each value stands in ``all_rows / values`` rows, and is missed where all of those are (the
    formula of PostgreSQL's ``estimate_num_groups``).
    """
    if rows >= all_rows:
        return values
    missed: float = (1.0 - rows / all_rows) ** (all_rows / values)
    return min(rows, values * (1.0 - missed))


@dataclass(frozen=True, slots=True)
class Size:
    """About how many rows an answer has, and bytes a row of it."""

    rows: float
    width: int


def answer_size(explained: Sequence[Mapping[str, Any]], rows: Mapping[int, float]) -> Size:
    """Size the answer of a statement, of whose occurrences so many rows are to be expected.

    The hub's planner has no statistics of the tables. What it says of the nodes above their scans
    is therefore taken as the share that passes them.
    """
    root = explained[0]["Plan"]
    return Size(max(1.0, _passing(root, rows)), root["Plan Width"])


def _passing(node: Mapping[str, Any], rows: Mapping[int, float]) -> float:
    told = float(node["Plan Rows"])
    occurrence = planreading.occurrence_of(node)
    if occurrence is not None:
        return rows.get(occurrence, told)
    inputs = [n for n in node.get("Plans", ()) if n["Parent Relationship"] in _INPUTS]
    passing = [_passing(each, rows) for each in inputs]
    inputs_told = math.prod(max(1.0, each["Plan Rows"]) for each in inputs)
    shared = told / inputs_told * math.prod(passing)
    match node["Node Type"]:
        case "Append" | "Merge Append":
            return sum(passing)
        case "Limit" | "Aggregate" | "Group" if told < inputs_told:
            return min(told, *passing)
        case "Hash Join" if not node["Join Type"].endswith(("Semi", "Anti")):
            return max(passing)  # one of the joined columns is mostly a key
    return shared


class Estimates:
    """What to expect of one statement's occurrences."""

    def __init__(
        self,
        occurrences: Mapping[int, Occurrence],
        sent: Mapping[int, Sequence[tuple[Holder, Sequence[Predicate]]]],
    ) -> None:
        self._known: dict[Origin, float] = {}
        self._tables = {number: o.table for number, o in occurrences.items()}
        self.rows = {
            number: max(1.0, sum(_left(holder.table, kept) for holder, kept in parts))
            for number, parts in sent.items()
        }
        """Rows of each occurrence that its holders' conditions leave."""

    def keys(
        self,
        sources: Iterable[Origin],
        rows: Mapping[int, float],
        most: Mapping[Origin, float] = MappingProxyType({}),
    ) -> float:
        """Return how many different keys sources hold whose occurrences have so many rows left.

        ``most`` bounds the values of some columns.
        """
        total = 0.0
        for source in sources:
            values = self._values(source)
            found = occurring(values, self._all_rows(source), rows[source.occurrence])
            total += min(found, most.get(source, values))
        return total

    def edge_keys(
        self,
        edge: KeyEdge,
        rows: Mapping[int, float],
        most: Mapping[Origin, float] = MappingProxyType({}),
    ) -> float:
        """Return how many different keys an edge carries: no more than its source has rows left."""
        columns = [self.keys(column.sources, rows, most) for column in edge.columns]
        if len(columns) == 1:
            return columns[0]
        return min(math.prod(columns), max(rows[edge.sources[0].occurrence], *columns))

    def share(self, keys: float, edge: KeyEdge) -> float:
        """Return which share of the target's rows so many keys of an edge find."""
        values, known = 1.0, 1.0
        for column in edge.columns:
            target = column.target
            values *= max(self._values(target), sum(map(self._values, column.sources)), 1.0)
            known *= 1.0 - min(nulls(h.table, target.column) for h in self._table(target).holders)
        if edge.also:
            # Values of several columns are not as independent as their number would have it.
            ends = (edge.target, *edge.sources)
            values = min(values, max(map(self._all_rows, ends)))
        return min(1.0, keys / values) * known

    def _table(self, origin: Origin) -> PublishedTable:
        return self._tables[origin.occurrence]

    def _values(self, origin: Origin) -> float:
        """Different values over all holders: any of them may hold the same ones as the others."""
        known = self._known.get(origin)
        if known is None:
            holders = self._table(origin).holders
            known = max(distinct(holder.table, origin.column) for holder in holders)
            self._known[origin] = known
        return known

    def _all_rows(self, origin: Origin) -> float:
        return self._table(origin).row_estimate


def _left(table: Table, conditions: Iterable[Predicate]) -> float:
    return max(table.row_estimate, 1.0) * selectivity(And(tuple(conditions)), table)
