"""SQLite owners: one file, opened read-only, through the standard library.

SQLite does what Python's thread asks and returns when it is done, so everything runs in a bounded
pool of threads of its own. Three locks keep the file as it is: the open mode, ``query_only``, and
an authorizer that lets nothing but reading be compiled.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, ParamSpec, TypeVar
from urllib.parse import quote, unquote, urlsplit

from oar_adapters.authorized import Authorized
from oar_adapters.batches import fitting, sample
from oar_adapters.interface import (
    Agreement,
    Batch,
    Capabilities,
    Column,
    Output,
    OwnerError,
    OwnerErrorKind,
    OwnerSchema,
    Partial,
    Predicate,
    Query,
    Scan,
    Statement,
    Table,
)
from oar_adapters.options import check, choice, integer, names
from oar_adapters.sqlite import cells, constants, sql, whole
from oar_adapters.sqlite import schema as catalog
from oar_adapters.turns import turn

OLDEST: Final = (3, 38)
"""The first SQLite that always has JSON; ``table_list`` came in 3.37."""

BATCH_ROWS: Final = 5000
"""Rows a batch. Measured on 100,000 rows of three columns: 1,000 51 ms, 5,000 58 ms, 20,000
73 ms; fewer, larger batches cost the consumer less."""

FIRST_ROWS: Final = 500
"""Rows of the first batch, which nothing foretells."""

STEPS: Final = 10_000
"""Virtual machine instructions between two looks at the deadline: well under a millisecond."""

LOCK_SECONDS: Final = 2.0
"""How long a statement waits for a writer that holds the whole file."""

FUNCTIONS: Final = frozenset(
    {
        "count", "date", "datetime", "glob", "instr", "json_extract", "max", "min", "sum", "time",
        "typeof", "oar_hmac", *constants.FUNCTIONS,
    }
)  # fmt: skip
"""The only SQLite functions that compile."""

OUT_OF_TIME: Final = "the owner ran out of time"

_OPTIONS: Final = frozenset({"case", "tables", "types", "pool_size"})

_P = ParamSpec("_P")
_T = TypeVar("_T")


def connect(url: str, options: Mapping[str, str]) -> SqliteAdapter:
    """Make the adapter of the SQLite file a URL names (``oar.adapters`` entry point).

    ``sqlite:////absolute/path`` or ``sqlite:///relative/path``. Options: ``case`` (``lower``, the
    default, or ``keep``), ``tables`` (comma list of names and shell patterns), ``types`` (comma
    list of ``table.column=type``), ``pool_size`` (threads and connections, default 4). Raises
    ``ValueError`` for an unknown option or an unusable value.
    """
    if sqlite3.sqlite_version_info < OLDEST:
        raise ValueError(
            f"SQLite {sqlite3.sqlite_version} of this Python is too old:"
            f" {'.'.join(map(str, OLDEST))} or later is needed"
        )
    check(options, _OPTIONS, "an SQLite owner")
    naming = catalog.Naming(
        lower=choice(options, "case", "lower", "keep") == "lower",
        tables=names(options, "tables"),
        types=dict(map(_override, names(options, "types"))),
    )
    size = integer(options, "pool_size", "4", 1, 64)
    return SqliteAdapter(_path(url), naming=naming, pool_size=size)


def _path(url: str) -> Path:
    parts = urlsplit(url)
    if parts.scheme.lower() != "sqlite" or parts.netloc or len(parts.path) < 2 or parts.query:
        raise ValueError(
            "owner URL has the form sqlite:////absolute/path or sqlite:///relative/path"
        )
    return Path(unquote(parts.path[1:]))


def _override(item: str) -> tuple[tuple[str, str], str]:
    place, separator, type_ = (part.strip() for part in item.partition("="))
    table, dot, column = place.rpartition(".")
    if not (separator and dot and table and column):
        raise ValueError("option types is a list of table.column=type")
    if type_ not in cells.ENCODERS:
        raise ValueError(f"option types: an SQLite column is one of {', '.join(cells.ENCODERS)}")
    return (table.lower(), column.lower()), type_


class SqliteAdapter:
    """One SQLite file. See :class:`~oar_adapters.interface.Adapter`."""

    def __init__(self, path: Path, *, naming: catalog.Naming, pool_size: int) -> None:
        self._path = path
        self._naming = naming
        self._pool_size = pool_size
        self._free = asyncio.Semaphore(pool_size)
        self._threads = ThreadPoolExecutor(pool_size, thread_name_prefix="oar-sqlite")
        self._open: set[_Session] = set()
        self._closed = False
        self._found: catalog.Discovery | None = None

    @property
    def capabilities(self) -> Capabilities:
        """What whole statements agree on: nothing until :meth:`schema` has read the file."""
        if self._found is None:
            return Capabilities("sqlite", snapshots=self._pool_size)
        return Capabilities(
            "sqlite",
            statements=True,
            aggregates=whole.AGGREGATES,
            text_order=self._found.unicode,
            snapshots=self._pool_size,
            interleaves=True,
            semi_joins=True,
            composite_keys=True,
            digested_types=constants.DIGESTED,
        )

    async def schema(self) -> OwnerSchema:
        """Read tables, views, columns, keys and row estimates from the file."""
        async with self._session(60.0, catalog_only=True) as session:
            found = await session.in_thread(catalog.discover, session.connection, self._naming)
        self._found = found
        return found.schema

    def supports(self, table: Table, predicate: Predicate) -> bool:
        """Tell whether the owner keeps at least the rows PostgreSQL would keep."""
        return sql.agrees(table, predicate) is not Agreement.NONE

    def supports_statement(self, statement: Statement) -> bool:
        """Tell whether the owner's answer equals the hub's: :mod:`oar_adapters.sqlite.whole`."""
        try:
            self._translate(statement, sql.Parameters())
        except whole.NotTaken:
            return False
        return True

    def counts(self, query: Scan) -> bool:
        """Tell whether the groups and partials of a counted scan are PostgreSQL's."""
        return sql.counts(query)

    def render(self, query: Query) -> str:
        """Return the SQL that is sent; key lists are ``?``."""
        if isinstance(query, Statement):
            return self._translate(query, sql.Parameters(shown=True)).text
        return self._scan(query, sql.Parameters(shown=True))[0]

    def written(self, query: Query) -> _Written:
        """Write a query in SQLite's dialect. Raises ``ValueError`` for one not evaluated here."""
        if isinstance(query, Statement):
            parameters = sql.Parameters()
            translated = self._translate(query, parameters)
            outputs = () if query.counted else query.outputs
            columns = tuple((f'output "{o.name}"', o.type) for o in outputs)
            return _Written(translated.text, parameters.values, columns, translated.checks)
        parameters = sql.Parameters()
        text, checks = self._scan(query, parameters)
        columns = tuple((_place(query.table, o.name), o.type) for o in query.outputs)
        partials = tuple((_place(query.table, p.column.name), p) for p in query.partials)
        return _Written(text, parameters.values, columns, checks, partials)

    def _scan(self, query: Scan, parameters: sql.Parameters) -> tuple[str, whole.Checks]:
        """Write a scan. Parameters of a derived table stand before those of its conditions."""
        table = query.table
        if table.derived is None:
            return sql.scan(query, self._settled, parameters), ()
        outputs = tuple(Output(column.name, column.type) for column in table.columns)
        statement = Statement(table.derived.sql, table.derived.tables, outputs)
        try:
            inner = self._translate(statement, parameters)
        except whole.NotTaken:
            raise ValueError("not a derived table SQLite evaluates") from None
        return sql.scan(query, self._settled, parameters, f"({inner.text})"), inner.checks

    @property
    def _settled(self) -> frozenset[tuple[str, str]]:
        return frozenset() if self._found is None else self._found.settled

    def _translate(self, statement: Statement, parameters: sql.Parameters) -> whole.Translated:
        enforced = frozenset() if self._found is None else self._found.enforced
        return whole.translate(statement, self._settled, enforced, parameters)

    @asynccontextmanager
    async def snapshot(
        self,
        timeout: float,  # noqa: ASYNC109 - named so by the contract
    ) -> AsyncIterator[SqliteSnapshot]:
        """Open a snapshot; it is taken before this returns."""
        async with self._session(timeout, catalog_only=False) as session:
            yield SqliteSnapshot(session, self)

    async def close(self) -> None:
        """Stop whatever runs and release every connection and thread."""
        self._closed = True
        for session in self._open:
            session.stop()
        await asyncio.to_thread(self._threads.shutdown)

    @asynccontextmanager
    async def _session(self, seconds: float, *, catalog_only: bool) -> AsyncIterator[_Session]:
        deadline = time.monotonic() + seconds
        async with turn(self._free, seconds):
            if self._closed:
                raise OwnerError(OwnerErrorKind.UNREACHABLE, "the owner's adapter is closed")
            session = _Session(self._threads, deadline)
            self._open.add(session)
            try:
                await session.in_thread(session.open, self._path, catalog_only)
                yield session
            finally:
                self._open.discard(session)
                await session.finish()


