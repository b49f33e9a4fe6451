"""What a statement spends in gate and ledger, and how much proxies write on one ledger."""

from __future__ import annotations

import asyncio
import multiprocessing
import statistics
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psycopg
import uvloop
from oar_adapters.interface import Column, KeyFilter, Scan, Table
from oar_policies.parse import parse_policy
from oar_proxy.decision import KeyEdge, KeyOrigin
from oar_proxy.gate import BoundEdge, Gate, Step
from oar_proxy.hub.access import open_hub
from oar_proxy.ledger import Ask, Ledger, StepEntry, StepOutcome, digest, install
from oar_proxy.settings import HubSettings, Limits

from oar_bench.harness import ALLOW_ALL

KEYS: Final = (0, 100, 100_000)
"""Join keys of the query that is decided and recorded."""

WRITERS: Final = (1, 4)
"""Processes that write at once."""

_TABLE: Final = Table("t", (Column("k", "bigint", "k"), Column("v", "text", "v")), source_name="t")
_SETTLE_SECONDS: Final = 2.0
"""What a process gets to start, connect and open its chain before all begin."""


@dataclass(frozen=True)
class Spent:
    """Milliseconds of one query with so many keys: to decide, and to decide and record durably."""

    keys: int
    gate: float
    gate_and_ledger: float

    @property
    def decisions(self) -> float:
        """Decisions a second of one processor."""
        return 1000 / self.gate


@dataclass(frozen=True)
class Written:
    """Writes a second of some processes with some clients each: our ledger, and plain INSERTs."""

    processes: int
    clients: int
    ledger: float
    inserts: float


class _Unrecorded(Ledger):
    """Takes entries and does nothing with them, so that what remains is the gate."""

    def __init__(self, digests: Ledger) -> None:
        super().__init__("")
        self._digests = digests

    def keys_digest(self, keys: Sequence[bytes]) -> str | None:  # type: ignore[override]
        return self._digests.keys_digest(keys)

    async def record(
        self,
        ask: Ask,  # noqa: ARG002
        entries: Sequence[StepEntry],
        finished: Sequence[StepOutcome] = (),  # noqa: ARG002
    ) -> list[int]:
        return list(range(len(entries)))


def measure(
    directory: Path, *, rounds: int, seconds: float, clients: int
) -> tuple[list[Spent], list[Written]]:
    """Measure both in a hub below ``directory``."""

    async def run() -> tuple[list[Spent], list[Written]]:
        async with open_hub(HubSettings(data_dir=directory / "hub")) as address:
            async with await psycopg.AsyncConnection.connect(
                address.conninfo, autocommit=True
            ) as connection:
                await install(connection)
                await connection.execute("CREATE TABLE public.peer (id bigserial, body text)")
            async with Ledger(address.conninfo) as ledger:
                spent = [await _spent(ledger, keys, rounds) for keys in KEYS]
            written = [
                await asyncio.to_thread(_written, address.conninfo, count, each, seconds)
                for count in WRITERS
                for each in (1, clients)
            ]
        return spent, written

    return uvloop.run(run())


async def _spent(ledger: Ledger, keys: int, rounds: int) -> Spent:
    policies = {name: parse_policy(ALLOW_ALL, owner=name, source=name) for name in ("a", "b")}
    step = _step(keys)
    gates = [Gate(policies, book, Limits()) for book in (_Unrecorded(ledger), ledger)]
    rounds = max(5, rounds // 10) if keys > 1000 else rounds
    figures: list[list[float]] = [[], []]
    for _ in range(rounds):
        for gate, times in zip(gates, figures, strict=True):
            ask = _ask()
            began = time.perf_counter()
            await gate.authorize(ask, [step])
            times.append(1000 * (time.perf_counter() - began))
    return Spent(keys, *(statistics.median(times) for times in figures))


def _step(keys: int) -> Step:
    values = tuple(key.to_bytes(8) for key in range(keys))
    filters = (KeyFilter("k", "bigint", values),) if keys else ()
    query = Scan(_TABLE, _TABLE.columns, key_filters=filters, limit=Limits().max_rows + 1)
    edge = KeyEdge((KeyOrigin("b", "b", "u", "k"),), "a", "t", "k")
    edges = (BoundEdge(edge, keys, (keys,)),) if keys else ()
    return Step("a", query, "SELECT k, v FROM t WHERE k = ANY ($1)", edges)


def _ask() -> Ask:
    return Ask(uuid.uuid4(), "bench", digest("SELECT 1"), "sql", "relay", 2, "v")


def _written(conninfo: str, processes: int, clients: int, seconds: float) -> Written:
    context = multiprocessing.get_context("spawn")
    rates = []
    for work in (_write_ledger, _write_plain):
        with ProcessPoolExecutor(processes, mp_context=context) as pool:
            begin = time.monotonic() + _SETTLE_SECONDS
            running = [
                pool.submit(work, conninfo, clients, begin, seconds) for _ in range(processes)
            ]
            rates.append(sum(each.result() for each in running) / seconds)
    return Written(processes, clients, *rates)


def _write_ledger(conninfo: str, clients: int, begin: float, seconds: float) -> int:
    """Record steps of asks, each with the outcome of the one before; returns how many."""
    entry = StepEntry("a", digest("x"), 1000, "proxy/limits.max_rows", 0, "none")

    async def run() -> int:
        async with Ledger(conninfo) as ledger:

            async def write() -> None:
                ask = _ask()
                (number,) = await ledger.record(ask, [entry])
                await ledger.finish_ask(ask, rows=1, finished=[StepOutcome(number, "00000", 1)])

            return await _repeat(write, clients, begin, seconds)

    return uvloop.run(run())


def _write_plain(conninfo: str, clients: int, begin: float, seconds: float) -> int:
    """Insert and commit a row that is as long as a step, on a connection for each client."""
    body = "x" * 500

    async def run() -> int:
        connections = [
            await psycopg.AsyncConnection.connect(conninfo, autocommit=True) for _ in range(clients)
        ]
        free = list(connections)

        async def write() -> None:
            connection = free.pop()
            await connection.execute(
                "INSERT INTO public.peer (body) VALUES (%s)", (body,), prepare=True
            )
            free.append(connection)

        try:
            return await _repeat(write, clients, begin, seconds)
        finally:
            for connection in connections:
                await connection.close()

    return uvloop.run(run())


async def _repeat(
    write: Callable[[], Awaitable[None]], clients: int, begin: float, seconds: float
) -> int:
    """Write with some clients at once, from a moment on, for some seconds."""
    await write()
    await asyncio.sleep(max(0.0, begin - time.monotonic()))
    end = time.monotonic() + seconds
    count = 0

    async def client() -> None:
        nonlocal count
        while time.monotonic() < end:
            await write()
            count += 1

    async with asyncio.TaskGroup() as group:
        for _ in range(clients):
            group.create_task(client())
    return count
