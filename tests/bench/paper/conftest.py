"""A benchmark of five questions and a file of saved runs, small enough to score by hand."""

from __future__ import annotations

import json

import pytest

CATALOG = {"owners": [{"owner": "a", "tables": {"t": {}}}, {"owner": "b", "tables": {"u": {}}}]}
QUESTIONS = [
    {"id": "s1", "stratum": "single-owner", "kappa": 1, "difficulty": "simple", "rows": [[1]]},
    {"id": "s2", "stratum": "single-owner", "kappa": 1, "difficulty": "moderate", "rows": [[1], [2]]},
    {"id": "w1", "stratum": "two-owner", "kappa": 2, "difficulty": "moderate", "rows": [["x"]]},
    {"id": "w2", "stratum": "two-owner", "kappa": 2, "difficulty": "challenging", "rows": [[5]]},
    {"id": "n1", "stratum": "unanswerable", "unanswerable": True, "difficulty": "simple"},
]  # fmt: skip
KEY = [{"owner": "a", "sql": "SELECT k FROM t", "rows": [["rec7"]]},
       {"owner": "b", "sql": "SELECT v FROM u WHERE k = 'rec7'", "rows": [["x"]]}]  # fmt: skip
CTE = "WITH c AS (SELECT 1 FROM t) SELECT 1 FROM c JOIN u"

FAN_OUT = {"protocol": "fan-out", "calls": 3, "tokens": 300, "seconds": 2}
RELAY = {"protocol": "relay", "calls": 4, "tokens": 500, "seconds": 3}
DRAFT = {"protocol": "draft", "calls": 1, "tokens": 100, "seconds": 1}
ABSTAINED = {"outcome": "abstained"}


def answered(*rows):
    return {"outcome": "answered", "rows": rows}


RUNS = [
    *({**FAN_OUT, **run} for run in (
        {"question": "s1", **answered([1])},
        {"question": "s2", **answered([1])},
        {"question": "w1", **ABSTAINED},
        {"question": "w1", "run": 2, **ABSTAINED},
        {"question": "w2", **answered([4])},
        {"question": "n1", **ABSTAINED},
    )),
    *({**RELAY, **run} for run in (
        {"question": "s1", **answered([2])},
        {"question": "s2", **answered([1.0], ["2"])},
        {"question": "w1", **answered(["x"]), "steps": KEY},
        {"question": "w1", "run": 2, **ABSTAINED},
        {"question": "w2", "outcome": "stopped", "steps": KEY},
        {"question": "n1", **answered()},
    )),
    *({**DRAFT, **run} for run in (
        {"question": "s1", "draft": "SELECT 1 FROM t"},
        {"question": "s2", "draft": "SELECT 1 FROM t JOIN u"},
        {"question": "w1", "draft": CTE},
        {"question": "w1", "run": 2, "draft": "SELECT 1 FROM t JOIN u"},
        {"question": "w2", "draft": ""},
        {"question": "n1", "draft": ""},
    )),
    *({"protocol": "self", "question": question, **reply} for question, reply in (
        ("s1", {"choice": "relay"}),
        ("s2", {"choice": "fan-out"}),
        ("w1", {"choice": "relay"}),
        ("w1", {"run": 2}),
        ("w2", {"choice": "fan-out"}),
        ("n1", {"choice": "fan-out"}),
    )),
    *({"protocol": "ask", "question": question, **reply} for question, reply in (
        ("s1", {"owners": ["a"]}),
        ("s2", {"owners": ["a", "b"]}),
        ("w1", {"owners": ["a", "b"]}),
        ("w1", {"run": 2, "owners": ["a", "b"]}),
        ("w2", {"owners": ["a", "b"]}),
        ("n1", {"owners": ["a", "b"]}),
    )),
]  # fmt: skip


@pytest.fixture
def saved(tmp_path):
    """The benchmark's directory, with ``runs.jsonl`` beside it."""
    root = tmp_path / "small"
    (root / "orgs" / "o").mkdir(parents=True)
    (root / "orgs" / "o" / "catalog.json").write_text(json.dumps(CATALOG))
    lines = [
        json.dumps({"org": "o", "question": question["id"], **question}) for question in QUESTIONS
    ]
    (root / "questions.jsonl").write_text("\n".join(lines))
    (tmp_path / "runs.jsonl").write_text(
        "\n".join(json.dumps({"model": "m", **run}) for run in RUNS)
    )
    return root
