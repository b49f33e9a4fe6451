"""Conversations of real clients with a real hub, recorded byte by byte on their way."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

import asyncpg
import psycopg
from oar_proxy.wire import messages
from oar_proxy.wire.messages import HEADER

from oar_bench.harness import USER
from oar_bench.overhead.processes import HOST, Proxy

CLIENT: Final = 0
HUB: Final = 1

Step = tuple[int, bytes]
"""Who sent, and what until the other side did."""

MARK: Final = "/* published */"
"""Statements with it are taken for ones that may be the proxy's."""


@dataclass(frozen=True)
class Recordings:
    """What was recorded. Each exchange begins where the hub waits, and ends where it does again."""

    startups: Sequence[Sequence[Step]]
    """From the startup packet to the first ReadyForQuery, or to the refusal."""
    exchanges: Sequence[Sequence[Step]]


class _Tap:
    """Passes one client's bytes on to the hub and back, and keeps them."""

    def __init__(self, hub: str) -> None:
        self._hub = hub
        self._listener = socket.create_server((HOST, 0))
        self.port: int = self._listener.getsockname()[1]
        self.steps: list[Step] = []
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        client, _ = self._listener.accept()
        self._listener.close()
        with client, socket.socket(socket.AF_UNIX) as hub:
            hub.connect(self._hub)
            back = threading.Thread(target=self._pass_on, args=(hub, client, HUB))
            back.start()
            self._pass_on(client, hub, CLIENT)
            back.join()

    def _pass_on(self, source: socket.socket, target: socket.socket, side: int) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                with self._lock:
                    if self.steps and self.steps[-1][0] == side:
                        data_before = self.steps.pop()[1]
                        self.steps.append((side, data_before + data))
                    else:
                        self.steps.append((side, data))
                target.sendall(data)
        with suppress(OSError):
            target.shutdown(socket.SHUT_WR)

    def close(self) -> list[Step]:
        self._thread.join()
        return self.steps


def record(proxy: Proxy) -> Recordings:
    """Have real clients talk to the proxy's hub."""
    startups: list[Sequence[Step]] = []
    exchanges: list[Sequence[Step]] = []
    for talk in _TALKS:
        tap = _Tap(f"{proxy.hub.host}/.s.PGSQL.{proxy.hub.port}")
        talk(
            {
                "host": HOST,
                "port": tap.port,
                "user": USER,
                "password": proxy.password,
                "dbname": proxy.hub.database,
                "sslmode": "disable",
            }
        )
        first, *rest = _exchanges(tap.close())
        startups.append(first)
        exchanges += rest
    return Recordings(startups, exchanges)


def _exchanges(steps: Sequence[Step]) -> Iterator[Sequence[Step]]:
    """Cut a conversation where the hub has answered all that it was asked."""
    exchange: list[Step] = []
    first = True
    for step in steps:
        exchange.append(step)
        if step[0] == HUB and step[1][-6:-1] == b"Z\0\0\0\5" and (first or _answered(exchange)):
            yield exchange
            exchange, first = [], False
    if exchange:
        yield exchange


def _answered(exchange: Sequence[Step]) -> bool:
    """Tell whether each Query, Sync and FunctionCall has its ReadyForQuery.

    A client may have sent more of them than have been answered yet. One Sync is ignored, that
    which an extended COPY FROM STDIN has before its rows.
    """
    asked, answered = (
        [m[:1] for m in frames(b"".join(data for side, data in exchange if side == which))]
        for which in (CLIENT, HUB)
    )
    due = sum(map(asked.count, (b"Q", b"S", b"F")))
    ignored = answered.count(b"G") if b"E" in asked else 0
    return due - ignored == answered.count(b"Z")


def frames(data: bytes) -> list[bytes]:
    """Cut bytes into messages as far as their lengths tell, the rest as it is."""
    found = []
    while len(data) >= HEADER.size:
        size = HEADER.unpack_from(data)[1] + 1
        if not HEADER.size <= size <= len(data):
            break
        found.append(data[:size])
        data = data[size:]
    return [*found, data] if data else found


# --- what the clients talk about ------------------------------------------------------------------

_Where = dict[str, Any]


def _simple(where: _Where) -> None:
    with psycopg.connect(**where, autocommit=True) as connection:
        cursor = psycopg.ClientCursor(connection)
        for statement in (
            "SELECT 1",
            f"SELECT i, 'row ' || i FROM generate_series(1, 20) AS i {MARK}",
            f"SELECT 1; {MARK} SELECT 2; SELECT 3",
            "SET application_name TO 'x'; SET DateStyle TO 'ISO, DMY'",
            "",
            f"BEGIN; SELECT 1 {MARK}",
            "ROLLBACK",
            "DO $$ BEGIN RAISE NOTICE 'hm'; END $$",
            "SELECT repeat('x', 3000)",
            "LISTEN c; NOTIFY c, 'payload'",
        ):
            cursor.execute(statement)
        for wrong in ("SELECT 1/0", f"SELECT nonesuch {MARK}", "SELEC"):
            with suppress(psycopg.Error):
                cursor.execute(wrong)


