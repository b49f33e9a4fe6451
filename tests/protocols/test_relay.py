"""Relay, Relay+ and the planned variant, on the question of the paper's example trace."""

from __future__ import annotations

import json

import pytest
from oar_proxy.protocols.contacts import Contacts

KEY = "recD078PnS3x2doBe"
READABLE = "version: 1\nmodel: {rows: allow}\n"
OPEN = READABLE + "key_disclosure: [{column: member.member_id, to: [treasury]}]\n"
MEMBER = "SELECT member_id FROM member WHERE position = 'Vice President' LIMIT 5"
INCOME = f"SELECT amount FROM income WHERE link_to_member = '{KEY}' LIMIT 5"


@pytest.mark.parametrize("protocol", ["relay", "relay+", "relay+ without keys"])
def test_the_key_of_one_owner_becomes_the_filter_at_the_other(club, protocol):
    run, server = club.ask(protocol)
    assert (run.outcome, run.rows) == ("answered", ((50,),))
    assert [(q.owner, q.sql, q.status, q.rows) for q in run.queries] == [
        ("registry", MEMBER, "rows", ((KEY,),)),
        ("treasury", INCOME, "rows", ((50,),)),
    ]
    assert [q.keys for q in run.queries] == [(), (("registry", 1),)]
    assert run.passed_key
    assert [call.role for call in run.calls] == ["planner", "planner", "planner", "receiver"]
    assert {request["temperature"] for _, _, request in server.received} == {0.0}
    assert {request["max_tokens"] for _, _, request in server.received} == {1024}


def test_the_ledger_has_each_query_and_the_key_that_left(club):
    club.ask("relay")
    (ask,) = club.recorded(
        "SELECT ask, route, kind, sqlstate FROM oar.asks ORDER BY at DESC LIMIT 1"
    )
    assert ask[1:] == ("relay", "question", "00000")
    steps = club.recorded(
        f"SELECT owner, keys, sqlstate FROM oar.steps WHERE ask = '{ask[0]}' ORDER BY step"
    )
    assert steps == [("registry", 0, "00000"), ("treasury", 1, "00000")]
    disclosed = club.recorded(
        "SELECT d.from_column, d.to_owner, d.to_column, d.keys, d.rule FROM oar.disclosures d"
        f" JOIN oar.steps s USING (step) WHERE s.ask = '{ask[0]}'"
    )
    assert disclosed == [
        ("registry.member.member_id", "treasury", "income.link_to_member", 1, "registry/key_disclosure[0]")
    ]  # fmt: skip


def test_a_key_that_may_not_leave_stays_and_the_planner_is_told(club):
    club.policies()
    run, server = club.ask("relay")
    assert run.outcome == "abstained"
    assert run.queries[1].status == (
        "join keys of registry.member.member_id may not leave for owner treasury: "
        "the policy of owner registry denies it"
    )
    told = server.materials("planner")[2]["earlier"][1]
    assert told == {"query": 2, "owner": "treasury", "sql": INCOME, "status": run.queries[1].status}
    assert not run.passed_key


@pytest.mark.parametrize("protocol", ["fan-out", "relay", "relay+", "planned"])
def test_rows_no_model_may_read_are_not_even_asked_for(club, protocol):
    club.policies(registry="version: 1", treasury="version: 1")
    run, server = club.ask(protocol)
    assert run.outcome == "abstained"
    assert run.queries
    assert {q.status for q in run.queries} == {
        f"owner {o} does not let a model read its rows: rule {o}/default deny"
        for o in {q.owner for q in run.queries}
    }
    assert KEY not in json.dumps([request for *_, request in server.received])
    (steps,) = club.recorded(
        "SELECT count(*) FROM oar.steps WHERE ask = (SELECT ask FROM oar.asks ORDER BY at DESC LIMIT 1)"
    )
    assert steps == (0,)


def test_a_row_filter_and_a_mask_hold_for_what_a_model_writes(club):
    try:
        in_force(
            club,
            registry=OPEN,
            treasury=READABLE + "tables: {income: {columns: {amount: {mask: '7'}}}}",
        )
        run, _ = club.ask("relay")
        # The constant of the mask is not taken for a key either.
        assert (run.rows, run.queries[1].rows) == (((7,),), ((7,),))
        hidden = "tables: {member: {row_filter: \"position <> 'Vice President'\"}}"
        in_force(club, registry=OPEN + hidden)
        run, _ = club.ask("relay")
        assert (run.queries[0].status, run.queries[0].rows) == ("rows", ())
        assert not run.passed_key
        in_force(
            club, registry=OPEN, treasury=READABLE + "tables: {income: {row_filter: amount > 90}}"
        )
        run, _ = club.ask("relay")
        assert run.queries[1].rows == ()
    finally:
        in_force(club, registry=OPEN)


