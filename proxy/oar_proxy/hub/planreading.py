"""What the hub's own planner says about a statement: scans, their conditions, and key edges.

Reads ``EXPLAIN (VERBOSE, FORMAT JSON)`` of the statement over the empty planning tables, in which
each occurrence of a published table is scanned under an alias of its own (:func:`marker`).
PostgreSQL has already flattened subqueries, reduced outer joins and derived equalities, so what is
left to decide is which side of each join may be reduced by the other's keys, and whether keys may
pass the nodes between (design decision 3; the rule numbers are those of the rule table).
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from oar_proxy.sql.parse import parse_expression
from oar_proxy.sql.text import conjuncts
from oar_proxy.sql.tree import ast, enums

Node = Mapping[str, Any]
Reference = tuple[str, str]
"""Alias and column as EXPLAIN prints them."""

_PREFIX = f"oar:{secrets.token_hex(6)}:"
"""Stands before an occurrence's number: no alias of a client's can be taken for it."""

_MARKER = re.compile(_PREFIX + r"(\d+)(?:_\d+)?")
"""EXPLAIN numbers what bears one name, as the scans of a CTE that the planner writes out twice."""

_NAME = r'(?:"((?:[^"]|"")+)"|([a-z_][a-z0-9_$]*))'
_COLUMN = re.compile(rf"{_NAME}\.{_NAME}")

_PASS = frozenset({"Hash", "Sort", "Incremental Sort", "Materialize", "Memoize", "LockRows"})
"""Nodes that neither combine rows nor cut their number: a filter below equals a filter above."""

_JOINS = frozenset({"Hash Join", "Nested Loop", "Merge Join"})
_MIXING = frozenset({"Append", "Merge Append", "SetOp", "Recursive Union"})
"""Nodes above which EXPLAIN prints the first arm's names for rows of every arm."""

_REDUCIBLE = {
    "Inner": ("Outer", "Inner"),
    "Semi": ("Outer", "Inner"),
    "Right Semi": ("Outer", "Inner"),
    "Left": ("Inner",),
    "Right": ("Outer",),
    "Anti": ("Inner",),
    "Right Anti": ("Outer",),
    "Full": (),
}
"""Which inputs of a join may lose the rows without a partner (R1 to R6, R15, R17)."""

_TRANSPARENT = {
    "Inner": ("Outer", "Inner"),
    "Semi": ("Outer",),
    "Right Semi": ("Inner",),
    "Left": ("Outer",),
    "Right": ("Inner",),
    "Anti": ("Outer",),
    "Right Anti": ("Inner",),
    "Full": (),
}
"""Through which input of a join a condition on that input's columns passes down unchanged (P2)."""


@dataclass(frozen=True, slots=True)
class Origin:
    """A column of one occurrence of a published table."""

    occurrence: int
    column: str


@dataclass(frozen=True, slots=True)
class KeyEdge:
    """``target`` may be reduced to the values the ``sources`` together hold.

    ``also`` are edges between the same two occurrences that hold for the same two rows: a row of
    the target's has to match one row of the source's in all columns at once (R13).
    """

    sources: tuple[Origin, ...]
    target: Origin
    also: tuple[KeyEdge, ...] = ()

    @property
    def columns(self) -> tuple[KeyEdge, ...]:
        """The edge of each column."""
        return (replace(self, also=()), *self.also) if self.also else (self,)

    def __str__(self) -> str:
        held = ", ".join(f"{source.occurrence}.{source.column}" for source in self.sources)
        return f"keys {held} > {self.target.occurrence}.{self.target.column}"


@dataclass(frozen=True, slots=True)
class Unreduced:
    """``target`` is not reduced by what it is joined with; ``reason`` names the rule."""

    target: Origin
    reason: str


@dataclass(frozen=True, slots=True)
class Reading:
    """``scans`` maps each scanned occurrence to its conditions, as EXPLAIN prints them."""

    scans: Mapping[int, tuple[str, ...]]
    edges: tuple[KeyEdge, ...]
    """Each of a single column."""
    together: tuple[tuple[KeyEdge, ...], ...] = ()
    """Those of the edges that hold for the same two rows."""
    unreduced: tuple[Unreduced, ...] = ()
    complete: bool = True
    """Whether all conditions are there."""

    def only(self, permitted: Callable[[str], bool]) -> Reading:
        """Leave out the conditions and edges whose names are not permitted."""
        scans = {
            number: tuple(t for t in texts if permitted(f"condition on {number}: {t}"))
            for number, texts in self.scans.items()
        }
        edges = tuple(edge for edge in self.edges if permitted(str(edge)))
        together = tuple(tuple(e for e in group if e in edges) for group in self.together)
        complete = scans == dict(self.scans)
        return Reading(scans, edges, together, self.unreduced, complete)


