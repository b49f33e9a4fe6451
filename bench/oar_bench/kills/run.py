"""Kills at random instants, and after each a look at what the ledger holds.

Owners' own query logs say what was sent. After each kill, each query in them has to have an entry
on the ledger, as many times as it was sent, and what was written since has to continue the chains.
At the end all is verified once more from the first entry on, the proxies' files as well.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import threading
import time
import uuid
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psycopg
from oar_proxy.audit.verification import verify_file, verify_hub
from oar_proxy.chain import Entry, Head, Named, Report, Verification

from oar_bench.kills.world import PROXIES, World, world

CLIENTS: Final = 3
"""Clients at each proxy."""

LONGEST: Final = 0.4
"""Seconds from when clients are connected to the kill, at most."""

KINDS: Final = ("proxy", "ledger", "hub")
"""Who is killed: a proxy, the hub's process that writes the ledger, the hub's postmaster."""

_WEIGHTS: Final = (6, 3, 1)

_NEW: Final = """
SELECT e.writer, e.number, e.body, e.hash, e.kind, e.body::json->>'sql_digest'
FROM oar_internal.entries AS e
LEFT JOIN unnest(%s::uuid[], %s::int8[]) AS s(writer, number) USING (writer)
WHERE e.number > coalesce(s.number, 0)
ORDER BY e.writer, e.number
"""


@dataclass
class Outcome:
    """What was done and found. ``faults`` are lines for people; none means that all held."""

    kills: Counter[str] = field(default_factory=Counter)
    statements: int = 0
    queries: int = 0
    steps: int = 0
    entries: int = 0
    writers: int = 0
    unsent: int = 0
    """Steps on the ledger that reached no owner: recorded, and killed before the send."""
    refused: Counter[str] = field(default_factory=Counter)
    """What clients were told of statements that failed, by SQLSTATE."""
    faults: list[str] = field(default_factory=list)


class _Clients:
    """Threads that ask statements until they are stopped or fail."""

    def __init__(self, made: World, outcome: Outcome, numbers: itertools.count[int]) -> None:
        self._world = made
        self._outcome = outcome
        self._numbers = numbers
        self._over = threading.Event()
        self._ready = threading.Semaphore(0)
        self._threads = [
            threading.Thread(target=self._ask, args=(proxy,))
            for proxy in range(PROXIES)
            for _ in range(CLIENTS)
        ]

    def __enter__(self) -> _Clients:
        for thread in self._threads:
            thread.start()
        for _ in self._threads:
            self._ready.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _ask(self, proxy: int) -> None:
        try:
            try:
                connection = self._world.connect(proxy)
            finally:
                self._ready.release()
            with connection:
                while not self._over.is_set():
                    number = next(self._numbers)
                    # The number stands in both owners' queries, so that each is another text.
                    connection.execute(
                        "SELECT count(*) FROM east.t AS a JOIN west.t AS b USING (k)"
                        f" WHERE a.id <> -{number} AND b.id <> -{number} AND a.id < 12"
                    )
                    self._outcome.statements += 1
        except psycopg.Error as error:
            self._outcome.refused[error.sqlstate or "connection lost"] += 1


def measure(directory: Path, *, count: int, seed: int) -> Outcome:
    """Kill ``count`` times. Raises ``KillsError`` and ``OverheadError``."""
    draw = random.Random(seed)  # noqa: S311 - no secret
    outcome = Outcome()
    seen: dict[uuid.UUID, Head] = {}
    steps: Counter[str] = Counter()
    numbers = itertools.count(1)
    with world(directory) as made:
        for kill in range(1, count + 1):
            kind = draw.choices(KINDS, _WEIGHTS)[0]
            proxy = draw.randrange(PROXIES)
            with _Clients(made, outcome, numbers):
                time.sleep(draw.uniform(0, LONGEST))
                if kind == "proxy":
                    made.kill(proxy)
                elif kind == "ledger":
                    made.hub.kill_ledger()
                else:
                    made.hub.kill()
            outcome.kills[kind] += 1
            # The log first: what is in it must have been on the ledger before.
            made.come_to_rest()
            _look(made, seen, steps, outcome, f"kill {kill} ({kind})")
            if made.processes[proxy] is None:
                made.start(proxy)
        made.stop()
        made.come_to_rest()
        _look(made, seen, steps, outcome, "after the last one")
        _verify_all(made, outcome)
    outcome.queries, outcome.steps = made.log.queries.total(), steps.total()
    outcome.unsent = outcome.steps - outcome.queries
    return outcome


def _look(
    made: World,
    seen: dict[uuid.UUID, Head],
    steps: Counter[str],
    outcome: Outcome,
    when: str,
) -> None:
    """Check what is new on the ledger, and that it has what the owners were asked."""
    with made.hub.connect() as connection:
        known = list(seen.values())
        places = [head.writer for head in known], [head.number for head in known]
        rows: list[tuple[Any, ...]] = connection.execute(_NEW.encode(), places).fetchall()
    named = Named(wholly=False, pruned=dict(seen))
    entries = [Entry(*row[:4]) for row in rows]
    for entry in entries:
        named.read(entry)
    verification = Verification(named)
    for entry in entries:
        verification.take(entry)
    steps.update(digest for *_, kind, digest in rows if kind == "step")
    report = verification.report()
    seen.update(report.heads)
    _note(outcome, report, when)
    for query, times in (made.log.queries - steps).items():
        outcome.faults.append(f"{when}: {times} times query {query} without an entry")


def _verify_all(made: World, outcome: Outcome) -> None:
    expected: list[tuple[Head, str]] = []
    for proxy in range(PROXIES):
        report = verify_file(made.file(proxy))
        _note(outcome, report, f"file {proxy}")
        expected += [(head, f"file {proxy}") for head in report.heads.values()]

    async def verify() -> Report:
        async with await psycopg.AsyncConnection.connect(
            made.hub.conninfo, autocommit=True
        ) as connection:
            return await verify_hub(connection, expected)

    report = asyncio.run(verify())
    _note(outcome, report, "hub")
    outcome.entries, outcome.writers = report.entries, len(report.heads)


def _note(outcome: Outcome, report: Report, when: str) -> None:
    outcome.faults += [
        f"{when}: writer {fault.writer}, entry {fault.number}: {fault.kind}: {fault.text}"
        for fault in report.faults
    ]
