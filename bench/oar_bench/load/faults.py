"""Faults, one at a time, while others work. Each says what was not as it has to be."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
import struct
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import psycopg
from oar_proxy.wire import messages
from psycopg.pq import TransactionStatus

from oar_bench.load import traffic
from oar_bench.load.model import QUESTION
from oar_bench.load.shim import Shim
from oar_bench.load.traffic import CONNECTION_LOST, Clients, Connection
from oar_bench.load.world import EVENTS, ORDERS, PROMOS, World
from oar_bench.overhead.processes import HOST

CANCEL_BOUND: Final = 2.0
"""Seconds within which a cancelled statement is answered, on a machine that is busy."""

STOP_BOUND: Final = 5.0
"""Seconds within which nothing runs at an owner for a client that has gone."""

UNREACHABLE: Final = "HV00N"
CANCELLED: Final = "57014"
LOST: Final = frozenset({CONNECTION_LOST, "08006", "57P01", "57P02", "57P03", "58030"})
"""What clients may be told whose hub has been killed."""

_ALL_EVENTS: Final = "SELECT id, note FROM shop.events"
_LITTLE: Final = 16 * 1024


class Bare:
    """An authenticated client whose socket is read by hand, or not."""

    def __init__(self, world: World, port: int | None = None) -> None:
        self._connection = psycopg.connect(
            world.proxy.conninfo, port=port or world.proxy.port, autocommit=True
        )
        self._socket = socket.socket(fileno=os.dup(self._connection.fileno()))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _LITTLE)
        self._socket.settimeout(60)

    def ask(self, statement: str) -> None:
        """Send a statement and read nothing."""
        self._socket.sendall(messages.encode_query(statement.encode()))

    def some(self) -> bytes:
        """Read a little."""
        return self._socket.recv(_LITTLE)

    def rest(self, begun: bytes = b"") -> tuple[int, str]:
        """Read to the end of the answer: how many rows, and how it ended."""
        received, rows, end = bytearray(begun), 0, ""
        while True:
            at = 0
            while len(received) - at >= 5:
                code, length = struct.unpack_from("!BI", received, at)
                if len(received) - at < length + 1:
                    break
                message = bytes(received[at : at + length + 1])
                at += length + 1
                rows += code == ord("D")
                if code == ord("E"):
                    end = messages.sqlstate(message)
                elif code == ord("Z"):
                    return rows, end or "00000"
            del received[:at]
            part = self._socket.recv(256 * 1024)
            if not part:
                return rows, CONNECTION_LOST
            received += part

    def vanish(self) -> None:
        """Leave with RST, as a machine that is switched off and on again does."""
        now = struct.pack("ii", 1, 0)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, now)
        # The other descriptor first: the reset leaves with the last one.
        os.close(self._connection.fileno())
        self._socket.close()

    def close(self) -> None:
        """Leave in order."""
        self._socket.close()
        self._connection.close()


Fault = Callable[[World, Clients, Clients], Awaitable[list[str]]]
"""Takes those who ask the owner that things happen to, and the others."""


async def stalled(world: World, sharers: Clients, others: Clients) -> list[str]:  # noqa: ARG001
    """Clients ask for a big answer, do not read it for a while, and then do."""

    def one() -> str | None:
        client = Bare(world)
        try:
            client.ask(_ALL_EVENTS)
            time.sleep(world.patience)
            found = client.rest()
        finally:
            client.close()
        return None if found == (EVENTS, "00000") else f"a client that read late got {found}"

    return await _all(one, 5)


async def vanished(world: World, sharers: Clients, others: Clients) -> list[str]:  # noqa: ARG001
    """Clients break off in the middle of a big answer; their owner is let go of."""

    def one() -> str | None:
        client = Bare(world)
        client.ask(_ALL_EVENTS)
        client.some()
        client.vanish()
        return None

    faults = await _all(one, 10)
    return faults + await _at_rest(world, "events")


async def half_open(world: World, sharers: Clients, others: Clients) -> list[str]:  # noqa: ARG001
    """Sockets that say nothing, or half of something; and sessions whose network goes away."""
    packet = struct.pack("!II", 100, 196608) + b"user\0"

    def silent(sent: bytes) -> str | None:
        began = time.monotonic()
        with socket.create_connection((HOST, world.proxy.port)) as connection:
            connection.settimeout(world.patience + 30)
            connection.sendall(sent)
            while connection.recv(1000):
                pass
        took = time.monotonic() - began
        return None if took < world.patience + 3 else f"a silent socket was kept for {took:.1f} s"

    def cut(shim: Shim) -> None:
        clients = [Bare(world, shim.port) for _ in range(5)]
        for client in clients:
            client.ask(_ALL_EVENTS)
            client.some()
        shim.silence()
        time.sleep(world.patience)
        shim.reset()
        for client in clients:
            client.close()

    with Shim((HOST, world.proxy.port)).running() as shim:
        found = await asyncio.gather(
            *(
                asyncio.to_thread(silent, packet[:length])
                for length in (0, 3, 8, 13)
                for _ in "123"
            ),
            asyncio.to_thread(cut, shim),
        )
    return [fault for fault in found if fault] + await _at_rest(world, "events")


async def hanging(world: World, sharers: Clients, others: Clients) -> list[str]:  # noqa: ARG001
    """An owner's server stops where it is: who asks it runs into a timeout, or cancels."""
    sharers.allowed = frozenset({CANCELLED})
    with world.fleet.hanging():
        faults = await _cancelled(world, traffic.at_fleet)
        await asyncio.sleep(1.5 * world.patience)
    faults += await _well(world, sharers, traffic.at_fleet)
    if not sharers.tally.errors[CANCELLED]:
        faults.append("nobody ran into a timeout while an owner was hanging")
    return faults