_KEEPS = {
    "Left": "an outer join keeps its rows without a partner (R2)",
    "Right": "an outer join keeps its rows without a partner (R2)",
    "Full": "a full join keeps its rows without a partner (R3)",
    "Anti": "the rows without a partner are the answer (R17)",
    "Right Anti": "the rows without a partner are the answer (R17)",
}
"""Why an input of a join has to come whole."""

_STOPS = {
    "Aggregate": "an aggregate below the join sees all its rows (R22)",
    "Group": "an aggregate below the join sees all its rows (R22)",
    "WindowAgg": "a window function below the join sees all its rows (R25)",
    "Unique": "DISTINCT ON below the join sees all its rows (R26)",
    "Limit": "a LIMIT below the join sees all its rows (R27)",
    "SetOp": "a set operation below the join sees all its rows (R28)",
    "CTE Scan": "it is read through a CTE that is evaluated once (R29)",
    "Recursive Union": "it is read in a recursive query (R29)",
}
"""Why a condition on a join's input does not reach the scans below a node."""

SubqueryColumns = Callable[[str, frozenset[int]], Sequence[str] | None]
"""Given a subquery's alias and the occurrences below it, its column names in order (or None)."""


def marker(occurrence: int) -> str:
    """Return the alias under which an occurrence is scanned."""
    return f"{_PREFIX}{occurrence}"


def occurrence_of(node: Node) -> int | None:
    """Return the occurrence that a node scans."""
    if node["Node Type"] not in ("Seq Scan", "Function Scan"):
        return None
    match = _MARKER.fullmatch(node.get("Alias", ""))
    return int(match[1]) if match else None


def read(explained: Sequence[Mapping[str, Any]], subquery_columns: SubqueryColumns) -> Reading:
    """Read the planner's answer."""
    reader = _PlanReader(subquery_columns)
    root = explained[0]["Plan"]
    reader.collect(root, mixed=False)
    found = dict.fromkeys((*reader.join_edges(root), *reader.correlation_edges()))
    # Scanned twice, an occurrence may lose only what both scans leave out: that is not known.
    twice = reader.repeated
    scans = {k: () if k in twice else tuple(v) for k, v in reader.conditions.items()}
    edges = tuple(edge for edge in found if edge.target.occurrence not in twice)
    reduced = {edge.target for edge in edges}
    unreduced = dict.fromkeys(u for u in reader.unreduced if u.target not in reduced)
    together = tuple(group for group in reader.together if set(group) <= set(edges))
    return Reading(scans, edges, together, tuple(unreduced))


def outputs(
    explained: Sequence[Mapping[str, Any]], subquery_columns: SubqueryColumns
) -> tuple[Origin | None, ...]:
    """Tell of each output of a query which one column its values are, None for another value."""
    reader = _PlanReader(subquery_columns)
    root = explained[0]["Plan"]
    found = []
    for reference in _references(root.get("Output", ())):
        origins = None if reference is None else reader.origins(root, reference)
        found.append(origins[0] if origins is not None and len(origins) == 1 else None)
    return tuple(found)


