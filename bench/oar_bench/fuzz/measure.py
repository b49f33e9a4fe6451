"""A whole run: worlds drawn from a seed, their cases, and the faults made small."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from functools import partial
from itertools import islice, repeat
from pathlib import Path
from random import Random
from typing import Any, Final

from oar_bench.fuzz.bed import Bed, open_bed
from oar_bench.fuzz.calls import Calls, call_case
from oar_bench.fuzz.catalog import read_catalog
from oar_bench.fuzz.compared import compared_case
from oar_bench.fuzz.run import Tally, Work, run_batch
from oar_bench.fuzz.samples import typed_world
from oar_bench.fuzz.shrink import shrink
from oar_bench.fuzz.statements import Case, random_case
from oar_bench.fuzz.world import KINDS, World, random_world

WORLDS_A_BATCH: Final = 20
"""Worlds one application serves: a start is then a small part of a batch's time."""

STATEMENTS_A_WORLD: Final = 100
"""Where it is not said how many there are."""

COUNTED: Final = (
    "statements",
    "equal",
    "different",
    "failed",
    "errors_hidden",
    "undetermined",
    "skipped",
    "errors",
    "with_rows",
    "reduced",
    "rows_held",
    "rows_moved",
    "shrink_checks",
)
SHOWN: Final = ("statements", "equal", "different", "failed", "reduced_percent", "moved_percent")
"""What a person is shown of the figures."""

Progress = Callable[[Tally], None]

Draw = Callable[[Random, str, Collection[str]], tuple[World, Callable[[Random], Case]]]
"""Draws a world with a name, over owners of these kinds, and gives what draws its statements."""


async def fuzz(
    *,
    seed: int,
    directory: Path,
    count: int = 1000,
    schemas: int | None = None,
    minutes: float | None = None,
    shrink_check: bool = False,
    progress: Progress = lambda _: None,
    examples: int = 0,
    kinds: Collection[str] = KINDS,
    catalog: bool = False,
) -> Tally:
    """Run ``count`` statements over ``schemas`` worlds, both drawn from ``seed``.

    ``catalog``: over columns of every type, with whatever PostgreSQL's catalog has to call.

    With ``minutes`` as many as fit into them instead. The first ``examples`` faults are made
    small. Owners are of the ``kinds`` that are installed. Raises what starting the servers raises.
    """
    shares = repeat(STATEMENTS_A_WORLD) if minutes is not None else _shares(count, schemas)
    numbered = enumerate(shares)
    tally = Tally()
    async with open_bed(directory, kinds) as bed:
        tally.kinds = bed.kinds
        draw = await _of_the_catalog(bed) if catalog else _random_world
        until = float("inf") if minutes is None else time.monotonic() + 60 * minutes
        while time.monotonic() < until and (batch := list(islice(numbered, WORLDS_A_BATCH))):
            worlds = []
            for number, share in batch:
                world, case = draw(_random(seed, number), f"fuzz_{number}", bed.kinds)
                # Each case has a seed of its own: it is the same whatever else is run.
                seeds = (_random(seed, number, n) for n in range(share))
                worlds.append((world, [case(own) for own in seeds]))
            await run_batch(bed, Work(worlds, shrink_check, until), tally)
            progress(tally)
        for fault in tally.faults[:examples]:
            tally.examples.append(await shrink(bed, fault))
    return tally


def _random_world(
    random: Random, name: str, kinds: Collection[str]
) -> tuple[World, Callable[[Random], Case]]:
    world = random_world(random, name, kinds)
    return world, partial(random_case, world=world)


async def _of_the_catalog(bed: Bed) -> Draw:
    """Draw calls over tame values, and comparisons over wild ones."""
    async with bed.reference() as reference:
        calls = Calls(await read_catalog(reference))
    return partial(_typed_world, calls=calls)


def _typed_world(
    random: Random, name: str, kinds: Collection[str], *, calls: Calls
) -> tuple[World, Callable[[Random], Case]]:
    wild = random.random() < 0.5
    world = typed_world(random, name, kinds, wild=wild)
    if wild:
        return world, partial(compared_case, world=world)
    return world, partial(call_case, world=world, calls=calls)


def _shares(count: int, schemas: int | None) -> Iterator[int]:
    """How many statements each world gets."""
    worlds = min(schemas or max(1, count // STATEMENTS_A_WORLD), count)
    return (count // worlds + (number < count % worlds) for number in range(worlds))


def figures(tally: Tally) -> dict[str, Any]:
    """Return the counts of a run and, in per cent, what share was reduced and moved."""
    counts = tally.counts
    found: dict[str, Any] = {name: counts[name] for name in COUNTED}
    answered = counts["statements"] - counts["skipped"]
    found["reduced_percent"] = _percent(counts["reduced"], answered)
    found["moved_percent"] = _percent(counts["rows_moved"], counts["rows_held"])
    found["owner_kinds"] = list(tally.kinds)
    found["shapes"] = {
        shape: [its["statements"], its["reduced"], its["different"] + its["failed"]]
        for shape, its in sorted(tally.shapes.items())
    }
    return found


def _percent(part: int, whole: int) -> float | None:
    return round(100 * part / whole, 1) if whole else None


def _random(*seeds: int) -> Random:
    return Random("/".join(map(str, seeds)))  # noqa: S311 - repeatable, not secret
