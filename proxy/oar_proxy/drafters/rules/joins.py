"""Which tables join on which columns, as far as names, types and declared keys show."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import Final

from oar_adapters.interface import base_type

from oar_proxy.catalog import PublishedColumn, PublishedTable, TableName
from oar_proxy.drafters.rules.names import (
    CODE_WORDS,
    GENERIC_TABLE_WORDS,
    is_numeric,
    is_text,
    key_of,
    split_name,
    stems,
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
        self._edges: dict[frozenset[TableName], list[Edge]] = {}
        pairs = list(combinations(tables, 2))
        shared = {
            column
            for one, other in pairs
            for edge in _same_keys(one, other)
            for column in ((one.key, edge.left_column.name), (other.key, edge.right_column.name))
        }
        for one, other in pairs:
            edges = _same_keys(one, other) or [
                *_references(one, other, shared),
                *_references(other, one, shared),
            ]
            if edges:
                self._edges[frozenset((one.key, other.key))] = edges

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
                for table in self._tables
                if table not in path
                and table not in sources
                and frozenset((path[-1], table)) in self._edges
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


def _same_keys(one: PublishedTable, other: PublishedTable) -> list[Edge]:
    """Return a pair's keys of the same name; ``id`` alone names each table's own."""
    return [
        Edge(one, a, other, b, _needs_cast(a, b))
        for a in one.columns
        for b in other.columns
        if a.name == b.name
        and len(split_name(a.name)) > 1
        and _is_reference(one, a, other, b)
        and _comparable(a, b)
    ]


def _references(
    source: PublishedTable, target: PublishedTable, shared: Set[tuple[TableName, str]]
) -> list[Edge]:
    """Return columns of one table that name the other: ``airline`` or ``source_airport_id``.

    A column in ``shared`` is a key of its own name elsewhere: ``student_course_id`` may end like
    a course's id and still is an enrolment's.
    """
    key = key_of(target)
    if key is None:
        return []
    own = stems(split_name(target.name))
    core = tuple(word for word in own if word not in GENERIC_TABLE_WORDS) or own
    found = []
    for column in source.columns:
        if column is key_of(source):
            continue
        words = stems(split_name(column.name))
        if len(words) > 1 and words[-1] in CODE_WORDS:
            words = words[:-1]
        whole = len(words) >= len(core) and _alike(words[-len(core) :], core)
        if len(words) > len(core) and (source.key, column.name) in shared:
            whole = False
        head = _alike(words, core[-1:]) and not _needs_cast(column, key)
        if (whole or head) and _comparable(column, key):
            found.append(Edge(source, column, target, key, _needs_cast(column, key)))
    return found


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
    last = stems(split_name(a.name))[-1]
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