async def silent_mariadb(world: World, sharers: Clients, others: Clients) -> list[str]:  # noqa: ARG001
    """The way to the MariaDB owner falls silent."""
    if world.crm_shim is None:
        return []
    world.crm_shim.silence()
    try:
        faults = await _cancelled(world, traffic.three)
        faults += await _timed_out(world, traffic.three)
    finally:
        world.crm_shim.resume()
    return faults + await _well(world, sharers, traffic.three)


async def reset(world: World, sharers: Clients, others: Clients) -> list[str]:  # noqa: ARG001
    """An owner's connections break off, again and again."""
    sharers.allowed = frozenset({UNREACHABLE})
    for _ in range(10):
        # Silent first: statements that the owner answers in a moment are under way only so.
        world.fleet_shim.silence()
        await asyncio.sleep(0.2)
        world.fleet_shim.reset()
        await asyncio.sleep(0.1)
    if not sharers.tally.errors[UNREACHABLE]:
        return ["nobody noticed that an owner's connections broke off"]
    return await _well(world, sharers, traffic.at_fleet)


async def restarted(world: World, sharers: Clients, others: Clients) -> list[str]:  # noqa: ARG001
    """An owner's server restarts."""
    sharers.allowed = frozenset({UNREACHABLE})
    await asyncio.to_thread(world.fleet.restart)
    return await _well(world, sharers, traffic.at_fleet)


