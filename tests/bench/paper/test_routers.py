"""Each router on one question, from a draft and from saved runs."""

from __future__ import annotations

import json

import pytest
from oar_bench.drafts import Draft
from oar_bench.layout import BenchmarkError, Question
from oar_bench.paper.routers import (
    DRAFT_ROUTERS,
    KAPPA,
    ROUTERS,
    Case,
    protocols,
    with_retry,
)
from oar_bench.paper.runs import BUDGET, Run, Step, read_runs

HOLDERS = {"song": ("cassie", "valarie"), "order": ("valarie",), "label": ("zoe",), "fan": ("zoe",)}


def case(sql=None, question=None, **runs):
    draft = None if sql is None else Draft("1", sql, "sqlite")
    named = {name.replace("_", "-"): run for name, run in runs.items()}
    return Case(question or Question("1", "o"), HOLDERS, draft, named)


def run(protocol, **fields):
    return Run("1", protocol, "m", 1, **fields)


@pytest.mark.parametrize(
    ("sql", "relayed"),
    [
        ("", (False,) * 5),
        ("SELECT 1 FROM song", (False,) * 5),
        # One owner holds both: owner cover parts with the table count and with JOIN.
        ("SELECT 1 FROM label JOIN fan", (False, False, True, True, True)),
        # A split table is covered by either of its holders.
        ('SELECT 1 FROM song JOIN "order"', (False, False, True, True, True)),
        ("SELECT 1 FROM song JOIN label", (True,) * 5),
        ("SELECT 1 FROM song, label", (False, True, False, True, False)),
        ("SELECT 1 FROM song JOIN nowhere", (False, False, True, True, True)),
        (
            "WITH w AS (SELECT 1 FROM song JOIN label) SELECT 1 FROM w",
            (False, True, True, True, True),
        ),
    ],
)
def test_routers_of_a_draft(sql, relayed):
    assert tuple(router.relays(case(sql)) for router in DRAFT_ROUTERS.values()) == relayed


@pytest.mark.parametrize(
    ("name", "asked", "spent"),
    [
        (KAPPA, case("SELECT 1 FROM song JOIN label"), ("draft", "relay")),
        (KAPPA, case("SELECT 1 FROM song"), ("draft", "fan-out")),
        (KAPPA, case(), None),
        ("self", case(self=run("self", choice="relay")), ("self", "relay")),
        ("self", case(self=run("self", choice="fan-out")), ("self", "fan-out")),
        ("self", case(self=run("self")), None),
        ("self", case(), None),
        ("ask", case(ask=run("ask", owners=("a", "b"))), ("ask", "relay")),
        ("ask", case(ask=run("ask", owners=("a", "a"))), ("ask", "fan-out")),
        ("ask", case(ask=run("ask", owners=())), ("ask", "fan-out")),
        ("ask", case(ask=run("ask")), None),
        ("difficulty", case(question=Question("1", "o", difficulty="simple")), ("fan-out",)),
        ("difficulty", case(question=Question("1", "o", difficulty="moderate")), ("relay",)),
        ("difficulty", case(), None),
        ("oracle", case(question=Question("1", "o", kappa=3)), ("relay",)),
        ("oracle", case(question=Question("1", "o", kappa=1)), ("fan-out",)),
        ("oracle", case(question=Question("1", "o", unanswerable=True)), ("fan-out",)),
    ],
)
def test_what_a_router_spends(name, asked, spent):
    assert protocols(ROUTERS[name], asked) == spent


def test_another_relay_branch():
    assert protocols(ROUTERS["oracle"], case(question=Question("1", "o", kappa=2)), "relay+") == (
        "relay+",
    )


@pytest.mark.parametrize(
    ("fan_out", "spent"),
    [
        (run("fan-out", outcome="answered", rows=()), ("draft", "fan-out")),
        (run("fan-out", outcome="abstained"), ("draft", "fan-out", "relay")),
        (run("fan-out", outcome="stopped"), ("draft", "fan-out", "relay")),
    ],
)
def test_retry_goes_on_where_fan_out_abstained_or_stopped(fan_out, spent):
    assert with_retry(("draft", "fan-out"), case(fan_out=fan_out)) == spent
    assert with_retry(("relay",), case(fan_out=fan_out)) == ("relay",)


