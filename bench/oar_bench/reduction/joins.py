"""Acyclic joins of a statement, and how many rows of each occurrence take part in them.

What takes part is counted by the reference over the merged tables, from the statement's own FROM
and WHERE: nothing here knows the proxy's planner. A join is acyclic when its hypergraph — an edge
for each occurrence, a vertex for each class of columns that equalities make equal — is reduced to
nothing by removing vertices of one edge and edges within another (Graham; Yu and Özsoyoğlu, 1979).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.optimizer.qualify import qualify

from oar_bench.layout import fold

Columns = Mapping[str, Sequence[tuple[str, str]]]
"""Folded names of an organisation's tables, each with its columns and their types."""

_MORE_THAN_A_JOIN: Final = (exp.Subquery, exp.SetOperation, exp.With, exp.Lateral, exp.Unnest)


class NotAcyclic(Exception):
    """The statement is not an acyclic join of two tables or more. One line that says why."""


@dataclass(frozen=True, slots=True)
class Occurrence:
    """A table in a FROM clause. ``alias`` is folded, the table's name where it has no other."""

    table: str
    alias: str


@dataclass(frozen=True, slots=True)
class AcyclicJoin:
    """A statement whose tables are joined in a tree.

    ``counting`` counts the distinct rows of each occurrence that are in the joined result, in the
    order of ``occurrences``. ``composite``: two of them share more than one key column.
    """

    statement: str
    occurrences: tuple[Occurrence, ...]
    counting: str
    composite: bool


def read_join(statement: str, columns: Columns) -> AcyclicJoin:
    """Read a statement in PostgreSQL's dialect. Raises :class:`NotAcyclic`."""
    try:
        tree = sqlglot.parse_one(statement, read="postgres")
    except (SqlglotError, RecursionError) as error:
        raise NotAcyclic("it does not parse") from error
    if not isinstance(tree, exp.Select) or any(tree.find_all(*_MORE_THAN_A_JOIN)):
        raise NotAcyclic("it is more than one SELECT over tables")
    if any(select is not tree for select in tree.find_all(exp.Select)):
        raise NotAcyclic("it is more than one SELECT over tables")
    occurrences = _occurrences(tree, columns)
    shared = _shared_keys(tree, columns, occurrences)
    edges = {o.alias: {key for key, held in shared.items() if o.alias in held} for o in occurrences}
    if not _connected(edges):
        raise NotAcyclic("a table is joined with no other by equal columns")
    if not _acyclic(edges.values()):
        raise NotAcyclic("its joins form a ring")
    return AcyclicJoin(
        statement=statement,
        occurrences=occurrences,
        counting=_counting(tree, occurrences),
        composite=any(len(one & other) > 1 for one, other in combinations(list(edges.values()), 2)),
    )


def _occurrences(tree: exp.Select, columns: Columns) -> tuple[Occurrence, ...]:
    found = []
    for table in tree.find_all(exp.Table):
        if not isinstance(table.this, exp.Identifier) or fold(table.name) not in columns:
            raise NotAcyclic("it reads something that is no table of the organisation")
        found.append(Occurrence(fold(table.name), fold(table.alias_or_name)))
    if len(found) < 2:
        raise NotAcyclic("it joins nothing")
    return tuple(found)


def _shared_keys(
    tree: exp.Select, columns: Columns, occurrences: Iterable[Occurrence]
) -> dict[int, frozenset[str]]:
    """Return the classes of equal columns: class → the occurrences with a column in it."""
    qualified = _qualified(tree, columns)
    classes: dict[tuple[str, str], int] = {}
    known = {o.alias for o in occurrences}
    for condition in _conditions(qualified):
        used = {fold(column.table) for column in condition.find_all(exp.Column)}
        if len(used) < 2:
            continue
        one, other = condition.this, condition.expression
        if not (
            isinstance(condition, exp.EQ)
            and isinstance(one, exp.Column)
            and isinstance(other, exp.Column)
            and used <= known
        ):
            raise NotAcyclic("a condition between tables is not an equality of two columns")
        ends = [(fold(column.table), fold(column.name)) for column in (one, other)]
        merged = {classes.setdefault(end, len(classes)) for end in ends}
        classes = {c: min(merged) if number in merged else number for c, number in classes.items()}
    held: dict[int, set[str]] = {}
    for (alias, _), number in classes.items():
        held.setdefault(number, set()).add(alias)
    return {number: frozenset(aliases) for number, aliases in held.items()}


def _qualified(tree: exp.Select, columns: Columns) -> exp.Select:
    schema: dict[str, object] = {table: dict(listed) for table, listed in columns.items()}
    if any(join.method == "NATURAL" for join in tree.args.get("joins") or ()):
        raise NotAcyclic("it is a NATURAL JOIN")
    try:
        found = qualify(
            tree.copy(),
            schema=schema,
            dialect="postgres",
            expand_stars=False,
            quote_identifiers=False,
        )
    except SqlglotError as error:
        raise NotAcyclic("its columns cannot be told apart") from error
    assert isinstance(found, exp.Select)
    return found


def _conditions(tree: exp.Select) -> Iterable[exp.Expr]:
    """The conjuncts of WHERE and of every ON."""
    where = tree.args.get("where")
    roots = [where.this] if where is not None else []
    roots += [join.args["on"] for join in tree.args.get("joins") or () if join.args.get("on")]
    for root in roots:
        yield from (
            (part.unnest() for part in root.flatten())
            if isinstance(root, exp.And)
            else (root.unnest(),)
        )


def _connected(edges: Mapping[str, set[int]]) -> bool:
    left = dict(edges)
    _, reached = left.popitem()
    reached = set(reached)
    while left:
        near = [alias for alias, keys in left.items() if keys & reached]
        if not near:
            return False
        for alias in near:
            reached |= left.pop(alias)
    return True


def _acyclic(hyperedges: Iterable[set[int]]) -> bool:
    left = [set(edge) for edge in hyperedges]
    while True:
        times = Counter(vertex for edge in left for vertex in edge)
        shrunk = [{vertex for vertex in edge if times[vertex] > 1} for edge in left]
        kept: list[set[int]] = []
        for place, edge in enumerate(shrunk):
            others = (*kept, *shrunk[place + 1 :])
            if not any(edge <= other for other in others):
                kept.append(edge)
        if not any(kept):
            return True
        if kept == left:
            return False
        left = kept


def _counting(tree: exp.Select, occurrences: Iterable[Occurrence]) -> str:
    """The statement with its FROM and WHERE, counting the rows it joins instead of showing them."""
    counts = [
        exp.Count(
            this=exp.Distinct(
                expressions=[exp.column("ctid", table=exp.to_identifier(o.alias, quoted=True))]
            )
        )
        for o in occurrences
    ]
    counting = exp.Select(expressions=counts)
    for clause in ("from_", "joins", "where"):
        counting.set(clause, tree.args.get(clause))
    return counting.copy().sql(dialect="postgres")
