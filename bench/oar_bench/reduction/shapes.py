"""Random acyclic joins: a tree of tables over several owners, its rows, and the statement.

Each table but the first has a key column, and the table above it one that refers to it. Either
side holds values the other does not, and NULLs; an inner join then drops rows of both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

from oar_bench.fuzz.world import TYPES, Column, Row, Table, World

OWNER_KINDS: Final = ("postgres", "sqlite", "mariadb")
"""Owners are of these in turn, as far as they are installed."""

_NULLS: Final = 0.1
_MOST_FILTERED: Final = 2
_FILTER_VALUES: Final = 10


@dataclass(frozen=True, slots=True)
class Shape:
    """A family of joins. ``tables`` are how many at least and at most.

    ``split``: every second table's rows are at two owners. ``outer``: joins may be LEFT JOINs.
    """

    name: str
    tables: tuple[int, int]
    outer: bool = False
    split: bool = False
    composite: bool = False

    def parents(self, random: Random, count: int) -> list[int]:
        """Return the table above each of the second to the last."""
        if self.name == "chain":
            return list(range(count - 1))
        if self.name == "star":
            return [0] * (count - 1)
        if self.name == "snowflake":
            arms = count // 2
            return [0 if n <= arms else n - arms for n in range(1, count)]
        return [random.randrange(n) for n in range(1, count)]


SHAPES: Final = (
    Shape("chain", (2, 6)),
    Shape("star", (3, 6)),
    Shape("snowflake", (5, 6)),
    Shape("tree", (4, 6)),
    Shape("outer joins", (2, 5), outer=True),
    Shape("split tables", (2, 4), split=True),
    Shape("composite keys", (2, 4), composite=True),
)


@dataclass(frozen=True, slots=True)
class _Link:
    """How a table hangs on the one above: pairs of columns ``(above, below)`` and their family."""

    above: int
    pairs: tuple[tuple[str, str], ...]
    family: str
    outer: bool


def random_join(
    random: Random, shape: Shape, name: str, rows: int, kinds: Sequence[str]
) -> tuple[World, str]:
    """Draw tables of up to ``rows`` rows each, at owners of ``kinds``, and a join of them."""
    count = random.randint(*shape.tables)
    parents = shape.parents(random, count)
    links = {n: _link(random, shape, n, above) for n, above in enumerate(parents, start=1)}
    owners = {f"{name}_{n}": kinds[n % len(kinds)] for n in range(random.randint(2, 4))}
    names = list(owners)
    # Consecutive tables have different owners, so that every statement needs two of them.
    first = random.randrange(len(names))
    tables = []
    for n in range(count):
        holders = [names[(first + n) % len(names)]]
        if shape.split and n % 2:
            holders.append(names[(first + n + 1) % len(names)])
        tables.append(_table(random, n, links, holders, random.randint(rows // 4, rows)))
    world = World(name, owners, tuple(tables), {})
    return world, _statement(random, links, count)


def _link(random: Random, shape: Shape, below: int, above: int) -> _Link:
    pairs = [(f"k{below}", "k")]
    if shape.composite:
        pairs = [(f"k{below}", "k"), (f"m{below}", "m")]
    elif random.random() < 0.4:
        # A foreign key to the primary key, of which a unique index tells the planner.
        return _Link(above, ((f"k{below}", "id"),), "int", shape.outer and random.random() < 0.5)
    family = random.choice(("int", "int", "text"))
    return _Link(above, tuple(pairs), family, shape.outer and random.random() < 0.5)


def _table(
    random: Random, number: int, links: Mapping[int, _Link], holders: Sequence[str], rows: int
) -> Table:
    columns = [_column("id", "int", not_null=True), _column("f", "int")]
    numbers = [str(n) for n in range(1, rows + 1)]
    filters = [str(random.randrange(_FILTER_VALUES)) for _ in range(rows)]
    cells: list[Sequence[str | None]] = [numbers, filters]
    wanted = [(below, link.family) for below, link in _keys(number, links)]
    for column, family in wanted:
        few = column.startswith("m")
        columns.append(_column(column, family))
        cells.append(_key_cells(random, rows, few=few))
    listed: list[Row] = list(zip(*cells, strict=True))
    held = {holder: tuple(listed[n :: len(holders)]) for n, holder in enumerate(holders)}
    # A key that each holder enforces is not unique over all of them: none is declared then.
    return Table(f"t{number}", tuple(columns), ("id",) if len(holders) == 1 else (), held)


def _keys(number: int, links: Mapping[int, _Link]) -> list[tuple[str, _Link]]:
    """The table's key columns, its own and those that refer to the tables below it."""
    own = [(below, links[number]) for _, below in links[number].pairs] if number in links else []
    down = [
        (above, link) for link in links.values() if link.above == number for above, _ in link.pairs
    ]
    return [(column, link) for column, link in (*own, *down) if column != "id"]


def _key_cells(random: Random, rows: int, *, few: bool) -> list[str | None]:
    """Draw keys from some of the values there are, each side from others of them."""
    there = range(1, 6 if few else max(8, rows))
    values = random.sample(there, max(1, len(there) * 7 // 10))
    return [None if random.random() < _NULLS else str(random.choice(values)) for _ in range(rows)]


def _column(name: str, family: str, *, not_null: bool = False) -> Column:
    return Column(name, TYPES["sqlite"][family][0], family, not_null=not_null)


def _statement(random: Random, links: Mapping[int, _Link], count: int) -> str:
    shown = ", ".join(f"t{n}.id" for n in range(count))
    joins = [f"SELECT {shown} FROM t0"]
    for below, link in links.items():
        on = " AND ".join(
            f"t{below}.{mine} = t{link.above}.{theirs}" for theirs, mine in link.pairs
        )
        joins.append(f"{'LEFT ' if link.outer else ''}JOIN t{below} ON {on}")
    filtered = random.sample(range(count), random.randint(0, min(_MOST_FILTERED, count - 1)))
    # Under LEFT JOIN a filter on the nullable side would make it an inner one.
    conditions = [
        f"t{n}.f < {random.randint(3, _FILTER_VALUES - 1)}"
        for n in sorted(filtered)
        if n not in links or not links[n].outer
    ]
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    return f"{' '.join(joins)}{where}"
