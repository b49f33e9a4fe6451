"""Tests of semi-joins inside an owner, and of keys of several columns."""

from __future__ import annotations

import hmac
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace

import pytest

from oar_adapters.interface import (
    Comparison,
    KeyFilter,
    OwnerSchema,
    Scan,
    SemiJoin,
    Snapshot,
    Table,
    base_type,
)
from oar_adapters.testing.conformance.running import (
    SampleOwner,
    batches_of,
    needs,
    rows_of,
    table_of,
    with_snapshot,
)
from oar_adapters.testing.samples import NUMBERS, THINGS, Row, decode, integer_key


class Joining:
    """Semi-joins and composite keys."""

    # --- semi-joins ----------------------------------------------------------------------------

    @needs("semi-join")
    def test_joins_two_columns_of_a_type_inside_the_owner(
        self, owner: SampleOwner, key_column: str
    ) -> None:
        column = key_column

        def semi_joined(published: OwnerSchema) -> Scan:
            table = table_of(published, "things")
            few = (Comparison("id", "<", "9", "integer"),)
            return _reduced(table, column, column, Scan(table, (table.column(column),), few))

        position = THINGS.position(column)
        values = {row[position] for row in THINGS.rows if row[0] in range(9)} - {None}
        due = Counter(row[:1] for row in THINGS.rows if row[position] in values)
        everything = Counter(row[:1] for row in THINGS.rows)
        found = Counter(with_snapshot(owner, _asking(semi_joined)))
        assert due <= found <= everything

    @needs("semi-join")
    @pytest.mark.parametrize("count", [0, 1, 50_000])
    def test_looks_keys_up_inside_a_semi_join_and_repeats_no_row(
        self, owner: SampleOwner, count: int
    ) -> None:
        labels = tuple(f"слово {number}".encode() for number in range(1, count + 1))

        def semi_joined(published: OwnerSchema) -> Scan:
            numbers, things = table_of(published, "numbers"), table_of(published, "things")
            keys = (KeyFilter("label", "text", labels),)
            inner = Scan(numbers, (), key_filters=keys)
            again = _reduced(numbers, "id", "id", inner)
            return _reduced(things, "id", "id", again)

        found = with_snapshot(owner, _asking(semi_joined))
        due = Counter((number,) for number in range(1, min(count, len(THINGS.rows) - 1) + 1))
        assert Counter(found) == due

    @needs("semi-join")
    def test_writes_a_limit_and_a_count_around_a_semi_join(self, owner: SampleOwner) -> None:
        def semi_joined(published: OwnerSchema) -> Scan:
            numbers, things = table_of(published, "numbers"), table_of(published, "things")
            inner = Scan(things, (), (Comparison("id", "<", "50", "integer"),))
            return replace(_reduced(numbers, "id", "id", inner), columns=(), limit=20)

        async def count(snapshot: Snapshot, published: OwnerSchema) -> int:
            return sum(b.rows for b in await batches_of(snapshot, semi_joined(published)))

        assert with_snapshot(owner, count) == 20

    # --- digests -------------------------------------------------------------------------------

    @needs("digests")
    @pytest.mark.parametrize("columns", [("k",), ("label",), ("k", "label")])
    @pytest.mark.parametrize("count", [0, 1, 50_000])
    def test_finds_the_rows_of_digests_and_no_other(
        self, owner: SampleOwner, columns: tuple[str, ...], count: int
    ) -> None:
        secret = bytes(range(32))
        places = [NUMBERS.position(name) for name in columns]
        rows = (tuple(row[place] for place in places) for row in NUMBERS.rows[:count])
        wanted = list(dict.fromkeys(row for row in rows if None not in row))

        def part(name: str, values: Iterable[object]) -> KeyFilter:
            texts = (str(value).encode() for value in values)
            digests = tuple(hmac.digest(secret, text, "sha256") for text in texts)
            type_ = "bigint" if name == "k" else "text"
            return KeyFilter(name, type_, digests, hmac=secret)

        async def scan(snapshot: Snapshot, published: OwnerSchema) -> list[Row]:
            table = table_of(published, "numbers")
            by_column = zip(*wanted, strict=True) if wanted else [()] * len(columns)
            first, *others = map(part, columns, by_column)
            keys = replace(first, also=tuple(others))
            return await rows_of(snapshot, Scan(table, (table.column("id"),), key_filters=(keys,)))

        found = with_snapshot(owner, scan)
        asked = set(wanted)
        due = [row[:1] for row in NUMBERS.rows if tuple(row[p] for p in places) in asked]
        assert Counter(found) == Counter(due)

    # --- composite keys ------------------------------------------------------------------------

    @needs("composite keys")
    @pytest.mark.parametrize("count", [0, 1, 2, 50_000])
    def test_finds_the_rows_of_keys_of_two_columns(self, owner: SampleOwner, count: int) -> None:
        # The label of every other key is that of the next row: each column alone would match.
        wanted = [(3 * n, f"слово {n + n % 2}") for n in range(1, count + 1)]

        async def scan(snapshot: Snapshot, published: OwnerSchema) -> list[Row]:
            table = table_of(published, "numbers")
            labels = KeyFilter("label", "text", tuple(label.encode() for _, label in wanted))
            keys = KeyFilter("k", "bigint", tuple(integer_key(k) for k, _ in wanted), (labels,))
            return await rows_of(snapshot, Scan(table, (table.column("id"),), key_filters=(keys,)))

        asked = set(wanted)
        due = [row[:1] for row in NUMBERS.rows if row[1:] in asked]
        assert Counter(with_snapshot(owner, scan)) == Counter(due)

    @needs("composite keys")
    def test_finds_at_least_the_rows_of_each_composite_key(
        self, owner: SampleOwner, keys_together: tuple[str, ...]
    ) -> None:
        names = keys_together
        places = [THINGS.position(name) for name in names]

        async def scan(snapshot: Snapshot, published: OwnerSchema) -> list[tuple[Row, list[Row]]]:
            table = table_of(published, "things")
            columns = tuple(table.column(name) for name in names)
            found = []
            for batch in await batches_of(snapshot, Scan(table, columns)):
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
                    found.append((row, await rows_of(snapshot, query)))
            return found

        answers = with_snapshot(owner, scan)
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
            table = table_of(published, "things")
            few = Scan(table, (), (Comparison("id", "<", "9", "integer"),))
            also = tuple((name, name) for name in names[1:])
            semi_join = SemiJoin(names[0], names[0], few, also)
            return Scan(table, (table.column("id"),), semi_joins=(semi_join,))

        places = [THINGS.position(name) for name in names]
        found = Counter(with_snapshot(owner, _asking(semi_joined)))
        values = {tuple(row[p] for p in places) for row in THINGS.rows if row[0] in range(9)}
        known = {row for row in values if None not in row}
        due = [row[:1] for row in THINGS.rows if tuple(row[p] for p in places) in known]
        assert Counter(due) <= found <= Counter(row[:1] for row in THINGS.rows)

    @needs("composite keys", "semi-join")
    def test_joins_numbers_and_labels_of_one_row_inside_the_owner(self, owner: SampleOwner) -> None:
        def semi_joined(published: OwnerSchema) -> Scan:
            numbers, things = table_of(published, "numbers"), table_of(published, "things")
            few = Scan(numbers, (), (Comparison("id", "<", "9", "integer"),))
            crossed = SemiJoin("id", "id", few, (("id", "k"),))
            alike = SemiJoin("id", "id", few, (("id", "id"),))
            return Scan(things, (things.column("id"),), semi_joins=(alike, crossed))

        # A row whose number is its key three times over is none of them.
        assert with_snapshot(owner, _asking(semi_joined)) == []


def _reduced(table: Table, column: str, source_column: str, source: Scan) -> Scan:
    """Read the key of a table where a column is among those of another scan."""
    semi_join = SemiJoin(column, source_column, source)
    return Scan(table, (table.column("id"),), semi_joins=(semi_join,))


def _asking(
    query: Callable[[OwnerSchema], Scan],
) -> Callable[[Snapshot, OwnerSchema], Awaitable[list[Row]]]:
    async def ask(snapshot: Snapshot, published: OwnerSchema) -> list[Row]:
        return await rows_of(snapshot, query(published))

    return ask
