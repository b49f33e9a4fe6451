"""All protocols end to end: the command, a real proxy, a model over HTTP that reads its prompts."""

from __future__ import annotations

import json

import campus
import pytest
from modelserver import Reply, asked, scripted, serving
from oar_bench.ask import normal_rows
from oar_bench.cli import app
from oar_bench.paper.collect import KINDS
from typer.testing import CliRunner

BUDGETS = (1024, 2048, 8192)
TWO_OWNERS = {"vice", "president", "college", "members", "salary"}
ONE_OWNER = {"meetings", "food", "seals", "may", "floors", "painting"}
UNANSWERABLE = {"shoes", "tickets"}
RELAYED = TWO_OWNERS | {"agriculture"}
"""Those that relay answers with keys of another owner."""


@pytest.fixture(scope="module")
def everything(collect, tmp_path_factory):
    """Everything there is, under the paper's three budgets."""
    budgets = [part for budget in BUDGETS for part in ("--budget", str(budget))]
    with serving(scripted(campus.MODEL)) as server:
        out = tmp_path_factory.mktemp("collected") / "runs.jsonl"
        collection = collect(out, server.url, "--protocol", "all", *budgets)
    collection.prompts = [asked(request) for request in server.received]
    return collection


def right(line):
    """Whether a run ended as the question's reference answer says."""
    task = next(task for task in campus.TASKS if task.id == line["question"])
    if task.stratum == "unanswerable":
        return line["outcome"] == "abstained"
    return line["outcome"] == "answered" and normal_rows(line["rows"]) == normal_rows(task.rows)


def answered_by(everything, protocol, budget=2048):
    found = [
        line
        for line in everything.lines
        if (line["protocol"], line.get("budget")) == (protocol, budget)
    ]
    assert len(found) == len(campus.TASKS)
    # Nobody is ever wrong: who cannot answer abstains or stops.
    assert all(right(line) or line["outcome"] != "answered" for line in found)
    return {line["question"] for line in found if right(line)}


def test_every_run_is_saved_once(everything):
    assert everything.status == 0
    keys = {(line["question"], line["protocol"], line.get("budget")) for line in everything.lines}
    without = len(KINDS) - 4
    assert len(everything.lines) == len(keys) == len(campus.TASKS) * (without * len(BUDGETS) + 4)
    assert sum(everything.result["saved"].values()) == len(keys)
    assert {(line["model"], line["run"]) for line in everything.lines} == {("openai/tiny", 1)}


@pytest.mark.parametrize(
    ("protocol", "answered"),
    [
        ("fan-out", ONE_OWNER | UNANSWERABLE | {"names", "leaflets"}),
        ("relay", ONE_OWNER | UNANSWERABLE | RELAYED),
        ("relay+", ONE_OWNER | UNANSWERABLE | RELAYED | {"letters"}),
        ("planned", ONE_OWNER | UNANSWERABLE),
        ("relay+ without keys", ONE_OWNER | UNANSWERABLE | RELAYED | {"letters"}),
        ("relay+ without rows", ONE_OWNER | UNANSWERABLE),
        ("oar", ONE_OWNER | UNANSWERABLE | RELAYED | {"names", "leaflets"}),
        ("oar+", ONE_OWNER | UNANSWERABLE | RELAYED | {"names", "leaflets", "letters"}),
    ],
)
def test_what_each_protocol_answers(everything, protocol, answered):
    assert answered_by(everything, protocol) == answered


def test_a_compiled_draft_answers_everything_there_is(everything):
    assert answered_by(everything, "compiled", None) == {task.id for task in campus.TASKS}


@pytest.mark.parametrize(
    ("protocol", "question", "outcomes"),
    [
        # All results are the receiver's at the largest budget, and none of them is cut.
        ("fan-out", "leaflets", ("abstained", "answered", "answered")),
        ("fan-out", "checksums", ("abstained", "abstained", "answered")),
        # Relay keeps 256 tokens for the SQL, Relay+ none.
        ("relay", "seals", ("abstained", "answered", "answered")),
        ("relay+", "seals", ("answered", "answered", "answered")),
        # The SQL of many keys takes more than is kept for it, whatever the budget.
        ("relay", "letters", ("stopped", "stopped", "stopped")),
        ("relay+", "letters", ("answered", "answered", "answered")),
    ],
)
def test_what_a_budget_decides(everything, protocol, question, outcomes):
    lines = [everything.line(question, protocol, budget=budget) for budget in BUDGETS]
    assert tuple(line["outcome"] for line in lines) == outcomes


