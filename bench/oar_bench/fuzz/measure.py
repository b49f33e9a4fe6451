"""A whole run: worlds drawn from a seed, their cases, and the faults made small."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from itertools import islice, repeat
from pathlib import Path
from random import Random
from typing import Any, Final

from oar_bench.fuzz.bed import open_bed
from oar_bench.fuzz.run import Tally, Work, run_batch
from oar_bench.fuzz.shrink import shrink
from oar_bench.fuzz.statements import random_case
from oar_bench.fuzz.world import KINDS, random_world

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
) -> Tally:
    """Run ``count`` statements over ``schemas`` worlds, both drawn from ``seed``.

    With ``minutes`` as many as fit into them instead. The first ``examples`` faults are made
    small. Owners are of the ``kinds`` that are installed. Raises what starting the servers raises.
    """
    shares = repeat(STATEMENTS_A_WORLD) if minutes is not None else _shares(count, schemas)
    numbered = enumerate(shares)
    tally = Tally()
    async with open_bed(directory, kinds) as bed:
        tally.kinds = bed.kinds
        until = float("inf") if minutes is None else time.monotonic() + 60 * minutes
        while time.monotonic() < until and (batch := list(islice(numbered, WORLDS_A_BATCH))):
            worlds = []
            for number, share in batch:
                world = random_world(_random(seed, number), f"fuzz_{number}", bed.kinds)
                # Each case has a seed of its own: it is the same whatever else is run.
                seeds = (_random(seed, number, n) for n in range(share))
                worlds.append((world, [random_case(own, world) for own in seeds]))
            await run_batch(bed, Work(worlds, shrink_check, until), tally)
            progress(tally)
        for fault in tally.faults[:examples]:
            tally.examples.append(await shrink(bed, fault))
    return tally


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
