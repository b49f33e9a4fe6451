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
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psycopg
from oar_proxy.wire import messages
from psycopg.pq import TransactionStatus

from oar_bench.load import traffic
from oar_bench.load.model import QUESTION
from oar_bench.load.shim import Shim
from oar_bench.load.traffic import CONNECTION_LOST, SHARED, Clients, Connection
from oar_bench.load.world import EVENTS, ORDERS, PROMOS, World
from oar_bench.overhead.processes import HOST

CANCEL_BOUND: Final = 10.0
"""Seconds after which a cancelled statement that nothing else ends was not cancelled. How long it
took is told, and depends on how busy the machine is."""

STOP_BOUND: Final = 20.0
"""Seconds after which what runs at an owner for a client that has gone will not end."""

_DEADLINE: Final = 60.0
"""Seconds after which what is waited for will not happen."""

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
        # The other descriptor first: the reset leaves with the last one. Its number stays libpq's,
        # which closes it again when nothing refers to the connection any more.
        with Path(os.devnull).open("rb") as nothing:
            os.dup2(nothing.fileno(), self._connection.fileno())
        self._socket.close()

    def close(self) -> None:
        """Leave in order."""
        self._socket.close()
        self._connection.close()


Does = Callable[[World, Clients], Awaitable[list[str]]]
"""Lets it happen to a world, while clients ask there; returns what was not as it has to be."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that happens, whose statements it may keep waiting, and what they may be told."""

    does: Does
    concerned: frozenset[str] = frozenset()
    """Kinds of statements: those of the others have to go on as if nothing happened."""
    told: frozenset[str] = frozenset()
    """SQLSTATEs."""


async def stalled(world: World, clients: Clients) -> list[str]:  # noqa: ARG001
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


async def vanished(world: World, clients: Clients) -> list[str]:  # noqa: ARG001
    """Clients break off in the middle of a big answer; their owner is let go of."""

    def one() -> str | None:
        client = Bare(world)
        client.ask(_ALL_EVENTS)
        client.some()
        client.vanish()
        return None

    faults = await _all(one, 10)
    return faults + await _at_rest(world, "events")


async def half_open(world: World, clients: Clients) -> list[str]:  # noqa: ARG001
    """Sockets that say nothing, or half of something; and sessions whose network goes away."""
    packet = struct.pack("!II", 100, 196608) + b"user\0"

    def silent(sent: bytes) -> str | None:
        began = time.monotonic()
        with socket.create_connection((HOST, world.proxy.port)) as connection:
            connection.settimeout(world.patience + 60)
            connection.sendall(sent)
            while connection.recv(1000):
                pass
        took = time.monotonic() - began
        late = took > world.patience + STOP_BOUND
        return f"a silent socket was kept for {took:.1f} s" if late else None

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


async def hanging(world: World, clients: Clients) -> list[str]:
    """An owner's server stops where it is: who asks it runs into a timeout, or cancels."""
    clients.timeout = world.patience
    try:
        # Whoever asks without a timeout would wait until the owner goes on.
        if not await clients.settled():
            return ["not every client had an answer before the owner was to hang"]
        with world.fleet.hanging():
            faults = await _cancelled(world, traffic.at_fleet)
            errors = clients.tally.errors[SHARED]
            if not await _until(lambda: errors[CANCELLED] >= clients.sharing):
                faults.append("not all ran into a timeout who asked an owner that was hanging")
    finally:
        clients.timeout = 0.0
    return faults + await _well(world, traffic.at_fleet)


async def silent_mariadb(world: World, clients: Clients) -> list[str]:  # noqa: ARG001
    """The way to the MariaDB owner falls silent."""
    if world.crm_shim is None:
        return []
    world.crm_shim.silence()
    try:
        faults = await _cancelled(world, traffic.three)
        faults += await _timed_out(world, traffic.three)
    finally:
        world.crm_shim.resume()
    return faults + await _well(world, traffic.three)


async def reset(world: World, clients: Clients) -> list[str]:
    """An owner's connections break off, again and again."""
    shim = world.fleet_shim
    for _ in range(10):
        # Silent first: statements that the owner answers in a moment are under way only so.
        shim.silence()
        under_way = await _until(lambda: shim.held)
        shim.reset()
        if not under_way:
            return ["nobody asked an owner whose connections were to break off"]
    if not await _until(lambda: clients.tally.errors[SHARED][UNREACHABLE]):
        return ["nobody noticed that an owner's connections broke off"]
    return await _well(world, traffic.at_fleet)


async def restarted(world: World, clients: Clients) -> list[str]:  # noqa: ARG001
    """An owner's server restarts."""
    await asyncio.to_thread(world.fleet.restart)
    return await _well(world, traffic.at_fleet)


