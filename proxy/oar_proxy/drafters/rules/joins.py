"""Which tables join on which columns, as far as names, types and declared keys show."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import Final

from oar_adapters.interface import base_type

from oar_proxy.catalog import PublishedColumn, PublishedTable, TableName
from oar_proxy.drafters.rules.names import (
    CODE_WORDS,
    core_stems,
    is_numeric,
    is_text,
    key_of,
    name_stems,
    split_name,
)
from oar_proxy.drafters.rules.words import RELATED, likeness, stem

_ID: Final = stem("id")


@dataclass(frozen=True, slots=True)
class Edge:
    """Two columns that hold the same thing. ``cast``: one is text, the other a number."""

    left: PublishedTable
    left_column: PublishedColumn
    right: PublishedTable
    right_column: PublishedColumn
    cast: bool = False

    @property
    def ends(self) -> frozenset[TableName]:
        """The two tables."""
        return frozenset((self.left.key, self.right.key))

    def column_of(self, table: TableName) -> PublishedColumn:
        """Return the end at a table."""
        return self.left_column if self.left.key == table else self.right_column


class NoJoin(Exception):
    """Tables that no path joins, or more than one."""


_LONGEST_PATH: Final = 4
"""Tables on the way between two: longer ways are rarely what a question means."""


class Joins:
    """The join graph of a catalog."""

    def __init__(self, tables: Sequence[PublishedTable]) -> None:
        self._tables = {table.key: table for table in tables}
        self._edges = _same_keys(tables)
        shared = {
            end
            for edges in self._edges.values()
            for edge in edges
            for end in (
                (edge.left.key, edge.left_column.name),
                (edge.right.key, edge.right_column.name),
            )
        }
        related = frozenset(self._edges)
        for edge in _references(tables, shared):
            if edge.ends not in related:
                self._edges.setdefault(edge.ends, []).append(edge)
        self._near: dict[TableName, list[TableName]] = {}
        for one, other in sorted(map(sorted, self._edges)):
            self._near.setdefault(one, []).append(other)
            self._near.setdefault(other, []).append(one)

    def between(self, one: TableName, other: TableName) -> Sequence[Edge]:
        """Return the ways two tables join directly."""
        return self._edges.get(frozenset((one, other)), ())

    def connect(
        self, tables: Iterable[PublishedTable], preferred: Iterable[PublishedColumn] = ()
    ) -> list[Edge]:
        """Return the edges of the one smallest tree over the tables, in joining order.

        ``preferred`` columns settle which of two edges between the same tables is meant.
        Raises :class:`NoJoin`.
        """
        wanted = [table.key for table in tables]
        chosen: list[Edge] = []
        joined = [wanted[0]]
        names = {column.name for column in preferred}
        for target in wanted[1:]:
            if target in joined:
                continue
            path = self._path(joined, target)
            for one, other in pairwise(path):
                chosen.append(self._edge(one, other, names))
                joined.append(other)
        return chosen

    def _path(self, sources: Sequence[TableName], target: TableName) -> tuple[TableName, ...]:
        paths: list[tuple[TableName, ...]] = [(source,) for source in sources]
        for _ in range(_LONGEST_PATH):
            paths = [
                (*path, table)
                for path in paths
                for table in self._near.get(path[-1], ())
                if table not in path and table not in sources
            ]
            reached = [path for path in paths if path[-1] == target]
            if len(reached) == 1:
                return reached[0]
            if reached:
                raise NoJoin("the tables can be joined in more than one way")
        raise NoJoin("nothing published joins the tables")

    def _edge(self, one: TableName, other: TableName, names: set[str]) -> Edge:
        edges = self._edges[frozenset((one, other))]
        if len(edges) == 1:
            return edges[0]
        meant = [e for e in edges if {e.left_column.name, e.right_column.name} & names]
        if len(meant) == 1:
            return meant[0]
        raise NoJoin("the tables can be joined on more than one column")


def _key_names(tables: Sequence[PublishedTable]) -> frozenset[str]:
    """Return the names of columns that identify rows, of this table or, as it comes first, that.

    An ``…_id`` that no table is kept by is some other system's, and joins nothing.
    """
    names = {key.name for table in tables if (key := key_of(table)) is not None}
    first = {table.columns[0].name for table in tables if table.columns}
    return frozenset(names | {n for n in first if name_stems(n)[-1:] == (_ID,)})


def _same_keys(tables: Sequence[PublishedTable]) -> dict[frozenset[TableName], list[Edge]]:
    """Return pairs' keys of the same name; ``id`` alone names each table's own."""
    holders: dict[str, list[tuple[PublishedTable, PublishedColumn]]] = {}
    keys = _key_names(tables)
    for table in tables:
        for column in table.columns:
            if column.name in keys and len(split_name(column.name)) > 1:
                holders.setdefault(column.name, []).append((table, column))
    edges: dict[frozenset[TableName], list[Edge]] = {}
    for held in holders.values():
        for (one, a), (other, b) in combinations(held, 2):
            if _is_reference(one, a, other, b) and _comparable(a, b):
                edge = Edge(one, a, other, b, _needs_cast(a, b))
                edges.setdefault(edge.ends, []).append(edge)
    return edges


def _references(
    tables: Sequence[PublishedTable], shared: Set[tuple[TableName, str]]
) -> Iterator[Edge]:
    """Find columns that name another table: ``airline`` or ``source_airport_id``.

    A column in ``shared`` is a key of its own name elsewhere: ``student_course_id`` may end like
    a course's id and still is an enrolment's.
    """
    by_head: dict[str, list[PublishedTable]] = {}
    for table in tables:
        by_head.setdefault(core_stems(table.name)[-1], []).append(table)
    like: dict[str, list[PublishedTable]] = {}
    for source in tables:
        own = key_of(source)
        for column in source.columns:
            words = _without_code(column)
            if words[-1] not in like:
                like[words[-1]] = [
                    table
                    for head, headed in by_head.items()
                    if likeness(words[-1], head) >= RELATED
                    for table in headed
                ]
            for target in like[words[-1]] if column is not own else ():
                key = None
                if target is not source:
                    key = _named_key(column, words, target, (source.key, column.name) in shared)
                if key is not None:
                    yield Edge(source, column, target, key, _needs_cast(column, key))


def _without_code(column: PublishedColumn) -> tuple[str, ...]:
    words = name_stems(column.name)
    return words[:-1] if len(words) > 1 and words[-1] in CODE_WORDS else words


def _named_key(
    column: PublishedColumn, words: tuple[str, ...], target: PublishedTable, shared: bool
) -> PublishedColumn | None:
    """Return the column of a table that a column named after the table points to."""
    core = core_stems(target.name)
    whole = len(words) >= len(core) and _alike(words[-len(core) :], core)
    if shared and len(words) > len(core):
        whole = False
    if not whole and len(words) > 1:
        return None
    key = _referred(target, name_stems(column.name)[-1:])
    if key is None or not _comparable(column, key):
        return None
    # By the last word of a longer name only, and of another type: that is too far fetched.
    return key if whole or not _needs_cast(column, key) else None


def _referred(target: PublishedTable, ending: tuple[str, ...]) -> PublishedColumn | None:
    """Return what ``set_code`` refers to in a table: its ``code``, or else its key."""
    if ending and ending[0] in CODE_WORDS:
        for column in target.columns:
            if name_stems(column.name) == ending:
                return column
    return key_of(target)


def _alike(words: Sequence[str], others: Sequence[str]) -> bool:
    """Tell whether words are the same up to their inflection; a synonym may be another thing."""
    return len(words) == len(others) and all(
        likeness(a, b) >= RELATED for a, b in zip(words, others, strict=True)
    )


def _is_reference(
    one: PublishedTable, a: PublishedColumn, other: PublishedTable, b: PublishedColumn
) -> bool:
    """Tell whether columns of one name are keys: ``…_id`` always, a code where it identifies.

    Two addresses that share a ``zip_code`` are not related by it.
    """
    last = name_stems(a.name)[-1]
    return last == _ID or (last in CODE_WORDS and (key_of(one) is a or key_of(other) is b))


def _comparable(one: PublishedColumn, other: PublishedColumn) -> bool:
    return (
        base_type(one.type) == base_type(other.type)
        or (is_numeric(one) and is_numeric(other))
        or (is_text(one) and is_text(other))
        or _needs_cast(one, other)
    )


def _needs_cast(one: PublishedColumn, other: PublishedColumn) -> bool:
    """Tell whether one end is text and the other a number (an untyped source's foreign key)."""
    return (is_text(one) and is_numeric(other)) or (is_numeric(one) and is_text(other))