RECORD = {"question": 1, "protocol": "relay", "model": "m"}


def test_a_file_of_saved_runs(tmp_path):
    file = tmp_path / "runs.jsonl"
    full = {
        **RECORD,
        "run": 2,
        "outcome": "answered",
        "rows": [[1, "x"]],
        "calls": 3,
        "tokens": 700,
        "seconds": 1.5,
        "budget": 1024,
        "dollars": 0.25,
        "steps": [{"owner": "zoe", "sql": "SELECT 1", "rows": [[1]]}, {"owner": "a", "sql": ""}],
    }
    draft = {**RECORD, "protocol": "draft", "draft": "SELECT 1", "dialect": "postgres"}
    records = [
        full,
        draft,
        {**RECORD, "outcome": "abstained"},
        {**RECORD, "protocol": "ask", "owners": ["a"]},
    ]
    file.write_text("\n".join(map(json.dumps, records)))
    saved = read_runs(file)
    assert saved["m", 1024]["1", 2]["relay"] == Run(
        "1", "relay", "m", 2, 1024, "answered", ((1, "x"),), 3, 700, 1.5, 0.25,
        (Step("zoe", "SELECT 1", ((1,),)), Step("a", "")),
    )  # fmt: skip
    saved = saved["m", BUDGET]
    assert (saved["1", 1]["relay"].rows, saved["1", 1]["relay"].dollars) == (None, None)
    assert saved["1", 1]["draft"].draft == Draft("1", "SELECT 1", "postgres")
    assert saved["1", 1]["ask"].owners == ("a",)


def test_what_has_no_budget_belongs_to_each_that_its_question_has(tmp_path):
    file = tmp_path / "runs.jsonl"
    records = [
        {**RECORD, "outcome": "abstained"},
        {**RECORD, "outcome": "stopped", "budget": 8192},
        {**RECORD, "protocol": "draft", "draft": ""},
        {**RECORD, "protocol": "compiled", "outcome": "abstained"},
        {**RECORD, "question": 2, "protocol": "self", "choice": "relay"},
    ]
    file.write_text("\n".join(map(json.dumps, records)))
    assert {
        key: {question: sorted(runs) for question, runs in of_model.items()}
        for key, of_model in read_runs(file).items()
    } == {
        ("m", 2048): {("1", 1): ["compiled", "draft", "relay"], ("2", 1): ["self"]},
        ("m", 8192): {("1", 1): ["compiled", "draft", "relay"]},
    }


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ([{"question": 1, "protocol": "relay"}], "line 1: not a saved run: 'model'"),
        ([{**RECORD, "outcome": "gave up"}], "outcome is none of answered, abstained, stopped"),
        ([{**RECORD, "outcome": "answered"}], "rows belong to the outcome answered"),
        ([{**RECORD, "outcome": "abstained", "rows": []}], "rows belong to the outcome answered"),
        ([{**RECORD, "choice": "both"}], "choice is neither fan-out nor relay"),
        ([{**RECORD, "draft": "", "dialect": "oracle"}], "dialect is neither"),
        ([{**RECORD, "steps": [{"owner": "a"}]}], "not a saved run: 'sql'"),
        ([RECORD, RECORD], "line 2: this run is there twice"),
        ([RECORD, {**RECORD, "budget": 2048}], "line 2: this run is there twice"),
        ([{**RECORD, "budget": "much"}], "not a saved run: invalid literal"),
    ],
)
def test_a_line_that_is_no_saved_run_is_refused(tmp_path, lines, why):
    file = tmp_path / "runs.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)))
    with pytest.raises(BenchmarkError) as refused:
        read_runs(file)
    assert why in str(refused.value)
