"""The owner under test, what is asked of it, and how its adapter is run."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import Final, Protocol, TypeVar

from oar_adapters.authorized import Authorized
from oar_adapters.interface import (
    Adapter,
    Batch,
    Output,
    OwnerSchema,
    Query,
    Snapshot,
    Statement,
    Table,
)
from oar_adapters.registry import open_adapter
from oar_adapters.testing.samples import EVENTS, NUMBERS, THINGS, Row, Value, decode

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

WRONG_VALUES: Final = "wrong values"
"""What an owner's database cannot hold, as ``cannot`` names it."""

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


@asynccontextmanager
async def opened(url: str, options: Mapping[str, str]) -> AsyncIterator[Adapter]:
    """Open an adapter through the registry, and close it twice."""
    adapter = open_adapter(url, options)
    try:
        yield adapter
    finally:
        await adapter.close()
        await adapter.close()


def use(
    url: str,
    function: Callable[[Adapter, Mapping[str, Table]], Awaitable[T]],
    options: Mapping[str, str] = MappingProxyType({}),
) -> T:
    """Run a function with an adapter and the tables it publishes, by name."""

    async def run() -> T:
        async with opened(url, options) as adapter:
            published = await adapter.schema()
            return await function(adapter, {table.name: table for table in published.tables})

    return asyncio.run(run())


def with_adapter(owner: SampleOwner, function: Callable[[Adapter], Awaitable[T]]) -> T:
    """Run a function with an adapter of its own."""

    async def run() -> T:
        async with opened(owner.url, owner.options) as adapter:
            return await function(adapter)

    return asyncio.run(run())


def with_snapshot(
    owner: SampleOwner, function: Callable[[Snapshot, OwnerSchema], Awaitable[T]]
) -> T:
    """Run a function in one snapshot, with what the owner publishes."""

    async def run(adapter: Adapter) -> T:
        published = await adapter.schema()
        async with adapter.snapshot(PATIENCE * 6) as snapshot:
            return await function(snapshot, published)

    return with_adapter(owner, run)


def table_of(published: OwnerSchema, name: str) -> Table:
    """Return the published table of that name."""
    return next(table for table in published.tables if table.name == name)


def _type(published: OwnerSchema, name: str) -> str:
    table, dot, column = name.partition(".")
    return table_of(published, table).column(column).type if dot else name


def statement_of(published: OwnerSchema, name: str) -> Statement:
    """Make one of `STATEMENTS` for an owner."""
    text, types, _ = STATEMENTS[name]
    names = {table.name: qualified(table) for table in published.tables}
    return Statement(
        text.format(**names),
        tuple(table for table in published.tables if f"{{{table.name}}}" in text),
        tuple(Output(f"c{i}", _type(published, due)) for i, due in enumerate(types)),
        limit=100_000,
    )


def qualified(table: Table) -> str:
    """Write the name of a table at its owner."""
    names = (table.source_schema, table.source_name)
    return ".".join(f'"{name}"' for name in names if name is not None)


async def batches_of(snapshot: Snapshot, query: Query) -> list[Batch]:
    """Run a query to its end."""
    return [batch async for batch in snapshot.run(Authorized(query, ledger_entry=1))]


async def rows_of(snapshot: Snapshot, query: Query) -> list[Row]:
    """Run a query to its end, and read its cells."""
    types = [output.type for output in query.outputs]
    rows: list[Row] = []
    for batch in await batches_of(snapshot, query):
        columns: list[list[Value]] = [
            [decode(type_, cell) for cell in cells]
            for type_, cells in zip(types, batch.columns, strict=True)
        ]
        rows += zip(*columns, strict=True)
    return rows
