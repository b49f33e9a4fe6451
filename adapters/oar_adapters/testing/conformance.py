"""The conformance suite: what every adapter has to do, as pytest tests to subclass.

An adapter's author writes a :class:`SampleOwner` (how to put the sample tables into a real owner,
and how to disturb it), a fixture ``owner`` that yields
one, and a test class::

    @pytest.fixture(scope="module")
    def owner():
        with my_database() as database:
            yield MyOwner(database)

    class TestMyAdapter(AdapterConformance):
        cannot = frozenset({"text LIKE"})

Every test opens its own adapter through the registry, so the entry point is tested too, and
closes it. A predicate the adapter takes is compared with PostgreSQL's meaning on every row; what it
never does has to be named in ``cannot``, so that a lost ability is noticed as well. No test skips
itself.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from collections import Counter
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager
from dataclasses import replace
from decimal import Decimal
from inspect import signature
from typing import Any, ClassVar, Final, Protocol, TypeVar

import pytest
from psycopg.types.numeric import DecimalBinaryDumper

from oar_adapters.authorized import Authorized
from oar_adapters.interface import (
    Adapter,
    And,
    Batch,
    Capabilities,
    Column,
    Comparison,
    Derived,
    KeyFilter,
    Membership,
    Not,
    Output,
    OwnerError,
    OwnerErrorKind,
    OwnerSchema,
    Partial,
    Predicate,
    Query,
    Scan,
    SemiJoin,
    Snapshot,
    SortKey,
    Statement,
    Table,
    base_type,
)
from oar_adapters.registry import open_adapter
from oar_adapters.testing import cases, groups, meaning
from oar_adapters.testing.samples import (
    EVENTS,
    NUMBERS,
    TABLES,
    THINGS,
    TYPES,
    Row,
    SampleTable,
    Value,
    decode,
    integer_key,
)

T = TypeVar("T")

SECRET: Final = "conformance-secret-value"  # noqa: S105 - a marker, nobody's password
"""A stored value, a constant and a key that no error text and no rendered key list may show."""

PATIENCE: Final = 10.0
"""Seconds something asynchronous may take; only failures wait as long."""


STATEMENTS: Final[Mapping[str, tuple[str, tuple[str, ...], list[Row]]]] = {
    "statement rows": (
        'SELECT "id" FROM {numbers}',
        ("numbers.id",),
        [row[:1] for row in NUMBERS.rows],
    ),
    "statement count": (
        'SELECT count(*), count("n") FROM {things}',
        ("bigint", "bigint"),
        [(len(THINGS.rows), sum(row[1] is not None for row in THINGS.rows))],
    ),
    "statement groups": (
        'SELECT "b", count(*) FROM {things} GROUP BY "b"',
        ("boolean", "bigint"),
        list(Counter(row[5] for row in THINGS.rows).items()),
    ),
    "statement left join": (
        'SELECT "a"."id", "z"."id" FROM {events} AS "a" LEFT JOIN {fragile} AS "z"'
        ' ON "a"."id" = "z"."id"',
        ("events.id", "fragile.id"),
        [(row[0], row[0]) for row in EVENTS.rows],
    ),
}
"""By name: statements in PostgreSQL's dialect, ``{table}`` for the owner's name; the types of their
outputs (``table.column`` for a published one); their answers."""

HOSTILE: Final = (
    "DELETE FROM {events} RETURNING id",
    "WITH gone AS (DELETE FROM {events} RETURNING id) SELECT id FROM gone",
    "UPDATE {events} SET note = 'x' RETURNING id",
    "INSERT INTO {events} VALUES (99, 'x') RETURNING id",
    "DROP TABLE {events}",
    "CREATE TABLE stolen AS SELECT * FROM {events}",
    "SELECT id FROM {events}) AS q(c1); DELETE FROM {events}; SELECT 1 FROM (SELECT 1",
    "SELECT id FROM {events}; DELETE FROM {events}",
    "SELECT id FROM {events} -- '",
    "COMMIT; DELETE FROM {events}",
    "ROLLBACK",
    "SELECT id FROM {events} FOR UPDATE",
)
"""What must change nothing. Only the comment and the lock may even be answered."""


ABILITIES: Final[Mapping[str, Callable[[Capabilities], bool]]] = {
    "semi-join": lambda capabilities: capabilities.semi_joins,
    "composite keys": lambda capabilities: capabilities.composite_keys,
    "first rows": lambda capabilities: capabilities.first_rows,
    "interleaving": lambda capabilities: capabilities.interleaves,
}
"""What an adapter says of itself, as ``cannot`` names it where it does not."""

WRONG_VALUES: Final = "wrong values"
"""What an owner's database cannot hold, as ``cannot`` names it."""

_KEY_COLUMNS: Final = "nsmbdo"
_KEYS_TOGETHER: Final = (*itertools.combinations("nsmbdo", 2), ("n", "s", "b"), ("d", "m", "s"))
"""Columns of a sample table whose keys are looked up, alone and together."""

_Test = TypeVar("_Test", bound=Callable[..., None])


def needs(*names: str) -> Callable[[_Test], _Test]:
    """Leave a test out where ``cannot`` has one of these names."""

    def mark(test: _Test) -> _Test:
        vars(test)["needs"] = frozenset(names)
        return test

    return mark


