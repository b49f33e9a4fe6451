"""A small benchmark on disk and a PostgreSQL to merge it in."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from oar_bench.cli import app
from typer.testing import CliRunner

SHOP = {
    "asks": [],
    "cassie": ['CREATE TABLE "Song" ("Id" INTEGER, "Title" TEXT, "Sales" REAL)',
               "INSERT INTO Song VALUES (1, 'a', 0.1), (2, 'b', 0.2), (3, NULL, NULL)"],
    "valarie": ['CREATE TABLE "song" ("id" INTEGER, "title" TEXT, "sales" REAL)',
                "INSERT INTO song VALUES (4, 'd', 0.3), (5, 'b', 0.2)",
                'CREATE TABLE "order" ("id" INTEGER PRIMARY KEY, "song_id" INTEGER, "day" DATE)',
                "INSERT INTO \"order\" VALUES (1, 1, '2024-02-29'), (2, 2, NULL), (3, 9, NULL)"],
    "zoe": ['CREATE TABLE "label" ("code" TEXT PRIMARY KEY, "name" TEXT)',
            "INSERT INTO label VALUES (NULL, 'x'), (NULL, 'y')"],
}  # fmt: skip
CATALOG = {
    "org": "Shop",
    "owners": [
        {"owner": "asks", "tables": {}},
        {"owner": "cassie", "tables": {"Song": {"Id": "INTEGER", "Title": "TEXT"}}},
        {"owner": "valarie", "tables": {"song": {"id": "INTEGER"}, "order": {"id": "INTEGER"}}},
        {"owner": "zoe", "tables": {"label": {"code": "TEXT"}}},
    ],
}
QUESTIONS = [
    {"id": 1, "org": "Shop", "question": "Titles?", "gold_sql": "SELECT title FROM song",
     "rows": [["a"]], "kappa": 1, "stratum": "row-split"},
    {"id": "2", "org": "Shop", "gold_sql": 'SELECT title FROM song JOIN "order" ON song_id = '
     "song.id JOIN label ON name = title"},
    {"id": 3, "org": "Shop", "question": "Weather?", "unanswerable": True, "gold_sql": "SELECT 1"},
    {"id": 4, "org": "Shop", "gold_sql": "SELECT name, day FROM label, `order`"},
    {"id": 5, "org": "Shop", "gold_sql": "SELECT * FROM elsewhere"},
]  # fmt: skip
DRAFTS = [
    {"id": 1, "sql": 'SELECT 1 FROM song, label', "dialect": "postgres"},
    {"id": 2, "sql": 'SELECT 1 FROM "Song", "label"'},
    {"id": 3, "sql": ""},
    {"id": 4, "sql": "no idea", "dialect": "sqlite"},
    {"id": 5, "sql": "SELECT 1 FROM song, label"},
]  # fmt: skip


def write_lines(path: Path, records: list) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


@pytest.fixture
def benchmark_directory(tmp_path):
    """One benchmark ``toy`` with organisation ``Shop``, under a directory of benchmarks."""
    root = tmp_path / "all" / "toy"
    org = root / "orgs" / "Shop"
    org.mkdir(parents=True)
    for owner, statements in SHOP.items():
        with closing(sqlite3.connect(org / f"{owner}.sqlite")) as database, database:
            for statement in statements:
                database.execute(statement)
    (org / "catalog.json").write_text(json.dumps(CATALOG))
    write_lines(root / "questions.jsonl", QUESTIONS)
    write_lines(root / "drafts.jsonl", DRAFTS)
    return root


@pytest.fixture
def postgres(hub_server):
    """The connection string of a PostgreSQL server, as its administrator."""
    return hub_server.conninfo


@pytest.fixture
def fuzzed():
    """Run `oar bench fuzz`; what its last line says. No statement may differ or fail."""

    def run(*arguments):
        ran = CliRunner().invoke(app, ["fuzz", *arguments])
        if ran.exception and not isinstance(ran.exception, SystemExit):
            raise ran.exception
        assert ran.exit_code == 0, ran.stdout
        found = json.loads(ran.stdout.splitlines()[-1])
        assert (found["different"], found.get("failed", 0)) == (0, 0)
        return found

    return run
