"""What clients ask, each time checked against what the answer has to be."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import psycopg

from oar_bench.load.model import QUESTION
from oar_bench.load.world import ORDERS, PROMOS
from oar_bench.overhead.processes import Proxy

Connection = psycopg.AsyncConnection[Any]
Ask = Callable[[Connection, random.Random], Awaitable[bool]]
"""Asks once, and tells whether the answer was right."""

CONNECTION_LOST: Final = "connection lost"

_SETTLED: Final = 60.0
"""Seconds after a fault, until everybody has had an answer."""


async def passing(connection: Connection, draw: random.Random) -> bool:
    """The hub's own: nothing is federated."""
    number = draw.randrange(1_000_000)
    answer = await connection.execute("SELECT %s::int + 1, pg_backend_pid() > 0", (number,))
    return await answer.fetchall() == [(number + 1, True)]


async def whole(connection: Connection, draw: random.Random) -> bool:
    """One owner answers all of it."""
    promo = draw.randrange(PROMOS)
    answer = await connection.execute(
        f"SELECT count(*), sum(amount) FROM shop.orders WHERE promo = 'P{promo}'".encode()
    )
    amounts = [order % 1000 for order in _orders(promo)]
    return await answer.fetchall() == [(len(amounts), sum(amounts))]


async def prepared(connection: Connection, draw: random.Random) -> bool:
    """A statement prepared once in each session, with a parameter."""
    order = draw.randrange(1, ORDERS + 1)
    answer = await connection.execute(
        "SELECT amount FROM shop.orders WHERE order_id = %s", (order,), prepare=True
    )
    return await answer.fetchall() == [(order % 1000,)]


async def joined(connection: Connection, draw: random.Random) -> bool:
    """Two owners, keys from one to the other: PostgreSQL and SQLite."""
    promo = draw.randrange(PROMOS)
    answer = await connection.execute(
        "SELECT d.city, count(*), sum(o.amount) FROM shop.orders AS o JOIN depot.deliveries AS d"
        f" USING (order_id) WHERE o.promo = 'P{promo}' GROUP BY d.city ORDER BY d.city".encode()
    )
    return await answer.fetchall() == _by(promo, lambda order: f"city {order % 40}")


async def three(connection: Connection, draw: random.Random) -> bool:
    """Three owners: PostgreSQL, SQLite and MariaDB."""
    promo = draw.randrange(PROMOS)
    answer = await connection.execute(
        "SELECT o.order_id, d.delay, c.name FROM shop.orders AS o"
        " JOIN depot.deliveries AS d USING (order_id) JOIN crm.customers AS c USING (order_id)"
        f" WHERE o.promo = 'P{promo}' ORDER BY 1".encode()
    )
    return await answer.fetchall() == [(o, o % 17, f"n{o}") for o in _orders(promo)]


async def cursor(connection: Connection, draw: random.Random) -> bool:
    """A cursor at the server, read a few rows at a time."""
    promo = draw.randrange(PROMOS)
    found: list[tuple[Any, ...]] = []
    async with connection.transaction(), connection.cursor("few") as few:
        few.itersize = 7
        await few.execute(
            "SELECT o.order_id, d.delay FROM shop.orders AS o JOIN depot.deliveries AS d"
            f" USING (order_id) WHERE o.promo = 'P{promo}' ORDER BY 1".encode()
        )
        async for row in few:
            found.append(row)
    return found == [(order, order % 17) for order in _orders(promo)]


async def copied(connection: Connection, draw: random.Random) -> bool:
    """A COPY of what one owner answers."""
    first = draw.randrange(1, 190_000)
    size = 0
    async with (
        connection.cursor() as cursor,
        cursor.copy(
            "COPY (SELECT id, note FROM shop.events"
            f" WHERE id BETWEEN {first} AND {first + 499}) TO STDOUT".encode()
        ) as copy,
    ):
        async for part in copy:
            size += bytes(part).count(b"\n")
    return size == 500