class SampleOwner(Protocol):
    """A real owner that holds :data:`~oar_adapters.testing.samples.TABLES`."""

    url: str
    options: Mapping[str, str]
    unreachable_url: str
    """A URL of the same scheme where no owner answers."""

    def insert(self, table: str, row: Row) -> None:
        """Commit one more row, from a connection of the owner's own."""
        ...

    def rows(self, table: str) -> int:
        """Count a table's rows, from a connection of the owner's own."""
        ...

    def slow_query(self, published: OwnerSchema) -> Query:
        """Return a query that would take the owner a minute or more."""
        ...

    def running(self) -> int:
        """Count the queries that run at the owner for the adapter right now."""
        ...

    def break_value(self, table: str, column: str, key: int) -> None:
        """Store text in an integer column. Not called where ``cannot`` has `WRONG_VALUES`."""
        ...

    def drop_column(self, table: str, column: str) -> None:
        """Take a published column away."""
        ...


class AdapterConformance:
    """Subclass, set ``cannot``, and provide a fixture ``owner`` of at least the class's scope.

    A test of what an adapter cannot do is not collected, and that it cannot is itself tested.
    """

    cannot: ClassVar[Collection[str]] = frozenset()
    """What the adapter never does. Kinds of predicate (``text LIKE``, ``date <``; keys are ``IN``)
    as `oar_adapters.testing.cases` names them and of counted scans (``float by``, ``date max``) as
    `oar_adapters.testing.groups` does; names of `STATEMENTS` and `ABILITIES`; and `WRONG_VALUES`,
    where the owner's database keeps its types."""

    def __init_subclass__(cls, **named: Any) -> None:
        super().__init_subclass__(**named)
        chosen = cls._parameters()
        for name, test in vars(AdapterConformance).items():
            if name.startswith("test_"):
                asked = [chosen[each] for each in signature(test).parameters if each in chosen]
                if getattr(test, "needs", frozenset()) & set(cls.cannot) or not all(asked):
                    setattr(cls, name, None)

    @classmethod
    def _parameters(cls) -> dict[str, list[Any]]:
        """What the adapter takes of the values of the tests' parameters."""

        def taken(columns: Sequence[str]) -> bool:
            return not {f"{THINGS.kind(column)} IN" for column in columns} & set(cls.cannot)

        return {
            "key_column": list(filter(taken, _KEY_COLUMNS)),
            "keys_together": list(filter(taken, _KEYS_TOGETHER)),
            "statement_name": [name for name in STATEMENTS if name not in cls.cannot],
        }

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Give each test what the adapter takes of the values of its parameters."""
        for name, values in self._parameters().items():
            if name in metafunc.fixturenames:
                metafunc.parametrize(
                    name, values, ids="-".join if name == "keys_together" else None
                )

    # --- what it can ---------------------------------------------------------------------------

    def test_does_everything_it_does_not_name(self, owner: SampleOwner) -> None:
        """So that an ability is neither lost nor untested without being noticed."""

        async def never_done(adapter: Adapter) -> set[str]:
            published = await adapter.schema()
            things = _table(published, "things")
            done = {name: said(adapter.capabilities) for name, said in ABILITIES.items()}
            for name, predicate in cases.simple():
                done[name] = done.get(name, False) or adapter.supports(things, predicate)
            for name, by, partial in groups.CASES:
                can = adapter.counts(groups.scan(things, by, partial))
                done[name] = done.get(name, False) or can
            for name in STATEMENTS:
                done[name] = adapter.supports_statement(_statement(published, name))
            return {name for name, ever in done.items() if not ever}

        assert _with_adapter(owner, never_done) == set(self.cannot) - {WRONG_VALUES}

    # --- schema --------------------------------------------------------------------------------

    def test_publishes_the_tables_with_types_that_hold_their_values(
        self, owner: SampleOwner
    ) -> None:
        published = _published(owner)
        for sample in TABLES:
            table = _table(published, sample.name)
            assert [c.name for c in table.columns] == [c.name for c in sample.columns]
            for column, due in zip(table.columns, sample.columns, strict=True):
                assert base_type(column.type) in TYPES[due.kind], column
            assert table.row_estimate > 0

    def test_publishes_only_keys_and_not_nulls_that_hold(self, owner: SampleOwner) -> None:
        published = _published(owner)
        for sample in TABLES:
            table = _table(published, sample.name)
            for column, due in zip(table.columns, sample.columns, strict=True):
                assert due.not_null or not column.not_null
            keys = [key for key in (table.primary_key, *table.unique_keys) if key]
            assert keys in ([], [("id",)])
            if table.primary_key:
                assert table.column("id").not_null

    def test_publishes_statistics_that_can_be(self, owner: SampleOwner) -> None:
        """Where an owner says nothing of a column, None; else a number that is possible."""
        published = _published(owner)
        for sample in TABLES:
            table = _table(published, sample.name)
            for column in table.columns:
                if column.distinct is not None:
                    assert 0 < column.distinct <= max(table.row_estimate, len(sample.rows))
                if column.null_fraction is not None:
                    assert 0 <= column.null_fraction <= 1

    def test_publishes_no_row(self, owner: SampleOwner) -> None:
        assert "ВЕСНА25" not in repr(_published(owner))

    # --- scans ---------------------------------------------------------------------------------

    @pytest.mark.parametrize("sample", TABLES[:2], ids=lambda sample: sample.name)
    def test_returns_every_row_as_the_published_types(
        self, owner: SampleOwner, sample: SampleTable
    ) -> None:
        async def scan(snapshot: Snapshot, published: OwnerSchema) -> list[Row]:
            table = _table(published, sample.name)
            return await _rows(snapshot, Scan(table, table.columns))

        assert Counter(_with_snapshot(owner, scan)) == Counter(sample.rows)

    def test_returns_the_columns_in_the_order_that_was_asked(self, owner: SampleOwner) -> None:
        async def scan(snapshot: Snapshot, published: OwnerSchema) -> list[Row]:
            table = _table(published, "things")
            asked = (table.column("s"), table.column("id"), table.column("s"))
            return await _rows(snapshot, Scan(table, asked))

        due = [(row[3], row[0], row[3]) for row in THINGS.rows]
        assert Counter(_with_snapshot(owner, scan)) == Counter(due)

    @pytest.mark.parametrize(("limit", "due"), [(None, 60_000), (7, 7), (0, 0), (100_000, 60_000)])
    @pytest.mark.parametrize("columns", [(), ("id",)], ids=["count", "rows"])
    def test_counts_rows_up_to_the_limit(
        self, owner: SampleOwner, columns: tuple[str, ...], limit: int | None, due: int
    ) -> None:
        async def scan(snapshot: Snapshot, published: OwnerSchema) -> int:
            table = _table(published, "numbers")
            asked = tuple(table.column(name) for name in columns)
            return sum(b.rows for b in await _batches(snapshot, Scan(table, asked, limit=limit)))

        assert _with_snapshot(owner, scan) == due

    @needs("first rows")
    @pytest.mark.parametrize("descending", [False, True])
    @pytest.mark.parametrize("nulls_first", [False, True])
    def test_sends_the_first_rows_by_every_column_with_an_order(
        self, owner: SampleOwner, *, descending: bool, nulls_first: bool
    ) -> None:
        async def scan(adapter: Adapter) -> dict[str, list[Value]]:
            table = _table(await adapter.schema(), THINGS.name)
            found = {}
            async with adapter.snapshot(PATIENCE) as snapshot:
                for column in table.columns:
                    if column.ordered:
                        keys = (SortKey(column.name, descending, nulls_first),)
                        query = Scan(table, (column,), limit=3, order=keys)
                        rows = await _rows(snapshot, query)
                        found[column.name] = [value for (value,) in rows]
            return found

        found = _with_adapter(owner, scan)
        assert found
        names = [column.name for column in THINGS.columns]
        for name, values in found.items():
            held = [row[names.index(name)] for row in THINGS.rows]
            nulls = [value for value in held if value is None]
            others = [value for value in held if value is not None]
            others.sort(key=_position, reverse=descending)
            due = [*nulls, *others] if nulls_first else [*others, *nulls]
            assert Counter(map(_position, values)) == Counter(map(_position, due[:3])), name

    def test_streams_in_batches_of_whole_columns(self, owner: SampleOwner) -> None:
        async def scan(snapshot: Snapshot, published: OwnerSchema) -> list[Batch]:
            table = _table(published, "numbers")
            return await _batches(snapshot, Scan(table, table.columns))

        batches = _with_snapshot(owner, scan)
        assert len(batches) > 1
        for batch in batches:
            assert [len(column) for column in batch.columns] == [batch.rows] * 3

    # --- keys ----------------------------------------------------------------------------------

    @pytest.mark.parametrize("count", [0, 1, 2, 50_000])
    @pytest.mark.parametrize("type_", ["integer", "bigint", "numeric"])
    def test_finds_the_rows_of_integer_keys(
        self, owner: SampleOwner, type_: str, count: int
    ) -> None:
        # NULL has no key, and half of the keys match nothing.
        wanted = [3 * number if number % 2 else 3 * number + 1 for number in range(1, count + 1)]

        async def scan(snapshot: Snapshot, published: OwnerSchema) -> list[Row]:
            table = _table(published, "numbers")
            keys = KeyFilter("k", type_, tuple(_number_key(value, type_) for value in wanted))
            return await _rows(
                snapshot, Scan(table, (table.column("id"), table.column("k")), key_filters=(keys,))
            )

        asked = set(wanted)
        due = [row[:2] for row in NUMBERS.rows if row[1] in asked]
        assert Counter(_with_snapshot(owner, scan)) == Counter(due)

    @pytest.mark.parametrize("count", [0, 1, 50_000])
    def test_finds_the_rows_of_text_keys(self, owner: SampleOwner, count: int) -> None:
        wanted = [f"слово {number}" for number in range(2, 2 * count + 1, 2)]

        async def scan(snapshot: Snapshot, published: OwnerSchema) -> list[Row]:
            table = _table(published, "numbers")
            keys = KeyFilter("label", "text", tuple(text.encode() for text in wanted))
            return await _rows(snapshot, Scan(table, (table.column("id"),), key_filters=(keys,)))

        asked = set(wanted)
        due = [row[:1] for row in NUMBERS.rows if row[2] in asked]
        assert Counter(_with_snapshot(owner, scan)) == Counter(due)

    def test_finds_at_least_the_row_of_each_key(self, owner: SampleOwner, key_column: str) -> None:
        column = key_column
        position = THINGS.position(column)

        async def scan(snapshot: Snapshot, published: OwnerSchema) -> dict[bytes, list[Row]]:
            table = _table(published, "things")
            known = await _batches(snapshot, Scan(table, (table.column(column),)))
            type_ = base_type(table.column(column).type)
            cells = {cell for b in known for cell in b.columns[0] if cell is not None}
            found = {}
            for cell in cells:
                keys = KeyFilter(column, type_, (cell,))
                found[cell] = await _rows(snapshot, Scan(table, table.columns, key_filters=(keys,)))
            return found

        published = _published(owner)
        assert _takes_keys(owner, published, column)
        type_ = _table(published, "things").column(column).type
        for cell, found in _with_snapshot(owner, scan).items():
            due = Counter(row for row in THINGS.rows if row[position] == decode(type_, cell))
            assert due
            assert due <= Counter(found) <= Counter(THINGS.rows)

    def test_applies_several_key_lists_and_predicates_together(self, owner: SampleOwner) -> None:
        async def scan(snapshot: Snapshot, published: OwnerSchema) -> list[Row]:
            table = _table(published, "numbers")
            numbers = tuple(integer_key(3 * number) for number in range(1, 200))
            labels = tuple(f"слово {number}".encode() for number in range(100, 300))
            query = Scan(
                table,
                (table.column("id"),),
                (Comparison("id", "<>", "150", "integer"),),
                (KeyFilter("k", "bigint", numbers), KeyFilter("label", "text", labels)),
            )
            return await _rows(snapshot, query)

        due = {(n,) for n in range(100, 200) if n % 10 and n != 150}
        assert set(_with_snapshot(owner, scan)) == due

    def test_shows_no_key_in_the_rendered_query(self, owner: SampleOwner) -> None:
        async def rendered(adapter: Adapter) -> str:
            table = _table(await adapter.schema(), "things")
            keys = (
                KeyFilter("s", "text", (SECRET.encode(),)),
                KeyFilter("n", "bigint", (integer_key(987_654_321),)),
            )
            return adapter.render(Scan(table, table.columns, key_filters=keys))

        text = _with_adapter(owner, rendered)
        assert "things" in text
        assert SECRET not in text
        assert "987654321" not in text

    # --- semi-joins ----------------------------------------------------------------------------

    @needs("semi-join")
    def test_joins_two_columns_of_a_type_inside_the_owner(
        self, owner: SampleOwner, key_column: str
    ) -> None:
        column = key_column

        def semi_joined(published: OwnerSchema) -> Scan:
            table = _table(published, "things")
            few = (Comparison("id", "<", "9", "integer"),)
            return _reduced(table, column, column, Scan(table, (table.column(column),), few))

        position = THINGS.position(column)
        values = {row[position] for row in THINGS.rows if row[0] in range(9)} - {None}
        due = Counter(row[:1] for row in THINGS.rows if row[position] in values)
        everything = Counter(row[:1] for row in THINGS.rows)
        found = Counter(_with_snapshot(owner, _asking(semi_joined)))
        assert due <= found <= everything

    @needs("semi-join")
    @pytest.mark.parametrize("count", [0, 1, 50_000])
    def test_looks_keys_up_inside_a_semi_join_and_repeats_no_row(
        self, owner: SampleOwner, count: int
    ) -> None:
        labels = tuple(f"слово {number}".encode() for number in range(1, count + 1))

        def semi_joined(published: OwnerSchema) -> Scan:
            numbers, things = _table(published, "numbers"), _table(published, "things")
            keys = (KeyFilter("label", "text", labels),)
            inner = Scan(numbers, (), key_filters=keys)
            again = _reduced(numbers, "id", "id", inner)
            return _reduced(things, "id", "id", again)

        found = _with_snapshot(owner, _asking(semi_joined))
        due = Counter((number,) for number in range(1, min(count, len(THINGS.rows) - 1) + 1))
        assert Counter(found) == due

    @needs("semi-join")
    def test_writes_a_limit_and_a_count_around_a_semi_join(self, owner: SampleOwner) -> None:
        def semi_joined(published: OwnerSchema) -> Scan:
            numbers, things = _table(published, "numbers"), _table(published, "things")
            inner = Scan(things, (), (Comparison("id", "<", "50", "integer"),))
            return replace(_reduced(numbers, "id", "id", inner), columns=(), limit=20)

        async def count(snapshot: Snapshot, published: OwnerSchema) -> int:
            return sum(b.rows for b in await _batches(snapshot, semi_joined(published)))

        assert _with_snapshot(owner, count) == 20

    # --- composite keys ------------------------------------------------------------------------

    @needs("composite keys")
    @pytest.mark.parametrize("count", [0, 1, 2, 50_000])
    def test_finds_the_rows_of_keys_of_two_columns(self, owner: SampleOwner, count: int) -> None:
        # The label of every other key is that of the next row: each column alone would match.
        wanted = [(3 * n, f"слово {n + n % 2}") for n in range(1, count + 1)]

        async def scan(snapshot: Snapshot, published: OwnerSchema) -> list[Row]:
            table = _table(published, "numbers")
            labels = KeyFilter("label", "text", tuple(label.encode() for _, label in wanted))
            keys = KeyFilter("k", "bigint", tuple(integer_key(k) for k, _ in wanted), (labels,))
            return await _rows(snapshot, Scan(table, (table.column("id"),), key_filters=(keys,)))

        asked = set(wanted)
        due = [row[:1] for row in NUMBERS.rows if row[1:] in asked]
        assert Counter(_with_snapshot(owner, scan)) == Counter(due)

    @needs("composite keys")
    def test_finds_at_least_the_rows_of_each_composite_key(
        self, owner: SampleOwner, keys_together: tuple[str, ...]
    ) -> None:
        names = keys_together
        places = [THINGS.position(name) for name in names]

        async def scan(snapshot: Snapshot, published: OwnerSchema) -> list[tuple[Row, list[Row]]]:
            table = _table(published, "things")
            columns = tuple(table.column(name) for name in names)
            found = []
            for batch in await _batches(snapshot, Scan(table, columns)):
                for cells in set(zip(*batch.columns, strict=True)):
                    known = [cell for cell in cells if cell is not None]
                    if len(known) < len(names):
                        continue
                    parts = [
                        KeyFilter(column.name, base_type(column.type), (cell,))
                        for column, cell in zip(columns, known, strict=True)
                    ]
                    keys = replace(parts[0], also=tuple(parts[1:]))
                    query = Scan(table, table.columns, key_filters=(keys,))
                    row = tuple(decode(c.type, x) for c, x in zip(columns, known, strict=True))
                    found.append((row, await _rows(snapshot, query)))
            return found

        answers = _with_snapshot(owner, scan)
        assert answers
        for values, found in answers:
            alike = (row for row in THINGS.rows if tuple(row[p] for p in places) == values)
            assert Counter(alike) <= Counter(found) <= Counter(THINGS.rows)

    @needs("composite keys", "semi-join")
    def test_joins_several_columns_at_once_inside_the_owner(
        self, owner: SampleOwner, keys_together: tuple[str, ...]
    ) -> None:
        names = keys_together

        def semi_joined(published: OwnerSchema) -> Scan:
            table = _table(published, "things")
            few = Scan(table, (), (Comparison("id", "<", "9", "integer"),))
            also = tuple((name, name) for name in names[1:])
            semi_join = SemiJoin(names[0], names[0], few, also)
            return Scan(table, (table.column("id"),), semi_joins=(semi_join,))

        places = [THINGS.position(name) for name in names]
        found = Counter(_with_snapshot(owner, _asking(semi_joined)))
        values = {tuple(row[p] for p in places) for row in THINGS.rows if row[0] in range(9)}
        known = {row for row in values if None not in row}
        due = [row[:1] for row in THINGS.rows if tuple(row[p] for p in places) in known]
        assert Counter(due) <= found <= Counter(row[:1] for row in THINGS.rows)

    @needs("composite keys", "semi-join")
    def test_joins_numbers_and_labels_of_one_row_inside_the_owner(self, owner: SampleOwner) -> None:
        def semi_joined(published: OwnerSchema) -> Scan:
            numbers, things = _table(published, "numbers"), _table(published, "things")
            few = Scan(numbers, (), (Comparison("id", "<", "9", "integer"),))
            crossed = SemiJoin("id", "id", few, (("id", "k"),))
            alike = SemiJoin("id", "id", few, (("id", "id"),))
            return Scan(things, (things.column("id"),), semi_joins=(alike, crossed))

        # A row whose number is its key three times over is none of them.
        assert _with_snapshot(owner, _asking(semi_joined)) == []

    # --- predicates ----------------------------------------------------------------------------

    @pytest.mark.parametrize(
        "case",
        [cases.simple, cases.combined],
        ids=["simple", "combined"],
    )
    def test_keeps_at_least_the_rows_of_postgresql(
        self, owner: SampleOwner, case: Callable[[], Iterator[cases.Case]]
    ) -> None:
        async def compare(adapter: Adapter) -> list[str]:
            published = await adapter.schema()
            table = _table(published, "things")
            wrong = []
            async with adapter.snapshot(PATIENCE * 6) as snapshot:
                for name, predicate in case():
                    if not adapter.supports(table, predicate):
                        continue
                    query = Scan(table, (table.column("id"),), (predicate,))
                    found = Counter(await _rows(snapshot, query))
                    due = Counter(
                        row[:1] for row in THINGS.rows if meaning.holds(THINGS, row, predicate)
                    )
                    if not due <= found <= Counter(row[:1] for row in THINGS.rows):
                        wrong.append(f"{name}: {predicate}: lost {due - found}")
            return wrong

        assert _with_adapter(owner, compare) == []

    def test_takes_no_predicate_it_cannot_read(self, owner: SampleOwner) -> None:
        strange: tuple[Predicate, ...] = (
            Comparison("s", "=", "1", "integer"),
            Comparison("n", "=", "x", "text"),
            Comparison("nosuch", "=", "1", "integer"),
            Comparison("s", "=", "a", "nosuch"),
            Comparison("d", "<", "2020-01-01 00:00:00+00", "timestamp with time zone"),
            Membership("s", ("a",), "text[]); DROP TABLE events; --"),
        )

        async def taken(adapter: Adapter) -> list[Predicate]:
            table = _table(await adapter.schema(), "things")
            asked = [*strange, *(Not(And((predicate,))) for predicate in strange)]
            return [predicate for predicate in asked if adapter.supports(table, predicate)]

        assert _with_adapter(owner, taken) == []

    # --- counted scans -------------------------------------------------------------------------

    def test_tells_of_each_group_what_postgresql_would(self, owner: SampleOwner) -> None:
        async def compare(adapter: Adapter) -> list[str]:
            table = _table(await adapter.schema(), "things")
            wrong: list[str] = []
            async with adapter.snapshot(PATIENCE * 6) as snapshot:
                for name, by, partial in groups.CASES:
                    query = groups.scan(table, by, partial)
                    if adapter.counts(query):
                        found = groups.merged(query, await _rows(snapshot, query))
                        if found != groups.due(THINGS, by, partial):
                            wrong.append(f"{name} by {by}")
            return wrong

        assert _with_adapter(owner, compare) == []

    @needs("integer count", "text by")
    def test_counts_what_predicates_and_keys_leave(self, owner: SampleOwner) -> None:
        async def count(adapter: Adapter) -> list[list[Row]]:
            table = _table(await adapter.schema(), "numbers")
            keys = KeyFilter("k", "bigint", tuple(integer_key(3 * n) for n in range(1, 30_000)))
            told = (Partial(table.column("id")),)
            query = Scan(table, (), (Comparison("id", ">", "9", "integer"),), (keys,))
            query = replace(query, counted=True, partials=told)
            nothing = replace(query, predicates=(Comparison("id", "<", "0", "integer"),))
            first = replace(query, columns=(table.column("label"),), limit=7)
            assert all(map(adapter.counts, (query, nothing, first)))
            async with adapter.snapshot(PATIENCE * 6) as snapshot:
                return [await _rows(snapshot, each) for each in (query, nothing, first)]

        everything, nothing, first = _with_adapter(owner, count)
        due = sum(row[1] is not None for row in NUMBERS.rows[9 : 30_000 - 1])
        # An adapter may send a group in several rows.
        assert [sum(column) for column in zip(*everything, strict=True)] == [due, due]
        assert all(row == (0, 0) for row in nothing)
        assert len(first) >= 7

    # --- whole statements ----------------------------------------------------------------------

    def test_answers_whole_statements(self, owner: SampleOwner, statement_name: str) -> None:
        async def answer(adapter: Adapter) -> tuple[list[Row], list[Row]]:
            published = await adapter.schema()
            statement = _statement(published, statement_name)
            columns = tuple(Column(o.name, o.type, o.name) for o in statement.outputs)
            derived = Derived(statement.sql, statement.tables)
            table = Table("a subquery", columns, "t", derived=derived)
            async with adapter.snapshot(PATIENCE) as snapshot:
                by_itself = await _rows(snapshot, statement)
                return by_itself, await _rows(snapshot, Scan(table, columns, limit=100_000))

        by_itself, as_table = _with_adapter(owner, answer)
        _, _, due = STATEMENTS[statement_name]
        assert Counter(by_itself) == Counter(due)
        assert Counter(as_table) == Counter(due)

    @needs("interleaving")
    @pytest.mark.parametrize(("limit", "due"), [(None, 60_000), (7, 7), (100_000, 60_000)])
    def test_counts_a_scan_between_two_batches_of_it(
        self, owner: SampleOwner, limit: int | None, due: int
    ) -> None:
        def asked(published: OwnerSchema) -> tuple[Query, Query]:
            table = _table(published, "numbers")
            return Scan(table, (table.column("id"),)), Scan(table, (), limit=limit)

        assert _with_adapter(owner, _counting_between(asked)) == (due, 60_000)

    @needs("interleaving", "statement rows")
    @pytest.mark.parametrize(("limit", "due"), [(None, 60_000), (7, 7), (100_000, 60_000)])
    def test_counts_a_whole_statement_between_two_batches_of_it(
        self, owner: SampleOwner, limit: int | None, due: int
    ) -> None:
        def asked(published: OwnerSchema) -> tuple[Query, Query]:
            statement = replace(_statement(published, "statement rows"), limit=None)
            return statement, replace(statement, limit=limit, counted=True)

        assert _with_adapter(owner, _counting_between(asked)) == (due, 60_000)

    # --- read only -----------------------------------------------------------------------------

    @pytest.mark.parametrize("text", HOSTILE)
    def test_writes_nothing_whatever_it_is_given(self, owner: SampleOwner, text: str) -> None:
        before = owner.rows("events")

        async def attack(adapter: Adapter) -> bool:
            published = await adapter.schema()
            table = _table(published, "events")
            names = {table.name: _qualified(table) for table in published.tables}
            statement = Statement(text.format(**names), (table,), (Output("id", "integer"),))
            try:
                async with adapter.snapshot(PATIENCE) as snapshot:
                    await _batches(snapshot, statement)
            except OwnerError:
                return False
            return True

        answered = _with_adapter(owner, attack)
        assert not answered or text.endswith(("-- '", "FOR UPDATE"))
        assert owner.rows("events") == before

    # --- snapshots -----------------------------------------------------------------------------

    def test_a_query_that_is_left_before_its_end_makes_room_for_the_next(
        self, owner: SampleOwner
    ) -> None:
        async def leave(adapter: Adapter) -> tuple[int, int]:
            table = _table(await adapter.schema(), "numbers")
            query = Scan(table, (table.column("id"),))
            async with adapter.snapshot(PATIENCE) as snapshot:
                async for _ in snapshot.run(Authorized(query, ledger_entry=1)):
                    break
                counted = sum(b.rows for b in await _batches(snapshot, replace(query, columns=())))
                return counted, len(await _rows(snapshot, query))

        assert _with_adapter(owner, leave) == (60_000, 60_000)

    def test_sees_one_moment_while_a_writer_commits(self, owner: SampleOwner) -> None:
        async def look_twice(adapter: Adapter) -> tuple[list[Row], list[Row], list[Row]]:
            table = _table(await adapter.schema(), "events")
            query = Scan(table, (table.column("id"),))
            async with adapter.snapshot(PATIENCE) as snapshot:
                first = await _rows(snapshot, query)
                await asyncio.to_thread(owner.insert, "events", (1000 + len(first), "between"))
                second = await _rows(snapshot, query)
            async with adapter.snapshot(PATIENCE) as snapshot:
                later = await _rows(snapshot, query)
            return first, second, later

        first, second, later = _with_adapter(owner, look_twice)
        assert Counter(first) == Counter(second)
        assert len(later) == len(first) + 1

    def test_takes_the_snapshot_before_the_first_query(self, owner: SampleOwner) -> None:
        before = owner.rows("events")

        async def look(adapter: Adapter) -> int:
            table = _table(await adapter.schema(), "events")
            async with adapter.snapshot(PATIENCE) as snapshot:
                await asyncio.to_thread(owner.insert, "events", (2000 + before, "after"))
                return len(await _rows(snapshot, Scan(table, table.columns)))

        assert _with_adapter(owner, look) == before

    def test_runs_more_snapshots_than_it_has_connections(self, owner: SampleOwner) -> None:
        async def many(adapter: Adapter) -> list[int]:
            table = _table(await adapter.schema(), "events")

            async def one() -> int:
                async with adapter.snapshot(PATIENCE) as snapshot:
                    return len(await _rows(snapshot, Scan(table, table.columns)))

            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(one()) for _ in range(40)]
            return [task.result() for task in tasks]

        assert set(_with_adapter(owner, many)) == {owner.rows("events")}

    # --- cancelling, timeouts, closing ---------------------------------------------------------

    def test_stops_the_owner_when_it_is_cancelled(self, owner: SampleOwner) -> None:
        async def cancel(adapter: Adapter) -> bool:
            published = await adapter.schema()
            task = asyncio.create_task(_drain(adapter, owner.slow_query(published), 60.0))
            await _until(lambda: owner.running() > 0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await _until(lambda: owner.running() == 0)
            table = _table(published, "fragile")
            async with adapter.snapshot(PATIENCE) as snapshot:
                return bool(await _batches(snapshot, Scan(table, (table.column("id"),))))

        assert _with_adapter(owner, cancel)

    def test_stops_the_owner_at_the_deadline(self, owner: SampleOwner) -> None:
        async def outlast(adapter: Adapter) -> OwnerErrorKind:
            published = await adapter.schema()
            with pytest.raises(OwnerError) as caught:
                await _drain(adapter, owner.slow_query(published), 0.5)
            await _until(lambda: owner.running() == 0)
            return caught.value.kind

        assert _with_adapter(owner, outlast) is OwnerErrorKind.TIMEOUT

    def test_closing_stops_what_runs(self, owner: SampleOwner) -> None:
        async def close(adapter: Adapter) -> None:
            published = await adapter.schema()
            task = asyncio.create_task(_drain(adapter, owner.slow_query(published), 60.0))
            await _until(lambda: owner.running() > 0)
            await adapter.close()
            with pytest.raises(OwnerError):
                await task
            await _until(lambda: owner.running() == 0)

        _with_adapter(owner, close)

    def test_answers_nothing_once_closed(self, owner: SampleOwner) -> None:
        async def reuse(adapter: Adapter) -> OwnerErrorKind:
            await adapter.schema()
            await adapter.close()
            with pytest.raises(OwnerError) as caught:
                async with adapter.snapshot(PATIENCE):
                    pass
            return caught.value.kind

        assert _with_adapter(owner, reuse) is OwnerErrorKind.UNREACHABLE

    def test_closes_unused(self, owner: SampleOwner) -> None:
        async def nothing(_adapter: Adapter) -> None:
            return None

        _with_adapter(owner, nothing)

    # --- errors --------------------------------------------------------------------------------

    def test_says_when_no_owner_answers(self, owner: SampleOwner) -> None:
        async def call() -> OwnerError:
            adapter = open_adapter(owner.unreachable_url, owner.options)
            try:
                with pytest.raises(OwnerError) as caught:
                    await adapter.schema()
            finally:
                await adapter.close()
            return caught.value

        error = asyncio.run(call())
        assert error.kind is OwnerErrorKind.UNREACHABLE
        assert owner.unreachable_url not in str(error)

    def test_refuses_an_option_it_does_not_know(self, owner: SampleOwner) -> None:
        with pytest.raises(ValueError, match="nosuch") as caught:
            open_adapter(owner.url, {**owner.options, "nosuch": SECRET})
        assert SECRET not in str(caught.value)

    def test_quotes_nothing_of_the_owners_errors(self, owner: SampleOwner) -> None:
        async def provoke(adapter: Adapter) -> list[OwnerError]:
            published = await adapter.schema()
            table = _table(published, "events")
            name = _qualified(table)
            texts = (
                f"SELECT CAST(note || '{SECRET}' AS integer) FROM {name}",
                f'SELECT nosuch AS "{SECRET}" FROM {name}',
                f"SELEC '{SECRET}'",
            )
            caught = []
            for text in texts:
                statement = Statement(text, (table,), (Output("c", "integer"),))
                try:
                    await _drain(adapter, statement, PATIENCE)
                except OwnerError as error:
                    caught.append(error)
            return caught

        errors = _with_adapter(owner, provoke)
        assert len(errors) == 3
        for error in errors:
            assert SECRET not in f"{error} {error.what} {error!r}"
            # A traceback prints what an error was raised from, unless told not to.
            assert error.__cause__ is None
            assert error.__suppress_context__ or error.__context__ is None

    @needs(WRONG_VALUES)
    def test_fails_on_a_value_of_another_type(self, owner: SampleOwner) -> None:
        owner.break_value("fragile", "v", 2)

        async def scan(adapter: Adapter) -> OwnerError:
            table = _table(await adapter.schema(), "fragile")
            with pytest.raises(OwnerError) as caught:
                await _drain(adapter, Scan(table, table.columns), PATIENCE)
            return caught.value

        error = _with_adapter(owner, scan)
        assert error.kind is OwnerErrorKind.WRONG_VALUE
        assert "fragile" in error.what
        assert '"v"' in error.what

    @needs(WRONG_VALUES, "integer count")
    def test_aggregates_no_value_of_another_type(self, owner: SampleOwner) -> None:
        owner.break_value("fragile", "v", 2)

        async def scan(adapter: Adapter) -> OwnerError:
            table = _table(await adapter.schema(), "fragile")
            query = Scan(table, (), counted=True, partials=(Partial(table.column("v")),))
            assert adapter.counts(query)
            with pytest.raises(OwnerError) as caught:
                await _drain(adapter, query, PATIENCE)
            return caught.value

        error = _with_adapter(owner, scan)
        assert error.kind is OwnerErrorKind.WRONG_VALUE
        assert '"v"' in error.what

    def test_says_when_a_published_column_is_gone(self, owner: SampleOwner) -> None:
        async def scan(adapter: Adapter) -> OwnerErrorKind:
            table = _table(await adapter.schema(), "fragile")
            await asyncio.to_thread(owner.drop_column, "fragile", "v")
            with pytest.raises(OwnerError) as caught:
                await _drain(adapter, Scan(table, table.columns), PATIENCE)
            return caught.value.kind

        assert _with_adapter(owner, scan) is OwnerErrorKind.SCHEMA_CHANGED


# --- running --------------------------------------------------------------------------------------


@asynccontextmanager
async def _opened(owner: SampleOwner) -> AsyncIterator[Adapter]:
    adapter = open_adapter(owner.url, owner.options)
    try:
        yield adapter
    finally:
        await adapter.close()
        await adapter.close()


def _with_adapter(owner: SampleOwner, function: Callable[[Adapter], Awaitable[T]]) -> T:
    async def run() -> T:
        async with _opened(owner) as adapter:
            return await function(adapter)

    return asyncio.run(run())


def _with_snapshot(
    owner: SampleOwner, function: Callable[[Snapshot, OwnerSchema], Awaitable[T]]
) -> T:
    async def run(adapter: Adapter) -> T:
        published = await adapter.schema()
        async with adapter.snapshot(PATIENCE * 6) as snapshot:
            return await function(snapshot, published)

    return _with_adapter(owner, run)


def _published(owner: SampleOwner) -> OwnerSchema:
    return _with_adapter(owner, lambda adapter: adapter.schema())


def _position(value: Value) -> Any:
    """What PostgreSQL sorts a value by: NaN comes behind all numbers, text is its bytes."""
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, float | Decimal):
        return (True, 0) if math.isnan(value) else (False, value)
    return value


def _table(published: OwnerSchema, name: str) -> Table:
    return next(table for table in published.tables if table.name == name)


def _type(published: OwnerSchema, name: str) -> str:
    table, dot, column = name.partition(".")
    return _table(published, table).column(column).type if dot else name


def _statement(published: OwnerSchema, name: str) -> Statement:
    text, types, _ = STATEMENTS[name]
    names = {table.name: _qualified(table) for table in published.tables}
    return Statement(
        text.format(**names),
        tuple(table for table in published.tables if f"{{{table.name}}}" in text),
        tuple(Output(f"c{i}", _type(published, due)) for i, due in enumerate(types)),
        limit=100_000,
    )


def _qualified(table: Table) -> str:
    names = (table.source_schema, table.source_name)
    return ".".join(f'"{name}"' for name in names if name is not None)


async def _batches(snapshot: Snapshot, query: Query) -> list[Batch]:
    return [batch async for batch in snapshot.run(Authorized(query, ledger_entry=1))]


async def _rows(snapshot: Snapshot, query: Query) -> list[Row]:
    types = [output.type for output in query.outputs]
    rows: list[Row] = []
    for batch in await _batches(snapshot, query):
        columns: list[list[Value]] = [
            [decode(type_, cell) for cell in cells]
            for type_, cells in zip(types, batch.columns, strict=True)
        ]
        rows += zip(*columns, strict=True)
    return rows


def _counting_between(
    asked: Callable[[OwnerSchema], tuple[Query, Query]],
) -> Callable[[Adapter], Awaitable[tuple[int, int]]]:
    """Run the second query after the first batch of the first one; tell its count and all rows."""

    async def count(adapter: Adapter) -> tuple[int, int]:
        query, counted = asked(await adapter.schema())
        received = found = 0
        async with adapter.snapshot(PATIENCE) as snapshot:
            async for batch in snapshot.run(Authorized(query, ledger_entry=1)):
                if not received:
                    found = sum(b.rows for b in await _batches(snapshot, counted))
                received += batch.rows
        return found, received

    return count


async def _drain(adapter: Adapter, query: Query, seconds: float) -> None:
    async with adapter.snapshot(seconds) as snapshot:
        await _batches(snapshot, query)


async def _until(reached: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not await asyncio.to_thread(reached):  # noqa: ASYNC110 - it happens at the owner
            await asyncio.sleep(0.02)


def _takes_keys(owner: SampleOwner, published: OwnerSchema, column: str) -> bool:
    table = _table(published, "things")
    asked = Membership(column, (), table.column(column).type)
    return _with_adapter(owner, lambda adapter: _supports(adapter, table, asked))


async def _supports(adapter: Adapter, table: Table, predicate: Predicate) -> bool:
    await adapter.schema()
    return adapter.supports(table, predicate)


def _reduced(table: Table, column: str, source_column: str, source: Scan) -> Scan:
    """Read the key of a table where a column is among those of another scan."""
    semi_join = SemiJoin(column, source_column, source)
    return Scan(table, (table.column("id"),), semi_joins=(semi_join,))


def _asking(
    query: Callable[[OwnerSchema], Scan],
) -> Callable[[Snapshot, OwnerSchema], Awaitable[list[Row]]]:
    async def ask(snapshot: Snapshot, published: OwnerSchema) -> list[Row]:
        return await _rows(snapshot, query(published))

    return ask


def _number_key(value: int, type_: str) -> bytes:
    if type_ == "numeric":
        cell = DecimalBinaryDumper(Decimal).dump(Decimal(value))
        assert cell is not None
        return bytes(cell)
    return value.to_bytes(4 if type_ == "integer" else 8, "big", signed=True)
