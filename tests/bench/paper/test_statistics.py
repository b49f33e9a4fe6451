"""Intervals whose bounds are known: those of a binomial share are the binomial's own quantiles."""

from __future__ import annotations

from collections import Counter
from itertools import product

import pytest
from oar_bench.paper.statistics import (
    CONTRAST_SEED,
    INTERACTION_SEED,
    RESAMPLES,
    Estimate,
    bootstrap,
    interaction,
    paired_difference,
    percentile,
)

THIRTY_OF_A_HUNDRED = [1.0] * 30 + [0.0] * 70
"""Resampled, the sum is binomial with n = 100, p = 0.3: P(≤ 20) = 0.0165, P(≤ 21) = 0.0288 and
P(≤ 38) = 0.9660, P(≤ 39) = 0.9790."""


def named(scores):
    return {str(place): score for place, score in enumerate(scores)}


def test_a_paired_difference_and_its_interval():
    zeros = [0.0] * 100
    assert paired_difference(named(THIRTY_OF_A_HUNDRED), named(zeros)) == Estimate(0.3, 0.21, 0.39)
    assert paired_difference(named(zeros), named(THIRTY_OF_A_HUNDRED)) == Estimate(
        -0.3, -0.39, -0.21
    )


def test_equal_scores_differ_by_nothing_with_certainty():
    scores = named(THIRTY_OF_A_HUNDRED)
    assert paired_difference(scores, scores) == Estimate(0.0, 0.0, 0.0)


def test_only_questions_that_both_have_are_compared():
    assert paired_difference({"1": 1.0, "2": 0.5}, {"2": 0.25, "3": 0.0}) == Estimate(
        0.25, 0.25, 0.25
    )
    assert paired_difference({"1": 1.0}, {"2": 1.0}) is None


def test_an_interaction_is_the_difference_of_the_strata():
    found = interaction([-1.0] * 20, THIRTY_OF_A_HUNDRED)
    assert (found.value, found.low, found.high) == pytest.approx((1.3, 1.21, 1.39))
    assert interaction([0.25] * 4, [0.75] * 3) == Estimate(0.5, 0.5, 0.5)


def test_the_strata_are_resampled_separately():
    both = interaction(THIRTY_OF_A_HUNDRED, THIRTY_OF_A_HUNDRED)
    # Two independent shares: ± 1.96 × √(2 × 0.3 × 0.7 / 100) = ± 0.127
    assert both.value == 0
    assert both.low == pytest.approx(-0.127, abs=0.008)
    assert both.high == pytest.approx(0.127, abs=0.008)


@pytest.mark.parametrize(("single", "two"), [([], [1.0]), ([1.0], [])])
def test_no_interaction_without_a_stratum(single, two):
    assert interaction(single, two) is None


def test_a_resample_without_the_figure_does_not_count():
    # Precision of one relayed question among two: undefined where the other is drawn twice.
    (precision, nothing) = bootstrap(
        [True, False], lambda units: (1.0 if units[True] else None, None)
    )
    assert precision == Estimate(1.0, 1.0, 1.0)
    assert nothing is None


def test_nothing_cannot_be_resampled():
    with pytest.raises(ValueError, match="nothing to resample"):
        bootstrap([], lambda _: (0.0,))


@pytest.mark.parametrize(("share", "value"), [(0, 1), (0.5, 2.5), (0.25, 1.75), (1, 4)])
def test_percentiles_lie_on_the_line_between_two_values(share, value):
    assert percentile([1.0, 2.0, 3.0, 4.0], share) == value


def exact(units, statistic, share):
    """The percentile of a statistic over *all* resamples of the units, each as likely as another.

    The value at which the share is reached; with so few units it is far from any other share.
    """
    values = Counter(statistic(drawn) for drawn in product(units, repeat=len(units)))
    reached, total = 0, sum(values.values())
    for value in sorted(values):
        reached += values[value]
        if reached >= share * total:
            return value
    raise AssertionError("shares are of all resamples")


def mean_of(values):
    return sum(values) / len(values)


@pytest.mark.parametrize(
    "differences",
    [
        # Of 27 resamples of three: -1 once (3.7 %), 1 once.
        (1.0, 0.0, -1.0),
        (1.0, 0.5, 0.0),
        # Of 256 of four: 0 in 81, 1 in one (0.4 %), 3/4 in 12 (4.7 %).
        (1.0, 0.0, 0.0, 0.0),
        (1.0, 1.0, -0.5, 0.0),
        (1.0, 0.0, 0.0, -1.0, -1.0),
    ],
)
def test_an_interval_is_that_of_all_resamples_enumerated(differences):
    units = named(differences)
    found = paired_difference(units, dict.fromkeys(units, 0.0))
    assert (found.low, found.high) == pytest.approx(
        (exact(differences, mean_of, 0.025), exact(differences, mean_of, 0.975))
    )
    assert found.value == pytest.approx(mean_of(differences))
    # The general form draws the same resamples.
    (again,) = bootstrap(differences, lambda units: (mean_of([*units.elements()]),))
    assert (again.low, again.high) == pytest.approx((found.low, found.high))


def test_an_interaction_is_that_of_all_pairs_of_resamples_enumerated():
    single, two = (-1.0, 0.0, 0.0), (1.0, 1.0, 0.0)
    # All 27 * 27 pairs: two-owner minus single-owner mean.
    values = Counter(
        round(mean_of(of_two) - mean_of(of_one), 9)
        for of_one, of_two in product(product(single, repeat=3), product(two, repeat=3))
    )
    bounds, reached = [], 0
    for value in sorted(values):
        before, reached = reached, reached + values[value]
        bounds += [value] if before < 0.025 * 729 <= reached else []
        bounds += [value] if before < 0.975 * 729 <= reached else []
    found = interaction(single, two)
    assert found.value == pytest.approx(1)
    assert [found.low, found.high] == pytest.approx(bounds)


@pytest.mark.parametrize("relayed", [(True, True, False), (True, False, False, True)])
def test_an_interval_of_a_ratio_is_that_of_all_resamples_enumerated(relayed):
    """Precision of what is relayed; a resample with nothing relayed has none."""
    units = [(index == 0, relays) for index, relays in enumerate(relayed)]

    def precision(drawn):
        hits = [needs for needs, relays in drawn if relays]
        return sum(hits) / len(hits) if hits else None

    values = sorted(
        value
        for drawn in product(units, repeat=len(units))
        if (value := precision(drawn)) is not None
    )
    (found,) = bootstrap(units, lambda drawn: (precision([*drawn.elements()]),))
    assert (found.low, found.high) == pytest.approx(
        (percentile(values, 0.025), percentile(values, 0.975))
    )


def test_a_seed_draws_the_same_questions_for_every_contrast():
    """The published seeds: figures do not change from one run to the next."""
    one = named([1.0, 0.5, 0.0, 0.0, 0.25, 1.0, 0.75])
    other = named([0.0] * 7)
    first = paired_difference(one, other)
    assert paired_difference(one, other) == first
    # Twice the difference has twice the bounds, of the same resamples.
    doubled = paired_difference({key: 2 * value for key, value in one.items()}, other)
    assert (doubled.low, doubled.high) == (2 * first.low, 2 * first.high)
    assert (CONTRAST_SEED, INTERACTION_SEED, RESAMPLES) == (20260927, 20260928, 10_000)
