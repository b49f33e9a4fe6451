"""How the rows of a query are read in one snapshot of a PostgreSQL owner.

A row counts, a few thousand are packed at once where they are likely to be few, a large table that
is read as a whole comes packed in blocks, and everything else some rows at a time; see
:meth:`PostgresSnapshot.run`.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from typing import Any, Final, TypeGuard

import asyncpg

from oar_adapters.authorized import Authorized
from oar_adapters.batches import BATCH_BYTES, fitting
from oar_adapters.interface import (
    BINARY_TYPES,
    Batch,
    OwnerError,
    OwnerErrorKind,
    Packed,
    Query,
    Scan,
    Statement,
    Table,
    base_type,
    is_binary,
)
from oar_adapters.postgres import sql
from oar_adapters.postgres.portal import Connection, Portal
from oar_adapters.postgres.session import CODECS, Transactions, left, translated
from oar_adapters.predicates import TEXTS

BATCH_ROWS: Final = 5000
"""Rows a round trip. Measured on 100,000 rows of three columns: 1,000 63 ms, 5,000 60 ms,
20,000 83 ms."""

FIRST_WIDE_ROWS: Final = 50
"""Rows of the first batch, which nothing foretells, of a table that has wide ones."""

BLOCKS_A_BATCH: Final = 64
"""Blocks read at a time from a large table: half a megabyte, so memory stays bounded everywhere.
Measured from 64 to 1,024: the same."""

WORKERS_FROM_ROWS: Final = 50_000
"""The size of a table from which its owner may have workers share a query over it."""

FIRST_COMPUTED_ROWS: Final = 500
"""Rows of the first batch of a statement that may compute wide ones: most answers are no longer."""

WHOLE_ROWS: Final = 10_000
"""Rows that may come as one batch, where they are likely to be no more."""

SHARED_BLOCKS: Final = 1024
"""A table of 8 MB or more is read by two connections, if there is a second one to spare."""

PACKED_FROM: Final = 256
"""From so many keys, or expected rows, on, the owner packs the rows they find, if these are no more
than `WHOLE_ROWS`. Measured on a join by 5,556 keys that find 5,000 rows: 38.4 ms, against 41.4 ms.
Of its keys, read so, the proxy takes 4 ms of processor less."""

_NARROW: Final = BINARY_TYPES - TEXTS - {"bytea"}

_BLOCKS: Final = """
SELECT pg_relation_size(c.oid) / current_setting('block_size')::int8,
    has_function_privilege('pg_export_snapshot()', 'EXECUTE') AND NOT pg_is_in_recovery()
FROM pg_class c
WHERE c.oid = $1::text::regclass AND c.relkind IN ('r', 'm') AND NOT c.relhassubclass
AND current_setting('server_version_num')::int4 >= 140000
"""
"""How many blocks a table has, and whether a second connection may see the same moment.

