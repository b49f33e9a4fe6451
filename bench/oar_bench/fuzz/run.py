"""Running many cases, counting what came of them, and keeping those that differ."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import psycopg
from psycopg import AsyncRawCursor

from oar_bench.fuzz.bed import SHRINK_USER, Batch, Bed, enter
from oar_bench.fuzz.statements import Case
from oar_bench.fuzz.trial import (
    TOO_MUCH,
    Answer,
    Connection,
    Failure,
    ask,
    difference,
    hides_an_error,
)
from oar_bench.fuzz.world import World
from oar_bench.harness import USER
from oar_bench.result import Result

CLIENTS: Final = 3
REFERENCE_SECONDS: Final = 1.0
"""A statement that takes the reference longer is a product of joins that says nothing more."""

PROXY_SECONDS: Final = 60.0
MAX_ROWS: Final = 20_000
OTHER_REDUCTIONS: Final = (
    "oar.max_keys = 0",
    "oar.max_keys = 2",
    "oar.reduction = full",
)
"""Settings under which a statement is asked again: without keys, with few, with all there are."""

_OTHER_PLANS: Final = (
    ("enable_hashjoin", "enable_hashagg"),
    ("enable_mergejoin", "enable_sort"),
    ("enable_nestloop", "enable_material", "enable_memoize"),
)
"""What is switched off, together, to see whether the reference's answer is determined."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A case the proxy answered differently. ``setting``: with this one of ``oar.…`` only."""

    world: World
    case: Case
    why: str
    got: tuple[Answer, ...]
    want: tuple[Answer, ...]
    setting: str | None = None


@dataclass(slots=True)
class Tally:
    """Counts of a run; ``faults`` are those that differ or failed, ``moved`` are ledger rows."""

    counts: Counter[str] = field(default_factory=Counter)
    faults: list[Fault] = field(default_factory=list)
    examples: list[Fault] = field(default_factory=list)

    def add(self, name: str, number: int = 1) -> None:
        """Count something."""
        self.counts[name] += number


async def run_batch(
    bed: Bed, work: Sequence[tuple[World, list[Case]]], tally: Tally, shrink_check: bool
) -> None:
    """Run the cases of some worlds over one proxy. Raises what starting it raises."""
    waiting = list(reversed(work))
    async with bed.batch([world for world, _ in work]) as batch:
        before = await _rows_moved(batch)

        async def client() -> None:
            async with open_pair(bed, batch) as pair:
                while waiting:
                    world, cases = waiting.pop()
                    await pair.enter(world)
                    for case in cases:
                        await _try(pair, world, case, tally, shrink_check)

        async with asyncio.TaskGroup() as group:
            for _ in range(min(CLIENTS, len(work))):
                group.create_task(client())
        tally.add("rows_moved", await _rows_moved(batch) - before)


async def _rows_moved(batch: Batch) -> int:
    async with batch.served.admin.connection() as connection:
        cursor = await connection.execute(
            "SELECT coalesce(sum(rows), 0)::bigint FROM oar.steps WHERE principal = %s", (USER,)
        )
        row = await cursor.fetchone()
    return int(row[0]) if row else 0


@dataclass(slots=True)
class Pair:
    """A client of the proxy, one for runs without reductions, and one of the reference."""

    proxy: Connection
    shrinking: Connection
    reference: Connection

    async def enter(self, world: World) -> None:
        """Set all sessions to a world."""
        await enter(self.proxy, world, PROXY_SECONDS)
        await enter(self.shrinking, world, PROXY_SECONDS)
        await enter(self.reference, world, REFERENCE_SECONDS)


@asynccontextmanager
async def open_pair(bed: Bed, batch: Batch) -> AsyncIterator[Pair]:
    """Connect to a batch's proxy and its reference."""
    async with (
        batch.served.connection() as proxy,
        batch.served.connection(SHRINK_USER) as shrinking,
        bed.reference() as reference,
    ):
        yield Pair(proxy, shrinking, reference)


