"""Tests of how an adapter behaves: it only reads, in one snapshot, and can be stopped."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import pytest

from oar_adapters.authorized import Authorized
from oar_adapters.interface import (
    Adapter,
    Output,
    OwnerError,
    OwnerErrorKind,
    Partial,
    Query,
    Scan,
    Statement,
)
from oar_adapters.registry import open_adapter
from oar_adapters.testing.conformance.running import (
    PATIENCE,
    SECRET,
    WRONG_VALUES,
    SampleOwner,
    batches_of,
    needs,
    qualified,
    rows_of,
    table_of,
    with_adapter,
)
from oar_adapters.testing.samples import Row

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


class Conduct:
    """Reading only, snapshots, cancelling, errors."""

    # --- read only -----------------------------------------------------------------------------

    @pytest.mark.parametrize("text", HOSTILE)
    def test_writes_nothing_whatever_it_is_given(self, owner: SampleOwner, text: str) -> None:
        before = owner.rows("events")

        async def attack(adapter: Adapter) -> bool:
            published = await adapter.schema()
            table = table_of(published, "events")
            names = {table.name: qualified(table) for table in published.tables}
            statement = Statement(text.format(**names), (table,), (Output("id", "integer"),))
            try:
                async with adapter.snapshot(PATIENCE) as snapshot:
                    await batches_of(snapshot, statement)
            except OwnerError:
                return False
            return True

        answered = with_adapter(owner, attack)
        assert not answered or text.endswith(("-- '", "FOR UPDATE"))
        assert owner.rows("events") == before

    # --- snapshots -----------------------------------------------------------------------------

    def test_a_query_that_is_left_before_its_end_makes_room_for_the_next(
        self, owner: SampleOwner
    ) -> None:
        async def leave(adapter: Adapter) -> tuple[int, int]:
            table = table_of(await adapter.schema(), "numbers")
            query = Scan(table, (table.column("id"),))
            async with adapter.snapshot(PATIENCE) as snapshot:
                async for _ in snapshot.run(Authorized(query, ledger_entry=1)):
                    break
                counted = sum(
                    b.rows for b in await batches_of(snapshot, replace(query, columns=()))
                )
                return counted, len(await rows_of(snapshot, query))

        assert with_adapter(owner, leave) == (60_000, 60_000)

    def test_sees_one_moment_while_a_writer_commits(self, owner: SampleOwner) -> None:
        async def look_twice(adapter: Adapter) -> tuple[list[Row], list[Row], list[Row]]:
            table = table_of(await adapter.schema(), "events")
            query = Scan(table, (table.column("id"),))
            async with adapter.snapshot(PATIENCE) as snapshot:
                first = await rows_of(snapshot, query)
                await asyncio.to_thread(owner.insert, "events", (1000 + len(first), "between"))
                second = await rows_of(snapshot, query)
            async with adapter.snapshot(PATIENCE) as snapshot:
                later = await rows_of(snapshot, query)
            return first, second, later

        first, second, later = with_adapter(owner, look_twice)
        assert Counter(first) == Counter(second)
        assert len(later) == len(first) + 1

    def test_takes_the_snapshot_before_the_first_query(self, owner: SampleOwner) -> None:
        before = owner.rows("events")

        async def look(adapter: Adapter) -> int:
            table = table_of(await adapter.schema(), "events")
            async with adapter.snapshot(PATIENCE) as snapshot:
                await asyncio.to_thread(owner.insert, "events", (2000 + before, "after"))
                return len(await rows_of(snapshot, Scan(table, table.columns)))

        assert with_adapter(owner, look) == before

    def test_runs_more_snapshots_than_it_has_connections(self, owner: SampleOwner) -> None:
        async def many(adapter: Adapter) -> list[int]:
            table = table_of(await adapter.schema(), "events")

            async def one() -> int:
                async with adapter.snapshot(PATIENCE) as snapshot:
                    return len(await rows_of(snapshot, Scan(table, table.columns)))

            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(one()) for _ in range(40)]
            return [task.result() for task in tasks]

        assert set(with_adapter(owner, many)) == {owner.rows("events")}

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
            table = table_of(published, "fragile")
            async with adapter.snapshot(PATIENCE) as snapshot:
                return bool(await batches_of(snapshot, Scan(table, (table.column("id"),))))

        assert with_adapter(owner, cancel)

    def test_stops_the_owner_at_the_deadline(self, owner: SampleOwner) -> None:
        async def outlast(adapter: Adapter) -> OwnerErrorKind:
            published = await adapter.schema()
            with pytest.raises(OwnerError) as caught:
                await _drain(adapter, owner.slow_query(published), 0.5)
            await _until(lambda: owner.running() == 0)
            return caught.value.kind

        assert with_adapter(owner, outlast) is OwnerErrorKind.TIMEOUT

    def test_closing_stops_what_runs(self, owner: SampleOwner) -> None:
        async def close(adapter: Adapter) -> None:
            published = await adapter.schema()
            task = asyncio.create_task(_drain(adapter, owner.slow_query(published), 60.0))
            await _until(lambda: owner.running() > 0)
            await adapter.close()
            with pytest.raises(OwnerError):
                await task
            await _until(lambda: owner.running() == 0)

        with_adapter(owner, close)

    def test_answers_nothing_once_closed(self, owner: SampleOwner) -> None:
        async def reuse(adapter: Adapter) -> OwnerErrorKind:
            await adapter.schema()
            await adapter.close()
            with pytest.raises(OwnerError) as caught:
                async with adapter.snapshot(PATIENCE):
                    pass
            return caught.value.kind

        assert with_adapter(owner, reuse) is OwnerErrorKind.UNREACHABLE

    def test_closes_unused(self, owner: SampleOwner) -> None:
        async def nothing(_adapter: Adapter) -> None:
            return None

        with_adapter(owner, nothing)

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
            table = table_of(published, "events")
            name = qualified(table)
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

        errors = with_adapter(owner, provoke)
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
            table = table_of(await adapter.schema(), "fragile")
            with pytest.raises(OwnerError) as caught:
                await _drain(adapter, Scan(table, table.columns), PATIENCE)
            return caught.value

        error = with_adapter(owner, scan)
        assert error.kind is OwnerErrorKind.WRONG_VALUE
        assert "fragile" in error.what
        assert '"v"' in error.what

    @needs(WRONG_VALUES, "integer count")
    def test_aggregates_no_value_of_another_type(self, owner: SampleOwner) -> None:
        owner.break_value("fragile", "v", 2)

        async def scan(adapter: Adapter) -> OwnerError:
            table = table_of(await adapter.schema(), "fragile")
            query = Scan(table, (), counted=True, partials=(Partial(table.column("v")),))
            assert adapter.counts(query)
            with pytest.raises(OwnerError) as caught:
                await _drain(adapter, query, PATIENCE)
            return caught.value

        error = with_adapter(owner, scan)
        assert error.kind is OwnerErrorKind.WRONG_VALUE
        assert '"v"' in error.what

    def test_says_when_a_published_column_is_gone(self, owner: SampleOwner) -> None:
        async def scan(adapter: Adapter) -> OwnerErrorKind:
            table = table_of(await adapter.schema(), "fragile")
            await asyncio.to_thread(owner.drop_column, "fragile", "v")
            with pytest.raises(OwnerError) as caught:
                await _drain(adapter, Scan(table, table.columns), PATIENCE)
            return caught.value.kind

        assert with_adapter(owner, scan) is OwnerErrorKind.SCHEMA_CHANGED


async def _drain(adapter: Adapter, query: Query, seconds: float) -> None:
    async with adapter.snapshot(seconds) as snapshot:
        await batches_of(snapshot, query)


async def _until(reached: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not await asyncio.to_thread(reached):  # noqa: ASYNC110 - it happens at the owner
            await asyncio.sleep(0.02)
