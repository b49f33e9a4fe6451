"""PostgreSQL owners, through asyncpg.

Values are never decoded: the sixteen types with a stable binary format pass as the bytes the
owner sent, everything else as text. Each snapshot is one connection in one ``REPEATABLE READ READ
ONLY`` transaction, which is always rolled back.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
    nullcontext,
    suppress,
)
from typing import Any, Final, TypeGuard

import asyncpg
import sqlglot
from sqlglot import exp

from oar_adapters.authorized import Authorized
from oar_adapters.interface import (
    Agreement,
    Batch,
    Capabilities,
    Column,
    Comparison,
    Membership,
    NullTest,
    OwnerError,
    OwnerErrorKind,
    OwnerSchema,
    Packed,
    PatternMatch,
    Predicate,
    Query,
    Scan,
    Statement,
    Table,
    base_type,
    is_binary,
)
from oar_adapters.postgres import schema as catalog
from oar_adapters.postgres import sql
from oar_adapters.postgres.portal import Connection, Portal
from oar_adapters.predicates import TEXTS, Leaf, agreement, comparable, pattern_is_complete

BATCH_ROWS: Final = 5000
"""Rows a round trip. Measured on 100,000 rows of three columns: 1,000 63 ms, 5,000 60 ms,
20,000 83 ms."""

BATCH_BYTES: Final = 4 * 1024 * 1024
"""What a round trip may bring, as far as the one before foretells it: wide rows come in smaller
batches, so that a few of them do not fill the memory."""

BLOCKS_A_BATCH: Final = 64
"""Blocks read at a time from a large table: half a megabyte, so memory stays bounded everywhere.
Measured from 64 to 1,024: the same."""

WORKERS_FROM_ROWS: Final = 50_000
"""The size of a table from which its owner may have workers share a query over it."""

HELD_ROWS: Final = 10_000
"""PostgreSQL starts no workers for a query that is fetched some rows at a time. One that is
expected to give no more than this, and to have workers, is fetched at once."""

SHARED_BLOCKS: Final = 1024
"""A table of 8 MB or more is read by two connections, if there is a second one to spare."""

PACKED_FROM_KEYS: Final = 256
"""From so many keys on, the owner packs the rows they find, if these are no more than `HELD_ROWS`.
Measured on a join by 5,556 keys that find 5,000 rows: 38.4 ms, against 41.4 ms."""

_BLOCKS: Final = """
SELECT pg_relation_size(c.oid) / current_setting('block_size')::int8,
    has_function_privilege('pg_export_snapshot()', 'EXECUTE') AND NOT pg_is_in_recovery()
FROM pg_class c
WHERE c.oid = $1::text::regclass AND c.relkind IN ('r', 'm') AND NOT c.relhassubclass
AND current_setting('server_version_num')::int4 >= 140000
"""
"""How many blocks a table has, and whether a second connection may see the same moment.