async def asked(connection: Connection, draw: random.Random) -> bool:
    """A question, half of the time one that has been asked before."""
    promo = draw.randrange(20)
    amount = 2000 if draw.random() < 0.5 else draw.randrange(2000, 1_000_000)
    question = QUESTION.format(promo=promo, amount=amount)
    answer = await connection.execute(f"SELECT * FROM oar_ask('{question}')".encode())
    return await answer.fetchall() == [(ORDERS // PROMOS,)]


async def at_fleet(connection: Connection, draw: random.Random) -> bool:
    """Two owners, the second of which things happen to."""
    promo = draw.randrange(PROMOS)
    answer = await connection.execute(
        "SELECT f.courier, count(*), sum(o.amount) FROM shop.orders AS o JOIN fleet.couriers AS f"
        f" USING (order_id) WHERE o.promo = 'P{promo}' GROUP BY 1 ORDER BY 1".encode()
    )
    return await answer.fetchall() == _by(promo, lambda order: f"c{order % 50}")


SHARED: Final = "shared owner"
THREE: Final = "three owners"
QUESTIONS: Final = "question"

KINDS: Final[Mapping[str, Ask]] = {
    "pass-through": passing,
    "one owner": whole,
    "prepared": prepared,
    "join": joined,
    "cursor": cursor,
    "COPY": copied,
    QUESTIONS: asked,
    SHARED: at_fleet,
    THREE: three,
}
"""What clients ask."""


def _orders(promo: int) -> list[int]:
    return [order for order in range(promo, ORDERS + 1, PROMOS) if order]


def _by(promo: int, name: Callable[[int], str]) -> list[tuple[str, int, int]]:
    count: Counter[str] = Counter()
    amount: Counter[str] = Counter()
    for order in _orders(promo):
        count[name(order)] += 1
        amount[name(order)] += order % 1000
    return [(key, count[key], amount[key]) for key in sorted(count)]


@dataclass
class Tally:
    """What became of the statements that ended while something happened."""

    seconds: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """What answers took, by kind of statement."""
    errors: defaultdict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    """By kind of statement, then by SQLSTATE."""
    faults: list[str] = field(default_factory=list)

    def of(self, kinds: Iterable[str]) -> Figures:
        """Return what became of some kinds of statements together."""
        chosen = set(kinds)
        taken = sorted(s for kind in chosen & self.seconds.keys() for s in self.seconds[kind])
        errors: Counter[str] = Counter()
        for kind in chosen & self.errors.keys():
            errors += self.errors[kind]
        return Figures(taken, errors)


@dataclass(frozen=True, slots=True)
class Figures:
    """What answers took, in seconds and sorted; and how many errors of each SQLSTATE there were."""

    seconds: list[float]
    errors: Counter[str]

    def percentile(self, part: float) -> float:
        """Return the milliseconds that this part of the answers took at most."""
        last = len(self.seconds) - 1
        return 1000 * self.seconds[min(int(part * len(self.seconds)), last)] if last >= 0 else 0.0


async def connect(proxy: Proxy) -> Connection:
    """Connect as a client. Raises ``psycopg.Error``."""
    return await psycopg.AsyncConnection.connect(
        proxy.conninfo, autocommit=True, connect_timeout=60
    )


@dataclass(frozen=True, slots=True)
class Allowed:
    """The SQLSTATEs that statements of some kinds may fail with."""

    kinds: frozenset[str] = frozenset()
    states: frozenset[str] = frozenset()

    def holds(self, kind: str, state: str) -> bool:
        """Tell whether a statement may fail so."""
        return kind in self.kinds and state in self.states


class Clients:
    """Clients that ask one thing after another, and think between, until they are stopped.

    A tenth asks for the *shared* owner, with a ``timeout`` where one is set; the others ask all
    other ``kinds``. What is ``allowed`` is counted; other errors, and wrong answers, are faults.
    A client that has lost its connection comes back. All times are in seconds.
    """

    def __init__(
        self,
        proxy: Proxy,
        count: int,
        kinds: Collection[str],
        *,
        think: float,
        seed: int,
    ) -> None:
        self._proxy = proxy
        self._count = count
        self.sharing = max(count // 10, 1)
        self.kinds = kinds
        self._think = think
        self._seed = seed
        self._tasks: list[asyncio.Task[None]] = []
        self._over = False
        self._ready = asyncio.Semaphore(0)
        self._ended: dict[int, float] = {}
        """When each began the last statement that has ended."""
        self.timeout = 0.0
        self.allowed = Allowed()
        self.tally = Tally()

    async def start(self) -> None:
        """Connect, a few at a time, and begin."""
        gate = asyncio.Semaphore(20)

        async def client(number: int) -> None:
            draw = random.Random(self._seed * 1000 + number)  # noqa: S311 - no secret
            sharing = number < self.sharing
            kinds = [kind for kind in self.kinds if (kind == SHARED) == sharing]
            try:
                async with gate:
                    connection = await connect(self._proxy)
            finally:
                self._ready.release()
            while not self._over:
                await asyncio.sleep(draw.uniform(0, 2 * self._think))
                began = time.monotonic()
                await self._ask(connection, draw, draw.choice(kinds))
                if connection.closed:
                    connection = await self._back()
                self._ended[number] = began
            await connection.close()

        self._tasks = [asyncio.create_task(client(number)) for number in range(self._count)]
        for _ in self._tasks:
            await self._ready.acquire()

    async def stop(self) -> None:
        """Have each finish what it asks, and leave."""
        self._over = True
        for outcome in await asyncio.gather(*self._tasks, return_exceptions=True):
            if isinstance(outcome, BaseException):
                self.tally.faults.append(f"a client ended: {outcome!r}")

    def take(self) -> Tally:
        """Return what was tallied, and begin anew."""
        taken, self.tally = self.tally, Tally()
        return taken

    async def settled(self) -> bool:
        """Wait until each has asked something more, and knows whether its connection is lost.

        False: somebody has not in a minute.
        """
        now = time.monotonic()
        while any(self._ended.get(number, 0) < now for number in range(self._count)):
            if time.monotonic() > now + _SETTLED:
                return False
            await asyncio.sleep(0.05)
        return True

    async def _back(self) -> Connection:
        while True:
            try:
                return await connect(self._proxy)
            except psycopg.Error as error:
                if CONNECTION_LOST not in self.allowed.states or self._over:
                    self.tally.faults.append(f"cannot connect: {' '.join(str(error).split())}")
                    raise
                await asyncio.sleep(0.2)

    async def _ask(self, connection: Connection, draw: random.Random, kind: str) -> None:
        # What was allowed when it was asked may have ended when it fails.
        allowed = self.allowed
        began = time.monotonic()
        try:
            if kind == SHARED:
                milliseconds = round(1000 * self.timeout)
                await connection.execute(f"SET statement_timeout = {milliseconds}".encode())
                began = time.monotonic()
            right = await KINDS[kind](connection, draw)
        except psycopg.Error as error:
            state = error.sqlstate or CONNECTION_LOST
            self.tally.errors[kind][state] += 1
            if not (allowed.holds(kind, state) or self.allowed.holds(kind, state)):
                told = " ".join(str(error).split())[:200]
                self.tally.faults.append(f"{kind}: {state} {told}")
            await asyncio.sleep(0.05)
            return
        self.tally.seconds[kind].append(time.monotonic() - began)
        if not right:
            self.tally.faults.append(f"{kind}: a wrong answer")


class Idle:
    """Clients that connect and wait. ``stop`` has each ask something before it leaves."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy
        self._connections: list[Connection] = []

    async def connect(self, count: int) -> None:
        """Connect more, a few at a time. Raises ``psycopg.Error``."""
        gate = asyncio.Semaphore(20)

        async def one() -> Connection:
            async with gate:
                return await connect(self._proxy)

        self._connections += await asyncio.gather(*(one() for _ in range(count)))

    async def again(self) -> None:
        """Connect all of them anew. Raises ``psycopg.Error``."""
        left, self._connections = self._connections, []
        for connection in left:
            await connection.close()
        await self.connect(len(left))

    async def stop(self) -> list[str]:
        """Say what is wrong with any of them."""
        found = await asyncio.gather(*map(self._leave, self._connections))
        return [fault for fault in found if fault]

    @staticmethod
    async def _leave(connection: Connection) -> str | None:
        try:
            answer = await connection.execute("SELECT 41 + 1")
            found = await answer.fetchall()
            await connection.close()
        except psycopg.Error as error:
            return f"an idle client: {' '.join(str(error).split())}"
        return None if found == [(42,)] else "an idle client got a wrong answer"