PostgreSQL scans a range of row addresses directly since version 14."""


class PostgresSnapshot:
    """One connection inside its transaction. See :class:`~oar_adapters.interface.Snapshot`."""

    def __init__(
        self,
        connection: Connection,
        deadline: float,
        transactions: Transactions,
        wide: Collection[tuple[str, str]],
        encoding: str,
    ) -> None:
        self._encoding = encoding
        self._connection = connection
        self._deadline = deadline
        self._transactions = transactions
        self._wide = wide
        self._other: Connection | None = None
        self._beside = AsyncExitStack()
        self._ahead: set[asyncio.Task[Batch]] = set()
        self._turn, self._others_turn = asyncio.Lock(), asyncio.Lock()
        """Blocks are read ahead, so a query may come while a connection is still busy."""

    async def close(self) -> None:
        """Stop what is read ahead, and give a second connection back."""
        async with self._beside:
            for task in self._ahead:
                task.cancel()
            await asyncio.gather(*self._ahead, return_exceptions=True)

    async def run(self, query: Authorized) -> AsyncIterator[Batch]:
        """Stream the rows, each way in as few round trips as it can have."""
        asked = query.query
        types = [output.type for output in asked.outputs]
        if asked.counted if isinstance(asked, Statement) else not types:
            # Fetched as one row, it gets no workers: they were slower up to 2,000,000 rows.
            (row,) = await self._fetch(await self._opened(asked), 1)
            yield Batch((), int.from_bytes(row[0], "big"))
            return
        if await self._are_few(asked):
            text = sql.packed(asked, WHOLE_ROWS + 1)
            keys = sql.keys(asked, self._encoding)
            batch = await self._packed(self._connection, text, keys, types)
            if batch.rows <= WHOLE_ROWS:
                yield batch
                return
        async for batch in self._some_at_a_time(asked, types):
            yield batch

    # --- a few rows: as one ---------------------------------------------------------------------

    async def _are_few(self, asked: Query) -> bool:
        """Tell whether rows are likely to be no more than `WHOLE_ROWS`, and to come faster as one.

        Those that keys find are; of large tables those that are expected to be, and groups that
        workers make: to ask about these costs a round trip.
        """
        if self._may_be_wide(asked):
            return False
        if keys := sql.keys(asked):
            return sum(map(len, keys)) >= PACKED_FROM
        if isinstance(asked, Scan) and asked.table.derived is None and not asked.counted:
            # Rows, whose number is not small because they are groups.
            return _is_large(asked) and PACKED_FROM <= (asked.expected or 0) <= WHOLE_ROWS
        if not _is_large(asked):
            return False
        plan = await self._plan(asked)
        return plan["Plan Rows"] <= WHOLE_ROWS and _has_workers(plan)

    async def _packed(
        self,
        connection: Connection,
        text: str,
        arguments: Sequence[Any],
        types: Sequence[str],
    ) -> Batch:
        """Read rows as arrays, see :func:`~oar_adapters.postgres.sql.packed`."""
        row = await self._row(connection, text, arguments, types)
        arrays = row[1 : 1 + len(types)]
        return Batch(tuple(map(Packed.of_array, arrays)), int.from_bytes(row[0], "big"))

    # --- many rows: some at a time --------------------------------------------------------------

    async def _some_at_a_time(self, asked: Query, types: Sequence[str]) -> AsyncIterator[Batch]:
        portal = await self._opened(asked, types)
        due = self._first_rows(asked)
        rows = await self._fetch(portal, due)
        if len(rows) == due and fitting(rows, BATCH_ROWS) == BATCH_ROWS and _in_blocks(asked):
            blocks, exports = await self._blocks(asked)
            if blocks:
                async for batch in self._block_by_block(asked, blocks, exports=exports):
                    yield batch
                return
        while rows:
            yield Batch(tuple(zip(*rows, strict=True)), len(rows))
            if len(rows) < due:
                return
            due = fitting(rows, BATCH_ROWS)
            rows = await self._fetch(portal, due)

    def _first_rows(self, asked: Query) -> int:
        """How many rows the first batch may have, whose width nothing foretells."""
        if self._may_be_wide(asked):
            return FIRST_WIDE_ROWS
        computes = isinstance(asked, Statement) and not _is_narrow(asked)
        return FIRST_COMPUTED_ROWS if computes else BATCH_ROWS

    def _may_be_wide(self, asked: Query) -> bool:
        """Tell whether a few rows of the tables may fill the memory."""
        if _is_narrow(asked):
            return False
        names = ((table.source_schema, table.source_name) for table in _tables_of(asked))
        return any(name in self._wide for name in names)

    # --- a large table: in blocks ---------------------------------------------------------------

    async def _blocks(self, asked: Scan) -> tuple[int, bool]:
        """How many blocks a table has, 0 where an index, or no table, is read; see `_BLOCKS`."""
        name = sql.named(asked.table).encode()
        found = await self._all(self._connection, _BLOCKS, [name])
        if not found:
            return 0, False
        node = await self._plan(asked)
        while node["Node Type"] in ("Limit", "Gather"):
            node = node["Plans"][0]
        blocks, exports = found[0]
        return (
            int.from_bytes(blocks, "big") if node["Node Type"] == "Seq Scan" else 0,
            exports == b"\x01",
        )

    async def _block_by_block(
        self, asked: Scan, blocks: int, *, exports: bool
    ) -> AsyncIterator[Batch]:
        """Read a large table again, in the same snapshot, some blocks at a time, as arrays.

        Measured on 1,000,000 rows of three columns: 0.25 s, against 0.69 s cell by cell and
        0.45 s to pack them. The rows of the first batch are read twice. A second connection reads
        half of the blocks, where there is one.
        """
        text = sql.packed_blocks(asked)
        types = [column.type for column in asked.columns]
        start, step = 0, BLOCKS_A_BATCH
        # In the order of the blocks: who selects without an order is used to the table's.
        reading: deque[tuple[asyncio.Task[Batch], Connection]] = deque()

        def read(connection: Connection) -> None:
            nonlocal start
            if start >= blocks:
                return
            end = start + step
            extent = sql.block(start), sql.block(end if end < blocks else sql.MAX_BLOCK)
            start = end
            task = asyncio.create_task(self._packed(connection, text, extent, types))
            reading.append((task, connection))
            self._ahead.add(task)
            task.add_done_callback(self._has_read)

        received = 0
        for connection in await self._readers(blocks if exports else 0):
            read(connection)
        while reading:
            task, connection = reading.popleft()
            batch = await task
            step = _fitting_blocks(step, batch)
            read(connection)
            if batch.rows:
                received += batch.rows
                yield batch
            if asked.limit is not None and received >= asked.limit:
                return

    def _has_read(self, task: asyncio.Task[Batch]) -> None:
        self._ahead.discard(task)
        if not task.cancelled():
            task.exception()  # of blocks that nobody wants any more, nobody has to hear

    async def _readers(self, blocks: int) -> list[Connection]:
        """The connections that share so many blocks: they see the same moment."""
        if blocks >= SHARED_BLOCKS and self._other is None and self._transactions.spare:
            exported = await self._row(self._connection, "SELECT pg_export_snapshot()")
            # Where the owner has no place for it, one does.
            with suppress(OwnerError, TimeoutError):
                self._other, _ = await self._beside.enter_async_context(
                    self._transactions.begin(left(self._deadline), exported[0].decode())
                )
        return [self._connection] if self._other is None else [self._connection, self._other]

    # --- round trips ----------------------------------------------------------------------------

    async def _plan(self, asked: Query) -> dict[str, Any]:
        text = f"EXPLAIN (FORMAT JSON) {sql.written(asked)}"
        (explained,) = await self._row(self._connection, text)
        plan: dict[str, Any] = json.loads(explained)[0]["Plan"]
        return plan

    async def _opened(self, asked: Query, types: Sequence[str] = ()) -> Portal:
        """Prepare a query; ``types`` are those that its columns have to have, where they matter."""
        portal = self._connection.portal(sql.written(asked), sql.keys(asked, self._encoding))
        async with self._turn:
            await self._open(portal, types)
        return portal

    async def _fetch(self, portal: Portal, rows: int) -> list[asyncpg.Record]:
        with translated("running a query"):
            async with self._turn:
                return await portal.fetch(rows, left(self._deadline))

    async def _row(
        self,
        connection: Connection,
        text: str,
        arguments: Sequence[Any] = (),
        types: Sequence[str] = (),
    ) -> asyncpg.Record:
        (row,) = await self._all(connection, text, arguments, types)
        return row

    async def _all(
        self,
        connection: Connection,
        text: str,
        arguments: Sequence[Any] = (),
        types: Sequence[str] = (),
    ) -> list[asyncpg.Record]:
        """Run a query; ``types`` are those that its last columns have to have."""
        portal = connection.portal(text, arguments)
        async with self._turn if connection is self._connection else self._others_turn:
            await self._open(portal, types)
            with translated("running a query"):
                return await portal.fetch_all(left(self._deadline))

    async def _open(self, portal: Portal, types: Sequence[str]) -> None:
        """Prepare a query whose last columns have to be of ``types``, as they are published.

        Raises :class:`OwnerError` when a column has another type by now: undecoded bytes of another
        type would be another value.
        """
        due = [CODECS[base_type(type_)] if is_binary(type_) else "text" for type_ in types]
        with translated("running a query"):
            as_published = await portal.open(due, left(self._deadline))
        if not as_published:
            raise OwnerError(
                OwnerErrorKind.SCHEMA_CHANGED,
                "running a query: a published column has another type",
            )


def _is_narrow(asked: Query) -> bool:
    return all(base_type(output.type) in _NARROW for output in asked.outputs)


def _fitting_blocks(read: int, batch: Batch) -> int:
    """Tell how many blocks like so many that were read are one batch."""
    size = sum(len(cells.elements) for cells in map(Packed.of, batch.columns))
    return max(1, min(BLOCKS_A_BATCH, read * BATCH_BYTES // max(1, size)))


def _tables_of(asked: Query) -> tuple[Table, ...]:
    """Return the tables a query reads."""
    if isinstance(asked, Statement):
        return asked.tables
    parts = (part.table for part in asked.parts())
    return tuple(
        t for table in parts for t in (table.derived.tables if table.derived else (table,))
    )


def _is_large(asked: Query) -> bool:
    return any(table.row_estimate >= WORKERS_FROM_ROWS for table in _tables_of(asked))


def _has_workers(node: Mapping[str, Any]) -> bool:
    if node["Node Type"] in ("Gather", "Gather Merge"):
        return True
    return any(map(_has_workers, node.get("Plans", ())))


def _in_blocks(asked: Query) -> TypeGuard[Scan]:
    if not isinstance(asked, Scan) or asked.key_filters or asked.semi_joins or asked.distinct:
        return False
    return asked.table.derived is None and not (asked.order or asked.counted)
