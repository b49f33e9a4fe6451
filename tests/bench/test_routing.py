"""Routing by a draft's own cover, measured against the gold's."""

from __future__ import annotations

import json

from oar_bench.cli import app
from oar_bench.layout import find_benchmarks
from oar_bench.routing import Routing, gold_kappa, measure
from typer.testing import CliRunner


def test_gold_kappa_is_the_files_or_that_of_the_gold_statement(benchmark_directory):
    (benchmark,) = find_benchmarks(benchmark_directory)
    holders = benchmark.organisations["Shop"].holders
    assert [gold_kappa(question, holders) for question in benchmark.questions] == [
        1,  # as the file says
        2,  # valarie holds song and order, zoe holds label
        None,  # unanswerable
        2,
        None,  # a table nobody holds
    ]


def test_counts(benchmark_directory):
    (benchmark,) = find_benchmarks(benchmark_directory)
    assert measure(benchmark) == {
        # 1 relayed in vain, 2 relayed rightly, 4 does not parse; 3 and 5 have no gold κ.
        "toy": Routing(hit=1, false_alarm=1, missed=1, fan_out=0)
    }


def test_a_question_without_a_draft_is_not_counted(benchmark_directory):
    drafts = benchmark_directory / "drafts.jsonl"
    drafts.write_text(drafts.read_text().splitlines()[0] + "\n")
    (benchmark,) = find_benchmarks(benchmark_directory)
    assert measure(benchmark)["toy"].questions == 1


def test_command_ends_with_one_line_of_json(benchmark_directory):
    result = CliRunner().invoke(app, ["route", "--data", str(benchmark_directory.parent)])
    assert result.exit_code == 0
    assert json.loads(result.stdout.splitlines()[-1]) == {
        "models": {"toy": {"precision": 50.0, "recall": 50.0}}
    }


def test_command_without_drafts_measures_nothing(benchmark_directory):
    (benchmark_directory / "drafts.jsonl").unlink()
    result = CliRunner().invoke(app, ["route", "--data", str(benchmark_directory)])
    assert result.exit_code == 0
    assert json.loads(result.stdout.splitlines()[-1]) == {"models": {}}


def test_command_refuses_a_directory_of_another_layout(tmp_path):
    result = CliRunner().invoke(app, ["route", "--data", str(tmp_path)])
    assert result.exit_code == 2
    assert "no benchmark here" in result.output
