"""Bounds of the routers of a draft, question by question and worked out by hand."""

from __future__ import annotations

import pytest
from oar_bench.drafts import Draft
from oar_bench.layout import Benchmark, Organisation, Owner, Question
from oar_bench.paper.answers import Replayed
from oar_bench.paper.bounds import (
    PUBLISHED,
    Routed,
    ahead_table,
    as_published,
    as_the_draft,
    bounds,
    bounds_table,
    perfect,
)
from oar_bench.paper.routers import KAPPA, KAPPA_FROZEN
from oar_bench.paper.scoring import Score


def routed(stratum, relayed, draft_accuracy=1.0, benchmark="bird"):
    several = stratum in ("two-owner", "three-or-more", None)
    return Routed(benchmark, Question("1", "o", stratum=stratum), several, relayed, draft_accuracy)


@pytest.mark.parametrize(
    ("bound", "one", "accuracy"),
    [
        # Relay may answer anything; fan-out what needs no join across owners.
        (perfect, routed("two-owner", relayed=True), 1),
        (perfect, routed("single-owner", relayed=True), 1),
        (perfect, routed("single-owner", relayed=False), 1),
        (perfect, routed("row-split", relayed=False), 1),
        (perfect, routed("unanswerable", relayed=False), 1),
        (perfect, routed("two-owner", relayed=False), 0.043),
        (perfect, routed("three-or-more", relayed=False), 0.059),
        # Of an unnamed stratum that needs several owners, the more of the two.
        (perfect, routed(None, relayed=False), 0.059),
        (as_the_draft, routed("two-owner", relayed=True), 1),
        (as_the_draft, routed("two-owner", relayed=True, draft_accuracy=0.0), 0),
        (as_the_draft, routed("two-owner", relayed=False), 0.043),
        (as_the_draft, routed("two-owner", relayed=False, draft_accuracy=0.0), 0),
        (as_the_draft, routed("single-owner", relayed=False, draft_accuracy=0.0), 0),
        (as_published, routed("single-owner", relayed=False), 0.544),
        (as_published, routed("single-owner", relayed=True), 0.529),
        (as_published, routed("two-owner", relayed=False, benchmark="peoplejoin"), 0.043),
        (as_published, routed("two-owner", relayed=True, benchmark="peoplejoin"), 0.479),
        (as_published, routed("unanswerable", relayed=False, benchmark="peoplejoin"), 0.925),
        # The paper has no such questions, or no such benchmark.
        (as_published, routed("row-split", relayed=False), None),
        (as_published, routed("two-owner", relayed=False, benchmark="other"), None),
    ],
)
def test_what_an_assumption_gives_one_question(bound, one, accuracy):
    assert bound(one) == accuracy


def test_published_accuracies_are_shares():
    accuracies = [
        part for strata in PUBLISHED.values() for pair in strata.values() for part in pair
    ]
    assert len(accuracies) == 16
    assert all(0 < accuracy < 1 for accuracy in accuracies)


@pytest.fixture
def two():
    """A benchmark of a single-owner question and two two-owner ones, all with a right draft.

    The paper's parser misses w1's common table expression; w2's draft is of one owner for both.
    """
    owners = (Owner("a", None, ("t",)), Owner("b", None, ("u",)))
    questions = (
        Question("s", "o", kappa=1, stratum="single-owner", rows=()),
        Question("w1", "o", kappa=2, stratum="two-owner", rows=()),
        Question("w2", "o", kappa=2, stratum="two-owner", rows=()),
    )
    sql = {
        "s": "SELECT 1 FROM t",
        "w1": "WITH c AS (SELECT 1 FROM t) SELECT 1 FROM c JOIN u",
        "w2": "SELECT 1 FROM t",
    }
    right = {question.id: Score(1, 1, 0, 0) for question in questions}
    return Benchmark("bird", {"o": Organisation("o", owners)}, questions, {}), Replayed(
        "bird, m",
        {question.id: question for question in questions},
        {key: Draft(key, text, "sqlite") for key, text in sql.items()},
        right,
        right,
        compared=3,
        equal=3,
    )


def test_bounds_of_every_router_that_needs_no_run(two):
    found = bounds(*two, {"self": {"w1": Score(0, 0, 1, 0)}})
    accuracies = {
        key: tuple(scored[question].accuracy for question in ("s", "w1", "w2"))
        for key, scored in found.items()
        if key != ("saved runs", "self")
    }
    assert {router for _, router in accuracies} == {
        "fan-out", "relay", KAPPA_FROZEN, KAPPA, "tables, paper's parser", "tables", "JOIN", "oracle"
    }  # fmt: skip
    assert accuracies["perfect protocols", KAPPA_FROZEN] == (1, 0.043, 0.043)
    assert accuracies["perfect protocols", KAPPA] == (1, 1, 0.043)
    assert accuracies["perfect protocols", "oracle"] == (1, 1, 1)
    assert accuracies["paper's best", KAPPA] == (0.544, 0.339, 0.038)
    assert accuracies["paper's best", "oracle"] == (0.544, 0.339, 0.339)
    # difficulty routes by labels that this benchmark does not have.
    assert ("perfect protocols", "difficulty") not in found


def test_tables_of_bounds_by_stratum(two, figures_of):
    found = bounds(*two, {"self": {"w1": Score(0, 0, 1, 0), "elsewhere": Score(1, 1, 0, 0)}})
    replayed = two[1]
    shown = figures_of(bounds_table([(replayed, found)]))["bird, m"]
    assert shown["compiled / All"] == 100
    assert shown[f"perfect protocols: {KAPPA} / All"] == 68.1  # (1 + 1 + 0.043) / 3
    assert shown[f"perfect protocols: {KAPPA} / Two-owner"] == 52.15
    assert shown["saved runs: self / All"] == 0
    ahead = figures_of(ahead_table([(replayed, found)]))["bird, m"]
    # Two of two draws are w1, w2 or one of either: 0, 95.7 and 47.85 points.
    assert ahead[f"perfect protocols: {KAPPA} / Two-owner"] == (47.85, 0, 95.7)
    assert ahead[f"perfect protocols: {KAPPA} / Single-owner"] == (0, 0, 0)
    assert ahead["saved runs: self / All"] == (100, 100, 100)
    assert "compiled / All" not in ahead
