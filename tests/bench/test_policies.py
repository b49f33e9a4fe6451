"""Random policies over a whole proxy, and the second opinion on what they allow."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from random import Random

import pytest
from oar_bench.cli import app
from oar_bench.policies.drawn import (
    ENDED,
    Disclosed,
    Drawn,
    Rule,
    View,
    draw,
    fault,
    in_groups,
    put_out,
    tables_read,
    views,
)
from oar_policies.parse import parse_policy
from typer.testing import CliRunner

VALUES = {("a", "id"): ["1", "2"], ("a", 'K"y'): ["it's"], ("b", "id"): ["7"]}
COLUMNS = {"north": [("a", "id"), ("a", 'K"y')], "south": [("b", "id")], "west": []}
GIVEN = ("a", "id")
TAKEN = ("b", "id")


def test_drawn_policies_are_read_as_they_were_drawn():
    kinds, ruled = set(), set()
    for number in range(300):
        for owner, drawn in draw(Random(number), COLUMNS, VALUES).items():
            policy = parse_policy(drawn.text, owner=owner, source="drawn")
            assert len(policy.key_disclosure) == len(drawn.disclosed)
            assert (policy.accept_keys is None) == (drawn.accepted is None)
            kinds.update(key for rule in drawn.disclosed for key in rule.more)
            kinds.update(drawn.limits)
            tables = policy.tables
            assert {
                (t, c) for t, r in tables.items() for c, u in r.columns.items() if not u.filter
            } == set(drawn.unfiltering)
            assert {
                (t, c)
                for t, r in tables.items()
                for c, u in r.columns.items()
                if u.output != "allowed"
            } == {*drawn.silent, *drawn.aggregated}
            masks = {(t, c): m.value for t, r in tables.items() for c, m in r.masks.items()}
            assert masks == drawn.masked
            assert {
                t: r.row_filter.condition for t, r in tables.items() if r.row_filter
            } == drawn.filtered
            assert {
                t: (r.min_group.entity, r.min_group.size) for t, r in tables.items() if r.min_group
            } == drawn.grouped
            ruled.update(
                name
                for name in ("silent", "aggregated", "unfiltering", "grouped", "filtered", "masked")
                if getattr(drawn, name)
            )
    assert ruled == {"silent", "aggregated", "unfiltering", "grouped", "filtered", "masked"}
    assert kinds == {"max_keys", "min_keys", "purpose", "expires", "form", "max_rows",
                     "max_keys_in", "max_queries"}  # fmt: skip


def policies(*disclosed: Rule, accepted=None, **limits: int) -> dict[str, Drawn]:
    return {"north": Drawn({}, disclosed, None), "south": Drawn(limits, (), accepted)}


@pytest.mark.parametrize(
    ("given", "keys", "why"),
    [
        (policies(), 1, "no grant"),
        (policies(Rule(None, ("*",))), 1, None),
        (policies(Rule(GIVEN, ("south",))), 1, None),
        (policies(Rule(GIVEN, ("west",))), 1, "no grant"),
        (policies(Rule(("a", "x"), ("*",))), 1, "no grant"),
        (policies(Rule(None, ("*",), {"expires": ENDED})), 1, "no grant"),
        (policies(Rule(None, ("*",), {"purpose": ["audits"]})), 1, None),
        (policies(Rule(None, ("*",), {"purpose": ["refunds"]})), 1, "no grant"),
        (policies(Rule(None, ("*",), {"max_keys": 2})), 2, None),
        (policies(Rule(None, ("*",), {"max_keys": 2})), 3, "more than max_keys"),
        # The first that holds decides.
        (policies(Rule(None, ("*",), {"max_keys": 2}), Rule(None, ("*",))), 3, "more than max_keys"),
        (policies(Rule(None, ("*",), {"min_keys": 2})), 1, "fewer than min_keys"),
        (policies(Rule(None, ("*",), {"min_keys": 2})), 0, None),
        (policies(Rule(None, ("*",), {"form": "hmac"})), 1, "in clear"),
        (policies(Rule(None, ("*",)), max_keys_in=2), 3, "more than max_keys_in"),
        (policies(Rule(None, ("*",)), accepted=()), 1, "not accepted"),
        (policies(Rule(None, ("*",)), accepted=(Rule(TAKEN, ("north",)),)), 1, None),
        (policies(Rule(None, ("*",)), accepted=(Rule(TAKEN, ("*",), {"max_keys": 1}),)), 2,
         "more than accepted"),
    ],
)  # fmt: skip
def test_the_second_opinion(given, keys, why):
    assert fault(given, Disclosed("north", GIVEN, "south", TAKEN, keys), "audits") == why


def test_digests_are_not_in_clear():
    given = policies(Rule(None, ("*",), {"form": "hmac"}))
    assert fault(given, Disclosed("north", GIVEN, "south", TAKEN, 1, digested=True), None) is None
    assert fault(given, Disclosed("north", GIVEN, "south", TAKEN, 0), None) is None


@pytest.mark.parametrize(
    ("statement", "shown"),
    [
        ("SELECT w FROM b", "SELECT w FROM b"),
        ("SELECT id FROM a", None),
        ("SELECT v FROM b WHERE id IN (SELECT id FROM a)", None),
        ("SELECT v, COUNT(*) FROM a GROUP BY v",
         'SELECT v, COUNT(*) FROM a GROUP BY v HAVING COUNT(DISTINCT a."K") >= 3'),
        ("SELECT COUNT(*) FROM b JOIN a AS x ON x.id = b.id HAVING SUM(id) > 1",
         'SELECT COUNT(*) FROM b JOIN a AS x ON x.id = b.id HAVING SUM(id) > 1 AND COUNT(DISTINCT x."K") >= 3'),
        ("SELECT DISTINCT v FROM a",
         'SELECT DISTINCT v FROM a GROUP BY v HAVING COUNT(DISTINCT a."K") >= 3'),
    ],
)  # fmt: skip
def test_the_second_opinion_on_groups(statement, shown):
    assert in_groups({"north": Drawn({}, (), None, grouped={"a": ("K", 3)})}, statement) == shown


def test_the_second_opinion_on_outputs():
    silent = {"north": Drawn({}, (), None, silent=frozenset({GIVEN})), "south": Drawn({}, (), None)}
    assert put_out(silent, [("b", "id"), GIVEN]) == GIVEN
    assert put_out(silent, [("b", "id")]) is None
    totals = {"north": Drawn({}, (), None, aggregated={GIVEN: ("sum",)})}
    assert put_out(totals, [GIVEN]) == GIVEN


def test_the_second_opinion_on_rows():
    drawn = {
        "north": Drawn({}, (), None, filtered={"a": "id = '1'"}, masked={("a", "v"): None}),
        "south": Drawn({}, (), None, masked={("b", "w"): "7"}),
    }
    read = tables_read("SELECT v FROM A JOIN (SELECT w FROM x.b) AS q ON w = id")
    assert views(drawn, read) == {
        "a": View("id = '1'", {"v": None}),
        "b": View(None, {"w": "7"}),
    }
    assert views(drawn, {"c"}) == {}


def test_statements_are_answered_as_the_policies_allow_or_refused(tmp_path):
    org = tmp_path / "toy" / "orgs" / "shop"
    org.mkdir(parents=True)
    held = {
        "north": ["CREATE TABLE a (id INTEGER PRIMARY KEY, v TEXT)",
                  "INSERT INTO a SELECT value, 'v' || value FROM json_each('[1,2,3,4,5,6,7,8]')"],
        "south": ["CREATE TABLE b (id INTEGER, w INTEGER)",
                  "INSERT INTO b SELECT value, value % 2 FROM json_each('[2,3,4,9,10,11,12]')"],
    }  # fmt: skip
    for owner, statements in held.items():
        with closing(sqlite3.connect(org / f"{owner}.sqlite")) as database, database:
            for statement in statements:
                database.execute(statement)
    owners = [
        {"owner": "north", "tables": {"a": {"id": "INTEGER", "v": "TEXT"}}},
        {"owner": "south", "tables": {"b": {"id": "INTEGER", "w": "INTEGER"}}},
    ]
    (org / "catalog.json").write_text(json.dumps({"org": "shop", "owners": owners}))
    questions = [
        {"id": 1, "org": "shop", "gold_sql": "SELECT v FROM a JOIN b ON a.id = b.id WHERE w = 0"},
        {"id": 2, "org": "shop", "gold_sql": "SELECT count(*) FROM a", "kappa": 1},
        {"id": 3, "org": "shop", "gold_sql": "SELECT count(*) FROM a, b"},
    ]
    (tmp_path / "toy" / "questions.jsonl").write_text("\n".join(map(json.dumps, questions)))
    arguments = ["policies", "--data", str(tmp_path), "--policies", "30", "--json"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    counts = json.loads(result.stdout.splitlines()[-1])
    assert (counts["statements"], counts["asked"], counts["against"]) == (1, 30, 0)
    assert counts["answered"] == counts["equal"] > counts["viewed"] > 0
    decided = counts["decisions"]
    assert sum(decided.values()) == 30
    assert all(decided[each] for each in ("as allowed", "turned round", "forced fan-out"))
    assert decided["refused"] == sum(counts["refusals"].values()) == 30 - counts["answered"]
    assert counts["disclosures"] >= decided["as allowed"] + decided["turned round"] - 5