async def _try(pair: Pair, world: World, case: Case, tally: Tally, shrink_check: bool) -> None:
    tally.add("statements")
    want = await expected(pair.reference, case)
    if want is None:
        tally.add("skipped")
        return
    got = await ask(pair.proxy, case)
    why = difference(case, got, want)
    _count(tally, world, case, got, want)
    if not isinstance(got[0], Failure):
        tally.add("reduced", await _reduced(pair.proxy, case))
    if why is None:
        tally.add("equal")
        if shrink_check:
            await _shrink_check(pair, world, case, want, tally)
        return
    if hides_an_error(got, want):
        tally.add("errors_hidden")
        return
    await _fault(pair, Fault(world, case, why, tuple(got), tuple(want)), tally)


def _count(
    tally: Tally, world: World, case: Case, got: Sequence[Answer], want: Sequence[Answer]
) -> None:
    held = sum(len(world.table(name).rows) for name in case.tables)
    tally.add("rows_held", held * sum(isinstance(answer, Result) for answer in got))
    tally.add("with_rows", any(isinstance(w, Result) and bool(w.rows) for w in want))
    tally.add("errors", all(isinstance(answer, Failure) for answer in want))


async def _fault(pair: Pair, fault: Fault, tally: Tally) -> None:
    """Count and keep a fault, unless the reference itself has more than one answer."""
    if not await determined(pair.reference, fault.case, fault.want):
        tally.add("undetermined")
        return
    failed = isinstance(fault.got[0], Failure) and not isinstance(fault.want[0], Failure)
    tally.add("failed" if failed else "different")
    tally.faults.append(fault)


async def expected(reference: Connection, case: Case) -> list[Answer] | None:
    """Ask the reference; None where the case asks too much of it."""
    want = await ask(reference, case, plainly=True)
    for answer in want:
        if isinstance(answer, Failure) and answer.sqlstate.startswith(TOO_MUCH):
            return None
        if isinstance(answer, Result) and len(answer.rows) > MAX_ROWS:
            return None
    return want


async def determined(reference: Connection, case: Case, want: Sequence[Answer]) -> bool:
    """Tell whether the reference gives the same answer by other plans."""
    for switches in _OTHER_PLANS:
        for switch in switches:
            await reference.execute(f"SET {switch} = off".encode())
        again = await ask(reference, case, plainly=True)
        for switch in switches:
            await reference.execute(f"RESET {switch}".encode())
        if difference(case, again, want) is not None:
            return False
    return True


async def _reduced(proxy: Connection, case: Case) -> bool:
    """Tell whether the plan asks an owner for less than whole tables."""
    plan = await explained(proxy, case)
    return any(
        step.get("Keys") or step["Reads"] == "the whole statement" or " WHERE " in step["SQL"]
        for step in plan.get("Steps", ())
    )


async def explained(proxy: Connection, case: Case) -> dict[str, Any]:
    """Return the proxy's plan of a case, with the parameters of its first execution."""
    cursor = AsyncRawCursor(proxy)
    statement = f"EXPLAIN (FORMAT JSON) {case.sql}"
    await cursor.execute(statement.encode(), case.arguments[0] or None)
    row = await cursor.fetchone()
    if row is None:
        raise psycopg.ProgrammingError("EXPLAIN gave no row")
    document = json.loads(row[0]) if isinstance(row[0], str) else row[0]
    plan: dict[str, Any] = document[0]["Plan"]
    return plan


async def _shrink_check(
    pair: Pair, world: World, case: Case, want: Sequence[Answer], tally: Tally
) -> None:
    """Ask again with other reductions: the answer has to stay."""
    for setting in OTHER_REDUCTIONS:
        await pair.shrinking.execute(f"SET {setting}".encode())
        got = await ask(pair.shrinking, case)
        await pair.shrinking.execute(f"RESET {setting.partition(' ')[0]}".encode())
        tally.add("shrink_checks")
        why = difference(case, got, want)
        if why is not None and not hides_an_error(got, want):
            fault = Fault(world, case, why, tuple(got), tuple(want), setting)
            await _fault(pair, fault, tally)
            return