class SqliteSnapshot:
    """One connection inside its transaction. See :class:`~oar_adapters.interface.Snapshot`."""

    def __init__(self, session: _Session, adapter: SqliteAdapter) -> None:
        self._session = session
        self._adapter = adapter

    async def run(self, query: Authorized) -> AsyncIterator[Batch]:
        """Stream the rows, at most :data:`BATCH_ROWS` or about ``BATCH_BYTES`` at a time."""
        asked = query.query
        try:
            running = self._adapter.written(asked)
        except (KeyError, ValueError):
            raise OwnerError(
                OwnerErrorKind.REFUSED, "the query is not one an SQLite owner evaluates"
            ) from None
        connection = self._session.connection
        for text, table, columns in running.checks:
            await self._session.in_thread(_check, connection, text, table, columns)
        cursor = await self._session.in_thread(connection.execute, running.text, running.bound)
        if not running.columns:
            (count,) = await self._session.in_thread(cursor.fetchone)
            yield Batch((), count)
            return
        size = FIRST_ROWS
        while batch := await self._session.in_thread(_batch, cursor, running, size):
            yield batch
            size = fitting(list(zip(*map(sample, batch.columns), strict=True)), BATCH_ROWS)


@dataclass(frozen=True, slots=True)
class _Written:
    """A query as it is run; ``columns`` are what each cell is called in errors, and its type."""

    text: str
    bound: Sequence[str | float]
    columns: tuple[tuple[str, str], ...]
    checks: whole.Checks = ()
    partials: tuple[tuple[str, Partial], ...] = ()

    def values(self, rows: Sequence[Sequence[Any]]) -> list[Sequence[Any]]:
        """Turn rows as they are read into columns as they are sent. Raises :class:`OwnerError`."""
        read: list[Sequence[Any]] = list(zip(*rows, strict=True))
        told = [len(sql.partial(partial)) for _, partial in self.partials]
        first = len(read) - sum(told)
        values = read[:first]
        for (place, partial), count in zip(self.partials, told, strict=True):
            strange, *outputs = read[first : first + count]
            if any(strange):
                raise cells.wrong_value(place, partial.column.type)
            values += _told(partial, outputs)
            first += count
        return values