def test_of_a_table_with_groups_no_row_reaches_a_model_and_it_is_told(club):
    grouped = "tables: {income: {min_group: {entity: link_to_member, size: 100}}}"
    in_force(club, registry=OPEN, treasury=READABLE + grouped)
    try:
        run, server = club.ask("relay")
        assert run.queries[1].rows == ()
        assert run.queries[1].status.startswith(
            "of table income of owner treasury groups are shown"
        )
        run, server = club.ask(
            "relay", planner=once("treasury", "SELECT count(*) AS n FROM income")
        )
        assert run.queries[0].rows == ((152,),)
        run, server = club.ask(
            "relay",
            planner=once("treasury", "SELECT link_to_member, sum(amount) FROM income GROUP BY 1"),
        )
        assert run.queries[0].rows == ()
        told = "groups without at least 100 different link_to_member are not shown: 152"
        assert run.queries[0].withheld == told
        (material,) = server.materials("receiver")
        assert material["results"][0]["withheld"] == told
        (schema,) = (o["schema"] for o in server.materials("planner")[0]["owners"]
                     if o["owner"] == "treasury")  # fmt: skip
        assert "groups of at least 100 different link_to_member are shown, and no rows" in schema
    finally:
        in_force(club, registry=OPEN)


def in_force(club, **texts):
    club.policies(**texts)
    club.runner.run(club.application.refresh())
    club.catalog = club.application.catalog


def test_relay_shows_sql_at_the_end_and_relay_plus_with_each_result(club):
    _, relay = club.ask("relay")
    _, plus = club.ask("relay+")
    (material,) = relay.materials("receiver")
    assert material["provenance"] == [{"query": 1, "sql": MEMBER}, {"query": 2, "sql": INCOME}]
    assert [set(entry) for entry in material["results"]] == [
        {"query", "owner", "columns", "rows"}
    ] * 2
    (material,) = plus.materials("receiver")
    assert "provenance" not in material
    assert [entry["sql"] for entry in material["results"]] == [MEMBER, INCOME]


def test_hidden_rows_reach_the_receiver_and_not_the_planner(club):
    run, server = club.ask("relay+ without rows")
    assert run.outcome == "abstained"
    planners = server.materials("planner")
    assert planners[1]["earlier"] == [
        {"query": 1, "owner": "registry", "sql": MEMBER, "status": "executed"}
    ]
    assert KEY not in json.dumps(planners)
    (receiver,) = server.materials("receiver")
    assert receiver["results"][0]["rows"] == [[KEY]]
    assert not run.passed_key


def test_all_queries_are_planned_before_any_row(club):
    run, server = club.ask("planned")
    assert [call.role for call in run.calls] == ["planner", "receiver"]
    assert server.materials("planned")[0]["earlier"] == []
    assert [(q.owner, q.status, q.truncated) for q in run.queries] == [
        ("registry", "rows", False),
        ("treasury", "rows", True),
    ]
    (receiver,) = server.materials("receiver")
    assert [entry["owner"] for entry in receiver["results"]] == ["registry"]
    assert run.outcome == "abstained"


def once(owner, sql):
    """A planner that sends one query and is done."""
    return lambda material: (
        {"owner": "", "sql": ""} if material["earlier"] else {"owner": owner, "sql": sql}
    )


def test_a_result_is_cut_at_20_rows_and_the_receiver_does_not_see_it(club):
    run, server = club.ask("relay", planner=once("treasury", "SELECT amount FROM income"))
    (query,) = run.queries
    assert (len(query.rows), query.truncated) == (20, True)
    told = server.materials("planner")[1]["earlier"][0]
    assert (len(told["rows"]), told["truncated"]) == (20, True)
    assert run.outcome == "abstained"
    assert not server.materials("receiver")


