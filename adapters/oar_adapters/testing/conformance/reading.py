"""Tests of what an adapter publishes, and of scans with and without keys."""

from __future__ import annotations

import math
from collections import Counter
from decimal import Decimal
from typing import Any

import pytest
from psycopg.types.numeric import DecimalBinaryDumper

from oar_adapters.interface import (
    Adapter,
    Batch,
    Comparison,
    KeyFilter,
    Membership,
    OwnerSchema,
    Predicate,
    Scan,
    Snapshot,
    SortKey,
    Table,
    base_type,
)
from oar_adapters.testing.conformance.running import (
    PATIENCE,
    SECRET,
    SampleOwner,
    batches_of,
    needs,
    rows_of,
    table_of,
    with_adapter,
    with_snapshot,
)
from oar_adapters.testing.samples import (
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


class Reading:
    """Schema, scans, keys."""

    # --- schema --------------------------------------------------------------------------------

    def test_publishes_the_tables_with_types_that_hold_their_values(
        self, owner: SampleOwner
    ) -> None:
        published = _published(owner)
        for sample in TABLES:
            table = table_of(published, sample.name)
            assert [c.name for c in table.columns] == [c.name for c in sample.columns]
            for column, due in zip(table.columns, sample.columns, strict=True):
                assert base_type(column.type) in TYPES[due.kind], column
            assert table.row_estimate > 0

    def test_publishes_only_keys_and_not_nulls_that_hold(self, owner: SampleOwner) -> None:
        published = _published(owner)
        for sample in TABLES:
            table = table_of(published, sample.name)
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
            table = table_of(published, sample.name)
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
            table = table_of(published, sample.name)
            return await rows_of(snapshot, Scan(table, table.columns))

        assert Counter(with_snapshot(owner, scan)) == Counter(sample.rows)

    def test_returns_the_columns_in_the_order_that_was_asked(self, owner: SampleOwner) -> None:
        async def scan(snapshot: Snapshot, published: OwnerSchema) -> list[Row]:
            table = table_of(published, "things")
            asked = (table.column("s"), table.column("id"), table.column("s"))
            return await rows_of(snapshot, Scan(table, asked))

        due = [(row[3], row[0], row[3]) for row in THINGS.rows]
        assert Counter(with_snapshot(owner, scan)) == Counter(due)

    @pytest.mark.parametrize(("limit", "due"), [(None, 60_000), (7, 7), (0, 0), (100_000, 60_000)])
    @pytest.mark.parametrize("columns", [(), ("id",)], ids=["count", "rows"])
    def test_counts_rows_up_to_the_limit(
        self, owner: SampleOwner, columns: tuple[str, ...], limit: int | None, due: int
    ) -> None:
        async def scan(snapshot: Snapshot, published: OwnerSchema) -> int:
            table = table_of(published, "numbers")
            asked = tuple(table.column(name) for name in columns)
            return sum(b.rows for b in await batches_of(snapshot, Scan(table, asked, limit=limit)))

        assert with_snapshot(owner, scan) == due

    @needs("first rows")
    @pytest.mark.parametrize("descending", [False, True])
    @pytest.mark.parametrize("nulls_first", [False, True])
    def test_sends_the_first_rows_by_every_column_with_an_order(
        self, owner: SampleOwner, *, descending: bool, nulls_first: bool
    ) -> None:
        async def scan(adapter: Adapter) -> dict[str, list[Value]]:
            table = table_of(await adapter.schema(), THINGS.name)
            found = {}
            async with adapter.snapshot(PATIENCE) as snapshot:
                for column in table.columns:
                    if column.ordered:
                        keys = (SortKey(column.name, descending, nulls_first),)
                        query = Scan(table, (column,), limit=3, order=keys)
                        rows = await rows_of(snapshot, query)
                        found[column.name] = [value for (value,) in rows]
            return found

        found = with_adapter(owner, scan)
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
            table = table_of(published, "numbers")
            return await batches_of(snapshot, Scan(table, table.columns))

        batches = with_snapshot(owner, scan)
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
            table = table_of(published, "numbers")
            keys = KeyFilter("k", type_, tuple(_number_key(value, type_) for value in wanted))
            return await rows_of(
                snapshot, Scan(table, (table.column("id"), table.column("k")), key_filters=(keys,))
            )

        asked = set(wanted)
        due = [row[:2] for row in NUMBERS.rows if row[1] in asked]
        assert Counter(with_snapshot(owner, scan)) == Counter(due)

    @pytest.mark.parametrize("count", [0, 1, 50_000])
    def test_finds_the_rows_of_text_keys(self, owner: SampleOwner, count: int) -> None:
        wanted = [f"слово {number}" for number in range(2, 2 * count + 1, 2)]

        async def scan(snapshot: Snapshot, published: OwnerSchema) -> list[Row]:
            table = table_of(published, "numbers")
            keys = KeyFilter("label", "text", tuple(text.encode() for text in wanted))
            return await rows_of(snapshot, Scan(table, (table.column("id"),), key_filters=(keys,)))

        asked = set(wanted)
        due = [row[:1] for row in NUMBERS.rows if row[2] in asked]
        assert Counter(with_snapshot(owner, scan)) == Counter(due)

    def test_finds_at_least_the_row_of_each_key(self, owner: SampleOwner, key_column: str) -> None:
        column = key_column
        position = THINGS.position(column)

        async def scan(snapshot: Snapshot, published: OwnerSchema) -> dict[bytes, list[Row]]:
            table = table_of(published, "things")
            known = await batches_of(snapshot, Scan(table, (table.column(column),)))
            type_ = base_type(table.column(column).type)
            cells = {cell for b in known for cell in b.columns[0] if cell is not None}
            found = {}
            for cell in cells:
                keys = KeyFilter(column, type_, (cell,))
                found[cell] = await rows_of(
                    snapshot, Scan(table, table.columns, key_filters=(keys,))
                )
            return found

        published = _published(owner)
        assert _takes_keys(owner, published, column)
        type_ = table_of(published, "things").column(column).type
        for cell, found in with_snapshot(owner, scan).items():
            due = Counter(row for row in THINGS.rows if row[position] == decode(type_, cell))
            assert due
            assert due <= Counter(found) <= Counter(THINGS.rows)

    def test_applies_several_key_lists_and_predicates_together(self, owner: SampleOwner) -> None:
        async def scan(snapshot: Snapshot, published: OwnerSchema) -> list[Row]:
            table = table_of(published, "numbers")
            numbers = tuple(integer_key(3 * number) for number in range(1, 200))
            labels = tuple(f"слово {number}".encode() for number in range(100, 300))
            query = Scan(
                table,
                (table.column("id"),),
                (Comparison("id", "<>", "150", "integer"),),
                (KeyFilter("k", "bigint", numbers), KeyFilter("label", "text", labels)),
            )
            return await rows_of(snapshot, query)

        due = {(n,) for n in range(100, 200) if n % 10 and n != 150}
        assert set(with_snapshot(owner, scan)) == due

    def test_shows_no_key_in_the_rendered_query(self, owner: SampleOwner) -> None:
        async def rendered(adapter: Adapter) -> str:
            table = table_of(await adapter.schema(), "things")
            keys = (
                KeyFilter("s", "text", (SECRET.encode(),)),
                KeyFilter("n", "bigint", (integer_key(987_654_321),)),
            )
            return adapter.render(Scan(table, table.columns, key_filters=keys))

        text = with_adapter(owner, rendered)
        assert "things" in text
        assert SECRET not in text
        assert "987654321" not in text


def _published(owner: SampleOwner) -> OwnerSchema:
    return with_adapter(owner, lambda adapter: adapter.schema())


def _takes_keys(owner: SampleOwner, published: OwnerSchema, column: str) -> bool:
    table = table_of(published, "things")
    asked = Membership(column, (), table.column(column).type)
    return with_adapter(owner, lambda adapter: _supports(adapter, table, asked))


async def _supports(adapter: Adapter, table: Table, predicate: Predicate) -> bool:
    await adapter.schema()
    return adapter.supports(table, predicate)


def _position(value: Value) -> Any:
    """What PostgreSQL sorts a value by: NaN comes behind all numbers, text is its bytes."""
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, float | Decimal):
        return (True, 0) if math.isnan(value) else (False, value)
    return value


def _number_key(value: int, type_: str) -> bytes:
    if type_ == "numeric":
        cell = DecimalBinaryDumper(Decimal).dump(Decimal(value))
        assert cell is not None
        return bytes(cell)
    return value.to_bytes(4 if type_ == "integer" else 8, "big", signed=True)
