"""The benchmark commands over a whole proxy: hub, owners' files and a client, all real."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing

import pytest
from oar_bench.cli import app
from typer.testing import CliRunner

GOLD = [
    "SELECT title FROM song ORDER BY sales LIMIT 3",
    'SELECT count(*), max(s.title) FROM song s JOIN "order" o ON o.song_id = s.id',
    'SELECT o.id, s.title FROM "order" o LEFT JOIN song s ON o.song_id = s.id',
    "SELECT l.name, s.id FROM label l JOIN song s ON s.sales > 0.25",
    "SELECT * FROM elsewhere",
]
DRAFTS = [
    ("SELECT title FROM song WHERE id = 1", [["a"]]),
    ('SELECT count(*) FROM song s JOIN "order" o ON o.song_id = s.id', [[3]]),
    ("", None),
    ("SELECT nothing FROM song", [[1]]),
]


def lines(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def run(*arguments):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@pytest.fixture
def gold_only(benchmark_directory):
    """A benchmark of gold statements and nothing else."""
    (benchmark_directory / "drafts.jsonl").unlink()
    lines(
        benchmark_directory / "questions.jsonl",
        [{"id": number, "org": "Shop", "gold_sql": sql} for number, sql in enumerate(GOLD)],
    )
    return benchmark_directory


def test_fidelity(gold_only):
    result = run("fidelity", "--data", gold_only.parent)
    counts = json.loads(result.stdout.splitlines()[-1])
    assert counts == {
        "statements": 5,
        "accepted": 4,
        "equal": 4,
        "ties": counts["ties"],
        "different": 0,
        "failed": 0,
    }, result.stdout
    assert result.exit_code == 0
    assert "Shop" in result.stdout


def test_an_organisation_that_cannot_be_merged_is_a_fault(gold_only):
    with closing(sqlite3.connect(gold_only / "orgs" / "Shop" / "valarie.sqlite")) as database:
        database.execute("INSERT INTO \"order\" VALUES (4, 'four', NULL)")
        database.commit()
    result = run("fidelity", "--data", gold_only)
    assert result.exit_code == 1
    assert "the rows of order are not of its columns' types" in " ".join(result.stdout.split())
    assert json.loads(result.stdout.splitlines()[-1])["statements"] == 0


def test_fidelity_of_some_statements_as_json_alone(gold_only):
    result = run("fidelity", "--data", gold_only, "--org", "Shop", "--limit", 1, "--json")
    (line,) = result.stdout.splitlines()
    assert json.loads(line)["statements"] == 1


def test_fidelity_of_an_organisation_that_is_not_there(gold_only):
    result = run("fidelity", "--data", gold_only, "--org", "Shop2")
    assert result.exit_code == 2
    assert "no organisation with rows is named Shop2" in result.stderr


@pytest.fixture
def questions(benchmark_directory):
    """Four questions: answered, answered wrongly, abstained rightly, drafted against no column."""
    lines(
        benchmark_directory / "questions.jsonl",
        [
            {"id": n, "org": "Shop", "question": f"It's {n}?", "unanswerable": rows is None}
            | ({"rows": rows, "stratum": "s"} if rows is not None else {"stratum": "none"})
            for n, (_, rows) in enumerate(DRAFTS)
        ],
    )
    lines(
        benchmark_directory / "drafts.jsonl",
        [{"id": n, "sql": sql} for n, (sql, _) in enumerate(DRAFTS)],
    )
    return benchmark_directory


def test_ask_with_recorded_drafts(questions):
    result = run("ask", "--data", questions)
    found = json.loads(result.stdout.splitlines()[-1])
    assert result.exit_code == 0, result.stdout
    assert found["questions"] == 4
    assert (found["merged_accepted"], found["equal_to_merged"]) == (2, 2)
    assert (found["correct"], found["wrong"], found["abstained"]) == (2, 2, 0)
    assert found["by_stratum"]["none"]["correct"] == 1
    # Song holds 5 rows and is read twice, order 3.
    assert found["rows_held"] == 13
    assert 1 <= found["rows_moved"] <= 13


def test_ask_the_offline_drafter(questions):
    result = run("ask", "--data", questions, "--drafter", "offline")
    found = json.loads(result.stdout.splitlines()[-1])
    assert result.exit_code == 0, result.stdout
    assert found["questions"] == 4
    assert found["equal_to_merged"] is None
    assert found["correct"] + found["wrong"] + found["abstained"] == 4
