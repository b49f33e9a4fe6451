"""Benchmarks: one of five questions and saved runs to score by hand, and one to collect runs on."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import campus
import pytest
from oar_bench.cli import app
from oar_bench.layout import find_benchmarks
from oar_bench.paper.figures import records
from oar_bench.paper.runs import read_runs
from oar_bench.paper.settings import settings
from typer.testing import CliRunner

CATALOG = {
    "owners": [{"owner": "a", "tables": {"t": {}, "v": {}}}, {"owner": "b", "tables": {"u": {}}}]
}
QUESTIONS = [
    {"id": "s1", "stratum": "single-owner", "kappa": 1, "difficulty": "simple", "rows": [[1]]},
    {"id": "s2", "stratum": "single-owner", "kappa": 1, "difficulty": "moderate", "rows": [[1], [2]],
     "gold_sql": "SELECT 1 FROM t JOIN v"},
    {"id": "w1", "stratum": "two-owner", "kappa": 2, "difficulty": "moderate", "rows": [["x"]],
     "gold_sql": "SELECT 1 FROM t JOIN u"},
    {"id": "w2", "stratum": "two-owner", "kappa": 2, "difficulty": "challenging", "rows": [[5]]},
    {"id": "n1", "stratum": "unanswerable", "unanswerable": True, "difficulty": "simple"},
]  # fmt: skip
KEY = [{"owner": "a", "sql": "SELECT k FROM t", "rows": [["rec7"]]},
       {"owner": "b", "sql": "SELECT v FROM u WHERE k = 'rec7'", "rows": [["x"]]}]  # fmt: skip
CTE = "WITH c AS (SELECT 1 FROM t) SELECT 1 FROM c JOIN u"

FAN_OUT = {"protocol": "fan-out", "calls": 3, "tokens": 300, "seconds": 2, "dollars": 0.001}
RELAY = {"protocol": "relay", "calls": 4, "tokens": 500, "seconds": 3, "dollars": 0.002}
DRAFT = {"protocol": "draft", "calls": 1, "tokens": 100, "seconds": 1, "dollars": 0.0005}
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


def write_lines(path, records):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(map(json.dumps, records)))


@pytest.fixture
def write_saved(tmp_path):
    """Write a benchmark of one organisation and, beside it, ``runs.jsonl`` of the model m."""

    def write(questions, runs):
        root = tmp_path / "small"
        (root / "orgs" / "o").mkdir(parents=True, exist_ok=True)
        (root / "orgs" / "o" / "catalog.json").write_text(json.dumps(CATALOG))
        write_lines(
            root / "questions.jsonl",
            [{"org": "o", "question": question["id"], **question} for question in questions],
        )
        write_lines(tmp_path / "runs.jsonl", [{"model": "m", **run} for run in runs])
        return root

    return write


@pytest.fixture
def saved(write_saved):
    """The benchmark's directory, with ``runs.jsonl`` beside it."""
    return write_saved(QUESTIONS, RUNS)


@pytest.fixture
def settings_of():
    """Score the runs that lie beside a benchmark."""

    def read(root):
        return list(settings(find_benchmarks(root), read_runs(root.parent / "runs.jsonl")))

    return read


@pytest.fixture
def figures_of():
    """A table's figures by row and column: value alone, or with its interval and marks."""

    def index(table):
        found = {}
        for record in records([table]):
            labels = (record.part, record.group, record.column)
            key = " / ".join(label for label in labels if label)
            figure = (record.value, record.low, record.high, record.marks)
            shown = tuple(part for part in figure if part not in (None, ""))
            found.setdefault(record.setting, {})[key] = shown if len(shown) > 1 else shown[0]
        return found

    return index


@dataclass
class Collection:
    """One ``oar bench paper collect``: its exit status, its last line, its files."""

    status: int
    result: dict
    printed: str
    out: Path
    calls: Path

    @property
    def lines(self):
        return [json.loads(line) for line in self.out.read_text().splitlines()]

    @property
    def saved_calls(self):
        return [json.loads(line) for line in self.calls.read_text().splitlines()]

    def line(self, question, protocol, **keys):
        (found,) = [
            line
            for line in self.lines
            if (line["question"], line["protocol"]) == (question, protocol)
            and all(line.get(key) == value for key, value in keys.items())
        ]
        return found


@pytest.fixture(scope="session")
def benchmark_root(tmp_path_factory):
    """The directory of the benchmark that :mod:`campus` describes."""
    return campus.write(tmp_path_factory.mktemp("benchmarks") / "campus")


@pytest.fixture(scope="session")
def collect(benchmark_root):
    """Run the command: ``collect(out, url, *options)``."""

    def run(out, url, *options):
        at = [] if url is None else ["--url", url]
        arguments = ["paper", "collect", "--data", str(benchmark_root), "--model", "openai/tiny"]
        ended = CliRunner().invoke(app, [*arguments, *at, "--out", str(out), *options])
        last = ended.stdout.splitlines()[-1:] or [""]
        result = json.loads(last[0]) if last[0].startswith("{") else {}
        calls = out.with_suffix(".calls.jsonl")
        return Collection(ended.exit_code, result, ended.output, out, calls)

    return run
