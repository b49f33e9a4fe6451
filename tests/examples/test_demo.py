"""What ``oar demo`` shows, and what other commands make of it while it runs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
from oar_proxy.demo.questions import QUESTIONS
from oar_proxy.settings import load

OAR = Path(sys.executable).with_name("oar")
EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "marketplace"


def streams(*arguments: str | Path, status: int = 0) -> tuple[str, str]:
    done = subprocess.run(
        [OAR, *arguments],
        capture_output=True,
        check=False,
        encoding="utf-8",
        timeout=120,
        env={"PATH": os.environ["PATH"], "COLUMNS": "160", "LC_ALL": "C.UTF-8"},
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout, done.stderr


def oar(*arguments: str | Path, status: int = 0) -> str:
    return "".join(streams(*arguments, status=status))


def test_every_answer_is_as_expected(demo):
    assert demo.printed.count("✓") == len(QUESTIONS)
    assert "✗" not in demo.printed


@pytest.mark.parametrize("question", [q.text for q in QUESTIONS])
def test_every_question_is_shown(demo, question: str):
    assert question in demo.printed


def test_what_it_suggests_works(demo):
    suggested = re.findall(r"^  (SELECT .*);$", demo.printed, flags=re.MULTILINE)
    assert len(suggested) == 2
    with psycopg.connect(demo.dsn) as connection:
        for statement in suggested:
            assert connection.execute(statement).fetchall()


def test_the_relay_shows_whose_keys_went_where(demo):
    assert "2,588 from marketing (marketing.promos.order_id)" in demo.printed


def test_its_configuration_is_the_example_s(demo):
    theirs, ours = load(demo.directory / "oar.yaml"), load(EXAMPLE / "oar.yaml")
    assert theirs.owners.keys() == ours.owners.keys()
    for name, owner in ours.owners.items():
        assert owner.published_schema == theirs.owners[name].published_schema
        policy = theirs.owners[name].policy
        assert policy.read_text("utf-8") == owner.policy.read_text("utf-8")


def test_check_finds_nothing_wrong(demo):
    shown = oar("check", "--config", demo.directory / "oar.yaml")
    assert re.findall(r"│ (\w+) +│ (\w+) +│ (\w+) +│ 1 +│ (\d) columns │ ok", shown) == [
        ("logistics", "postgresql", "logistics", "1"),
        ("marketing", "sqlite", "marketing", "0"),
        ("returns_west", "sqlite", "returns", "0"),
        ("returns_east", "postgresql", "returns", "0"),
    ]


def test_check_lists_every_fault(demo, tmp_path):
    text = (demo.directory / "oar.yaml").read_text("utf-8")
    text = text.replace("marketing.db", "nowhere.db")
    text = text.replace("policies/", f"{tmp_path}/")
    (tmp_path / "oar.yaml").write_text(text, "utf-8")
    for policy in (demo.directory / "policies").iterdir():
        changed = policy.read_text("utf-8").replace("customer_phone", "customer_fax")
        (tmp_path / policy.name).write_text(changed.replace("[logistics]", "[sales]"), "utf-8")
    (tmp_path / "returns_east.yaml").write_text("version: 2\n")
    shown = oar("check", "--config", tmp_path / "oar.yaml", status=1)
    assert f"owner logistics: policy {tmp_path}/logistics.yaml:" in shown
    assert "deliveries.customer_fax is not published by this owner" in shown
    assert "owner marketing: " in shown
    assert f"owner returns_west: policy {tmp_path}/returns_west.yaml:" in shown
    assert "no owner sales is configured" in shown
    assert "returns_east.yaml:1:10: error: version: only 1 is known [invalid]" in shown
    assert shown.endswith("oar: the check found faults\n")


def test_catalog_shows_what_policies_leave(demo):
    shown = oar("catalog", "--config", demo.directory / "oar.yaml")
    assert "rows held by returns_west, returns_east" in shown
    assert "Город пункта выдачи. City of the pick-up point" in shown
    assert "customer_phone" not in shown


def test_ask_prints_rows_in_three_forms(demo):
    def ask(*output: str) -> str:
        # What the hub says besides, the draft among it, is not between the rows.
        printed, noticed = streams("ask", QUESTIONS[2].text, "--dsn", demo.dsn, *output)
        assert noticed.splitlines()[1].startswith("DETAIL: SELECT ")
        return printed

    csv = ask("--output", "csv").splitlines()
    records = json.loads(ask("--output", "json"))
    table = ask()
    assert sorted(csv[0].split(",")) == sorted(records[0])
    assert len(csv) - 1 == len(records) == 5
    assert all(record["reason"] in table for record in records)
    assert table.rstrip().endswith("(5 rows)")


def test_ask_reports_an_error_with_its_sqlstate(demo):
    shown = oar("ask", QUESTIONS[-1].text, "--dsn", demo.dsn, status=1)
    assert re.fullmatch(r"oar: the question cannot be answered .* \[OA001\]\nhint: .*\n", shown)


def test_explain_takes_a_question_or_a_statement(demo):
    assert "Route: fan-out" in oar("explain", QUESTIONS[0].text, "--dsn", demo.dsn)
    statement = "SELECT count(*) FROM logistics.deliveries JOIN marketing.promos USING (order_id)"
    assert "Route: relay" in oar("explain", statement, "--dsn", demo.dsn)


def test_a_second_demo_in_the_same_directory_is_refused(demo):
    shown = oar("demo", "--once", "--dir", demo.directory, status=3)
    assert "is in use by another oar" in shown


def test_a_port_that_is_taken_is_named(demo):
    port = re.search(r":(\d+)/", demo.dsn)[1]
    directory = demo.directory.parent / "second"
    shown = oar("demo", "--once", "--dir", directory, "--port", port, status=3)
    assert shown == f"oar: port {port} is in use: name another one with --port\n"