class _PlanReader:
    def __init__(self, subquery_columns: SubqueryColumns) -> None:
        self.subquery_columns = subquery_columns
        self.conditions: dict[int, list[str]] = {}
        self.mixed: set[int] = set()
        self.repeated: set[int] = set()
        self.together: dict[tuple[KeyEdge, ...], None] = {}
        self.unreduced: list[Unreduced] = []

    def collect(self, node: Node, *, mixed: bool) -> None:
        mixed = mixed or node["Node Type"] in _MIXING
        occurrence = occurrence_of(node)
        if occurrence is not None:
            if occurrence in self.conditions:
                self.repeated.add(occurrence)
            filters = conjuncts(node["Filter"]) if "Filter" in node else []
            self.conditions.setdefault(occurrence, []).extend(filters)
            if mixed:
                self.mixed.add(occurrence)
        for child in node.get("Plans", ()):
            self.collect(child, mixed=mixed)

    # --- edges of joins ---------------------------------------------------------------------

    def join_edges(self, node: Node) -> Iterator[KeyEdge]:
        if node["Node Type"] in _JOINS:
            edges = list(self._edges_of(node))
            self._note_rows(edges)
            yield from edges
        for child in node.get("Plans", ()):
            yield from self.join_edges(child)

    def _edges_of(self, join: Node) -> Iterator[KeyEdge]:
        inputs = _inputs(join)
        sides = _REDUCIBLE.get(join["Join Type"], ())
        for left, right in _equalities(join):
            for near, far in ((left, right), (right, left)):
                for side, other in (("Outer", "Inner"), ("Inner", "Outer")):
                    if not _produces(inputs[side], near) or not _produces(inputs[other], far):
                        continue
                    if side not in sides:
                        self._not_reduced(near, _KEEPS.get(join["Join Type"]))
                        continue
                    sources = self.origins(inputs[other], far)
                    if sources is None:
                        continue
                    for target in self.reach(inputs[side], near):
                        yield KeyEdge(sources, target)

    def _note_rows(self, edges: Iterable[KeyEdge]) -> None:
        """Note which edges of one join, or of one scan's conditions, hold for the same two rows.

        Every input of a join, and what a subquery is evaluated for, has one row of each occurrence
        in it (or of NULLs, which match nothing), unless that is scanned twice. What :meth:`origins`
        and :meth:`reach` pass on the way neither takes a row apart nor puts one together, and
        passes a condition on two columns wherever it passes one on each.
        """
        found: dict[tuple[int, int], list[KeyEdge]] = {}
        for edge in dict.fromkeys(edges):
            source = edge.sources[0].occurrence
            if len(edge.sources) == 1 and source not in self.repeated:
                found.setdefault((source, edge.target.occurrence), []).append(edge)
        self.together.update((tuple(group), None) for group in found.values() if len(group) > 1)

    def correlation_edges(self) -> Iterator[KeyEdge]:
        """A scan whose own condition equates a column with one of an outer query (R14, R17, R20).

        Rows without a partner fail the condition in every evaluation of the subquery, whatever
        stands above the scan.
        """
        for occurrence, texts in self.conditions.items():
            edges = list(self._correlations(occurrence, texts))
            self._note_rows(edges)
            yield from edges

    def _correlations(self, occurrence: int, texts: Sequence[str]) -> Iterator[KeyEdge]:
        for text in texts:
            pair = _equality(parse_expression(text))
            if pair is None:
                continue
            for near, far in (pair, pair[::-1]):
                source = _marked(far)
                if _marked(near) == occurrence and source not in (None, occurrence):
                    assert source is not None
                    if source not in self.mixed:
                        yield KeyEdge((Origin(source, far[1]),), Origin(occurrence, near[1]))

    # --- where a column comes from ----------------------------------------------------------

    def origins(self, node: Node, reference: Reference) -> tuple[Origin, ...] | None:
        """The occurrences' columns whose values include every value of this output, else None."""
        kind = node["Node Type"]
        occurrence = occurrence_of(node)
        if occurrence is not None:
            return (Origin(occurrence, reference[1]),) if _marked(reference) == occurrence else None
        if kind in ("Append", "Merge Append"):
            arms = self._arms(node, reference)
            if arms is None:
                return None
            found: list[Origin] = []
            for child, column in arms:
                part = self.origins(child, column)
                if part is None:
                    return None
                found.extend(part)
            return tuple(dict.fromkeys(found))
        if kind == "Subquery Scan":
            below = self._below_subquery(node, reference)
            return None if below is None else self.origins(_inputs(node)["Subquery"], below)
        if kind in ("SetOp", "Recursive Union"):
            return None
        for child in _inputs(node).values():
            if _produces(child, reference):
                return self.origins(child, reference)
        return None

    def reach(self, node: Node, reference: Reference) -> list[Origin]:
        """The scans down to which a condition on this output may be moved without any effect."""
        kind = node["Node Type"]
        occurrence = occurrence_of(node)
        inputs = _inputs(node)
        below: list[tuple[Node, Reference]] = []
        if occurrence is not None:
            return [Origin(occurrence, reference[1])] if _marked(reference) == occurrence else []
        if kind in _PASS or (kind == "Result" and len(inputs) == 1):
            below = [(child, reference) for child in inputs.values()]
        elif kind in ("Aggregate", "Group"):
            # R22: only on plain grouping columns, never below grouping sets or without GROUP BY.
            if "Grouping Sets" not in node and reference in _references(node.get("Group Key", ())):
                below = [(inputs["Outer"], reference)]
        elif kind == "WindowAgg":
            # R25: only where every window is partitioned by the key.
            if _partitioned_by(node, reference):
                below = [(inputs["Outer"], reference)]
        elif kind in ("Append", "Merge Append"):
            below = list(self._arms(node, reference) or ())
        elif kind == "Subquery Scan":
            inner = self._below_subquery(node, reference)
            below = [] if inner is None else [(inputs["Subquery"], inner)]
        elif kind in _JOINS:
            below = [
                (inputs[side], reference)
                for side in _TRANSPARENT.get(node["Join Type"], ())
                if _produces(inputs[side], reference)
            ]
        # Everything else (Limit, Unique, SetOp, CTE Scan, ProjectSet …) looks at sets of rows.
        if not below:
            self._not_reduced(reference, _STOPS.get(kind))
        return [
            origin
            for child, inner in below
            if _produces(child, inner)
            for origin in self.reach(child, inner)
        ]

    def _not_reduced(self, reference: Reference, reason: str | None) -> None:
        occurrence = _marked(reference)
        if occurrence is not None and reason is not None:
            self.unreduced.append(Unreduced(Origin(occurrence, reference[1]), reason))

    def _arms(self, node: Node, reference: Reference) -> list[tuple[Node, Reference]] | None:
        """The same output position in each arm, when every arm has a plain column there."""
        arms = [child for child in node.get("Plans", ()) if "Subplan Name" not in child]
        if not arms or any("Output" not in arm for arm in arms):
            return None
        places = [i for i, out in enumerate(_references(arms[0]["Output"])) if out == reference]
        if len(places) != 1:
            return None
        found: list[tuple[Node, Reference]] = []
        for arm in arms:
            outputs = _references(arm["Output"])
            column = outputs[places[0]] if places[0] < len(outputs) else None
            if column is None:
                return None
            found.append((arm, column))
        return found

    def _below_subquery(self, node: Node, reference: Reference) -> Reference | None:
        alias = node.get("Alias")
        inner = _inputs(node).get("Subquery")
        if alias is None or inner is None or reference[0] != alias:
            return None
        columns = self.subquery_columns(alias, frozenset(_occurrences(inner)))
        if columns is None or list(columns).count(reference[1]) != 1:
            return None
        outputs = _references(inner.get("Output", ()))
        # What only an ORDER BY needs comes behind the subquery's own columns.
        if len(outputs) < len(columns):
            return None
        return outputs[list(columns).index(reference[1])]