def test_a_result_that_does_not_fit_is_a_status(everything):
    small = everything.line("seals", "relay", budget=1024)
    assert [step["status"] for step in small["steps"]] == [
        "its result does not fit the remaining budget"
    ]
    stopped = everything.line("letters", "relay", budget=2048)
    assert stopped["reason"] == "the SQL of the results takes more than 256 tokens"


def test_no_run_takes_more_than_its_budget(everything):
    for line in everything.lines:
        if "budget" in line:
            reserved = 256 if line["protocol"] in {"relay", "planned"} else 0
            assert line["budget_used"] <= line["budget"] - reserved, line
    assert any(line["budget_used"] > 2048 for line in everything.lines if "budget" in line)


def test_the_papers_trace(everything):
    for protocol in ("relay", "oar"):
        line = everything.line("vice", protocol, budget=2048)
        first, second = line["steps"]
        assert (first["owner"], first["sql"], first["rows"], first["keys"]) == (
            "owner_1",
            "SELECT member_id FROM member WHERE position = 'Vice President' LIMIT 5",
            [[campus.KEY]],
            {},
        )
        assert (second["owner"], second["sql"], second["rows"], second["keys"]) == (
            "owner_2",
            f"SELECT amount FROM income WHERE link_to_member IN ('{campus.KEY}') LIMIT 5",
            [[50]],
            {"owner_1": 1},
        )
        assert line["rows"] == [[50]]
    alone = everything.line("vice", "fan-out", budget=2048)
    assert alone["outcome"] == "abstained"
    assert all(step["keys"] == {} for step in alone["steps"])


def test_keys_go_from_owner_to_owner(everything):
    steps = everything.line("agriculture", "relay", budget=2048)["steps"]
    assert [(step["owner"], step["keys"]) for step in steps] == [
        ("owner_3", {}),
        ("owner_1", {"owner_3": 1}),
        ("owner_2", {"owner_1": 3}),
    ]
    many = everything.line("members", "relay+", budget=2048)["steps"]
    assert many[1]["keys"] == {"owner_1": 20}
    for line in everything.lines:
        if line["protocol"] in {"fan-out", "planned", "relay+ without rows"}:
            assert all(step["keys"] == {} for step in line["steps"])


def test_truncated_results_reach_the_planner_and_no_receiver_of_relay(everything):
    for protocol, most in (("fan-out", 100), ("relay", 20)):
        steps = [
            step
            for line in everything.lines
            if line["protocol"] == protocol
            for step in line["steps"]
        ]
        assert any(step["truncated"] for step in steps)
        assert max(len(step["rows"]) for step in steps) == most
    planned = [m for role, m in everything.prompts if role == "planner"]
    assert any(told.get("truncated") for m in planned for told in m["earlier"])
    # Relay's receiver is told of provenance one way or the other, fan-out's of none.
    received = [m for role, m in everything.prompts if role == "receiver"]
    relayed = [m for m in received if "provenance" in m or "sql" in m["results"][0]]
    assert relayed
    assert not any(told.get("truncated") for m in relayed for told in m["results"])


def test_the_receiver_is_told_what_its_rows_are(everything):
    received = [m for role, m in everything.prompts if role == "receiver"]
    at_the_end = [m for m in received if "provenance" in m]
    assert at_the_end
    for material in at_the_end:
        assert [p["query"] for p in material["provenance"]] == [
            r["query"] for r in material["results"]
        ]
        assert all("sql" not in r for r in material["results"])
    assert any(all("sql" in r for r in m["results"]) for m in received if m["results"])


def test_who_asks_is_contacted_with_the_best_described_and_relay_follows_referrals(everything):
    fan_out = everything.line("salary", "fan-out", budget=2048)
    assert {step["owner"] for step in fan_out["steps"]} == {"alice", "bob", "carol", "dave"}
    (dave,) = [step for step in fan_out["steps"] if step["owner"] == "dave"]
    assert (dave["sql"], dave["status"]) == ("", "none of its tables is needed")
    assert fan_out["calls"] == 4
    relay = everything.line("salary", "relay", budget=2048)
    assert [step["owner"] for step in relay["steps"]] == ["bob", "carol", "erin"]
    planner = next(
        m for role, m in everything.prompts if role == "planner" and "Ines" in m["question"]
    )
    assert planner["referrals"] == [campus.SAID["dave"][1]]
    assert [o["owner"] for o in planner["owners"]] == ["alice", "bob", "carol", "erin"]
    own = [m for role, m in everything.prompts if role == "receiver" and "May" in m["question"]]
    assert own[0]["your_own_result"]["rows"] == [[3]]


