"""Statements over governed worlds: answered as over what is published, and alike by each twin."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any, Final

import psycopg

from oar_bench.fuzz.bed import Batch, Bed, enter, fill_reference, open_bed
from oar_bench.fuzz.governed import Governed, governed_world
from oar_bench.fuzz.run import PROXY_SECONDS, REFERENCE_SECONDS, determined, expected
from oar_bench.fuzz.statements import Case, random_case
from oar_bench.fuzz.trial import (
    Answer,
    Connection,
    Failure,
    ask,
    difference,
    hides_an_error,
)
from oar_bench.fuzz.world import KINDS

WORLDS_A_BATCH: Final = 10
STATEMENTS_A_WORLD: Final = 20

_REFUSED: Final = ("42501", "54000")

COUNTED: Final = (
    "statements",
    "equal",
    "refused",
    "with_rows",
    "errors_hidden",
    "undetermined",
    "skipped",
    "explained",
    "different",
    "told",
)
"""``different``: from PostgreSQL over what is published; ``told``: something of a secret."""


@dataclass(slots=True)
class Told:
    """Counts of a run, with a few lines for each fault."""

    counts: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    kinds: tuple[str, ...] = ()

    def fault(self, kind: str, governed: Governed, case: Case, *why: object) -> None:
        """Count and keep one."""
        self.counts[kind] += 1
        lines = [f"{governed.world.name} ({case.mode}): {case.sql}", *map(str, case.arguments)]
        self.faults.append("\n  ".join([*lines, *map(str, why), str(governed.world.policies)]))


async def fuzz_twins(
    *,
    seed: int,
    directory: Path,
    count: int,
    kinds: Collection[str] = KINDS,
    progress: Callable[[Told], None] = lambda _: None,
) -> Told:
    """Run ``count`` statements, drawn from ``seed``. Raises what starting the servers raises."""
    told = Told()
    shares = [
        min(STATEMENTS_A_WORLD, count - first) for first in range(0, count, STATEMENTS_A_WORLD)
    ]
    async with open_bed(directory, kinds) as bed:
        told.kinds = bed.kinds
        for first in range(0, len(shares), WORLDS_A_BATCH):
            worlds = [
                (governed_world(_random(seed, first + n), f"fuzz_{first + n}", bed.kinds), share)
                for n, share in enumerate(shares[first : first + WORLDS_A_BATCH])
            ]
            await _run_batch(bed, worlds, seed, told)
            progress(told)
    return told


def _random(*seeds: object) -> Random:
    return Random("/".join(["governed", *map(str, seeds)]))  # noqa: S311 - repeatable, not secret


async def _run_batch(
    bed: Bed, worlds: Sequence[tuple[Governed, int]], seed: int, told: Told
) -> None:
    async with bed.batch([w for each, _ in worlds for w in (each.world, each.twin)]) as batch:
        async with bed.reference() as reference:
            for each, _ in worlds:
                await fill_reference(reference, each.published)
        async with _open_asked(bed, batch, told) as asked:
            for each, share in worlds:
                await asked.enter(each)
                for number in range(share):
                    random = _random(seed, each.world.name, number)
                    # What is hidden is named now and then: it has to be as if it were not there.
                    drawn = each.published if random.random() < 0.9 else each.world
                    await asked.try_one(random_case(random, drawn), explained=number % 3 == 0)


@asynccontextmanager
async def _open_asked(bed: Bed, batch: Batch, told: Told) -> AsyncIterator[_Asked]:
    async with (
        batch.served.connection() as proxy,
        batch.served.connection() as twin,
        bed.reference() as reference,
    ):
        yield _Asked(_Listened(proxy), _Listened(twin), reference, told)


class _Listened:
    """A connection with what it is told besides its answers."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._said: list[tuple[str | None, ...]] = []
        connection.add_notice_handler(self._hear)

    def _hear(self, said: psycopg.errors.Diagnostic) -> None:
        self._said.append((said.message_primary, said.message_detail, said.message_hint))

    async def ask(self, case: Case) -> tuple[list[Answer], str]:
        """Return the answers to a case, and the notices."""
        self._said.clear()
        answers = await ask(self.connection, case)
        return answers, repr(self._said)

    async def explain(self, sql: str) -> list[str]:
        """Return the plan of a statement, or its error."""
        try:
            cursor = await self.connection.execute(f"EXPLAIN {sql}".encode())
            return [str(line) for (line,) in await cursor.fetchall()]
        except psycopg.Error as error:
            return [f"{error.sqlstate} {error.diag.message_primary} {error.diag.message_detail}"]


