"""Protocols and routers over the saved runs of conftest, whose figures are counted by hand."""

from __future__ import annotations

import csv
import json

import pytest
from oar_bench.cli import app
from oar_bench.drafts import Draft
from oar_bench.layout import find_benchmarks
from oar_bench.paper import comparison
from oar_bench.paper.routers import KAPPA, KAPPA_FROZEN
from oar_bench.paper.runs import read_runs
from typer.testing import CliRunner

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
    return list(comparison.cases(benchmark, read_runs(saved.parent / "runs.jsonl")["m"]))


def test_accuracy_of_every_protocol_and_router(cases):
    scored = comparison.evaluate(cases)
    assert {
        name: tuple(by_question[question].accuracy for question in ORDER)
        for name, by_question in scored.items()
    } == ACCURACY


def test_f1_abstention_and_strata(cases):
    scored = comparison.evaluate(cases)["fan-out"]
    groups = comparison.by_stratum(scored, {case.question.id: case.question for case in cases})
    assert {name: count for name, (count, _) in groups.items()} == {
        "all": 5,
        "single-owner": 2,
        "two-owner": 2,
        "unanswerable": 1,
    }
    assert groups["single-owner"][1].f1 == pytest.approx((1 + 2 / 3) / 2)
    assert groups["all"][1].abstained == pytest.approx(2 / 5)


@pytest.mark.parametrize(
    ("way", "question", "costs"),
    [
        ("fan-out", "s1", (3, 300, 2)),
        (KAPPA, "s1", (4, 400, 3)),
        (KAPPA, "w1", (5, 600, 4)),
        # Run 1: draft, fan-out, relay; run 2: draft, relay.
        (f"{KAPPA_FROZEN}, retry", "w1", (6.5, 750, 5)),
        ("oracle", "w1", (4, 500, 3)),
    ],
)
def test_costs_are_of_everything_that_was_run(cases, way, question, costs):
    one = comparison.evaluate(cases)[way][question]
    assert (one.calls, one.tokens, one.seconds) == costs


def test_contrasts_and_the_interaction(cases):
    scored = comparison.evaluate(cases)
    questions = {case.question.id: case.question for case in cases}
    assert comparison.contrast(scored[KAPPA], scored["fan-out"]).value == pytest.approx(30)
    assert comparison.contrast(scored[KAPPA], scored["self"]).value == pytest.approx(30)
    # Relay is ahead by (0.5 + 0) / 2 with two owners and by (-1 + 1) / 2 with one.
    found = comparison.ownership_interaction(scored, questions)
    assert found.value == pytest.approx(25)
    # Two of two: of each stratum both, one or the other twice; ±1 is in a quarter each.
    assert (found.low, found.high) == pytest.approx((-100, 150))


def test_key_passing(cases):
    passed = comparison.key_passing(cases)
    assert (passed.runs, passed.keyed, passed.correct_keyed, passed.correct_unkeyed) == (3, 2, 1, 0)


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
    scored = comparison.evaluate(list(comparison.cases(benchmark, read_runs(file)["m"], drafts)))
    assert scored[KAPPA]["w1"].accuracy == 0
    assert scored[f"{KAPPA}, relay+"]["w1"].accuracy == 1
    assert "self" not in scored


def run_command(saved, *arguments):
    command = ["paper", "runs", "--data", str(saved), "--runs", *map(str, arguments)]
    return CliRunner().invoke(app, command)


def test_command_prints_tables_csv_and_one_line_of_json(saved):
    file = saved.parent / "figures.csv"
    result = run_command(saved, saved.parent / "runs.jsonl", "--csv", file)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout.splitlines()[-1])["models"]["small/m"]
    assert found["contrasts"][KAPPA]["fan-out"]["value"] == 30
    assert found["interaction"]["relay"]["value"] == 25
    assert found["key_passing"]["relay"] == {
        "runs": 3, "keyed": 2, "correct_keyed": 1, "correct_unkeyed": 0, "key_per_cent": 66.6667,
        "accuracy_with_key": 50, "accuracy_without": 0, "share_of_correct": 100,
    }  # fmt: skip
    rows = {
        (row["way"], row["stratum"]): row for row in csv.DictReader(file.read_text().splitlines())
    }
    assert {way: float(rows[way, "all"]["accuracy"]) for way in ACCURACY} == {
        way: pytest.approx(20 * sum(scores)) for way, scores in ACCURACY.items()
    }


@pytest.mark.parametrize(
    ("line", "why"),
    [('{"question": "x"}', "not a saved run"), ("", "no run answers a question of the data")],
)
def test_command_refuses_what_it_cannot_score(saved, line, why):
    file = saved.parent / "other.jsonl"
    file.write_text(line)
    result = run_command(saved, file)
    assert result.exit_code == 2
    assert why in result.output
