"""The one task and connection through which a proxy's chain of the ledger grows.

Whatever waits is written in one statement and one commit, so statements that run at once share the
wait for the disk, and one alone waits for nobody. What is asked for is on disk when :meth:`Writer.
write` returns, and then in the file, where there is one.

When a commit fails or nobody can say whether it happened, what waits for it is refused. Before
anything else is written the table is asked, on another connection and once the old one is known to
have ended, which entries are there; the chain goes on behind the last of them.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, LiteralString, Protocol

import psycopg
import structlog
from psycopg.rows import TupleRow

from oar_proxy.chain import Body, Chain, Entry, Head
from oar_proxy.errors import LedgerUnavailable
from oar_proxy.ledgerfile import LedgerFile, LedgerFileError

TIMEOUT: Final = 10.0
"""Seconds a statement waits for the ledger before it is refused. A write takes milliseconds; only
a hub that is down, restarting or waiting for a lost standby needs longer."""

LINK_SECONDS: Final = 60.0
"""Seconds between two entries that name the other writers' last ones, while there are new ones."""

MOST_AT_ONCE: Final = 256
"""Requests in one statement: what is behind them does not wait for a large one."""

MOST_UNFLUSHED: Final = 64
"""Entries that may be committed without the disk: what has to be written again after a crash."""

# One text and one run of bytes, since arrays of them would have to be quoted; json, unlike jsonb,
# gives an element back as it was written.
_INSERT: Final[LiteralString] = """
INSERT INTO oar_internal.entries (writer, number, at, kind, ask, step, principal, body, hash)
SELECT b.writer, b.number, b.at, b.kind, b.ask, b.step, b.principal, u.body::text,
       substr(h.hashes, 32 * u.place::int4 - 31, 32)
FROM (SELECT %s::json AS bodies, %b::bytea AS hashes) AS h,
     json_array_elements(h.bodies) WITH ORDINALITY AS u(body, place),
     json_to_record(u.body)
       AS b(writer uuid, number int8, at timestamptz, kind text, ask uuid, step int8,
            principal text)
"""

# A setting made with is_local lasts until after the commit record.
_INSERT_SOON: Final[LiteralString] = (
    _INSERT + "WHERE set_config('synchronous_commit', 'off', true) IS NOT NULL"
)

# One probe of the primary key for each writer, however many entries there are.
_HEADS: Final[LiteralString] = """
WITH RECURSIVE w(writer) AS (
  (SELECT writer FROM oar_internal.entries ORDER BY writer LIMIT 1)
  UNION ALL
  SELECT (SELECT e.writer FROM oar_internal.entries AS e
          WHERE e.writer > w.writer ORDER BY e.writer LIMIT 1)
  FROM w WHERE w.writer IS NOT NULL
)
SELECT h.writer, h.number, h.hash
FROM w CROSS JOIN LATERAL (
  SELECT writer, number, hash FROM oar_internal.entries
  WHERE writer = w.writer ORDER BY number DESC LIMIT 1
) AS h
"""

_NAMED_BY_OPENINGS: Final[LiteralString] = """
SELECT n.writer, max(n.number)
FROM oar_internal.entries AS e,
     json_to_recordset(e.body::json->'heads') AS n(writer uuid, number int8)
WHERE e.kind = 'open'
GROUP BY n.writer
"""

_BEHIND: Final[LiteralString] = """
SELECT number, hash FROM oar_internal.entries WHERE writer = %s AND number >= %s ORDER BY number
"""

_NOT_IN_FILE: Final[LiteralString] = """
SELECT e.writer, e.number, e.body, e.hash
FROM oar_internal.entries AS o JOIN oar_internal.entries AS e ON e.writer = o.writer
WHERE o.kind = 'open' AND o.body::json->'file'->>'first' = %(first)s
  AND e.entry > (SELECT entry FROM oar_internal.entries
                 WHERE writer = %(writer)s AND number = %(number)s AND hash = %(hash)s)
ORDER BY e.entry
"""

_FORMER: Final[LiteralString] = """
FROM pg_stat_activity WHERE application_name = %s AND usename = current_user
  AND datname = current_database() AND pid <> pg_backend_pid()
"""
"""Connections of the same writer, and of nobody who only calls himself so."""

_ENDS: Final = 2000
"""Milliseconds that a connection gets to end in."""

Connection = psycopg.AsyncConnection[TupleRow]

log = structlog.get_logger(__name__)


class Request(Protocol):
    """What is to be written. Called when its turn has come, in the order of the chain."""

    durable: bool
    """Whether it counts only once it is on disk."""

    def contents(self, writer: uuid.UUID, number: int) -> Sequence[tuple[str, Body]]:
        """Return kind and content of each entry; the first becomes entry ``number`` of the writer.

        Raises :class:`LedgerUnavailable`.
        """

    def undone(self) -> None:
        """Take in that the entries are not on the ledger after all."""