def _extended(where: _Where) -> None:
    with psycopg.connect(**where, autocommit=True) as connection:
        for binary in (False, True):
            cursor = connection.cursor(binary=binary)
            for value in (1, None, 2**40):
                cursor.execute(f"SELECT %s::bigint {MARK}", (value,), prepare=True)
            cursor.execute("SELECT %s::text, %b", ("é" * 50, 7))
        with suppress(psycopg.Error):
            connection.execute("SELECT 1/%s", (0,))
        with connection.transaction(), connection.cursor("named") as named:
            named.execute(f"SELECT i FROM generate_series(1, 30) AS i {MARK}")
            named.fetchmany(10)
        connection.execute("DEALLOCATE ALL")


def _pipelines(where: _Where) -> None:
    with psycopg.connect(**where, autocommit=True) as connection:
        with connection.pipeline() as pipeline:
            for number in range(4):
                connection.execute(f"SELECT %s {MARK if number % 2 else ''}", (number,))
            pipeline.sync()
            connection.execute("SELECT 5")
        with suppress(psycopg.Error), connection.pipeline():
            for statement in ("SELECT 1", f"SELECT 1/0 {MARK}", "SELECT 2"):
                connection.execute(statement)
        connection.execute("SELECT 6")


def _copies(where: _Where) -> None:
    with psycopg.connect(**where, autocommit=True) as connection:
        connection.execute("CREATE TEMP TABLE t (a int, b text)")
        cursor = connection.cursor()
        with cursor.copy("COPY t FROM STDIN") as copy:
            for number in range(30):
                copy.write_row((number, "x" * number))
        with cursor.copy(f"COPY (SELECT * FROM t) TO STDOUT (FORMAT binary) {MARK}") as copy:
            list(copy)
        with suppress(psycopg.Error), cursor.copy("COPY t FROM STDIN") as copy:
            copy.write("wrong\n")
        with suppress(ZeroDivisionError), cursor.copy("COPY t FROM STDIN") as copy:
            copy.write(f"{1 // 0}\n")
        connection.execute("SELECT count(*) FROM t")


def _raw(where: _Where) -> None:
    """What drivers do with some protocol of their own: portals in turn, Flush, function calls."""
    bind = b"".join(messages.encode_bind(b"p", b"s", (), (1,)))
    statement = f"SELECT * FROM generate_series(1, 9) {MARK}".encode()
    with psycopg.connect(**where, autocommit=True) as connection:
        connection.execute("BEGIN")
        with socket.socket(fileno=connection.fileno()) as bare:
            bare.setblocking(True)
            for sent, until in (
                (messages.encode_parse(b"s", statement) + messages.FLUSH, b"1"),
                (messages.encode_describe(b"S", b"s") + messages.SYNC, b"Z"),
                (bind + messages.encode_execute(b"p", 4) + messages.SYNC, b"Z"),
                (messages.encode_query(b"SELECT 1"), b"Z"),
                (messages.encode_execute(b"p", 9) + messages.SYNC, b"Z"),
                (messages.encode_close(b"P", b"p") + messages.SYNC, b"Z"),
                (b"F\0\0\0\x0e\0\0\x06\x4a\0\0\0\0\0\0" + messages.SYNC, b"Z"),
                (messages.encode_parse(b"s", b"SELECT 1") + messages.SYNC, b"Z"),
                (messages.encode_query(b"ROLLBACK"), b"Z"),
            ):
                bare.sendall(sent)
                received = b""
                while not received or frames(received)[-1][:1] != until:
                    received += bare.recv(65536)
            bare.detach()


def _asyncpg(where: _Where) -> None:
    async def talk() -> None:
        given = {**where, "database": where["dbname"]}
        del given["dbname"], given["sslmode"]
        connection = await asyncpg.connect(**given, ssl=False)
        try:
            await connection.fetch(f"SELECT $1::int, $2::text[] {MARK}", 1, ["a", None])
            async with connection.transaction():
                async for _ in connection.cursor(
                    f"SELECT * FROM generate_series(1, 12) {MARK}", prefetch=5
                ):
                    pass
            with suppress(asyncpg.PostgresError):
                await connection.execute("SELECT 1/0")
            statement = await connection.prepare(f"SELECT $1::numeric {MARK}")
            await statement.fetchval(1)
            await connection.reset()
        finally:
            await connection.close()

    asyncio.run(talk())


def _refused(where: _Where) -> None:
    with suppress(psycopg.OperationalError):
        psycopg.connect(**{**where, "password": "wrong"})


def _newest(where: _Where) -> None:
    with psycopg.connect(**where, max_protocol_version="latest", options="-c geqo=off") as client:
        client.execute("SELECT 1")


_TALKS: Final[tuple[Callable[[_Where], None], ...]] = (
    _simple,
    _extended,
    _pipelines,
    _copies,
    _raw,
    _asyncpg,
    _refused,
    _newest,
)


@contextmanager
def within(seconds: float, what: str) -> Iterator[None]:
    """Raise ``TimeoutError`` when a block takes longer. In the main thread only."""
    import signal

    def late(*_: object) -> None:
        raise TimeoutError(f"{what} did not end within {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
