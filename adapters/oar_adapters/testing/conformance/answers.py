"""Tests of what an owner evaluates: predicates, counted scans, whole statements."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace

import pytest

from oar_adapters.authorized import Authorized
from oar_adapters.interface import (
    Adapter,
    And,
    Column,
    Comparison,
    Derived,
    KeyFilter,
    Membership,
    Not,
    OwnerSchema,
    Partial,
    Predicate,
    Query,
    Scan,
    Table,
)
from oar_adapters.testing import cases, groups, meaning
from oar_adapters.testing.conformance.running import (
    PATIENCE,
    STATEMENTS,
    SampleOwner,
    batches_of,
    needs,
    rows_of,
    statement_of,
    table_of,
    with_adapter,
)
from oar_adapters.testing.samples import NUMBERS, THINGS, Row, integer_key


class Answering:
    """Predicates, counted scans, whole statements."""

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
            table = table_of(published, "things")
            wrong = []
            async with adapter.snapshot(PATIENCE * 6) as snapshot:
                for name, predicate in case():
                    if not adapter.supports(table, predicate):
                        continue
                    query = Scan(table, (table.column("id"),), (predicate,))
                    found = Counter(await rows_of(snapshot, query))
                    due = Counter(
                        row[:1] for row in THINGS.rows if meaning.holds(THINGS, row, predicate)
                    )
                    if not due <= found <= Counter(row[:1] for row in THINGS.rows):
                        wrong.append(f"{name}: {predicate}: lost {due - found}")
            return wrong

        assert with_adapter(owner, compare) == []

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
            table = table_of(await adapter.schema(), "things")
            asked = [*strange, *(Not(And((predicate,))) for predicate in strange)]
            return [predicate for predicate in asked if adapter.supports(table, predicate)]

        assert with_adapter(owner, taken) == []

    # --- counted scans -------------------------------------------------------------------------

    def test_tells_of_each_group_what_postgresql_would(self, owner: SampleOwner) -> None:
        async def compare(adapter: Adapter) -> list[str]:
            table = table_of(await adapter.schema(), "things")
            wrong: list[str] = []
            async with adapter.snapshot(PATIENCE * 6) as snapshot:
                for name, by, partial in groups.CASES:
                    query = groups.scan(table, by, partial)
                    if adapter.counts(query):
                        found = groups.merged(query, await rows_of(snapshot, query))
                        if found != groups.due(THINGS, by, partial):
                            wrong.append(f"{name} by {by}")
            return wrong

        assert with_adapter(owner, compare) == []

    @needs("integer count", "text by")
    def test_counts_what_predicates_and_keys_leave(self, owner: SampleOwner) -> None:
        async def count(adapter: Adapter) -> list[list[Row]]:
            table = table_of(await adapter.schema(), "numbers")
            keys = KeyFilter("k", "bigint", tuple(integer_key(3 * n) for n in range(1, 30_000)))
            told = (Partial(table.column("id")),)
            query = Scan(table, (), (Comparison("id", ">", "9", "integer"),), (keys,))
            query = replace(query, counted=True, partials=told)
            nothing = replace(query, predicates=(Comparison("id", "<", "0", "integer"),))
            first = replace(query, columns=(table.column("label"),), limit=7)
            assert all(map(adapter.counts, (query, nothing, first)))
            async with adapter.snapshot(PATIENCE * 6) as snapshot:
                return [await rows_of(snapshot, each) for each in (query, nothing, first)]

        everything, nothing, first = with_adapter(owner, count)
        due = sum(row[1] is not None for row in NUMBERS.rows[9 : 30_000 - 1])
        # An adapter may send a group in several rows.
        assert [sum(column) for column in zip(*everything, strict=True)] == [due, due]
        assert all(row == (0, 0) for row in nothing)
        assert len(first) >= 7

    # --- whole statements ----------------------------------------------------------------------

    def test_answers_whole_statements(self, owner: SampleOwner, statement_name: str) -> None:
        async def answer(adapter: Adapter) -> tuple[list[Row], list[Row]]:
            published = await adapter.schema()
            statement = statement_of(published, statement_name)
            columns = tuple(Column(o.name, o.type, o.name) for o in statement.outputs)
            derived = Derived(statement.sql, statement.tables)
            table = Table("a subquery", columns, "t", derived=derived)
            async with adapter.snapshot(PATIENCE) as snapshot:
                by_itself = await rows_of(snapshot, statement)
                return by_itself, await rows_of(snapshot, Scan(table, columns, limit=100_000))

        by_itself, as_table = with_adapter(owner, answer)
        _, _, due = STATEMENTS[statement_name]
        assert Counter(by_itself) == Counter(due)
        assert Counter(as_table) == Counter(due)

    @needs("interleaving")
    @pytest.mark.parametrize(("limit", "due"), [(None, 60_000), (7, 7), (100_000, 60_000)])
    def test_counts_a_scan_between_two_batches_of_it(
        self, owner: SampleOwner, limit: int | None, due: int
    ) -> None:
        def asked(published: OwnerSchema) -> tuple[Query, Query]:
            table = table_of(published, "numbers")
            return Scan(table, (table.column("id"),)), Scan(table, (), limit=limit)

        assert with_adapter(owner, _counting_between(asked)) == (due, 60_000)

    @needs("interleaving", "statement rows")
    @pytest.mark.parametrize(("limit", "due"), [(None, 60_000), (7, 7), (100_000, 60_000)])
    def test_counts_a_whole_statement_between_two_batches_of_it(
        self, owner: SampleOwner, limit: int | None, due: int
    ) -> None:
        def asked(published: OwnerSchema) -> tuple[Query, Query]:
            statement = replace(statement_of(published, "statement rows"), limit=None)
            return statement, replace(statement, limit=limit, counted=True)

        assert with_adapter(owner, _counting_between(asked)) == (due, 60_000)


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
                    found = sum(b.rows for b in await batches_of(snapshot, counted))
                received += batch.rows
        return found, received

    return count
