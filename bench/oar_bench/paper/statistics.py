"""The paper's statistics (Appendix D): percentile intervals of bootstrap resamples of questions.

Questions are the units: what several runs of one question scored is averaged before. The random
numbers are the standard library's, so an interval may differ in its last digit from the paper's
with the same seed.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from random import Random
from typing import Final, TypeVar

UnitT = TypeVar("UnitT", bound=Hashable)

RESAMPLES: Final = 10_000
CONTRAST_SEED: Final = 20260927
INTERACTION_SEED: Final = 20260928
_TAIL: Final = 0.025
"""Of the resamples, on each side of a 95 % interval."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A statistic of all units and its 95 % interval, in the statistic's own unit."""

    value: float
    low: float
    high: float

    def scaled(self, factor: float) -> Estimate:
        """Return the estimate in another unit."""
        return Estimate(self.value * factor, self.low * factor, self.high * factor)


Statistic = Callable[[Counter[UnitT]], tuple[float | None, ...]]
"""Computes several figures of a multiset of units; None where one is not defined."""


def bootstrap(
    units: Sequence[UnitT],
    statistic: Statistic[UnitT],
    *,
    seed: int = CONTRAST_SEED,
    resamples: int = RESAMPLES,
) -> tuple[Estimate | None, ...]:
    """Estimate figures from the same resamples of the units, so that differences are paired.

    A figure that the units do not define is None; a resample that does not define it (a precision
    of nothing relayed) does not count for it. Raises ``ValueError`` without units.
    """
    if not units:
        raise ValueError("nothing to resample")
    values = statistic(Counter(units))
    drawn = [
        statistic(Counter(map(units.__getitem__, places)))
        for places in _draws(len(units), seed, resamples)
    ]
    return tuple(
        None if value is None else _interval(value, (figures[place] for figures in drawn))
        for place, value in enumerate(values)
    )


def paired_difference(
    one: Mapping[str, float], other: Mapping[str, float], *, resamples: int = RESAMPLES
) -> Estimate | None:
    """Mean difference ``one - other`` over the questions that have both; None without any."""
    differences = [one[question] - other[question] for question in one if question in other]
    if not differences:
        return None
    drawn = (
        _mean([*map(differences.__getitem__, places)])
        for places in _draws(len(differences), CONTRAST_SEED, resamples)
    )
    return _interval(_mean(differences), drawn)


def interaction(
    single_owner: Sequence[float], two_owner: Sequence[float], *, resamples: int = RESAMPLES
) -> Estimate | None:
    """Mean advantage of relay over two-owner questions minus that over single-owner questions.

    The arguments are each question's relay score minus its fan-out score. The two strata are
    resampled separately; None where one is empty.
    """
    if not single_owner or not two_owner:
        return None
    draw = Random(INTERACTION_SEED).choices  # noqa: S311 - a draw to be repeated, not a secret
    drawn = []
    for _ in range(resamples):
        single = _mean(draw(single_owner, k=len(single_owner)))
        drawn.append(_mean(draw(two_owner, k=len(two_owner))) - single)
    return _interval(_mean(two_owner) - _mean(single_owner), drawn)


@lru_cache(maxsize=4)
def _draws(units: int, seed: int, resamples: int) -> tuple[array[int], ...]:
    """Draw the places of each resample: the same ones for every statistic of so many units."""
    draw = Random(seed).choices  # noqa: S311 - a draw to be repeated, not a secret
    return tuple(array("I", draw(range(units), k=units)) for _ in range(resamples))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _interval(value: float, drawn: Iterable[float | None]) -> Estimate:
    ordered = sorted(figure for figure in drawn if figure is not None)
    return Estimate(value, percentile(ordered, _TAIL), percentile(ordered, 1 - _TAIL))


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the value below which a share of the ordered values lies, between two by line."""
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])
