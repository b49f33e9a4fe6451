"""Table 13 on a benchmark small enough to count by hand."""

from __future__ import annotations

import csv
import json

from oar_bench.cli import app
from oar_bench.layout import find_benchmarks
from oar_bench.paper.routers import KAPPA, KAPPA_FROZEN
from oar_bench.paper.routing import measure
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
    ours = json.loads(result.stdout.splitlines()[-1])["models"]["toy/toy"]["signals"][KAPPA]
    assert (ours["precision"]["value"], ours["recall"]["value"]) == (50.0, 50.0)
    rows = {row["router"]: row for row in csv.DictReader(file.read_text().splitlines())}
    # Of FROM a, b the paper's parser sees the first table: nothing is relayed.
    assert rows[KAPPA_FROZEN]["relayed"] == "0"
    assert (rows[KAPPA_FROZEN]["precision"], rows[KAPPA_FROZEN]["recall"]) == ("", "0.0")
    assert (rows[KAPPA]["relayed"], rows[KAPPA]["agree"]) == ("2", "1")


def test_command_without_drafts_measures_nothing(benchmark_directory):
    (benchmark_directory / "drafts.jsonl").unlink()
    result = CliRunner().invoke(app, ["paper", "routing", "--data", str(benchmark_directory)])
    assert result.exit_code == 0
    assert json.loads(result.stdout.splitlines()[-1]) == {"models": {}}


def test_command_refuses_a_directory_of_another_layout(tmp_path):
    result = CliRunner().invoke(app, ["paper", "routing", "--data", str(tmp_path)])
    assert result.exit_code == 2
    assert "no benchmark here" in result.output