async def slow_model(world: World, sharers: Clients, others: Clients) -> list[str]:  # noqa: ARG001
    """The model takes its time: who waits for it can cancel, and nobody else waits."""
    world.model.delay = world.patience + 1
    before = world.model.left

    async def new_question(connection: Connection, draw: Any = None) -> bool:  # noqa: ARG001
        amount = time.monotonic_ns() % 1_000_000 + 2000
        question = QUESTION.format(promo=1, amount=amount)
        answer = await connection.execute(f"SELECT * FROM oar_ask('{question}')".encode())
        return await answer.fetchall() == [(ORDERS // PROMOS,)]

    def gone() -> str | None:
        client = Bare(world)
        question = QUESTION.format(promo=2, amount=999_999)
        client.ask(f"SELECT * FROM oar_ask('{question}')")
        time.sleep(1)
        client.vanish()
        return None

    try:
        faults = await _cancelled(world, new_question) + await _cancelled(world, new_question)
        faults += await _all(gone, 1)
        for _ in range(round(STOP_BOUND / 0.1)):
            left = world.model.left - before
            if left >= 3:
                break
            await asyncio.sleep(0.1)
        else:
            faults.append(f"nobody waits for 3 questions, and {left} calls of the model broke off")
        connection = await traffic.connect(world.proxy)
        outcome = await _outcome(connection, new_question)
        if outcome != "00000":
            faults.append(f"a question that waited for the model ended with {outcome}")
        await connection.close()
    finally:
        world.model.delay = 0.0
    return faults


async def cancels(world: World, sharers: Clients, others: Clients) -> list[str]:  # noqa: ARG001
    """Statements of all kinds are cancelled at any moment; the statement after it never is."""
    kinds = [*traffic.OTHERS.values(), traffic.at_fleet]
    if world.crm is not None:
        kinds.append(traffic.three)
    ended: Counter[str] = Counter()
    faults: list[str] = []
    until = time.monotonic() + 3 * world.patience

    async def one(number: int) -> None:
        draw = random.Random(number)  # noqa: S311 - no secret
        connection = await traffic.connect(world.proxy)
        while time.monotonic() < until:
            asking = asyncio.create_task(_outcome(connection, draw.choice(kinds), draw))
            await asyncio.sleep(draw.uniform(0, 0.2))
            await connection.cancel_safe(timeout=30)
            outcome = await asking
            ended[outcome] += 1
            if connection.info.transaction_status != TransactionStatus.IDLE:
                await connection.rollback()
            following = await _outcome(connection, traffic.passing)
            if following != "00000":
                faults.append(f"the statement after a cancelled one ended with {following}")
        await connection.close()

    await asyncio.gather(*map(one, range(10)))
    if ended.keys() != {CANCELLED, "00000"}:
        faults.append(f"statements that were cancelled ended with {dict(ended)}")
    told = f"{ended[CANCELLED]:,} of {ended.total():,} were in time"
    world.notes.append(f"cancels at any moment: {told}")
    return faults


async def hub_killed(world: World, sharers: Clients, others: Clients) -> list[str]:
    """The hub's first process is killed; all sessions end, and soon new ones begin."""
    sharers.allowed = others.allowed = LOST
    os.kill(world.proxy.postmaster, signal.SIGKILL)
    faults = await _well(world, sharers, traffic.at_fleet)
    others.allowed = frozenset()
    return faults


FAULTS: Final[Mapping[str, Fault]] = {
    "clients that stop reading": stalled,
    "clients that vanish": vanished,
    "half-open clients": half_open,
    "an owner that hangs": hanging,
    "a silent MariaDB": silent_mariadb,
    "an owner's connections reset": reset,
    "an owner that restarts": restarted,
    "a slow model": slow_model,
    "cancels at any moment": cancels,
    "the hub is killed": hub_killed,
}


async def _all(one: Callable[[], str | None], times: int) -> list[str]:
    found = await asyncio.gather(*(asyncio.to_thread(one) for _ in range(times)))
    return [fault for fault in found if fault]


async def _at_rest(world: World, table: str) -> list[str]:
    """Wait until nothing reads a table at the owner that nothing happens to."""
    deadline = time.monotonic() + STOP_BOUND
    while True:
        found = await asyncio.to_thread(world.shop.at_work)
        running = [query for _, query in found if f'"{table}"' in query and "note" in query]
        if not running:
            return []
        if time.monotonic() > deadline:
            return [f"the owner still works for a client that has gone: {running[0]}"]
        await asyncio.sleep(0.1)


async def _cancelled(world: World, ask: traffic.Ask) -> list[str]:
    """Ask what will not be answered, cancel it, and see how long that takes."""
    connection = await traffic.connect(world.proxy)
    asking = asyncio.create_task(_outcome(connection, ask))
    await asyncio.sleep(1.0)
    began = time.monotonic()
    await connection.cancel_safe(timeout=30)
    outcome = await asking
    took = time.monotonic() - began
    faults = [] if outcome == CANCELLED else [f"what was cancelled ended with {outcome}"]
    if took > CANCEL_BOUND:
        faults.append(f"a cancel took {took:.1f} s")
    if await _outcome(connection, traffic.passing) != "00000":
        faults.append("the statement after a cancelled one failed")
    await connection.close()
    return faults


async def _timed_out(world: World, ask: traffic.Ask) -> list[str]:
    connection = await traffic.connect(world.proxy)
    await connection.execute("SET statement_timeout = '2s'")
    began = time.monotonic()
    outcome = await _outcome(connection, ask)
    took = time.monotonic() - began
    await connection.close()
    if outcome != CANCELLED or took > 2 + CANCEL_BOUND:
        return [f"a statement_timeout of 2 s ended with {outcome} after {took:.1f} s"]
    return []


async def _well(world: World, sharers: Clients, ask: traffic.Ask) -> list[str]:
    """Wait until the owner answers again; from then on no error is allowed."""
    deadline = time.monotonic() + 30
    outcome = ""
    while time.monotonic() < deadline:
        try:
            connection = await traffic.connect(world.proxy)
        except psycopg.Error:
            await asyncio.sleep(0.2)
            continue
        for _ in range(5):
            outcome = await _outcome(connection, ask)
            if outcome != "00000":
                break
        await connection.close()
        if outcome == "00000":
            # Statements that were asked before may still fail.
            await asyncio.sleep(world.patience)
            sharers.allowed = frozenset()
            return []
        await asyncio.sleep(0.2)
    sharers.allowed = frozenset()
    return [f"30 s after a fault: {outcome or 'no connection'}"]


async def _outcome(
    connection: Connection, ask: traffic.Ask, draw: random.Random | None = None
) -> str:
    try:
        right = await ask(connection, draw or random.Random(1))  # noqa: S311 - no secret
    except psycopg.Error as error:
        return error.sqlstate or CONNECTION_LOST
    return "00000" if right else "a wrong answer"