@dataclass(slots=True)
class _Waiting:
    request: Request
    done: asyncio.Future[Sequence[Entry]]


class _ChainLost(Exception):
    """The hub does not have the chain as it was written."""


class Writer:
    """One chain of the ledger. An asynchronous context manager, which opens and closes it."""

    def __init__(self, conninfo: str, file: Path | None = None) -> None:
        """Write to the hub at ``conninfo`` and, with ``file``, to a copy of the chain there."""
        self._conninfo = conninfo
        self._path = file
        self._file: LedgerFile | None = None
        self._chain = Chain(uuid.uuid4())
        self._durable = self._chain.head
        self._connection: Connection | None = None
        self._waiting: deque[_Waiting] = deque()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        # Committed, and on disk with the next entry that is.
        self._unflushed: list[Entry] = []
        # Of a commit that nobody can say of whether it happened.
        self._doubtful: list[Entry] = []
        self._doubted: list[Request] = []
        # On the hub's disk and not in the file yet.
        self._owed: list[Entry] = []
        self._named: dict[uuid.UUID, int] = {}
        self._to_name: list[Head] = []
        self._linked = time.monotonic()
        self._lost: Head | None = None

    @property
    def head(self) -> Head:
        """The last entry of the chain."""
        return self._chain.head

    async def __aenter__(self) -> Writer:
        """Open the chain. Raises :class:`LedgerUnavailable`."""
        self._task = asyncio.create_task(self._run(), name="ledger")
        try:
            if self._path is not None:
                await self._open_file(self._path)
            await self.write(_Entries())
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            await self.write(one_entry("close", {}))
        except LedgerUnavailable:
            log.warning("the ledger's chain was not closed", writer=str(self._chain.writer))
        finally:
            await self._stop()

    async def _stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None
        self._refuse(list(self._waiting), None)
        self._waiting.clear()
        await self._disconnect()
        if self._file is not None:
            self._file.close()
            self._file = None

    async def write(self, request: Request) -> Sequence[Entry]:
        """Write what a request says; returns its entries.

        Raises :class:`LedgerUnavailable`, also when that takes longer than :data:`TIMEOUT`.
        """
        if self._task is None:
            raise LedgerUnavailable("the ledger is not open")
        waiting = _Waiting(request, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        self._wake.set()
        try:
            async with asyncio.timeout(TIMEOUT):
                return await waiting.done
        except TimeoutError as error:
            raise LedgerUnavailable("the ledger did not answer in time") from error

    # --- the task -------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while batch := self._next():
                await self._settle(batch)

    def _next(self) -> list[_Waiting]:
        batch: list[_Waiting] = []
        while self._waiting and len(batch) < MOST_AT_ONCE:
            waiting = self._waiting.popleft()
            if not waiting.done.done():  # it was not given up
                batch.append(waiting)
        return batch

    async def _settle(self, batch: list[_Waiting]) -> None:
        """Write a batch and tell those who wait for it how that went."""
        try:
            async with asyncio.timeout(TIMEOUT):
                written = await self._write([waiting.request for waiting in batch])
        except asyncio.CancelledError:
            self._refuse(batch, None)
            raise
        except (psycopg.Error, OSError, TimeoutError, LedgerUnavailable) as error:
            self._refuse(batch, error)
            await self._disconnect()
            return
        except Exception as error:  # noqa: BLE001 - a fault of one statement must not end the task
            self._refuse(batch, error)
            await self._disconnect()
            log.error("the ledger's writer failed", error=type(error).__name__)
            return
        for waiting, entries in zip(batch, written, strict=True):
            if not waiting.done.done():
                if isinstance(entries, LedgerUnavailable):
                    waiting.done.set_exception(entries)
                else:
                    waiting.done.set_result(entries)
        await self._look_at_others()

    @staticmethod
    def _refuse(batch: Sequence[_Waiting], cause: BaseException | None) -> None:
        for waiting in batch:
            if not waiting.done.done():
                error = LedgerUnavailable(
                    "the ledger could not be written",
                    hint="the hub's primary has to accept writes: ask the operator, then retry",
                )
                error.__cause__ = cause
                waiting.done.set_exception(error)

    async def _write(
        self, requests: Sequence[Request]
    ) -> list[Sequence[Entry] | LedgerUnavailable]:
        connection = await self._connected()
        await self._copy()
        # Doubtful from the start: whatever fails below, the next connection finds out.
        entries, made = self._doubtful, self._doubted = [], []
        entries += await self._opening(connection)
        answers: list[Sequence[Entry] | LedgerUnavailable] = []
        durable = bool(entries)
        for request in requests:
            try:
                contents = request.contents(self._chain.writer, self._chain.number + 1)
            except LedgerUnavailable as error:
                answers.append(error)
                continue
            made.append(request)
            own = [self._append(kind, content) for kind, content in contents]
            answers.append(own)
            entries += own
            durable = durable or request.durable
        durable = durable or len(self._unflushed) + len(entries) > MOST_UNFLUSHED
        if not entries:
            return answers
        await insert(connection, entries, durable=durable)
        self._doubtful, self._doubted, self._to_name = [], [], []
        self._unflushed += entries
        if durable:
            self._flushed()
            await self._copy()
        return answers

    def _flushed(self) -> None:
        """Take in that all that is committed is on disk."""
        self._durable = self._unflushed[-1].head
        if self._file is not None:
            self._owed += self._unflushed
        self._unflushed = []

    def _append(self, kind: str, content: Body) -> Entry:
        at = datetime.now(UTC).isoformat(timespec="microseconds")
        return self._chain.append(kind, at, content)

    def _undo(self, head: Head) -> None:
        self._chain.back_to(head)
        doubted, self._doubted, self._doubtful = self._doubted, [], []
        for request in reversed(doubted):
            request.undone()

    async def _copy(self) -> None:
        """Put into the file what it has not got. Until that succeeds nothing else is written."""
        if self._file is not None and self._owed:
            await asyncio.to_thread(self._file.append, self._owed)
            self._owed = []

    # --- other writers --------------------------------------------------------------------------

    async def _opening(self, connection: Connection) -> list[Entry]:
        """Return the entry that has to come first: the chain's own first one, or a link."""
        if self._chain.number:
            if not self._to_name:
                return []
            return [self._append("link", {"heads": [head.named() for head in self._to_name]})]
        cursor = await connection.execute(_NAMED_BY_OPENINGS)
        openings: dict[uuid.UUID, int] = dict(await cursor.fetchall())
        heads = await heads_of_all(connection)
        self._named = {head.writer: head.number for head in heads}
        # What another chain began by naming is held by that one.
        unnamed = [head for head in heads if openings.get(head.writer, 0) < head.number]
        if self._lost is not None:
            unnamed = [head for head in unnamed if head.writer != self._lost.writer]
            unnamed.append(self._lost)
        content: Body = {"heads": [head.named() for head in unnamed]}
        if self._file is not None:
            last = self._file.last
            content["file"] = {
                "first": str(self._file.first or self._chain.writer),
                "last": None if last is None else last.named(),
            }
        return [self._append("open", content)]

    async def _look_at_others(self) -> None:
        """Once in a while, learn which entries of others to name in the next statement."""
        if time.monotonic() - self._linked < LINK_SECONDS or self._connection is None:
            return
        self._linked = time.monotonic()
        try:
            async with asyncio.timeout(TIMEOUT):
                heads = await heads_of_all(self._connection)
        except Exception as error:  # noqa: BLE001 - whatever it is must not end the task
            log.warning("other chains could not be looked at", error=type(error).__name__)
            await self._disconnect()
            return
        self._to_name = [
            head
            for head in heads
            if head.writer != self._chain.writer and self._named.get(head.writer) != head.number
        ]
        self._named.update((head.writer, head.number) for head in self._to_name)

    # --- the connection -------------------------------------------------------------------------

    async def _connected(self) -> Connection:
        """Return a connection that no other one of this writer can get ahead of."""
        if self._connection is None or self._connection.closed:
            self._connection = None
            name = connection_name(self._chain.writer)
            connection = await psycopg.AsyncConnection.connect(
                self._conninfo, autocommit=True, application_name=name, connect_timeout=int(TIMEOUT)
            )
            try:
                await self._prepare(connection, name)
            except BaseException:
                await connection.close()
                raise
            self._connection = connection
        return self._connection

    async def _prepare(self, connection: Connection, name: str) -> None:
        # One statement, planned once; and it waits for what the hub is configured to wait for.
        await connection.execute("SET plan_cache_mode = force_generic_plan")
        await connection.execute(
            "SELECT set_config('synchronous_commit', 'on', false)"
            " WHERE current_setting('synchronous_commit') NOT IN ('on', 'remote_apply')"
        )
        await connection.execute(f"SELECT pg_terminate_backend(pid, {_ENDS}) {_FORMER}", (name,))
        if await (await connection.execute(f"SELECT 1 {_FORMER}", (name,))).fetchone():
            raise TimeoutError("a former connection to the ledger does not end")
        try:
            await self._resume(connection)
        except _ChainLost:
            log.error(
                "the hub does not have the ledger's entries as they were written: another chain "
                "begins, which names the last one",
                writer=str(self._chain.writer),
                number=self._durable.number,
            )
            await self._begin_again(connection)

    async def _resume(self, connection: Connection) -> None:
        """Find out which entries are there, and go on behind them."""
        if not self._chain.number:
            return
        cursor = await connection.execute(_BEHIND, (self._chain.writer, self._durable.number))
        there = [(number, hash_) for number, hash_ in await cursor.fetchall()]
        if self._durable.number:
            if not there or there[0] != (self._durable.number, self._durable.hash):
                raise _ChainLost
            del there[0]
        expected = [*self._unflushed, *self._doubtful]
        if there != [(entry.number, entry.hash) for entry in expected[: len(there)]]:
            raise _ChainLost
        lost = self._unflushed[len(there) :]
        if lost or len(there) == len(self._unflushed):
            before = self._unflushed[-1].head if self._unflushed else self._durable
            self._undo(before)
            if lost:
                await insert(connection, lost, durable=True)
                self._flushed()
        else:
            self._unflushed += self._doubtful
            self._doubtful, self._doubted = [], []

    async def _begin_again(self, connection: Connection) -> None:
        """Begin another chain, whose first entry names all others as the hub has them now."""
        self._undo(self._chain.head)
        self._lost = self._durable if self._durable.number else None
        self._chain = Chain(uuid.uuid4())
        self._durable = self._chain.head
        self._unflushed, self._to_name = [], []
        name = connection_name(self._chain.writer)
        await connection.execute("SELECT set_config('application_name', %s, false)", (name,))

    async def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    # --- the file -------------------------------------------------------------------------------

    async def _open_file(self, path: Path) -> None:
        """Open the copy and complete it from the hub. Raises :class:`LedgerUnavailable`."""
        try:
            self._file = await asyncio.to_thread(LedgerFile, path)
            if self._file.last is not None:
                async with await psycopg.AsyncConnection.connect(
                    self._conninfo, connect_timeout=int(TIMEOUT)
                ) as connection:
                    await _complete(connection, self._file)
        except LedgerFileError as error:
            raise LedgerUnavailable(
                str(error), hint="ledger.file names the file; each proxy needs one of its own"
            ) from error
        except (psycopg.Error, OSError) as error:
            what = error.strerror if isinstance(error, OSError) else type(error).__name__
            raise LedgerUnavailable(f"ledger.file cannot be completed: {what}") from error


def one_entry(kind: str, content: Body) -> Request:
    """Return the request of one entry, which counts once it is on disk."""
    return _Entries((kind, content))


class _Entries:
    """A request of entries that are known."""

    durable = True

    def __init__(self, *contents: tuple[str, Body]) -> None:
        self._contents = contents

    def contents(self, writer: uuid.UUID, number: int) -> Sequence[tuple[str, Body]]:  # noqa: ARG002
        return self._contents

    def undone(self) -> None:
        pass


async def insert(connection: Connection, entries: Sequence[Entry], *, durable: bool = True) -> None:
    """Add entries to the table. ``durable``: with whatever commit the connection is set to."""
    if entries:
        statement = _INSERT if durable else _INSERT_SOON
        bodies = f"[{','.join(entry.body for entry in entries)}]"
        hashes = b"".join(entry.hash for entry in entries)
        await connection.execute(statement, (bodies, hashes), prepare=True)


async def heads_of_all(connection: Connection) -> list[Head]:
    """Return the last entry of each writer."""
    cursor = await connection.execute(_HEADS)
    return [Head(*row) for row in await cursor.fetchall()]


async def _complete(connection: Connection, file: LedgerFile) -> None:
    assert file.last is not None
    cursor = await connection.execute(
        "SELECT FROM oar_internal.entries WHERE writer = %s AND number = %s AND hash = %s",
        (file.last.writer, file.last.number, file.last.hash),
    )
    if not cursor.rowcount:
        raise LedgerFileError(
            f"the last entry of the file ({file.last.number} of writer {file.last.writer}) is not "
            "on the hub's ledger"
        )
    async with connection.cursor(name="oar_ledger") as behind:
        await behind.execute(
            _NOT_IN_FILE,
            {
                "first": str(file.first),
                "writer": file.last.writer,
                "number": file.last.number,
                "hash": file.last.hash,
            },
        )
        while rows := await behind.fetchmany(1000):
            await asyncio.to_thread(file.append, [Entry(*row) for row in rows])


def connection_name(writer: uuid.UUID) -> str:
    """Return the ``application_name`` of a writer's connection, which it has while it runs."""
    return f"oar ledger {writer.hex}"