def _check(
    connection: sqlite3.Connection, text: str, table: Table, columns: Sequence[Column]
) -> None:
    """Raise :class:`OwnerError` where a column holds a value of another type."""
    for found, column in zip(connection.execute(text).fetchone(), columns, strict=True):
        if found:
            raise cells.wrong_value(_place(table, column.name), column.type)


def _place(table: Table, column: str) -> str:
    return f'table "{table.name}" column "{column}"'


def _told(partial: Partial, outputs: Sequence[Sequence[Any]]) -> Iterable[Sequence[Any]]:
    """Put the two halves of a sum together; see :func:`oar_adapters.sqlite.sql.partial`."""
    if "sum" not in partial.functions:
        return outputs
    count, high, low, *extremes = outputs
    halves = zip(high, low, strict=True)
    return [count, [None if h is None else (h << 32) + part for h, part in halves], *extremes]


def _batch(cursor: sqlite3.Cursor, running: _Written, size: int) -> Batch | None:
    """Fetch and encode the next rows, at most so many; None after the last."""
    rows = cursor.fetchmany(size)
    if not rows:
        return None
    encoded = []
    for (place, type_), values in zip(running.columns, running.values(rows), strict=True):
        try:
            encoded.append(cells.encode(type_, values))
        except cells.WrongValue:
            raise cells.wrong_value(place, type_) from None
    return Batch(encoded, len(rows))


