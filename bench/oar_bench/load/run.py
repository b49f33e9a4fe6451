"""Load with faults, and load without: who asks, what happens meanwhile, what has to hold."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psycopg

from oar_bench.load import traffic
from oar_bench.load.faults import FAULTS, HUB_KILLED
from oar_bench.load.traffic import KINDS, THREE, Allowed, Clients, Idle, Tally
from oar_bench.load.watch import Sample, Watch
from oar_bench.load.world import POOLS, World, world

SPARE: Final = 60
"""Connections beside the clients': those of faults."""

DESCRIPTORS: Final = sum(POOLS.values())
"""More of them than before the clients came may be left: connections to owners, which are kept for
the next statement."""

_SHOWN: Final = 5
"""Faults of one kind that are told, before they are only counted."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do: how many clients, seconds without a fault, and names of :data:`FAULTS`."""

    idle: int
    busy: int
    seconds: float
    seed: int
    faults: Sequence[str] = ()
    patience: float = 6.0
    """See :class:`World`."""
    think: float = 0.0
    """Seconds between two statements of a client, on average."""


@dataclass
class Outcome:
    """What was done and found. ``faults`` are lines for people; none means that all held."""

    tallies: dict[str, Tally] = field(default_factory=dict)
    """By what happened."""
    looks: dict[str, Sample] = field(default_factory=dict)
    """``start``, with the ``idle`` clients, at the ``end``, and the ``peak`` of each."""
    samples: list[Sample] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    refused_seconds: float = 0.0
    """How long one client too many waited to be told so."""


def measure(directory: Path, plan: Plan, report: Callable[[str], None]) -> Outcome:
    """Do what the plan says, and report what is being done.

    Raises ``OverheadError``, ``HubError`` and ``ServerError``.
    """
    report("starting owners, model and proxy")
    with world(directory, plan.idle + plan.busy + SPARE, plan.patience) as made:
        run = _Run(made, plan, report)
        asyncio.run(run.run())
        run.outcome.notes += made.notes
        if made.cancels:
            longest = max(made.cancels)
            run.outcome.notes.append(f"the longest of {len(made.cancels)} cancels: {longest:.2f} s")
        return run.outcome


class _Run:
    def __init__(self, made: World, plan: Plan, report: Callable[[str], None]) -> None:
        self._report = report
        self.outcome = Outcome()
        self._world = made
        self._plan = plan
        self._watch = Watch(made.proxy)
        self._idle = Idle(made.proxy)
        kinds = [kind for kind in KINDS if kind != THREE or made.crm is not None]
        self._clients = Clients(
            made.proxy,
            plan.busy,
            kinds,
            think=plan.think,
            seed=plan.seed,
        )

    async def run(self) -> None:
        await self._warm()
        self.outcome.looks["start"] = self._watch.look()
        self._report("clients connect")
        await self._idle.connect(self._plan.idle)
        self.outcome.looks["idle"] = self._watch.look()
        watching = asyncio.create_task(self._watch.watch())
        try:
            await self._clients.start()
            self._report("nothing happens")
            await asyncio.sleep(self._plan.seconds)
            self._take("none")
            for name in self._plan.faults:
                await self._one(name)
        finally:
            await self._clients.stop()
            watching.cancel()
            with suppress(asyncio.CancelledError):
                await watching
        self._take("leaving")
        self._report("what is left")
        await self._too_many()
        self.outcome.faults += await self._idle.stop()
        await self._left()
        self.outcome.faults += self._world.unexpected()
        self.outcome.looks["peak"] = self._watch.peak
        self.outcome.samples = self._watch.samples

    async def _warm(self) -> None:
        """Ask all there is, so that what is kept for ever is there before memory is looked at."""
        draw = random.Random(0)  # noqa: S311 - no secret
        connection = await traffic.connect(self._world.proxy)
        for kind in self._clients.kinds:
            await KINDS[kind](connection, draw)
        await connection.close()

    async def _one(self, name: str) -> None:
        fault = FAULTS[name]
        self._report(name)
        self._clients.allowed = Allowed(fault.concerned, fault.told)
        found = await fault.does(self._world, self._clients)
        if not await self._clients.settled():
            found.append("not every client has had an answer a minute after")
        self._clients.allowed = Allowed()
        self.outcome.faults += [f"{name}: {each}" for each in found]
        if fault is FAULTS[HUB_KILLED]:
            await self._idle.again()
        self._take(name)

    def _take(self, name: str) -> None:
        tally = self.outcome.tallies[name] = self._clients.take()
        self.outcome.faults += [f"{name}: {fault}" for fault in tally.faults[:_SHOWN]]
        if len(tally.faults) > _SHOWN:
            self.outcome.faults.append(f"{name}: {len(tally.faults) - _SHOWN} more")

    async def _too_many(self) -> None:
        """Fill the proxy up; one more is told so at once."""
        faults = self.outcome.faults
        await self._idle.connect(SPARE + self._plan.busy)
        began = time.monotonic()
        try:
            connection = await traffic.connect(self._world.proxy)
        except psycopg.OperationalError as error:
            self.outcome.refused_seconds = time.monotonic() - began
            told = " ".join(str(error).split())
            if "too many clients" not in told or "listen.max_clients" not in told:
                faults.append(f"one client too many was told: {told}")
        else:
            await connection.close()
            faults.append("one client too many was let in")

    async def _left(self) -> None:
        """See what is left of the clients once they are gone."""
        looks = self.outcome.looks
        deadline = time.monotonic() + 30
        while True:
            owners = await asyncio.to_thread(self._world.left_at_owners)
            looks["end"] = await asyncio.to_thread(self._watch.look)
            more = looks["end"].descriptors - looks["start"].descriptors
            if not owners and more <= DESCRIPTORS:
                return
            if time.monotonic() > deadline:
                break
            await asyncio.sleep(0.5)
        self.outcome.faults += [f"left at an owner: {each}" for each in owners]
        if more > DESCRIPTORS:
            self.outcome.faults.append(f"{more} descriptors more than before the clients came")
