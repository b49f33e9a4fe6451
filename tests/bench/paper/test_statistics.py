"""Intervals whose bounds are known: those of a binomial share are the binomial's own quantiles."""

from __future__ import annotations

import pytest
from oar_bench.paper.statistics import (
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
