"""Fan-out, and OAR's choice between it and relay."""

from __future__ import annotations

import json

import pytest
from oar_proxy.protocols.contacts import Contacts

KEY = "recD078PnS3x2doBe"


def test_owners_that_answer_alone_leave_the_receiver_nothing_to_join(club):
    run, server = club.ask("fan-out")
    assert run.outcome == "abstained"
    assert sorted(call.role for call in run.calls) == ["owner", "owner", "receiver"]
    assert all(len(m) == 2 and set(m) == {"question", "schema"} for m in server.materials("owner"))
    (material,) = server.materials("receiver")
    assert [(e["owner"], e["rows"]) for e in material["results"]] == [
        ("registry", [[KEY]]),
        ("treasury", [[152, 11425]]),
    ]
    assert not run.passed_key


def test_one_owner_that_holds_all_answers(club):
    run, server = club.ask(
        "fan-out",
        "How much is the largest amount?",
        owner=lambda m: {"sql": "SELECT max(amount) AS amount FROM income" if "income" in m["schema"] else ""},
    )  # fmt: skip
    assert run.rows == ((200,),)
    assert {q.owner: q.status for q in run.queries} == {
        "registry": "none of its tables is needed",
        "treasury": "rows",
    }
    (material,) = server.materials("receiver")
    assert [(e["owner"], e.get("status")) for e in material["results"]] == [
        ("registry", "none of its tables is needed"),
        ("treasury", None),
    ]


def test_no_owner_with_a_result_is_an_abstention_without_a_receiver(club):
    run, server = club.ask("fan-out", "What is the weather?", owner=lambda m: {"sql": " "})
    assert run.outcome == "abstained"
    assert not server.materials("receiver")


def test_results_are_packed_whole_in_contact_order_and_the_askers_own_is_free(club):
    wide = {
        "member": "SELECT member_id, name FROM member LIMIT 60",
        "income": "SELECT sum(amount) AS amount FROM income",
        "book": "SELECT title FROM book",
    }

    def local(material):
        return {
            "sql": next(
                sql for table, sql in wide.items() if f"table {table}\n" in material["schema"]
            )
        }

    order = ("library", "registry", "treasury")
    run, server = club.ask("fan-out", owner=local, contacts=Contacts(order), budget=256)
    (material,) = server.materials("receiver")
    assert [e["owner"] for e in material["results"]] == ["library", "treasury"]
    assert 0 < run.tokens <= 256
    own = Contacts(("registry", "library", "treasury"), asker="registry")
    run, server = club.ask("fan-out", owner=local, contacts=own, budget=256)
    (material,) = server.materials("receiver")
    assert [e["owner"] for e in material["results"]] == ["library", "treasury"]
    assert len(material["your_own_result"]["rows"]) == 60


def test_a_result_is_cut_at_100_rows(club):
    run, server = club.ask(
        "fan-out",
        budget=8192,
        owner=lambda m: {"sql": "SELECT amount FROM income" if "income" in m["schema"] else ""},
    )
    (query,) = [q for q in run.queries if q.executed]
    assert (len(query.rows), query.truncated) == (100, True)
    (material,) = server.materials("receiver")
    assert material["results"][1]["truncated"] is True


@pytest.mark.parametrize(
    ("draft", "kappa", "strategy"),
    [
        ("SELECT amount FROM income JOIN member ON link_to_member = member_id", 2, "relay"),
        ("SELECT amount FROM treasury.income WHERE EXISTS (SELECT 1 FROM member)", 2, "relay"),
        ("WITH i AS (SELECT * FROM income) SELECT * FROM i JOIN income USING (income_id)", 1, "fan-out"),
        ("SELECT 1 FROM income, missing", None, "fan-out"),
        ("SELECT 1 FROM income, book", None, "fan-out"),
        ("SELECT FROM WHERE", None, "fan-out"),
        ("", 0, "fan-out"),
    ],
)  # fmt: skip
def test_oar_routes_by_the_owners_a_draft_joins(club, draft, kappa, strategy):
    run, server = club.ask("oar", draft=lambda m: {"sql": draft, "reason": ""})
    assert run.routing.cover.kappa == kappa
    assert run.strategy == strategy
    assert run.routing.draft == (draft or None)
    schema = server.materials("draft")[0]["schema"]
    assert "member" in schema
    assert "book" not in schema
    others = json.dumps([request for role, _, request in server.received if role != "draft"])
    assert not draft or draft not in others
    (ask,) = club.recorded("SELECT route, kappa FROM oar.asks ORDER BY at DESC LIMIT 1")
    assert ask == (strategy, kappa)


@pytest.mark.parametrize(("protocol", "strategy"), [("oar", "relay"), ("oar+", "relay+")])
def test_oar_answers_the_question_of_the_papers_trace(club, protocol, strategy):
    run, _ = club.ask(protocol)
    assert (run.strategy, run.outcome, run.rows) == (strategy, "answered", ((50,),))
    assert [c.role for c in run.calls] == ["draft", "planner", "planner", "planner", "receiver"]


@pytest.mark.parametrize("fault", [{"content": "no JSON"}, {"content": "{}", "finish": "length"}])
def test_a_malformed_draft_goes_to_fan_out(club, reply, fault):
    run, _ = club.ask("oar", draft=lambda m: reply(**fault))
    assert (run.strategy, run.outcome, run.routing.draft) == ("fan-out", "abstained", None)


def test_owners_that_split_a_table_answer_for_their_own_rows_without_a_join(club):
    contacts = Contacts(("registry", "annex"))
    run, _ = club.ask(
        "oar",
        "Which members are vice presidents?",
        contacts=contacts,
        draft=lambda m: {"sql": "SELECT name FROM member WHERE position = 'Vice President'"},
        owner=lambda m: {"sql": "SELECT name FROM member WHERE position = 'Vice President'"},
        receiver=lambda m: {
            "unanswerable": False,
            "answer_rows": [row for result in m["results"] for row in result["rows"]],
        },
    )
    assert (run.routing.cover.kappa, run.strategy) == (1, "fan-out")
    assert run.rows == (("Ada",), ("Cy",))
    assert [(q.number, q.owner) for q in run.queries] == [(1, "registry"), (2, "annex")]