class _Session:
    """One connection, used by one thread at a time, that stops at a deadline or when told."""

    def __init__(self, threads: ThreadPoolExecutor, deadline: float) -> None:
        self._threads = threads
        self._deadline = deadline
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None

    @property
    def connection(self) -> sqlite3.Connection:
        """The open connection."""
        if self._connection is None:
            raise OwnerError(OwnerErrorKind.UNREACHABLE, "the owner's file is not open")
        return self._connection

    def open(self, path: Path, catalog_only: bool) -> None:
        """Open the file and take the snapshot. Runs in a thread."""
        location = f"file:{quote(str(path))}?mode=ro"
        connection = sqlite3.connect(
            location, uri=True, timeout=LOCK_SECONDS, isolation_level=None, check_same_thread=False
        )
        self._connection = connection
        connection.execute("PRAGMA query_only = ON")
        for name, function in constants.FUNCTIONS.items():
            connection.create_function(name, 1, function, deterministic=True)
        connection.create_function("oar_hmac", 2, constants.keyed_digest, deterministic=True)
        connection.set_progress_handler(self._is_over, STEPS)
        if not catalog_only:
            # Its first use declares a table to SQLite, which the authorizer would not let pass.
            connection.execute("SELECT value FROM json_each('[]')").fetchall()
            connection.set_authorizer(_authorize)
        connection.execute("BEGIN")
        # A deferred transaction has no snapshot before its first read.
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()

    async def in_thread(
        self, function: Callable[_P, _T], *arguments: _P.args, **named: _P.kwargs
    ) -> _T:
        """Run a function of the connection in a thread; cancelling stops SQLite and waits.

        Raises :class:`OwnerError` for SQLite's errors.
        """
        if self._stopped.is_set():
            raise OwnerError(OwnerErrorKind.UNREACHABLE, "the owner's adapter is closed")
        if time.monotonic() > self._deadline:
            raise OwnerError(OwnerErrorKind.TIMEOUT, OUT_OF_TIME)

        def locked() -> _T:
            with self._lock, self._translated():
                return function(*arguments, **named)

        future = asyncio.get_running_loop().run_in_executor(self._threads, locked)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            self.stop()
            # The thread has the connection until it notices; what it then says, nobody hears.
            await asyncio.wait([future])
            future.exception()
            raise

    def stop(self) -> None:
        """Make a running statement fail, and every later one."""
        self._stopped.set()
        if self._connection is not None:
            with suppress(sqlite3.ProgrammingError):
                self._connection.interrupt()

    async def finish(self) -> None:
        """Close the connection, which ends the snapshot."""
        try:
            future = asyncio.get_running_loop().run_in_executor(self._threads, self._close)
        except RuntimeError:
            # The adapter is closed, its threads are gone: nothing uses the connection any more.
            self._close()
        else:
            await asyncio.shield(future)

    def _close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()

    def _is_over(self) -> int:
        return self._stopped.is_set() or time.monotonic() > self._deadline

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Turn SQLite's errors into :class:`OwnerError`; its text can quote a value, so it goes."""
        try:
            yield
        except sqlite3.Error as error:
            if self._stopped.is_set():
                raise OwnerError(OwnerErrorKind.UNREACHABLE, "the query was stopped") from None
            raise OwnerError(*_reason(error)) from None


def _reason(error: sqlite3.Error) -> tuple[OwnerErrorKind, str]:
    text = str(error)
    # Python raises this one itself, without a code of SQLite's.
    if text.startswith("Could not decode"):
        return OwnerErrorKind.WRONG_VALUE, "a value is not text in UTF-8"
    if text.startswith(("no such column", "no such table")):
        return OwnerErrorKind.SCHEMA_CHANGED, "a published table or column is no longer there"
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    return _REASONS.get(code, (OwnerErrorKind.REFUSED, f"SQLite reported an error (code {code})"))


_REASONS: Final = {
    sqlite3.SQLITE_INTERRUPT: (OwnerErrorKind.TIMEOUT, OUT_OF_TIME),
    sqlite3.SQLITE_BUSY: (OwnerErrorKind.UNREACHABLE, "a writer holds the owner's file"),
    sqlite3.SQLITE_LOCKED: (OwnerErrorKind.UNREACHABLE, "a writer holds the owner's file"),
    sqlite3.SQLITE_CANTOPEN: (OwnerErrorKind.UNREACHABLE, "the owner's file cannot be opened"),
    sqlite3.SQLITE_NOTADB: (OwnerErrorKind.UNREACHABLE, "the owner's file is not a database"),
    sqlite3.SQLITE_CORRUPT: (OwnerErrorKind.UNREACHABLE, "the owner's file is damaged"),
}


def _authorize(
    action: int, first: str | None, second: str | None, _database: str | None, view: str | None
) -> int:
    """Let reading be compiled, and nothing else.

    Inside the owner's own views any function of SQLite's may stand, and recursion.
    """
    if action in (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_TRANSACTION):
        return sqlite3.SQLITE_OK
    if action == sqlite3.SQLITE_READ and not (first or "").lower().startswith("pragma_"):
        return sqlite3.SQLITE_OK
    if action == sqlite3.SQLITE_FUNCTION:
        name = (second or "").lower()
        known = name in FUNCTIONS or (view is not None and name != "load_extension")
        return sqlite3.SQLITE_OK if known else sqlite3.SQLITE_DENY
    if action == sqlite3.SQLITE_RECURSIVE and view is not None:
        return sqlite3.SQLITE_OK
    return sqlite3.SQLITE_DENY
