"""Protocols and routers over the saved runs of conftest, whose figures are counted by hand."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from oar_bench.drafts import Draft
from oar_bench.layout import find_benchmarks
from oar_bench.paper import comparison
from oar_bench.paper.routers import KAPPA, KAPPA_FROZEN
from oar_bench.paper.runs import BUDGET, read_runs

ORDER = ("s1", "s2", "w1", "w2", "n1")

ACCURACY = {
    "fan-out": (1, 0, 0, 0, 1),
    "relay": (0, 1, 0.5, 0, 0),
    # s2's draft takes a table too many; w1's first is a CTE, unlisted for the paper's parser.
    KAPPA: (1, 1, 0.5, 0, 1),
    KAPPA_FROZEN: (1, 1, 0, 0, 1),
    "tables": (1, 1, 0.5, 0, 1),
    "tables, paper's parser": (1, 1, 0.5, 0, 1),
    "JOIN": (1, 1, 0.5, 0, 1),
    "oracle": (1, 0, 0.5, 0, 1),
    "difficulty": (1, 1, 0.5, 0, 1),
    # w1's second call ended without a reply: its first run alone counts.
    "self": (0, 0, 1, 0, 1),
    "ask": (1, 1, 0.5, 0, 0),
    # An abstention that was right is retried too.
    "fan-out, retry": (1, 0, 0.5, 0, 0),
    f"{KAPPA}, retry": (1, 1, 0.5, 0, 0),
    f"{KAPPA_FROZEN}, retry": (1, 1, 0.5, 0, 0),
    comparison.BOUND: (1, 1, 0.5, 0, 1),
}


@pytest.fixture
def cases(saved):
    (benchmark,) = find_benchmarks(saved)
    return list(comparison.cases(benchmark, read_runs(saved.parent / "runs.jsonl")["m", BUDGET]))


def test_accuracy_of_every_protocol_and_router(cases):
    scored = comparison.evaluate(cases)
    assert {
        name: tuple(by_question[question].accuracy for question in ORDER)
        for name, by_question in scored.items()
    } == ACCURACY


@pytest.mark.parametrize("missing", ["fan-out", "relay"])
def test_a_router_is_scored_where_both_its_branches_were_saved(cases, missing):
    """With one branch alone it would be scored on the questions that it sends there."""
    alone = [
        replace(case, runs={name: run for name, run in case.runs.items() if name != missing})
        for case in cases
    ]
    kept = "relay" if missing == "fan-out" else "fan-out"
    assert set(comparison.evaluate(alone)) == {kept}
    assert comparison.evaluate_router(alone, KAPPA) == {}


def test_scores_of_a_stratum(cases):
    scored = comparison.evaluate(cases)["fan-out"]
    questions = {case.question.id: case.question for case in cases}
    assert {
        stratum: list(comparison.within(scored, questions, stratum))
        for stratum in comparison.STRATA
    } == {
        "all": ["s1", "s2", "w1", "w2", "n1"],
        "single-owner": ["s1", "s2"],
        "row-split": [],
        "two-owner": ["w1", "w2"],
        "three-or-more": [],
        "unanswerable": ["n1"],
    }
    single = comparison.within(scored, questions, "single-owner")
    # s2's answer has one of two rows: precision 1, recall 1/2.
    assert comparison.per_cent(single, "f1") == pytest.approx(100 * (1 + 2 / 3) / 2)
    assert comparison.per_cent(scored, "abstained") == pytest.approx(40)
    assert comparison.per_cent({}) is None


@pytest.mark.parametrize(
    ("way", "question", "costs"),
    [
        ("fan-out", "s1", (3, 300, 2, 0.001)),
        (KAPPA, "s1", (4, 400, 3, 0.0015)),
        (KAPPA, "w1", (5, 600, 4, 0.0025)),
        # Run 1: draft, fan-out, relay; run 2: draft, relay.
        (f"{KAPPA_FROZEN}, retry", "w1", (6.5, 750, 5, 0.003)),
        ("oracle", "w1", (4, 500, 3, 0.002)),
        # The price of a self call was not saved: that of the router is not known.
        ("self", "s1", (4, 500, 3, None)),
    ],
)
def test_costs_are_of_everything_that_was_run(cases, way, question, costs):
    one = comparison.evaluate(cases)[way][question]
    assert (one.calls, one.tokens, one.seconds, one.dollars) == costs


def test_contrasts_and_the_interaction(cases):
    scored = comparison.evaluate(cases)
    assert comparison.contrast(scored[KAPPA], scored["fan-out"]).value == pytest.approx(30)
    assert comparison.contrast(scored[KAPPA], scored["self"]).value == pytest.approx(30)
    # Relay is ahead by (0.5 + 0) / 2 with two owners and by (-1 + 1) / 2 with one.
    found = comparison.interaction_of(
        scored["relay"], scored["fan-out"], ["s1", "s2"], ["w1", "w2", "elsewhere"]
    )
    assert found.value == pytest.approx(25)
    # Two of two: of each stratum both, one or the other twice; ±1 is in a quarter each.
    assert (found.low, found.high) == pytest.approx((-100, 150))


def test_relay_plus_makes_another_branch_and_drafts_may_come_from_a_file(saved):
    runs = [
        {"question": "w1", "protocol": "fan-out", "outcome": "abstained"},
        {"question": "w1", "protocol": "relay", "outcome": "abstained"},
        {"question": "w1", "protocol": "relay+", "outcome": "answered", "rows": [["x"]]},
        {"question": "elsewhere", "protocol": "relay", "outcome": "abstained"},
    ]
    file = saved.parent / "plus.jsonl"
    file.write_text("\n".join(json.dumps({"model": "m", **run}) for run in runs))
    (benchmark,) = find_benchmarks(saved)
    drafts = {"w1": Draft("w1", "SELECT 1 FROM t JOIN u", "sqlite")}
    scored = comparison.evaluate(
        list(comparison.cases(benchmark, read_runs(file)["m", BUDGET], drafts))
    )
    assert scored[KAPPA]["w1"].accuracy == 0
    assert scored[f"{KAPPA}, relay+"]["w1"].accuracy == 1
    assert "self" not in scored