async def slow_model(world: World, clients: Clients) -> list[str]:  # noqa: ARG001
    """The model takes its time: who waits for it can cancel, and nobody else waits."""
    model = world.model
    model.delay = world.patience + 1
    before = model.left

    def question(promo: int) -> tuple[str, tuple[str, str]]:
        amount = time.monotonic_ns() % 1_000_000 + 2000
        asked = f"SELECT * FROM oar_ask('{QUESTION.format(promo=promo, amount=amount)}')"
        return asked, (str(promo), str(amount))

    async def cancelled() -> list[str]:
        asked, about = question(1)
        return await _cancelled(world, _counts(asked), lambda: about in model.thinking)

    def gone() -> str | None:
        client = Bare(world)
        asked, about = question(2)
        client.ask(asked)
        deadline = time.monotonic() + _DEADLINE
        while about not in model.thinking and time.monotonic() < deadline:
            time.sleep(0.01)
        client.vanish()
        return None

    try:
        faults = await cancelled() + await cancelled()
        faults += await _all(gone, 1)
        if not await _until(lambda: model.left - before >= 3, STOP_BOUND):
            left = model.left - before
            faults.append(f"nobody waits for 3 questions, and {left} calls of the model broke off")
        connection = await traffic.connect(world.proxy)
        outcome = await _outcome(connection, _counts(question(1)[0]))
        if outcome != "00000":
            faults.append(f"a question that waited for the model ended with {outcome}")
        await connection.close()
    finally:
        model.delay = 0.0
    return faults


def _counts(question: str) -> traffic.Ask:
    async def ask(connection: Connection, draw: random.Random) -> bool:  # noqa: ARG001
        answer = await connection.execute(question.encode())
        return await answer.fetchall() == [(ORDERS // PROMOS,)]

    return ask


async def cancels(world: World, clients: Clients) -> list[str]:
    """Statements of all kinds are cancelled at any moment; the statement after it never is."""
    kinds = [traffic.KINDS[kind] for kind in clients.kinds]
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
    if not ended.keys() <= {CANCELLED, "00000"}:
        faults.append(f"statements that were cancelled ended with {dict(ended)}")
    told = f"{ended[CANCELLED]:,} of {ended.total():,} were in time"
    world.notes.append(f"cancels at any moment: {told}")
    return faults


async def hub_killed(world: World, clients: Clients) -> list[str]:  # noqa: ARG001
    """The hub's first process is killed; all sessions end, and soon new ones begin."""
    os.kill(world.proxy.postmaster, signal.SIGKILL)
    return await _well(world, traffic.at_fleet)


HUB_KILLED: Final = "the hub is killed"
_SHARED: Final = frozenset({SHARED})
FAULTS: Final[Mapping[str, Fault]] = {
    "clients that stop reading": Fault(stalled),
    "clients that vanish": Fault(vanished),
    "half-open clients": Fault(half_open),
    "an owner that hangs": Fault(hanging, _SHARED, frozenset({CANCELLED})),
    "a silent MariaDB": Fault(silent_mariadb, frozenset({traffic.THREE})),
    "an owner's connections reset": Fault(reset, _SHARED, frozenset({UNREACHABLE})),
    "an owner that restarts": Fault(restarted, _SHARED, frozenset({UNREACHABLE})),
    "a slow model": Fault(slow_model, frozenset({traffic.QUESTIONS})),
    "cancels at any moment": Fault(cancels),
    HUB_KILLED: Fault(hub_killed, frozenset(traffic.KINDS), LOST),
}


async def _all(one: Callable[[], str | None], times: int) -> list[str]:
    found = await asyncio.gather(*(asyncio.to_thread(one) for _ in range(times)))
    return [fault for fault in found if fault]


async def _until(condition: Callable[[], object], seconds: float = _DEADLINE) -> bool:
    """Wait until a condition holds; False: it does not within some seconds."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.02)
    return True


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


async def _cancelled(
    world: World, ask: traffic.Ask, under_way: Callable[[], object] | None = None
) -> list[str]:
    """Ask what will not be answered, cancel it once it is under way, and time that."""
    connection = await traffic.connect(world.proxy)
    asking = asyncio.create_task(_outcome(connection, ask))
    if under_way is None:
        await asyncio.sleep(1.0)
    else:
        await _until(under_way)
    began = time.monotonic()
    await connection.cancel_safe(timeout=30)
    outcome = await asking
    took = time.monotonic() - began
    world.cancels.append(took)
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


async def _well(world: World, ask: traffic.Ask) -> list[str]:
    """Wait until the owner answers again."""
    deadline = time.monotonic() + _DEADLINE
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
            return []
        await asyncio.sleep(0.2)
    return [f"{_DEADLINE:.0f} s after a fault: {outcome or 'no connection'}"]


async def _outcome(
    connection: Connection, ask: traffic.Ask, draw: random.Random | None = None
) -> str:
    try:
        right = await ask(connection, draw or random.Random(1))  # noqa: S311 - no secret
    except psycopg.Error as error:
        return error.sqlstate or CONNECTION_LOST
    return "00000" if right else "a wrong answer"