def test_everyone_is_contacted_where_that_is_wanted(collect, tmp_path):
    with serving(scripted(campus.MODEL)) as server:
        options = ("--org", "guild", "--limit", "2", "--protocol", "fan-out", "--everyone")
        collection = collect(tmp_path / "runs.jsonl", server.url, *options)
    steps = collection.line("salary", "fan-out", everyone=True)["steps"]
    assert [step["owner"] for step in steps] == ["alice", "bob", "carol", "erin", "frank"]
    # The other setting's runs would be taken for these.
    usual = collect(collection.out, server.url, *options[:-1])
    assert usual.status == 2
    assert "the file has runs made with --everyone" in usual.printed


def test_routers_calls_see_schemas_and_no_row(everything):
    assert everything.line("vice", "self")["choice"] == "relay"
    assert everything.line("salary", "ask")["owners"] == ["bob", "carol", "erin"]
    assert everything.line("shoes", "draft")["draft"] == ""
    vice = everything.line("vice", "draft")
    assert (vice["dialect"], vice["draft"]) == ("postgres", campus.TASKS[0].draft)
    for role, material in everything.prompts:
        if role in {"self", "ask"}:
            assert set(material) == {"question", "owners"}
            assert all(set(owner) == {"owner", "schema"} for owner in material["owners"])
        if role in {"self", "ask", "draft", "owner"}:
            assert campus.KEY not in json.dumps(material)


def test_hidden_rows_are_in_no_prompt_of_a_planner(collect, tmp_path):
    def prompts(protocol):
        with serving(scripted(campus.MODEL)) as server:
            options = ("--org", "student_club", "--limit", "1", "--protocol", protocol)
            collection = collect(tmp_path / f"{protocol}.jsonl", server.url, *options)
        assert collection.status == 0
        return [asked(request) for request in server.received]

    def shown(protocol):
        return {role for role, material in prompts(protocol) if campus.KEY in json.dumps(material)}

    assert shown("relay+ without keys") == {"planner", "receiver"}
    assert shown("relay+ without rows") == {"receiver"}


def test_what_a_run_cost(collect, tmp_path):
    def priced(material):
        return Reply(campus.choose(material), tokens=(1000, 10))

    with serving(scripted({**campus.MODEL, "self": priced})) as server:
        options = (
            "--limit",
            "1",
            "--org",
            "guild",
            "--protocol",
            "self",
            "--model",
            "openai/gpt-4o",
        )
        collection = collect(tmp_path / "runs.jsonl", server.url, *options)
    (line,) = collection.lines
    assert (line["calls"], line["tokens"], line["tokens_in"], line["tokens_out"]) == (
        1,
        1010,
        1000,
        10,
    )
    assert line["dollars"] == pytest.approx(1000 * 2.5e-6 + 10 * 1e-5)
    (call,) = collection.saved_calls
    assert line["seconds"] == pytest.approx(call["seconds"], abs=0.001)
    assert (call["attempts"], call["reply"]) == (1, '{"protocol": "fan-out"}')


def test_what_one_run_asked_is_not_asked_again_by_another(everything):
    assert everything.result["calls"] == len(everything.saved_calls) == len(everything.prompts)
    digests = [call["digest"] for call in everything.saved_calls]
    assert len(set(digests)) == len(digests)
    spent = sum(line["calls"] for line in everything.lines)
    assert spent > len(digests)


def test_the_tables_and_routers_read_collected_runs(everything, benchmark_root):
    """Retry after abstention, a router on saved runs, among them."""
    options = ["--data", str(benchmark_root), "--runs", str(everything.out)]
    ended = CliRunner().invoke(app, ["paper", "tables", *options, "--table", "strata"])
    assert ended.exit_code == 0, ended.output
    figures = json.loads(ended.stdout.splitlines()[-1])["figures"]

    def accuracy(way, stratum):
        (found,) = [
            one["value"]
            for one in figures
            if (one["setting"], one["part"]) == ("campus, openai/tiny", way)
            and (one["group"], one["column"]) == ("Accuracy", stratum)
        ]
        return found

    ways = ("fan-out", "relay", "relay+", "κ", "self", "ask", "oracle", "fan-out, retry",
            "κ, relay+", "compiled")  # fmt: skip
    two = {way: accuracy(way, "Two-owner") for way in ways}
    five_of_six = pytest.approx(100 * 5 / 6, abs=0.01)
    assert two == {
        "fan-out": 0, "relay": five_of_six, "relay+": 100, "κ": five_of_six,
        "self": five_of_six, "ask": five_of_six, "oracle": five_of_six,
        "fan-out, retry": five_of_six, "κ, relay+": 100, "compiled": 100,
    }  # fmt: skip
    single = {way: accuracy(way, "Single-owner") for way in ways}
    assert single["fan-out, retry"] == single["κ"] == single["fan-out"]
    assert single["fan-out"] > single["relay"]
