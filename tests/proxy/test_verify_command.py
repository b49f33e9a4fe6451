"""``oar verify …`` over an owner, with and without a proxy that runs."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
from oar_proxy.settings import load

OAR = Path(sys.executable).with_name("oar")
QUESTION = "How many orders are late?"
SQL = "SELECT count(*) AS n FROM orders WHERE late"


class Place:
    """A directory with a configuration, an owner and verified answers."""

    def __init__(self, directory: Path, hub: str):
        self.directory = directory
        self.config = directory / "oar.yaml"
        self.verified = directory / "verified"
        self.verified.mkdir()
        self.hub = hub
        self.owner(
            "CREATE TABLE orders (id INTEGER PRIMARY KEY, city TEXT, late INTEGER)",
            "INSERT INTO orders VALUES (1, 'Omsk', 1), (2, 'Tula', 0), (3, 'Omsk', 1)",
        )
        self.config.write_text(
            f"listen: {{port: 0}}\nhub: {{dsn: '{hub}'}}\nverified: verified\n"
            f"owners:\n  shop: {{url: 'sqlite:///{directory}/shop.sqlite'}}\n"
        )

    def owner(self, *statements: str) -> None:
        connection = sqlite3.connect(self.directory / "shop.sqlite")
        with connection:
            for statement in statements:
                connection.execute(statement)
        connection.close()

    def oar(self, *arguments: str, status: int = 0) -> str:
        done = subprocess.run(
            [OAR, "verify", *arguments],
            capture_output=True,
            check=False,
            encoding="utf-8",
            timeout=60,
            env={**os.environ, "OAR_CONFIG": str(self.config), "LC_ALL": "C.UTF-8"},
        )
        assert done.returncode == status, (done.stdout, done.stderr)
        return done.stdout if status == 0 else done.stderr

    def add(self, *arguments: str, status: int = 0) -> str:
        return self.oar("add", "--reviewer", "Anna", *arguments, status=status)

    def files(self) -> list[str]:
        return sorted(path.name for path in self.verified.iterdir())


@pytest.fixture
def place(tmp_path, new_database):
    return Place(tmp_path, new_database("hub"))


def test_an_answers_life(place):
    late = "SELECT count(*) AS n FROM orders WHERE late = 1"
    said = place.add("--question", QUESTION, "--sql", late, "--view", "late")
    assert said.splitlines() == [
        str(place.verified / "late.yaml"),
        "SELECT count(*) AS n FROM shop.orders WHERE late = 1",
    ]
    said = place.add(
        "--question", "How many orders of {city} are late?", "--phrasing", "late in {city}",
        "--sql", "SELECT count(*) AS n FROM shop.orders WHERE late = 1 AND city = $1",
        "--param", "city:text", "--format", "json",
    )  # fmt: skip
    assert json.loads(said)["name"] == "how-many-orders-of-city-are-late"
    (first, second) = json.loads(place.oar("list", "--format", "json"))
    assert (first["parameters"], first["view"]) == ([{"name": "city", "type": "text"}], None)
    assert (second["name"], second["view"], second["reviewer"]) == ("late", "verified.late", "Anna")
    assert "late  How many orders are late?  (view verified.late)  by Anna on" in place.oar("list")
    checked = json.loads(place.oar("check", "--format", "json"))
    assert [(a["name"], a["fits"], a["fault"]) for a in checked["answers"]] == [
        ("how-many-orders-of-city-are-late", True, None),
        ("late", True, None),
    ]
    assert {a["reviewed_under"] for a in checked["answers"]} == {checked["catalog"]}
    assert place.oar("remove", "late") == ""
    assert place.files() == ["how-many-orders-of-city-are-late.yaml"]
    assert 'there is no verified answer "late"' in place.oar("remove", "late", status=1)


def test_nothing_of_a_check_stays_in_the_hub(place):
    place.add("--question", "Which?", "--sql", "TABLE shop.orders", "--view", "which")
    place.oar("check")
    with psycopg.connect(place.hub) as hub:
        counts = (
            "SELECT (SELECT count(*) FROM oar_internal.published),"
            " (SELECT count(*) FROM oar_internal.verified),"
            " (SELECT count(*) FROM pg_namespace WHERE nspname IN ('verified', 'shop'))"
        )
        assert hub.execute(counts).fetchone() == (0, 0, 0)


def test_check_names_the_place_of_what_no_longer_fits(place):
    for name, sql in (
        ("a", "SELECT id FROM shop.orders"),
        ("b", "SELECT city FROM shop.orders"),
        ("c", "SELECT * FROM shop.orders"),
    ):
        place.add("--question", f"{name} please", "--sql", sql, "--name", name)
    place.owner("ALTER TABLE orders DROP COLUMN city")
    said = place.oar("check", status=1)
    assert said.splitlines() == [
        "oar: 1 of 3 verified answers does not fit what is published",
        "hint: review them again: oar verify remove, then oar verify add",
    ]
    done = subprocess.run(
        [OAR, "verify", "check"],
        capture_output=True,
        check=False,
        encoding="utf-8",
        env={**os.environ, "OAR_CONFIG": str(place.config)},
    )
    lines = done.stdout.splitlines()
    assert lines[1] == f'{place.verified}/b.yaml:3:6: column "city" does not exist'
    assert lines[0].startswith(f"{place.verified}/a.yaml:3:6: fits catalog ")
    assert lines[0].endswith(", reviewed under another one")
    place.owner("DROP TABLE orders")
    place.owner("CREATE TABLE other (id INTEGER)")
    assert "3 of 3 verified answers do not fit" in place.oar("check", status=1)


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (("--question", "q", "--sql", "SELECT nothing FROM shop.orders"), 1, 'column "nothing" does not exist'),
        (("--question", "q", "--sql", "SELECT 1 FROM shop.none"), 1, '"shop.none" is not published'),
        (("--question", "q", "--sql", "SELECT 1, 2 AS a, 3 AS a", "--view", "v"), 1, 'column "a" specified more than once'),
        (("--question", "q", "--sql", "SELECT 1 FROM none"), 2, "write 'none' with its schema"),
        (("--question", "q", "--sql", "DELETE FROM shop.orders"), 2, "a SELECT that writes nothing"),
        (("--question", "q", "--sql", "SELECT FROM WHERE"), 2, "not added: sql: syntax error"),
        (("--question", "q {x}", "--sql", "SELECT 1"), 2, "{x} is no parameter"),
        (("--question", "q {x}", "--sql", "SELECT $1", "--param", "x:money"), 2, "type: one of text"),
        (("--question", "q", "--sql", "SELECT 1", "--param", "x"), 2, "not of the form name:type"),
        (("--question", "?", "--sql", "SELECT 1"), 2, "no name can be made"),
        (("--question", "q", "--sql", "SELECT 1", "--name", "../q"), 2, "the file's name is the answer's"),
        (("--question", "q"), 2, "either --sql or --draft"),
        (("--question", "taken", "--sql", "SELECT 1"), 1, 'a verified answer "taken" already'),
        (("--question", "taken?", "--sql", "SELECT 1", "--name", "x"), 2, "a question could be this one and that of"),
    ],
)  # fmt: skip
def test_what_cannot_be_pinned_is_not_written(place, arguments, status, said):
    place.add("--question", "taken", "--sql", "SELECT 1 AS one")
    refused = place.add(*arguments, status=status)
    assert said in " ".join(refused.replace("│", " ").split())
    assert place.files() == ["taken.yaml"]


def test_no_directory_no_owner(place):
    place.owner("DROP TABLE orders")
    (place.directory / "shop.sqlite").rename(place.directory / "away")
    (place.directory / "shop.sqlite").mkdir()
    assert "not known" in place.oar("check", status=3)
    place.config.write_text("{}")
    for command in ("list", "check"):
        assert "no directory of verified answers" in place.oar(command, status=2)
    place.config.write_text("verified: nowhere")
    assert "nowhere:1:1: cannot be read: No such file" in place.oar("list", status=2)


def test_the_draft_of_a_running_proxy_is_pinned(place, running_proxy):
    with running_proxy(load(place.config)) as (_, dsn):
        question = ("--question", "How many orders are there?")
        said = place.add(*question, "--draft", "--dsn", dsn, "--name", "orders")
        assert said.splitlines()[1:] == ["SELECT COUNT(*) FROM shop.orders"]
        assert place.oar("check").startswith(f"{place.verified}/orders.yaml:3:6: fits catalog")
        refused = place.add(
            "--question", "What is the salary?", "--draft", "--dsn", dsn, "--name", "x", status=1
        )
        assert "[OA001]" in refused
