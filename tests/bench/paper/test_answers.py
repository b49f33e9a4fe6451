"""Recorded drafts through a proxy and on merged tables, both scored."""

from __future__ import annotations

import csv
import json

import pytest
from oar_bench.cli import app
from typer.testing import CliRunner

QUESTIONS = [
    {"id": 1, "stratum": "row-split", "rows": [["a"], ["b"], ["b"], ["d"], [None]]},
    {"id": 2, "stratum": "two-owner", "rows": [["a", "2024-02-29"], ["b", None]]},
    {"id": 3, "stratum": "two-owner", "rows": [[3]]},
    {"id": 4, "stratum": "unanswerable", "unanswerable": True},
    {"id": 5, "stratum": "two-owner", "kappa": 2, "rows": [[1]]},
]
DRAFTS = [
    {"id": 1, "sql": "SELECT title FROM song"},
    {"id": 2, "sql": 'SELECT title FROM song JOIN "order" ON song_id = song.id'},
    {"id": 3, "sql": "SELECT count(*) FROM nowhere"},
    {"id": 4, "sql": ""},
    {"id": 5, "sql": ""},
]
RUNS = [
    {"question": 1, "protocol": "fan-out", "outcome": "answered", "rows": [["a"]]},
    {"question": 1, "protocol": "relay", "outcome": "stopped"},
    {"question": 5, "protocol": "fan-out", "outcome": "abstained"},
    {"question": 5, "protocol": "relay", "outcome": "answered", "rows": [[1]]},
]


def write(path, records):
    path.write_text("\n".join(map(json.dumps, records)))


@pytest.fixture
def answers(benchmark_directory):
    """Run the command on the benchmark and return its last line and its CSV file's rows."""
    write(
        benchmark_directory / "questions.jsonl",
        [{"org": "Shop", "question": "?", **q} for q in QUESTIONS],
    )
    write(benchmark_directory / "drafts.jsonl", DRAFTS)
    file = benchmark_directory / "figures.csv"

    def run(*arguments):
        command = ["paper", "answers", "--data", str(benchmark_directory), "--csv", str(file)]
        result = CliRunner().invoke(app, [*command, *map(str, arguments)])
        assert result.exit_code == 0, result.output
        rows = csv.DictReader(file.read_text().splitlines())
        return json.loads(result.stdout.splitlines()[-1]), list(rows), result.output

    return run


def test_compiled_drafts_against_merged_tables_and_saved_runs(answers, tmp_path):
    write(tmp_path / "runs.jsonl", [{"model": "toy", **run} for run in RUNS])
    found, rows, _ = answers("--runs", tmp_path / "runs.jsonl")
    by_stratum = {row["stratum"]: row for row in rows}
    for way in ("compiled", "centralized"):
        figures = {
            stratum: tuple(float(row[f"{way}_{share}"]) for share in ("accuracy", "f1", "abstained", "failed"))
            for stratum, row in by_stratum.items()
        }  # fmt: skip
        assert figures == {
            "row-split": (100, 100, 0, 0),
            "two-owner": (0, 0, 33.3333, 33.3333),
            "unanswerable": (100, 100, 100, 0),
            "all": (40, 40, 40, 20),
        }
    assert float(by_stratum["all"]["ahead"]) == 0
    bounds = found["ahead_of_routers"]["toy/toy"]
    # Compiled answers the first of two questions; relay and the bound answer the second.
    assert {way: (one["questions"], one["ahead"]["value"]) for way, one in bounds.items()} == {
        "fan-out": (2, 50),
        "relay": (2, 0),
        "κ, paper's parser": (2, 50),
        "κ": (2, 50),
        "tables, paper's parser": (2, 50),
        "tables": (2, 50),
        "JOIN": (2, 50),
        "oracle": (2, 0),
        "κ, paper's parser, retry": (2, 0),
        "κ, retry": (2, 0),
        "fan-out, retry": (2, 0),
        "best of fan-out and relay": (2, 0),
    }


def test_without_saved_runs_there_is_no_bound(answers):
    found, _, output = answers()
    assert found["ahead_of_routers"] == {"toy/toy": {}}
    assert "no router's bound" in output