# --- reading one node -------------------------------------------------------------------------


def _inputs(node: Node) -> dict[str, Node]:
    """The node's inputs by relationship; SubPlans and InitPlans are not inputs."""
    return {
        child["Parent Relationship"]: child
        for child in node.get("Plans", ())
        if child.get("Parent Relationship") in ("Outer", "Inner", "Subquery")
    }


def _occurrences(node: Node) -> Iterator[int]:
    own = occurrence_of(node)
    if own is not None:
        yield own
    for child in node.get("Plans", ()):
        yield from _occurrences(child)


def _marked(reference: Reference) -> int | None:
    match = _MARKER.fullmatch(reference[0])
    return int(match[1]) if match else None


def _reference(text: str) -> Reference | None:
    match = _COLUMN.fullmatch(text)
    if match is None:
        return None
    alias = match[1].replace('""', '"') if match[1] else match[2]
    column = match[3].replace('""', '"') if match[3] else match[4]
    return alias, column


def _references(texts: Sequence[str]) -> list[Reference | None]:
    return [_reference(text) for text in texts]


def _produces(node: Node, reference: Reference) -> bool:
    if "Output" in node:
        return reference in _references(node["Output"])
    arms = node.get("Plans", ())
    return bool(arms) and _produces(arms[0], reference)


def _partitioned_by(node: Node, reference: Reference) -> bool:
    window = node.get("Window")
    if window is None:  # PostgreSQL before 18 does not print it
        return False
    match = re.search(r"AS \((.*)\)\s*$", window, re.DOTALL)
    parsed = parse_expression(f"count(*) OVER ({match[1]})") if match else None
    if not isinstance(parsed, ast.FuncCall) or parsed.over is None:
        return False
    return any(_column(item) == reference for item in parsed.over.partitionClause or ())


def _equalities(join: Node) -> Iterator[tuple[Reference, Reference]]:
    condition = join.get("Hash Cond")
    for text in conjuncts(condition) if condition else ():
        pair = _equality(parse_expression(text))
        if pair is not None:
            yield pair


def _equality(expression: Any) -> tuple[Reference, Reference] | None:
    if (
        not isinstance(expression, ast.A_Expr)
        or expression.kind != enums.A_Expr_Kind.AEXPR_OP
        or len(expression.name) != 1
        or expression.name[0].sval != "="
    ):
        return None
    left, right = _column(expression.lexpr), _column(expression.rexpr)
    return (left, right) if left and right else None


def _column(expression: Any) -> Reference | None:
    """A plain column, or one relabelled to ``text`` (varchar compares as text)."""
    if isinstance(expression, ast.TypeCast):
        names = [part.sval for part in expression.typeName.names]
        if names[-1] != "text" or expression.typeName.arrayBounds:
            return None
        expression = expression.arg
    if isinstance(expression, ast.ColumnRef) and len(expression.fields) == 2:
        alias, column = expression.fields
        if isinstance(alias, ast.String) and isinstance(column, ast.String):
            return alias.sval, column.sval
    return None
