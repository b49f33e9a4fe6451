"""Table 13 on a benchmark small enough to count by hand."""

from __future__ import annotations

import csv
import json

import pytest
from oar_bench.cli import app
from oar_bench.layout import find_benchmarks
from oar_bench.paper.routers import KAPPA, KAPPA_FROZEN
from oar_bench.paper.routing import measure, precision_recall
from oar_bench.paper.statistics import Estimate
from typer.testing import CliRunner


def write_drafts(directory, statements):
    lines = (json.dumps({"id": key, "sql": sql}) for key, sql in statements.items())
    (directory / "drafts.jsonl").write_text("\n".join(lines))


def test_precision_recall_and_misses_of_both_parsers(benchmark_directory):
    # Question 1 needs one owner, 2 and 4 need two, 3 and 5 have no cover.
    write_drafts(
        benchmark_directory,
        {
            1: "SELECT 1 FROM song JOIN label ON true",
            2: 'WITH w AS (SELECT 1 FROM song) SELECT 1 FROM w JOIN "order" ON true JOIN label',
            3: "SELECT 1 FROM song JOIN label ON true",
            4: "SELECT 1 FROM label",
        },
    )
    (benchmark,) = find_benchmarks(benchmark_directory)
    measured = measure(benchmark, resamples=500)["toy"]
    assert (measured.questions, measured.multi_owner, measured.recovered) == (3, 2, 1)
    frozen, ours = measured.signals[KAPPA_FROZEN], measured.signals[KAPPA]
    assert (frozen.relayed, frozen.agree, ours.relayed, ours.agree) == (1, 0, 2, 1)
    assert (frozen.precision.value, frozen.recall) == (0, Estimate(0, 0, 0))
    assert (ours.precision.value, ours.recall.value) == (50, 50)
    assert (measured.more_precision.value, measured.more_recall.value) == (50, 50)
    assert measured.missed == {
        KAPPA_FROZEN: {"unlisted": 1, "fewer": 1},
        KAPPA: {"fewer": 1},
    }
    assert {name: signal.relayed for name, signal in measured.signals.items()} == {
        KAPPA_FROZEN: 1,
        KAPPA: 2,
        "tables, paper's parser": 2,
        "tables": 2,
        "JOIN": 2,
    }


def test_drafts_that_are_empty_or_do_not_parse_go_to_fan_out(benchmark_directory):
    write_drafts(benchmark_directory, {2: "", 4: "SELECT FROM FROM label JOIN"})
    (benchmark,) = find_benchmarks(benchmark_directory)
    measured = measure(benchmark, resamples=10)["toy"]
    assert measured.signals[KAPPA].relayed == 0
    assert measured.missed[KAPPA] == {"unread": 2}


def test_command_prints_tables_csv_and_one_line_of_json(benchmark_directory, tmp_path):
    file = tmp_path / "figures.csv"
    arguments = ["paper", "routing", "--data", str(benchmark_directory), "--csv", str(file)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert "how drafts route" in result.stdout
    found = json.loads(result.stdout.splitlines()[-1])["figures"]
    routing = {
        (one["part"], one["group"], one["column"]): one["value"]
        for one in found
        if (one["table"], one["setting"]) == ("routing", "toy, toy")
    }
    assert (routing[KAPPA, "", "Prec."], routing[KAPPA, "", "Rec."]) == (50, 50)
    assert (routing[KAPPA, "", "relayed"], routing[KAPPA, "", "right"]) == (2, 1)
    # Of FROM a, b the paper's parser sees the first table: nothing is relayed.
    assert routing[KAPPA_FROZEN, "", "relayed"] == 0
    assert (KAPPA_FROZEN, "", "Prec.") not in routing
    assert routing[KAPPA_FROZEN, "", "Rec."] == 0
    assert routing[KAPPA, "ours − paper's", "Rec."] == 50
    missed = {
        (one["part"], one["column"]): one["value"] for one in found if one["table"] == "misses"
    }
    # Question 4's draft does not parse, which the paper's parser does not notice: no table.
    assert (missed[KAPPA, "unread"], missed[KAPPA_FROZEN, "unread"]) == (1, 1)
    assert missed[KAPPA_FROZEN, "fewer"] == 1
    rows = list(csv.DictReader(file.read_text().splitlines()))
    assert [float(row["value"]) for row in rows] == [one["value"] for one in found]


def test_command_without_drafts_measures_nothing(benchmark_directory):
    (benchmark_directory / "drafts.jsonl").unlink()
    result = CliRunner().invoke(app, ["paper", "routing", "--data", str(benchmark_directory)])
    assert result.exit_code == 0
    assert json.loads(result.stdout.splitlines()[-1]) == {"figures": []}


@pytest.mark.parametrize(
    ("outcomes", "precision", "recall"),
    [
        ([(True, True, 3), (True, False, 1), (False, True, 2), (False, False, 9)], 60, 75),
        ([(True, False, 2), (False, False, 1)], None, 0),
        ([(False, True, 2)], 0, None),
        ([], None, None),
    ],
)
def test_precision_and_recall(outcomes, precision, recall):
    assert precision_recall(outcomes) == (precision, recall)


def test_command_refuses_a_directory_of_another_layout(tmp_path):
    result = CliRunner().invoke(app, ["paper", "routing", "--data", str(tmp_path)])
    assert result.exit_code == 2
    assert "no benchmark here" in result.output