def test_a_result_is_cut_at_1600_bytes(club):
    sql = "SELECT repeat(amount::text || '-', 50) AS long FROM income WHERE amount = 7 OR amount > 130"
    run, _ = club.ask("relay+", planner=once("treasury", sql))
    (query,) = run.queries
    assert query.truncated
    assert 0 < len(query.rows) < 20
    assert len(json.dumps(query.rows).encode()) <= 1600


def test_twenty_rows_are_not_truncated(club):
    sql = "SELECT amount FROM income WHERE amount < 20 AND income_id LIKE 'x%'"
    run, _ = club.ask("relay", planner=once("treasury", sql))
    assert (len(run.queries[0].rows), run.queries[0].truncated) == (20, False)
    assert run.outcome == "answered"


def test_a_planner_has_five_queries(club):
    def insatiable(material):
        sql = f"SELECT amount FROM income WHERE income_id = 'x{len(material['earlier'])}'"
        return {"owner": "treasury", "sql": sql}

    run, server = club.ask("relay", planner=insatiable)
    assert len(run.queries) == 5
    assert [m["remaining_queries"] for m in server.materials("planner")] == [5, 4, 3, 2, 1]
    assert len(server.materials("receiver")[0]["results"]) == 5


WIDE = (
    "SELECT amount, repeat('word ', 20) AS filler FROM income WHERE income_id LIKE 'x{}%' LIMIT 10"
)


def test_what_does_not_fit_the_budget_is_left_out_with_a_status(club):
    def wide(material):
        number = len(material["earlier"])
        return (
            {"owner": "treasury", "sql": WIDE.format(number + 1)}
            if number < 5
            else {"owner": "", "sql": ""}
        )

    small, _ = club.ask("relay+", planner=wide, budget=1024)
    large, _ = club.ask("relay+", planner=wide, budget=8192)
    assert {q.status for q in large.queries} == {"rows"}
    assert small.queries[-1].status == "its result does not fit the remaining budget"
    assert small.tokens <= 1024 < large.tokens <= 8192
    reserved, server = club.ask("relay", planner=wide, budget=1024)
    assert reserved.tokens <= 1024 - 256
    assert server.materials("planner")[0]["remaining_tokens"] == 1024 - 256


def test_relay_stops_when_its_sql_takes_more_than_is_reserved(club):
    def wordy(material):
        words = " AND ".join(f"income_id <> 'word {n}'" for n in range(60))
        return {"owner": "treasury", "sql": f"SELECT amount FROM income WHERE {words} LIMIT 1"}

    run, _ = club.ask("relay", planner=wordy)
    assert (run.outcome, run.reason) == (
        "stopped",
        "the SQL of the results takes more than 256 tokens",
    )
    plus, _ = club.ask("relay+", planner=wordy)
    assert plus.outcome == "answered"


def test_an_owner_nobody_knows_and_a_query_sent_twice_are_statuses(club):
    script = iter([
        {"owner": "library", "sql": "SELECT title FROM book"},
        {"owner": "registry", "sql": MEMBER},
        {"owner": "registry", "sql": MEMBER},
        {"owner": "", "sql": ""},
    ])  # fmt: skip
    run, _ = club.ask("relay", planner=lambda material: next(script))
    assert [q.status for q in run.queries] == [
        "there is no owner of that name",
        "rows",
        "this owner was sent the same query before",
    ]
    assert run.outcome == "abstained"


def test_relay_follows_a_referral_and_the_planner_reads_it(club):
    contacts = Contacts(("registry",), ("treasury",), ("The treasury knows who received what.",))
    run, server = club.ask("relay", contacts=contacts)
    assert run.rows == ((50,),)
    assert server.materials("planner")[0]["referrals"] == ["The treasury knows who received what."]
    alone, _ = club.ask("fan-out", contacts=contacts)
    assert [q.owner for q in alone.queries] == ["registry"]


@pytest.mark.parametrize("protocol", ["planned", "relay+ without rows"])
def test_a_value_the_planner_never_saw_is_its_own(club, protocol):
    club.policies()
    sql = "SELECT amount FROM income WHERE amount = 152"
    queries = [
        {"owner": "registry", "sql": "SELECT count(*) FROM member"},
        {"owner": "treasury", "sql": sql},
        {"owner": "", "sql": ""},
    ]
    script = iter(queries)
    run, _ = club.ask(
        protocol,
        planned=lambda m: {"queries": queries[:2]},
        planner=lambda m: next(script),
    )
    assert [(q.status, q.keys) for q in run.queries] == [("rows", ())] * 2
