"""``oar bench paper``: which tables are printed, and where they go."""

from __future__ import annotations

import csv
import json

import pytest
from oar_bench.cli import app
from oar_bench.paper.command import TABLES
from typer.testing import CliRunner


@pytest.fixture
def tables(saved):
    """Run the command over the runs of conftest, or over another file beside them."""

    def run(*arguments, runs="runs.jsonl"):
        command = ["paper", "tables", "--data", saved, "--runs", saved.parent / runs, *arguments]
        return CliRunner().invoke(app, list(map(str, command)))

    return run


def figures(result):
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout.splitlines()[-1])["figures"]


def test_every_table_is_printed_and_its_figures_are_the_last_line(tables):
    result = tables()
    found = figures(result)
    # The ablation has no runs here; nobody else wrote drafts.
    assert {one["table"] for one in found} == TABLES.keys() - {"ablation", "14"}
    assert {
        (one["table"], one["part"], one["column"], one["value"], one["low"], one["high"])
        for one in found
        if one["table"] == "6" or (one["table"], one["column"]) == ("9", "Share")
    } == {("6", "", "Relay", 25, -100, 150), ("9", "relay", "Share", 100, None, None)}
    for number in ("2", "3", "4", "5", "6", "7", "9", "10", "11", "12", "13", "14"):
        assert f"\nTable {number}: " in f"\n{result.stdout}"


def test_only_the_tables_that_are_asked_for_in_that_order(tables):
    result = tables("--table", "cost", "--table", "3")
    assert list(dict.fromkeys(one["table"] for one in figures(result))) == ["cost", "3"]


def test_csv_has_the_figures_of_the_last_line(tables, tmp_path):
    found = figures(tables("--csv", tmp_path / "figures.csv"))
    rows = list(csv.DictReader((tmp_path / "figures.csv").read_text().splitlines()))
    assert [(row["table"], row["column"], float(row["value"])) for row in rows] == [
        (one["table"], one["column"], one["value"]) for one in found
    ]


def test_plots_go_to_a_directory_or_one_to_a_file(tables, tmp_path):
    figures(tables("--plots", tmp_path / "plots", "--table", "4", "--table", "6"))
    assert sorted(path.name for path in (tmp_path / "plots").iterdir()) == [
        "table-4.svg",
        "table-6.svg",
    ]
    figures(tables("--plots", tmp_path / "four.png", "--table", "4"))
    assert (tmp_path / "four.png").read_bytes().startswith(b"\x89PNG")


def test_drafts_of_a_file_serve_runs_without_a_saved_one(tables, saved):
    lines = (saved.parent / "runs.jsonl").read_text().splitlines()
    rest = [line for line in lines if json.loads(line)["protocol"] != "draft"]
    (saved.parent / "rest.jsonl").write_text("\n".join(rest))
    assert not [one for one in figures(tables("--table", "13", runs="rest.jsonl")) if "OAR" in one["column"]]  # fmt: skip
    drafts = saved.parent / "drafts.jsonl"
    drafts.write_text(json.dumps({"id": "s2", "sql": "SELECT 1 FROM t JOIN u"}))
    found = figures(tables("--table", "13", "--drafts", drafts, runs="rest.jsonl"))
    assert {one["value"] for one in found if one["column"] == "OAR"} == {100}


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--table", "8"], "no table 8: there are 2, 3,"),
        (["--plots", "all.svg"], "a file holds one table"),
        (["--csv", "nowhere/figures.csv"], "nowhere/figures.csv"),
    ],
)
def test_command_refuses_what_it_cannot_write(tables, arguments, why):
    result = tables(*arguments)
    assert result.exit_code == 2
    assert why in result.output


@pytest.mark.parametrize(
    ("line", "why"),
    [('{"question": "x"}', "not a saved run"), ("", "no run answers a question of the data")],
)
def test_command_refuses_what_it_cannot_score(tables, saved, line, why):
    (saved.parent / "other.jsonl").write_text(line)
    result = tables(runs="other.jsonl")
    assert result.exit_code == 2
    assert why in result.output
