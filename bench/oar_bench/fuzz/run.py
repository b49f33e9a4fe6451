"""Running many cases, counting what came of them, and keeping those that differ."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

import psycopg
from psycopg import AsyncRawCursor

from oar_bench.fuzz.bed import SHRINK_USERS, Batch, Bed, enter
from oar_bench.fuzz.reductions import BY_SETTING, MAX_VARIATIONS, NOTHING, Permits, Variation
from oar_bench.fuzz.shapes import shapes
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

REFERENCE_SECONDS: Final = 1.0
"""A statement that takes the reference longer is a product of joins that says nothing more."""

PROXY_SECONDS: Final = 60.0
MAX_ROWS: Final = 20_000

_OTHER_PLANS: Final = (
    ("enable_hashjoin", "enable_hashagg"),
    ("enable_mergejoin", "enable_sort"),
    ("enable_nestloop", "enable_material", "enable_memoize"),
)
"""What is switched off, together, to see whether the reference's answer is determined."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A case the proxy answered differently; ``variation``: only when asked in this way."""

    world: World
    case: Case
    why: str
    got: tuple[Answer, ...]
    want: tuple[Answer, ...]
    variation: Variation | None = None


@dataclass(slots=True)
class Tally:
    """Counts of a run, in all and for each shape.

    ``faults`` are the cases that differ or failed, ``rows_moved`` are the ledger's; ``kinds`` are
    those of the owners.
    """

    counts: Counter[str] = field(default_factory=Counter)
    shapes: dict[str, Counter[str]] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    examples: list[Fault] = field(default_factory=list)
    kinds: tuple[str, ...] = ()

    def add(self, name: str, number: int = 1, *, of: Sequence[str] = ()) -> None:
        """Count something, also ``of`` statements of some shapes."""
        self.counts[name] += number
        for shape in of:
            self.shapes.setdefault(shape, Counter())[name] += number


@dataclass(frozen=True, slots=True)
class Work:
    """Worlds with the cases of each; ``until``: each client ends at this time (monotonic)."""

    worlds: Sequence[tuple[World, Sequence[Case]]]
    shrink_check: bool = False
    until: float = float("inf")


async def run_batch(bed: Bed, work: Work, tally: Tally) -> None:
    """Run the cases of some worlds over one proxy. Raises what starting it raises."""
    waiting = list(reversed(work.worlds))
    async with bed.batch([world for world, _ in work.worlds]) as batch:
        before = await _rows_moved(batch)

        async def client(user: str) -> None:
            async with open_pair(bed, batch, user) as pair:
                while waiting:
                    world, cases = waiting.pop()
                    await pair.enter(world)
                    for case in cases:
                        await _try(pair, world, case, tally, shrink_check=work.shrink_check)
                        if time.monotonic() > work.until:
                            return

        async with asyncio.TaskGroup() as group:
            for user in SHRINK_USERS[: len(work.worlds)]:
                group.create_task(client(user))
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
    """A client of the proxy, one that asks with other reductions, and one of the reference."""

    proxy: Connection
    varying: Connection
    reference: Connection
    user: str
    permits: Permits

    async def enter(self, world: World) -> None:
        """Set all sessions to a world."""
        await enter(self.proxy, world, PROXY_SECONDS)
        await enter(self.varying, world, PROXY_SECONDS)
        await enter(self.reference, world, REFERENCE_SECONDS)

    async def ask(self, case: Case, variation: Variation | None) -> list[Answer]:
        """Ask the proxy in a way."""
        if variation is None:
            return await ask(self.proxy, case)
        if variation.kind == "SET":
            await self.varying.execute(f"SET {variation.what}".encode())
            got = await ask(self.varying, case)
            await self.varying.execute(f"RESET {variation.what.partition(' ')[0]}".encode())
            return got
        self.permits.vary(self.user, variation)
        try:
            return await ask(self.varying, case)
        finally:
            self.permits.end(self.user)

    def reductions(self) -> tuple[str, ...]:
        """Names of the reductions that the proxy asked for when a case was last varied."""
        return self.permits.asked(self.user)


@asynccontextmanager
async def open_pair(bed: Bed, batch: Batch, user: str = SHRINK_USERS[0]) -> AsyncIterator[Pair]:
    """Connect to a batch's proxy, twice, and to its reference. ``user`` asks in other ways."""
    async with (
        batch.served.connection() as proxy,
        batch.served.connection(user) as varying,
        bed.reference() as reference,
    ):
        yield Pair(proxy, varying, reference, user, batch.permits)


async def _try(pair: Pair, world: World, case: Case, tally: Tally, *, shrink_check: bool) -> None:
    drawn = sorted(shapes(case.sql, world))
    tally.add("statements", of=drawn)
    want = await expected(pair.reference, case)
    if want is None:
        tally.add("skipped", of=drawn)
        return
    got = await pair.ask(case, None)
    why = difference(case, got, want)
    _count(tally, world, case, got, want)
    if not isinstance(got[0], Failure):
        made = await _reduced(pair.proxy, case)
        tally.add("reduced", bool(made), of=drawn)
        for way in made:
            tally.shapes.setdefault(way, Counter()).update(("statements", "reduced"))
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
    tally.add("failed" if failed else "different", of=sorted(shapes(fault.case.sql, fault.world)))
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


async def _reduced(proxy: Connection, case: Case) -> set[str]:
    """Return how the plan asks an owner for less than whole tables."""
    plan = await explained(proxy, case)
    made: set[str] = set()
    for step in plan.get("Steps", ()):
        reads, text = step["Reads"], step["SQL"]
        whole = reads == "the whole statement"
        subquery = "a subquery of " in reads
        ways = {
            "whole statement": whole,
            "subquery": subquery,
            "counted rows": reads.startswith(("counts of ", "partial aggregates of ")),
            "keys": "Keys" in step,
            "leaves": "Only Filtered By" in step,
            "semi-join": "Semi-Joins" in step,
            "condition": " WHERE " in text and not whole,
            "first rows": " ORDER BY " in text and not (whole or subquery),
        }
        made |= {f"made: {name}" for name, there in ways.items() if there}
    return made


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


async def answers_varied(
    pair: Pair, case: Case
) -> AsyncIterator[tuple[Variation, Sequence[Answer]]]:
    """Ask without any reduction, and then with settings, and without and with single ones."""
    yield NOTHING, await pair.ask(case, NOTHING)
    names = pair.reductions()
    single = [Variation(kind, name) for name in names for kind in ("without", "only")]
    ways = [*BY_SETTING, *(single if len(names) > 1 else ())]
    few = Random(case.sql).sample(ways, min(len(ways), MAX_VARIATIONS))  # noqa: S311 - repeatable
    for variation in few:
        yield variation, await pair.ask(case, variation)


async def _shrink_check(
    pair: Pair, world: World, case: Case, want: Sequence[Answer], tally: Tally
) -> None:
    """Ask again with other reductions: the answer has to stay."""
    async for variation, got in answers_varied(pair, case):
        tally.add("shrink_checks")
        why = difference(case, got, want)
        if why is not None and not hides_an_error(got, want):
            fault = Fault(world, case, why, tuple(got), tuple(want), variation)
            await _fault(pair, fault, tally)
            return