@dataclass(slots=True)
class _Asked:
    """Clients of a world, of its twin, and of what is published."""

    proxy: _Listened
    twin: _Listened
    reference: Connection
    told: Told
    governed: Governed = field(init=False)

    async def enter(self, governed: Governed) -> None:
        self.governed = governed
        await enter(self.proxy.connection, governed.world, PROXY_SECONDS)
        await enter(self.twin.connection, governed.twin, PROXY_SECONDS)
        await enter(self.reference, governed.world, REFERENCE_SECONDS)

    async def try_one(self, case: Case, *, explained: bool) -> None:
        counts = self.told.counts
        counts["statements"] += 1
        want = await expected(self.reference, case)
        if want is None:
            counts["skipped"] += 1
            return
        got, said = await self.proxy.ask(case)
        await self._compare(case, got, want)
        other = replace(case, sql=self.governed.told_of_twin(case.sql))
        answers, said_of_twin = await self.twin.ask(other)
        why = _tells(case, got, answers, self._as_world)
        if why is None and self._as_world(said_of_twin) != said:
            why = f"{said}, and of its twin {said_of_twin}"
        if why is not None and await determined(self.reference, case, want):
            self.told.fault("told", self.governed, case, why)
        # MariaDB estimates the rows of a table anew, and otherwise, whenever it likes.
        estimates_stay = "mariadb" not in self.governed.world.owners.values()
        if explained and case.mode == "simple" and estimates_stay:
            counts["explained"] += 1
            plan = await self.proxy.explain(case.sql)
            plan_of_twin = [self._as_world(line) for line in await self.twin.explain(other.sql)]
            if plan != plan_of_twin:
                differing = set(plan) ^ set(plan_of_twin)
                self.told.fault("told", self.governed, case, "EXPLAIN", *sorted(differing))

    async def _compare(self, case: Case, got: Sequence[Answer], want: Sequence[Answer]) -> None:
        counts = self.told.counts
        if any(isinstance(each, Failure) and each.sqlstate in _REFUSED for each in got):
            counts["refused"] += 1
            return
        if self.governed.masked:
            # A mask is a constant, of which PostgreSQL makes others, without their modifiers.
            got = [_modified_as(one, other) for one, other in zip(got, want, strict=False)]
        why = difference(case, got, want)
        if why is None:
            counts["equal"] += 1
            counts["with_rows"] += any(not isinstance(w, Failure) and bool(w.rows) for w in want)
        elif hides_an_error(got, want):
            counts["errors_hidden"] += 1
        elif await determined(self.reference, case, want):
            self.told.fault("different", self.governed, case, why)
        else:
            counts["undetermined"] += 1

    def _as_world(self, text: str) -> str:
        return text.replace(self.governed.twin.name, self.governed.world.name)


def _modified_as(got: Answer, want: Answer) -> Answer:
    if isinstance(got, Failure) or isinstance(want, Failure):
        return got
    return replace(got, modifiers=want.modifiers)


def _tells(
    case: Case, got: Sequence[Answer], of_twin: Sequence[Answer], as_world: Callable[[str], str]
) -> str | None:
    """Say how the answers of twins differ; errors may not do so in a letter."""
    failures: list[Any] = [
        [(each.sqlstate, as_world(each.text)) for each in answers if isinstance(each, Failure)]
        for answers in (got, of_twin)
    ]
    if failures[0] != failures[1]:
        return f"{failures[0]}, and of its twin {failures[1]}"
    return None if failures[0] else difference(case, of_twin, got)
