"""A front door on a real hub, with a small federation whose rows come from memory."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import re
import secrets
import threading
from contextlib import AsyncExitStack
from dataclasses import replace

import psycopg
import psycopg.conninfo
import pytest
import uvloop
import waits
from frames import Raw
from oar_proxy.app import user_keys
from oar_proxy.errors import InsufficientPrivilege
from oar_proxy.federation import Copied, Execution, Parameter, Piece, Prepared
from oar_proxy.hub.access import admin_pool
from oar_proxy.hub.users import add_user
from oar_proxy.server import FrontDoor
from oar_proxy.settings import Listen
from oar_proxy.tls import open_certificate

ROWS = [(number, f"name {number}") for number in range(1, 6)]

TABLES = (
    "orders",
    "slow",
    "denied",
    "broken",
    "asks",
    "swallows",
    "ample",
    "reshaped",
    "wide",
    "passing",
)
OURS = re.compile(rf"\bpub\.({'|'.join(TABLES)})\b")
INT4_ARRAY, TEXT_ARRAY = 1007, 1009


def arrayed(values):
    return ("{" + ",".join(f'"{value}"' for value in values) + "}").encode()


def as_cells(rows):
    return (
        Parameter(INT4_ARRAY, 0, arrayed(number for number, _ in rows)),
        Parameter(TEXT_ARRAY, 0, arrayed(name for _, name in rows)),
    )


class Passing:
    """Chunks behind the first, each put in the text by ``put``. ``taken`` counts them all."""

    def __init__(self, federation, chunks, put, copied):
        self.federation = federation
        self.put = put
        self.copied = copied
        self.left = list(chunks[1:])
        self.taken = 1
        self.closed = 0

    async def next(self):
        while self.left:
            chunk = self.left.pop(0)
            if isinstance(chunk, Exception):
                raise chunk
            if chunk is None:
                await self.federation.release.wait()
                continue
            self.taken += 1
            return self.put(chunk)
        return None

    async def close(self):
        self.closed += 1
        self.federation.events.append(("closed", "passing"))


class Federation:
    """Statements over ``pub.*``. The table's name says how the owners behave.

    ``orders`` answers; ``slow`` waits until ``release`` is set; ``denied`` is refused; ``broken``
    is a bug; ``asks`` asks the session's hub a question that fails; ``swallows`` does too, and
    hides that; ``ample`` asks it a large one, in the middle of which ``interrupt`` is called;
    ``reshaped`` answers with a column more than was prepared. ``passing`` answers in
    the chunks that ``chunks`` holds: ids of rows, ``None`` (wait for ``release``) or an error.
    With ``settles`` an answer of ``orders`` is settled when ``release`` is set.
    """

    def __init__(self):
        self.events = []
        self.release = asyncio.Event()
        self.parameters = []
        self.interrupt = None
        self.notices = False
        self.settles = False
        self.chunks = []
        self.passing = None
        self.copied = Copied(header=False, binary=False)

    def suspect(self, text):
        return b"pub" in text.lower()

    def split(self, text):
        if "SYNTAX" in text:
            return None
        pieces, at = [], 0
        for part in text.split(";"):
            if statement := part.strip():
                begin = at + part.index(statement)
                fetched = re.match(r"FETCH .*FROM (\w+)$", statement)
                suspect = self.suspect(statement.encode())
                cursor = fetched[1] if fetched else None
                ends = re.match(r"(COMMIT|ROLLBACK)$", statement) is not None
                pieces.append(Piece(statement, begin, suspect, cursor, ends=ends))
            at += len(part) + 1
        return pieces

    async def prepare(self, text, link):
        await link.query("SHOW search_path")
        found = OURS.search(re.sub(r"--.*|/\*.*?\*/", "", text))
        if found is None:
            return None
        if found[1] == "denied":
            raise InsufficientPrivilege(
                "denied", detail="the owner's rule", hint="ask them", position=found.start() + 1
            )
        await link.check(text)
        cursor = re.match(r"DECLARE (\w+ )*CURSOR FOR", text)
        return Prepared(text, (text, found[1]), in_block=cursor is not None)

    async def execute(self, prepared, link, parameters, stack):
        await link.accepted()
        text, behaviour = prepared.statement
        self.parameters.append(tuple(parameters))
        self.events.append(("begun", behaviour))
        try:
            await self._behave(behaviour, link)
        except asyncio.CancelledError:
            self.events.append(("cancelled", behaviour))
            raise
        if self.notices:
            link.notice("asking 1 owner", detail="of 1")
        column = ", 1 AS more" if behaviour == "reshaped" else ""

        def put(rows):
            cells = as_cells(rows)
            ids, names = f"${len(parameters) + 1}", f"${len(parameters) + 2}"
            if text.startswith("COPY"):  # takes no parameters
                ids, names = (f"'{cell.cell.decode()}'" for cell in cells)
                cells = ()
            source = f"unnest({ids}::int4[], {names}::text[]) AS rows(id, name)"
            source = f"(SELECT *{column} FROM {source}) AS answered"
            return Execution(OURS.sub(lambda _: source, text), cells)

        self.events.append(("answered", behaviour))
        if self.settles and behaviour == "orders":
            stack.callback(lambda: link.hold(asyncio.create_task(self._settle())))
        if behaviour != "passing":
            return put(ROWS * (300_000 if behaviour == "wide" else 1))
        chunks = [self._rows(chunk) for chunk in self.chunks]
        if text.startswith(("DECLARE", "CREATE")):
            return put([row for chunk in chunks for row in chunk])
        copied = self.copied if text.startswith("COPY") else None
        self.passing = Passing(self, chunks, put, copied)
        stack.push_async_callback(self.passing.close)
        return replace(put(chunks[0]), more=self.passing)

    async def _settle(self):
        self.events.append(("settling", "orders"))
        await self.release.wait()
        self.events.append(("settled", "orders"))

    def _rows(self, chunk):
        return (
            [(number, f"name {number}") for number in chunk] if isinstance(chunk, range) else chunk
        )

    async def _behave(self, behaviour, link):
        if behaviour == "slow":
            await self.release.wait()
        if behaviour == "broken":
            raise ZeroDivisionError("secret row")
        if behaviour == "asks":
            await link.query("SELECT 1/0")
        if behaviour == "ample":
            asyncio.get_running_loop().call_soon(self.interrupt)
            large = [Parameter(25, 0, b"x" * 2**23) for _ in range(8)]
            await link.query("SELECT $1, $2, $3, $4, $5, $6, $7, $8", large)
        if behaviour == "swallows":
            with contextlib.suppress(Exception):
                await link.query("SELECT 1/0")


class Door:
    """A front door in a thread of its own, so that clients may block."""

    def __init__(self, hub, hub_address=None, *, channel_binding=True, **listen):
        self.federation = None
        self._hub = hub
        self._channel_binding = channel_binding
        self._address = hub if hub_address is None else replace(hub, **hub_address)
        self._listen = Listen(port=0, **listen)
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self.door = None
        self.run(self._start())

    async def _start(self):
        self.federation = Federation()
        certificate = open_certificate(self._listen)
        self._admin = AsyncExitStack()
        admin = await self._admin.enter_async_context(admin_pool(self._hub, size=1))
        self.door = FrontDoor(
            self._listen,
            self._address,
            self.federation,
            certificate=certificate,
            keys=await user_keys(admin) if self._channel_binding else None,
        )
        self.port = await self.door.start()

    def run(self, work, timeout=60):
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout)

    def call(self, function, *arguments):
        async def call():
            return function(*arguments)

        return self.run(call())

    def stop(self):
        self.run(self.door.stop())

    def close(self):
        self.stop()
        self.run(self._admin.aclose())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@pytest.fixture(scope="module")
def published(hub):
    """Guard views in the hub, and the name and password of a client."""
    name, password = f"anna_{secrets.token_hex(4)}", "pass word"
    with psycopg.connect(hub.conninfo, autocommit=True) as admin:
        admin.execute("CREATE SCHEMA pub; GRANT USAGE ON SCHEMA pub TO oar_client")
        admin.execute(
            "CREATE FUNCTION pub.guard() RETURNS TABLE (id int, name text) LANGUAGE plpgsql AS"
            " $$ BEGIN RAISE 'guard executed' USING ERRCODE = '0A000'; END $$"
        )
        for table in TABLES:
            admin.execute(f"CREATE VIEW pub.{table} AS SELECT * FROM pub.guard()")
            admin.execute(f"GRANT SELECT ON pub.{table} TO oar_client")
        admin.execute("GRANT EXECUTE ON FUNCTION pub.guard() TO oar_client")
        admin.execute("CREATE VIEW pub.hidden AS SELECT * FROM pub.guard()")
        # The same rows in an ordinary table: what a client should see of pub.orders.
        admin.execute(
            "CREATE TABLE public.orders AS SELECT * FROM (VALUES"
            + ",".join(f"({number}, '{text}'::text)" for number, text in ROWS)
            + ") AS rows(id, name)"
        )
        admin.execute("GRANT SELECT ON public.orders TO oar_client")
    asyncio.run(_add_user(hub, name, password))
    yield {"user": name, "password": password, "dbname": hub.database}
    with psycopg.connect(hub.conninfo, autocommit=True) as admin:
        admin.execute(f"DROP OWNED BY {name}; DROP ROLE {name}; DROP SCHEMA pub CASCADE")
        admin.execute("DROP TABLE public.orders")


async def _add_user(hub, name, password):
    async with await psycopg.AsyncConnection.connect(hub.conninfo, autocommit=True) as connection:
        await add_user(connection, name, password)


@pytest.fixture(scope="module")
def open_door(hub):
    """Open a front door with some of its settings changed."""
    with contextlib.ExitStack() as stack:

        def make(**listen):
            door = Door(hub, **listen)
            stack.callback(door.close)
            return door

        yield make


@pytest.fixture
def door_class():
    return Door


@pytest.fixture(scope="module")
def door(open_door, published):
    return open_door()


@pytest.fixture
def federation(door):
    """The door's federation, with nothing remembered of other tests."""
    federation = door.federation
    federation.events.clear()
    federation.parameters.clear()
    federation.notices = federation.settles = False
    yield federation
    door.call(federation.release.clear)


@pytest.fixture
def where(door, published):
    """How a client reaches the front door."""
    return {**published, "host": "127.0.0.1", "port": door.port}


@pytest.fixture
def directly(hub, published):
    """How the same client reaches the hub itself."""
    return {**published, "host": hub.host, "port": hub.port}


@pytest.fixture
def admin(hub):
    with psycopg.connect(hub.conninfo, autocommit=True) as connection:
        yield connection


@pytest.fixture
def executes(admin):
    """Tell whether the hub is in the ``pg_sleep`` of a pid's session, or waits so for its client."""
    return functools.partial(waits.executes, admin)


@pytest.fixture
def connect_raw():
    with contextlib.ExitStack() as stack:

        def make(where):
            raw = Raw(**where)
            stack.callback(raw.close)
            return raw

        yield make


@pytest.fixture
def raw(connect_raw, where, federation):
    return connect_raw(where)


@pytest.fixture
def client(where, federation):
    with psycopg.connect(**where, autocommit=True) as connection:
        yield connection
