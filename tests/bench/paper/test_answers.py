"""Recorded drafts through a proxy and on merged tables, both scored."""

from __future__ import annotations

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
    """Run the command on the benchmark and return its figures: (table, part, column) → value."""
    write(
        benchmark_directory / "questions.jsonl",
        [{"org": "Shop", "question": "?", **q} for q in QUESTIONS],
    )
    write(benchmark_directory / "drafts.jsonl", DRAFTS)

    def run(*arguments):
        command = ["paper", "answers", "--data", str(benchmark_directory)]
        result = CliRunner().invoke(app, [*command, *map(str, arguments)])
        assert result.exit_code == 0, result.output
        found = json.loads(result.stdout.splitlines()[-1])["figures"]
        assert {one["setting"] for one in found} == {"toy, toy"}
        return {
            (one["table"], one["part"], " ".join((one["group"], one["column"])).strip()): one[
                "value"
            ]
            for one in found
        }

    return run


def test_compiled_drafts_against_merged_tables_and_saved_runs(answers, tmp_path):
    write(tmp_path / "runs.jsonl", [{"model": "toy", **run} for run in RUNS])
    found = answers("--runs", tmp_path / "runs.jsonl")
    shares = ("Accuracy", "F1", "Abst.", "Failed")
    for way in ("Compiled", "Merged tables"):
        assert {
            stratum: tuple(found["answers", stratum, f"{way} {share}"] for share in shares)
            for stratum in ("Row-split", "Two-owner", "Unanswerable", "All")
        } == {
            "Row-split": (100, 100, 0, 0),
            "Two-owner": (0, 0, 33.3333, 33.3333),
            "Unanswerable": (100, 100, 100, 0),
            "All": (40, 40, 40, 20),
        }
    assert found["answers", "All", "Compiled ahead"] == 0
    # Question 3's draft names no table there is and 4 and 5 have none: two run on merged tables.
    assert {column: found["equality", "", column] for column in ("run on merged", "equal")} == {
        "run on merged": 2,
        "equal": 2,
    }
    assert found["equality", "", "scored otherwise"] == 0
    # Compiled answers the first of two questions; relay and the bound answer the second.
    ahead = {
        part.removeprefix("saved runs: "): value
        for (table, part, column), value in found.items()
        if (table, column) == ("ahead", "All") and part.startswith("saved runs: ")
    }
    assert ahead == {
        "fan-out": 50,
        "relay": 0,
        "κ, paper's parser": 50,
        "κ": 50,
        "tables, paper's parser": 50,
        "tables": 50,
        "JOIN": 50,
        "oracle": 0,
        "κ, paper's parser, retry": 0,
        "κ, retry": 0,
        "fan-out, retry": 0,
        "best of fan-out and relay": 0,
    }


def test_without_saved_runs_there_are_bounds_of_the_same_drafts(answers):
    found = answers()
    assert not [part for _, part, _ in found if part.startswith("saved runs")]
    assert found["bounds", "compiled", "All"] == 40
    assert found["bounds", "perfect protocols: relay", "All"] == 100
    # Fan-out: 1 and 4 need one owner at most, 2 and 3 have no reference cover, 5 needs two.
    assert found["bounds", "perfect protocols: fan-out", "All"] == 80.86  # (4 + 0.043) / 5
    assert found["ahead", "perfect protocols: fan-out", "All"] == -40.86
    assert found["ahead", "right as the draft: κ", "All"] == 0