PostgreSQL scans a range of row addresses directly since version 14."""

CLOSE_SECONDS: Final = 1.0
"""How long running queries may take to end when the adapter is closed."""

ROLLBACK_SECONDS: Final = 5.0
"""How long the owner may take to acknowledge a cancelled statement before we hang up."""

CODECS: Final = {
    "smallint": "int2",
    "integer": "int4",
    "bigint": "int8",
    "real": "float4",
    "double precision": "float8",
    "numeric": "numeric",
    "boolean": "bool",
    "text": "text",
    "character varying": "varchar",
    "character": "bpchar",
    "uuid": "uuid",
    "date": "date",
    "time without time zone": "time",
    "timestamp without time zone": "timestamp",
    "timestamp with time zone": "timestamptz",
    "bytea": "bytea",
}
"""``pg_type.typname`` of each type in :data:`~oar_adapters.interface.BINARY_TYPES`."""

SETTINGS: Final = {
    "application_name": "oar",
    "array_nulls": "on",
    "bytea_output": "hex",
    "DateStyle": "ISO, YMD",
    "default_transaction_read_only": "on",
    "extra_float_digits": "1",
    "IntervalStyle": "postgres",
    # The generic plan of a prepared statement takes a key list for ten keys.
    "plan_cache_mode": "force_custom_plan",
    "search_path": "pg_catalog",
    "standard_conforming_strings": "on",
    "TimeZone": "UTC",
    "transform_null_equals": "off",
}
"""What each connection starts with: one text form a value, nothing found by a search path."""

FUNCTIONS: Final = frozenset(
    {
        "abs", "bit_length", "btrim", "ceil", "ceiling", "char_length", "character_length",
        "date_part", "date_trunc", "div", "extract", "factorial", "floor", "gcd", "isfinite",
        "justify_days", "justify_hours", "justify_interval", "lcm", "left", "length", "lpad",
        "ltrim", "make_date", "make_time", "make_timestamp", "md5", "min_scale", "mod",
        "octet_length", "overlay", "position", "power", "repeat", "replace", "reverse", "right",
        "round", "rpad", "rtrim", "scale", "sign", "split_part", "sqrt", "starts_with", "strpos",
        "substr", "substring", "to_hex", "translate", "trim_scale", "trunc", "width_bucket",
    }
)  # fmt: skip
"""Immutable functions of ``pg_catalog`` whose value depends on their arguments alone: on no
collation, character class, time zone or other setting. Those the owner's version lacks are left
out of its :class:`~oar_adapters.interface.Capabilities`.

