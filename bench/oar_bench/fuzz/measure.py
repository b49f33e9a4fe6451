"""A whole run: worlds drawn from a seed, their cases, and the faults made small."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Final

from oar_bench.fuzz.bed import open_bed
from oar_bench.fuzz.run import Tally, run_batch
from oar_bench.fuzz.shrink import shrink
from oar_bench.fuzz.statements import Case, random_case
from oar_bench.fuzz.world import World, random_world

WORLDS_A_BATCH: Final = 20
"""Worlds one application serves: a start is then a small part of a batch's time."""

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
    count: int,
    schemas: int,
    directory: Path,
    shrink_check: bool = False,
    progress: Progress = lambda _: None,
    examples: int = 0,
) -> Tally:
    """Run ``count`` statements over ``schemas`` worlds, both drawn from ``seed``.

    The first ``examples`` faults are made small.

    Raises what starting the servers raises.
    """
    tally = Tally()
    async with open_bed(directory) as bed:
        for numbers in _batches(schemas):
            worlds = [random_world(_random(seed, n), f"fuzz_{n}") for n in numbers]
            cases = [
                _cases(seed, n, w, count, schemas) for n, w in zip(numbers, worlds, strict=True)
            ]
            await run_batch(bed, list(zip(worlds, cases, strict=True)), tally, shrink_check)
            progress(tally)
        for fault in tally.faults[:examples]:
            tally.examples.append(await shrink(bed, fault))
    return tally


def figures(tally: Tally) -> dict[str, int | float | None]:
    """Return the counts of a run and, in per cent, what share was reduced and moved."""
    counts = tally.counts
    found: dict[str, int | float | None] = {name: counts[name] for name in COUNTED}
    answered = counts["statements"] - counts["skipped"]
    found["reduced_percent"] = _percent(counts["reduced"], answered)
    found["moved_percent"] = _percent(counts["rows_moved"], counts["rows_held"])
    return found


def _percent(part: int, whole: int) -> float | None:
    return round(100 * part / whole, 1) if whole else None


def _batches(schemas: int) -> Iterator[range]:
    for first in range(0, schemas, WORLDS_A_BATCH):
        yield range(first, min(first + WORLDS_A_BATCH, schemas))


def _cases(seed: int, number: int, world: World, count: int, schemas: int) -> list[Case]:
    """Each case has a seed of its own: it is the same whatever else is run."""
    share = count // schemas + (number < count % schemas)
    return [random_case(_random(seed, number, n), world) for n in range(share)]


def _random(*seeds: int) -> Random:
    return Random("/".join(map(str, seeds)))  # noqa: S311 - repeatable, not secret