``concat`` and ``to_char`` are stable; ``lower``, ``upper`` and ``initcap`` follow the locale;
logarithms and trigonometry follow the platform's library. The three functions on time depend on
no zone as long as :func:`_speaks_alike` keeps ``timestamp with time zone`` away from them.
"""

AGGREGATES: Final = frozenset(
    {
        "avg", "bool_and", "bool_or", "count", "every", "max", "min", "stddev", "stddev_pop",
        "stddev_samp", "sum", "var_pop", "var_samp", "variance",
    }
)  # fmt: skip
"""Aggregates of the same value on the same multiset of rows. Over ``real`` and ``double
precision`` the last bits of sums follow the order of the rows, at the owner as at the hub."""

_CHARACTERS: Final = frozenset({"bit_length", "length", "md5", "octet_length", "reverse"})
"""Functions that see how characters are encoded."""

_TIME_DEPENDENT: Final = (
    exp.CurrentDate,
    exp.CurrentTime,
    exp.CurrentTimestamp,
    exp.CurrentUser,
    exp.Rand,
)
_LOCALE_DEPENDENT: Final = (exp.ILike, exp.RegexpLike, exp.RegexpILike, exp.SimilarTo)

_OPTIONS: Final = frozenset({"schemas", "tables", "pool_size", "connect_timeout"})


def connect(url: str, options: Mapping[str, str]) -> PostgresAdapter:
    """Make the adapter of the PostgreSQL database a URL names (``oar.adapters`` entry point).

    Options: ``schemas`` (comma list, default ``public``), ``tables`` (comma list of names and
    shell patterns, default all), ``pool_size`` (connections, default 8), ``connect_timeout``
    (seconds, default 10). Raises ``ValueError`` for an unknown option or an unusable value.
    """
    unknown = sorted(set(options) - _OPTIONS)
    if unknown:
        raise ValueError(
            f"unknown option {', '.join(unknown)}: a PostgreSQL owner takes "
            f"{', '.join(sorted(_OPTIONS))}"
        )
    if not url.lower().startswith(("postgres://", "postgresql://")):
        raise ValueError("owner URL has the form postgresql://user@host:port/database")
    return PostgresAdapter(
        url,
        schemas=_names(options.get("schemas", "public")),
        tables=_names(options.get("tables", "")),
        pool_size=int(_number("pool_size", options.get("pool_size", "8"), 1, 1000)),
        connect_timeout=_number("connect_timeout", options.get("connect_timeout", "10"), 0.1, 600),
    )


class PostgresAdapter:
    """One PostgreSQL database. See :class:`~oar_adapters.interface.Adapter`."""

    def __init__(
        self,
        url: str,
        *,
        schemas: Sequence[str],
        tables: Sequence[str],
        pool_size: int,
        connect_timeout: float,
    ) -> None:
        self._url = url
        self._schemas = tuple(schemas)
        self._tables = tuple(tables)
        self._pool_size = pool_size
        self._connect_timeout = connect_timeout
        self._pool: asyncpg.Pool | None = None
        self._opening = asyncio.Lock()
        self._closed = False
        self._database: catalog.Database | None = None
        self._unlike: Mapping[tuple[str, str], frozenset[str]] = {}

    @property
    def capabilities(self) -> Capabilities:
        """What whole statements agree on: nothing until :meth:`schema` has read the database."""
        owner = self._database
        if owner is None:
            return Capabilities("postgres", snapshots=self._pool_size)
        return Capabilities(
            "postgres",
            statements=True,
            functions=owner.functions if owner.unicode else owner.functions - _CHARACTERS,
            aggregates=AGGREGATES,
            text_order=owner.bytewise and owner.unicode,
            snapshots=self._pool_size,
            interleaves=True,
            semi_joins=True,
            first_rows=True,
            composite_keys=True,
        )

    async def schema(self) -> OwnerSchema:
        """Read tables, columns, keys, comments and row estimates from the catalogs."""
        async with self._transaction(self._connect_timeout + 60.0) as (connection, deadline):
            with _translated("reading its catalogs"):
                found = await _discovered(connection, self._schemas, self._tables, deadline)
        self._database, discovery = found
        self._unlike = discovery.unlike
        return discovery.schema

    def supports(self, table: Table, predicate: Predicate) -> bool:
        """Tell whether the owner keeps at least the rows PostgreSQL would keep."""
        verdict = agreement(predicate, lambda leaf: self._agreement(table, leaf))
        return verdict is not Agreement.NONE

    def supports_statement(self, statement: Statement) -> bool:
        """Tell whether the owner's answer equals the hub's: see :func:`_speaks_alike`."""
        if self._database is None:
            return False
        try:
            sql.statement(statement)
            tree = sqlglot.parse_one(statement.sql, read="postgres")
        except (ValueError, sqlglot.errors.SqlglotError):
            return False
        return _speaks_alike(tree, statement.tables, self._unlike)

    def counts(self, query: Scan) -> bool:
        """Tell whether the owner answers a counted scan: any column can be told apart here."""
        try:
            sql.scan(query)
        except ValueError:
            return False
        return all(map(sql.tells, query.partials))

    def render(self, query: Query) -> str:
        """Return the SQL that is sent; key lists are ``$1``, ``$2`` and so on."""
        return sql.scan(query) if isinstance(query, Scan) else sql.statement(query)

    @asynccontextmanager
    async def snapshot(
        self,
        timeout: float,  # noqa: ASYNC109 - named so by the contract
    ) -> AsyncIterator[PostgresSnapshot]:
        """Open a repeatable-read snapshot; it is taken before this returns."""
        async with self._transaction(timeout) as (connection, deadline), AsyncExitStack() as stack:
            snapshot = PostgresSnapshot(connection, deadline, self._beside, stack)
            stack.push_async_callback(snapshot.stop)
            yield snapshot

    async def close(self) -> None:
        """Close every connection; the owner stops a query that still runs."""
        self._closed = True
        pool, self._pool = self._pool, None
        if pool is None:
            return
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await pool.close()
        except TimeoutError:
            pool.terminate()

    def _agreement(self, table: Table, leaf: Leaf) -> Agreement:
        try:
            column = table.column(leaf.column)
            sql.condition(table, leaf)
        except (KeyError, ValueError):
            return Agreement.NONE
        return _leaf_agreement(column, leaf)

    @asynccontextmanager
    async def _transaction(
        self, seconds: float, moment: str | None = None
    ) -> AsyncIterator[tuple[Connection, float]]:
        """Hold one connection in a read-only transaction until the deadline (loop time).

        It sees the ``moment`` that another one exported, or its own.
        """
        deadline = asyncio.get_running_loop().time() + seconds
        with _translated("connecting"):
            pool = await self._open_pool()
            connection = await pool.acquire(timeout=seconds)
        try:
            with _translated("opening a snapshot"):
                await connection.execute(_begin(seconds, moment), timeout=_left(deadline))
            yield connection, deadline
        finally:
            await _end(pool, connection)

    @asynccontextmanager
    async def _beside(self, moment: str, seconds: float) -> AsyncIterator[Connection | None]:
        """Hold another connection that sees the same; None while other statements may need it."""
        pool = await self._open_pool()
        used = pool.get_size() - pool.get_idle_size()
        if used + 2 > self._pool_size:
            yield None
            return
        async with AsyncExitStack() as stack:
            try:
                transaction = self._transaction(seconds, moment)
                connection, _ = await stack.enter_async_context(transaction)
            except OwnerError:  # the owner has no place for it: one does
                connection = None
            yield connection

    async def _open_pool(self) -> asyncpg.Pool:
        async with self._opening:
            if self._closed:
                raise OwnerError(OwnerErrorKind.UNREACHABLE, "the owner's adapter is closed")
            if self._pool is None:
                self._pool = await asyncpg.create_pool(
                    self._url,
                    min_size=0,
                    max_size=self._pool_size,
                    timeout=self._connect_timeout,
                    connection_class=Connection,
                    server_settings=SETTINGS,
                    init=_prepare,
                    # Every transaction is rolled back, and with it whatever it had set.
                    reset=_nothing,
                )
            return self._pool


_Beside = Callable[[str, float], AbstractAsyncContextManager[Connection | None]]
"""Opens a connection that sees an exported snapshot, for at most so many seconds."""


class PostgresSnapshot:
    """One connection inside its transaction. See :class:`~oar_adapters.interface.Snapshot`."""

    def __init__(
        self, connection: Connection, deadline: float, beside: _Beside, stack: AsyncExitStack
    ) -> None:
        self._connection = connection
        self._deadline = deadline
        self._beside = beside
        self._stack = stack
        self._other: Connection | None = None
        self._ahead: set[asyncio.Task[asyncpg.Record]] = set()
        self._turn = asyncio.Lock()
        """Blocks are read ahead, so a query may come while the connection is still busy."""

    async def stop(self) -> None:
        """Stop what is read ahead."""
        for task in self._ahead:
            task.cancel()
        await asyncio.gather(*self._ahead, return_exceptions=True)

    async def run(self, query: Authorized) -> AsyncIterator[Batch]:
        """Stream the rows, :data:`BATCH_ROWS` at a time."""
        asked = query.query
        if isinstance(asked, Scan):
            types = [output.type for output in asked.outputs]
            keys = sql.keys(asked)
            text = sql.scan(asked)
            counted = not types
        else:
            types = [output.type for output in asked.outputs]
            keys = []
            text = sql.statement(asked)
            counted = asked.counted
        if counted:
            with _translated("counting rows"):
                yield Batch((), await self._count(text, keys))
            return
        with _translated("running a query"):
            portal = self._connection.portal(text, keys)
            async with self._turn:
                _check_types(await portal.open(_left(self._deadline)), types)
            at_once = not keys and await self._shared_by_workers(asked, text)
        if isinstance(asked, Scan) and sum(map(len, keys)) >= PACKED_FROM_KEYS:
            batch = await self._packed_whole(asked, keys)
            if batch is not None:
                yield batch
                return
        if at_once:
            with _translated("running a query"):
                rows = await self._fetch(portal, 0)
            yield Batch(tuple(zip(*rows, strict=True)) or tuple(() for _ in types), len(rows))
            return
        first = True
        due = BATCH_ROWS
        while True:
            with _translated("running a query"):
                rows = await self._fetch(portal, due)
            if first and len(rows) == BATCH_ROWS and _in_blocks(asked):
                blocks, exports = await self._blocks(asked, text)
                if blocks:
                    async for batch in self._packed(asked, blocks, exports=exports):
                        yield batch
                    return
            first = False
            if rows:
                yield Batch(tuple(zip(*rows, strict=True)), len(rows))
            if len(rows) < due:
                return
            due = _fitting(rows)

    async def _fetch(self, portal: Portal, rows: int) -> list[asyncpg.Record]:
        try:
            async with self._turn:
                return await portal.fetch(rows, _left(self._deadline))
        except asyncpg.InvalidCachedStatementError:
            # By the time this is asked again, other types may have been published.
            await self._connection.reload_schema_state()
            raise

    async def _shared_by_workers(self, asked: Query, text: str) -> bool:
        """Tell whether it pays to fetch all rows at once: asking costs a round trip itself."""
        if isinstance(asked, Scan) and asked.table.derived is None and not asked.counted:
            return False  # rows, whose number is not small because they are groups
        tables = asked.tables if isinstance(asked, Statement) else _tables_of(asked)
        if all(table.row_estimate < WORKERS_FROM_ROWS for table in tables):
            return False
        plan = await self._plan(text)
        return plan["Plan Rows"] <= HELD_ROWS and _has_workers(plan)

    async def _plan(self, text: str) -> dict[str, Any]:
        async with self._turn:
            explained = await self._connection.fetchval(
                f"EXPLAIN (FORMAT JSON) {text}", timeout=_left(self._deadline)
            )
        plan: dict[str, Any] = json.loads(explained)[0]["Plan"]
        return plan

    async def _blocks(self, asked: Scan, text: str) -> tuple[int, bool]:
        """How many blocks a table has, 0 where an index, or no table, is read; see `_BLOCKS`."""
        with _translated("running a query"):
            async with self._turn:
                found = await self._connection.fetchrow(
                    _BLOCKS, sql.relation(asked.table).encode(), timeout=_left(self._deadline)
                )
            if found is None:
                return 0, False
            node = await self._plan(text)
        while node["Node Type"] in ("Limit", "Gather"):
            node = node["Plans"][0]
        blocks = int.from_bytes(found[0], "big") if node["Node Type"] == "Seq Scan" else 0
        return blocks, found[1] == b"\x01"

    async def _packed(self, asked: Scan, blocks: int, *, exports: bool) -> AsyncIterator[Batch]:
        """Read a large table again, in the same snapshot, some blocks at a time, as arrays.

        Measured on 1,000,000 rows of three columns: 0.25 s, against 0.69 s cell by cell and
        0.45 s to pack them. The rows of the first batch are read twice. A second connection reads
        half of the blocks, where there is one.
        """
        text = sql.packed_scan(asked)
        starts = iter(range(0, blocks, BLOCKS_A_BATCH))
        # In the order of the blocks: who selects without an order is used to the table's.
        reading: deque[tuple[asyncio.Task[asyncpg.Record], Connection]] = deque()

        def read(connection: Connection) -> None:
            start = next(starts, None)
            if start is not None:
                end = start + BLOCKS_A_BATCH
                extent = sql.block(start), sql.block(end if end < blocks else sql.MAX_BLOCK)
                task = asyncio.create_task(self._extent(connection, text, extent))
                reading.append((task, connection))
                self._ahead.add(task)
                task.add_done_callback(self._has_read)

        received = 0
        for connection in await self._readers(blocks if exports else 0):
            read(connection)
        while reading:
            task, connection = reading.popleft()
            row = await task
            read(connection)
            count = int.from_bytes(row[0], "big")
            if count:
                received += count
                yield Batch(tuple(map(Packed.of_array, row[1:])), count)
            if asked.limit is not None and received >= asked.limit:
                return

    def _has_read(self, task: asyncio.Task[asyncpg.Record]) -> None:
        self._ahead.discard(task)
        if not task.cancelled():
            task.exception()  # of blocks that nobody wants any more, nobody has to hear

    async def _packed_whole(self, asked: Scan, keys: Sequence[Sequence[bytes]]) -> Batch | None:
        """Read rows as arrays; None where they are too many to be one answer."""
        text = sql.packed(asked, HELD_ROWS + 1)
        with _translated("running a query"):
            async with self._turn:
                row = await self._connection.fetchrow(text, *keys, timeout=_left(self._deadline))
        count = int.from_bytes(row[0], "big")
        if count > HELD_ROWS:
            return None
        return Batch(tuple(map(Packed.of_array, row[1:])), count)

    async def _readers(self, blocks: int) -> list[Connection]:
        """The connections that share so many blocks: they see the same moment."""
        if blocks >= SHARED_BLOCKS and self._other is None:
            with _translated("running a query"):
                async with self._turn:
                    moment = await self._connection.fetchval(
                        "SELECT pg_export_snapshot()", timeout=_left(self._deadline)
                    )
            beside = self._beside(moment.decode(), _left(self._deadline))
            self._other = await self._stack.enter_async_context(beside)
            # What is read ahead has to stop before the connection is given back.
            self._stack.push_async_callback(self.stop)
        return [self._connection] if self._other is None else [self._connection, self._other]

    async def _extent(
        self, connection: Connection, text: str, extent: tuple[bytes, bytes]
    ) -> asyncpg.Record:
        async with self._turn if connection is self._connection else nullcontext():
            with _translated("running a query"):
                return await connection.fetchrow(text, *extent, timeout=_left(self._deadline))

    async def _count(self, text: str, keys: Sequence[Sequence[bytes]]) -> int:
        async with self._turn:
            cell = await self._connection.fetchval(text, *keys, timeout=_left(self._deadline))
        return int.from_bytes(cell, "big")


def _fitting(rows: Sequence[asyncpg.Record]) -> int:
    """Tell how many rows like these, of which some are looked at, are one batch."""
    seen = rows[:: max(1, len(rows) // 100)]
    size = sum(len(cell) for row in seen for cell in row if cell is not None)
    return max(1, min(BATCH_ROWS, BATCH_BYTES * len(seen) // max(1, size)))


def _tables_of(asked: Scan) -> tuple[Table, ...]:
    parts = (part.table for part in asked.parts())
    return tuple(
        t for table in parts for t in (table.derived.tables if table.derived else (table,))
    )


def _has_workers(node: Mapping[str, Any]) -> bool:
    if node["Node Type"] in ("Gather", "Gather Merge"):
        return True
    return any(map(_has_workers, node.get("Plans", ())))


def _in_blocks(asked: Query) -> TypeGuard[Scan]:
    if not isinstance(asked, Scan) or asked.key_filters or asked.semi_joins or asked.distinct:
        return False
    return asked.table.derived is None and not (asked.order or asked.counted)


def _leaf_agreement(column: Column, leaf: Leaf) -> Agreement:
    match leaf:
        case NullTest():
            return Agreement.EXACT
        case PatternMatch(pattern=pattern):
            # LIKE counts characters, so the encodings have to agree on what one is: `ordered`.
            usable = (
                column.equality is Agreement.EXACT
                and base_type(column.type) in TEXTS
                and column.ordered
                and pattern_is_complete(pattern)
            )
        case Comparison(op="=") | Membership():
            return column.equality if comparable(column.type, leaf.type) else Agreement.NONE
        case Comparison(op="<>"):
            usable = column.equality is Agreement.EXACT and comparable(column.type, leaf.type)
        case Comparison():
            usable = column.ordered and comparable(column.type, leaf.type)
    return Agreement.EXACT if usable else Agreement.NONE


async def _undecoded(connection: Connection) -> None:
    """Pass binary cells through as they are; asyncpg knows these types without asking."""
    for name in CODECS.values():
        await connection.set_type_codec(
            name, schema="pg_catalog", encoder=bytes, decoder=bytes, format="binary"
        )


async def _prepare(connection: Connection) -> None:
    """Set up a new connection."""
    await _undecoded(connection)
    # Else a query runs on at the owner when the proxy is gone. Since PostgreSQL 14, and not on
    # every platform.
    with suppress(asyncpg.PostgresError):
        await connection.execute("SET client_connection_check_interval = '1s'")


async def _nothing(_connection: Connection) -> None:
    pass


def _begin(seconds: float, moment: str | None) -> str:
    """Write what opens a snapshot, in one round trip.

    The SELECT takes the snapshot now, unless it is a ``moment`` that was exported. The later two
    timeouts end what a vanished proxy leaves behind; they cost the connection, hence a second after
    ours. ``transaction_timeout`` exists since PostgreSQL 17.
    """
    # The settings are 32-bit numbers of milliseconds.
    statement = min(max(1, int(seconds * 1000)), 2_000_000_000)
    transaction = statement + 1000
    taken = "" if moment is None else f"SET TRANSACTION SNAPSHOT '{moment}';"
    return (
        f"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;{taken}"
        f"SELECT set_config('statement_timeout', '{statement}', true),"
        f" set_config('idle_in_transaction_session_timeout', '{transaction}', true),"
        " CASE WHEN current_setting('server_version_num')::int >= 170000"
        f" THEN set_config('transaction_timeout', '{transaction}', true) END"
    )


async def _end(pool: asyncpg.Pool, connection: Connection) -> None:
    """Roll back and give the connection back, or hang up where that cannot be had."""
    try:
        await connection.execute("ROLLBACK", timeout=ROLLBACK_SECONDS)
    except (TimeoutError, OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
        _hang_up(connection)
    except BaseException:
        # Cancelled again: nobody waits, and a connection inside a transaction may not go back.
        _hang_up(connection)
        raise
    finally:
        await pool.release(connection)


def _hang_up(connection: Connection) -> None:
    # asyncpg raises when the connection is already gone.
    with suppress(asyncpg.InterfaceError):
        connection.terminate()


def _left(deadline: float) -> float:
    """Return the seconds that are left. Raises ``TimeoutError`` when there are none."""
    seconds = deadline - asyncio.get_running_loop().time()
    if seconds <= 0:
        raise TimeoutError
    return seconds


@contextmanager
def _translated(doing: str) -> Iterator[None]:
    """Turn asyncpg's errors into :class:`OwnerError`; the owner's text can quote rows, so it goes.

    ``doing`` stands in front of the reason.
    """
    try:
        yield
    except TimeoutError:
        raise OwnerError(OwnerErrorKind.TIMEOUT, f"{doing}: the owner ran out of time") from None
    except asyncpg.PostgresError as error:
        kind, why = _reason(error.sqlstate or "")
        raise OwnerError(kind, f"{doing}: {why}", error.sqlstate) from None
    except (OSError, asyncpg.InterfaceError, asyncpg.InternalClientError):
        raise OwnerError(
            OwnerErrorKind.UNREACHABLE, f"{doing}: no connection to the owner's database"
        ) from None


def _reason(sqlstate: str) -> tuple[OwnerErrorKind, str]:
    # 25P03 and 25P04 are the idle-in-transaction and the transaction timeout.
    if sqlstate in ("57014", "25P03", "25P04"):
        return OwnerErrorKind.TIMEOUT, "the owner ran out of time"
    # 0A000 here is "cached plan must not change result type".
    if sqlstate in ("42P01", "42703", "0A000"):
        return OwnerErrorKind.SCHEMA_CHANGED, "a published table or column is no longer there"
    if sqlstate[:2] in ("08", "57") or sqlstate == "53300":
        return OwnerErrorKind.UNREACHABLE, "the owner's database accepts no connection"
    return OwnerErrorKind.REFUSED, f"the owner's database reported an error ({sqlstate})"


def _check_types(sent: Sequence[str], types: Sequence[str]) -> None:
    """Compare what the owner is about to send with what was published.

    Raises :class:`OwnerError` when a column has another type by now: undecoded bytes of another
    type would be another value.
    """
    due = [CODECS[base_type(type_)] if is_binary(type_) else "text" for type_ in types]
    if sent != due:
        raise OwnerError(
            OwnerErrorKind.SCHEMA_CHANGED, "running a query: a published column has another type"
        )


async def _discovered(
    connection: Connection,
    schemas: Sequence[str],
    tables: Sequence[str],
    deadline: float,
) -> tuple[catalog.Database, catalog.Discovery]:
    async def rows(text: str, *arguments: Any) -> list[dict[str, Any]]:
        """Fetch rows as text, one JSON object each: our codecs leave everything undecoded."""
        wrapped = f"SELECT to_jsonb(r)::text FROM ({text}) AS r"
        fetched = await connection.fetch(wrapped, *arguments, timeout=_left(deadline))
        return [json.loads(row[0]) for row in fetched]

    names = [name.encode() for name in sorted(FUNCTIONS)]
    owner = catalog.database((await rows(catalog.DATABASE, names))[0])
    if owner.encoding == "SQL_ASCII":
        raise OwnerError(
            OwnerErrorKind.REFUSED,
            "reading its catalogs: encoding SQL_ASCII does not say what its text means",
        )
    published = [schema.encode() for schema in schemas]
    relations = [
        row
        for row in await rows(catalog.RELATIONS, published)
        if catalog.wanted(row["name"], tables)
    ]
    oids = [row["oid"].to_bytes(8, "big") for row in relations]
    columns = await rows(catalog.COLUMNS, oids)
    keys = await rows(catalog.KEYS, oids)
    statistics = await rows(catalog.STATISTICS, oids)
    return owner, catalog.discover(relations, columns, keys, statistics, owner)


def _speaks_alike(
    tree: exp.Expr,
    tables: Sequence[Table],
    unlike: Mapping[tuple[str, str], frozenset[str]],
) -> bool:
    """Tell whether a statement means at the owner what it means at the hub.

    Functions and aggregates were compared with :class:`Capabilities` before; what is left are
    columns whose type or collation is the owner's own, and session settings.
    """
    if not isinstance(tree, exp.Query) or tree.find(*_TIME_DEPENDENT, *_LOCALE_DEPENDENT):
        return False
    if tree.find(exp.DateTrunc, exp.TimestampTrunc) and _may_see_dates(tree, tables):
        return False
    own = {
        name
        for table in tables
        for name in unlike.get((table.source_schema or "", table.source_name), ())
    }
    if own and (_mentioned(tree) & own or _takes_whole_rows(tree, tables)):
        return False
    zoned = _columns_of(tables, "timestamp with time zone")
    return not (zoned and _mentioned(tree) & zoned) or _is_free_of_time_zones(tree)


def _columns_of(tables: Sequence[Table], type_: str) -> set[str]:
    return {
        column.source_name
        for table in tables
        for column in table.columns
        if base_type(column.type) == type_
    }


def _may_see_dates(tree: exp.Expr, tables: Sequence[Table]) -> bool:
    """Tell whether an argument of ``date_trunc`` could be a ``date``.

    It becomes a ``timestamp with time zone`` then, by the session's time zone.
    """
    made = tree.find(exp.Cast, exp.DateFromParts) is not None
    return made or bool(_mentioned(tree) & _columns_of(tables, "date"))


def _mentioned(tree: exp.Expr) -> set[str]:
    return {identifier.name for identifier in tree.find_all(exp.Identifier)}


def _takes_whole_rows(tree: exp.Expr, tables: Sequence[Table]) -> bool:
    """Tell whether columns may be used without being named: ``*``, NATURAL, a row as a value."""
    if any(join.method == "NATURAL" for join in tree.find_all(exp.Join)):
        return True
    stars = (star for star in tree.find_all(exp.Star) if not isinstance(star.parent, exp.Count))
    if next(stars, None) is not None:
        return True
    ranges = {table.source_name for table in tables}
    ranges |= {alias.name for alias in tree.find_all(exp.TableAlias)}
    return any(not column.table and column.name in ranges for column in tree.find_all(exp.Column))


def _is_free_of_time_zones(tree: exp.Expr) -> bool:
    """Tell whether nothing in a statement could read the session's time zone.

    Comparing, counting and taking extremes does not; casts, constants and other functions may.
    """
    if any(node.is_string for node in tree.find_all(exp.Literal)) or tree.find(exp.Cast):
        return False
    plain = (exp.Count, exp.Min, exp.Max, exp.Sum, exp.Avg, exp.And, exp.Or)
    return all(isinstance(node, plain) for node in tree.find_all(exp.Func))


def _names(option: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in option.split(",") if name.strip())


def _number(name: str, text: str, low: float, high: float) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"option {name} is not a number") from None
    if not low <= value <= high:
        raise ValueError(f"option {name} is not between {low:g} and {high:g}")
    return value
