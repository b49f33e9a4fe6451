"""Models that fail on the wire, collections that are killed, and runs made again without a model."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import campus
import pytest
from modelserver import Reply, asked, in_order, scripted, serving
from oar_bench.paper.collect import UNREACHABLE
from oar_bench.paper.journal import open_journal

ONE_CALL = ("--org", "student_club", "--limit", "1", "--protocol", "self")
ONE_RELAY = ("--org", "student_club", "--limit", "1", "--protocol", "relay")
PART = ("--org", "student_club", "--limit", "2", "--parallel", "1")
KEY = "key-of-the-operator"


@pytest.fixture(autouse=True)
def operators_key(monkeypatch):
    monkeypatch.setenv("OAR_DRAFTER__API_KEY", KEY)


def faulty(faults):
    """A model whose first replies to a question are these; it behaves well after them."""
    left = {question: list(replies) for question, replies in faults.items()}
    well = scripted(campus.MODEL)

    def respond(request):
        _, material = asked(request)
        task = campus.BY_QUESTION[material["question"]].id
        return left[task].pop(0) if left.get(task) else well(request)

    return respond


PASSING = {
    "vice": [Reply(status=429, headers={"retry-after": "1"})],
    "president": [Reply(status=500), Reply(status=503)],
    "college": [Reply(reset=True)],
    "agriculture": [Reply(hold=True)],
}


def test_what_passes_is_waited_for(collect, tmp_path):
    with serving(faulty(PASSING)) as server:
        options = ("--org", "student_club", "--limit", "5", "--protocol", "self")
        collection = collect(tmp_path / "runs.jsonl", server.url, *options, "--timeout", "3")
        assert server.left.is_set()
    assert collection.status == 0
    assert {(line["choice"], line["calls"]) for line in collection.lines} == {("relay", 1)}
    calls = {
        json.loads(call["chat"][1]["content"])["question"]: call for call in collection.saved_calls
    }
    found = {campus.BY_QUESTION[question].id: call for question, call in calls.items()}
    attempts = {task: call["attempts"] for task, call in found.items()}
    assert attempts == {"members": 1, **{task: len(f) + 1 for task, f in PASSING.items()}}
    assert len(server.received) == sum(attempts.values())
    assert found["vice"]["seconds"] >= 1
    assert found["agriculture"]["seconds"] >= 3
    assert set(server.keys) == {f"Bearer {KEY}"}


USELESS = {
    "vice": (Reply("Sure! Here it is"), "the reply is not the JSON object it was asked for"),
    "president": (Reply('{"owner": "ow'), "the reply is not the JSON object it was asked for"),
    "college": (Reply('{"owner": "ow', finish="length"), "the model's reply was cut off"),
    "agriculture": (Reply(None, refusal="I will not"), "the model refused the question"),
    "members": (Reply(""), "the model's reply was empty"),
}


def test_a_reply_of_no_use_ends_the_run_and_is_saved_as_it_was(collect, tmp_path):
    options = ("--org", "student_club", "--limit", "5", "--protocol", "relay")
    with serving(faulty({task: [fault] for task, (fault, _) in USELESS.items()})) as server:
        collection = collect(tmp_path / "runs.jsonl", server.url, *options)
    assert collection.status == 0
    assert len(server.received) == len(collection.lines) == len(USELESS)
    for task, (_, reason) in USELESS.items():
        line = collection.line(task, "relay")
        assert (line["outcome"], line["calls"], line["steps"]) == ("stopped", 1, [])
        assert line["reason"].startswith(f"planner: {reason}")
    lines = sorted(collection.out.read_text().splitlines())
    collection.out.unlink()
    again = collect(collection.out, None, *options, "--offline")
    assert (again.status, sorted(again.out.read_text().splitlines())) == (0, lines)


def test_a_router_call_without_a_usable_reply_has_no_choice(collect, tmp_path):
    with serving(in_order(Reply("relay, I would say"))) as server:
        collection = collect(tmp_path / "runs.jsonl", server.url, *ONE_CALL, "--protocol", "ask")
    assert not any({"choice", "owners"} & set(line) for line in collection.lines)
    assert len(collection.lines) == 2


def test_a_model_that_cannot_be_reached_is_no_outcome_and_asked_again(collect, tmp_path):
    out = tmp_path / "runs.jsonl"
    broken = scripted(campus.MODEL)

    def planners_fail(request):
        return Reply(status=401) if asked(request)[0] == "planner" else broken(request)

    options = (*PART, "--protocol", "relay", "--protocol", "fan-out")
    with serving(planners_fail) as server:
        first = collect(out, server.url, *options)
    assert first.status == 1
    assert {line["protocol"] for line in first.lines} == {"fan-out"}
    assert first.result["saved"] == {"relay": 0, "fan-out": 2}
    ((reason, count),) = first.result["unfinished"].items()
    assert "openai/tiny is unavailable" in reason
    assert "status 401" in first.printed
    assert count == 2
    with serving(broken) as server:
        second = collect(out, server.url, *options)
    assert (second.status, second.result["present"]) == (0, 2)
    assert second.result["saved"] == {"relay": 2, "fan-out": 0}
    assert "secret" not in first.printed + out.read_text() + first.calls.read_text()


def test_after_ten_runs_without_a_model_no_more_are_begun(collect, tmp_path):
    with serving(in_order(Reply(status=401))) as server:
        collection = collect(
            tmp_path / "runs.jsonl", server.url, "--protocol", "self", "--parallel", "1"
        )
    assert collection.status == 1
    assert collection.result["gave_up"]
    assert len(server.received) == UNREACHABLE
    assert collection.lines == []


def test_runs_are_made_again_without_a_model(collect, tmp_path):
    kinds = ("--protocol", "all", "--limit", "6", "--runs", "2")
    with serving(scripted(campus.MODEL)) as server:
        made = collect(tmp_path / "runs.jsonl", server.url, *kinds)
        calls = len(server.received)
        # The same command has nothing left to do.
        idle = collect(made.out, server.url, *kinds)
        assert len(server.received) == calls == made.result["calls"]
    assert idle.result["present"] == len(made.lines)
    assert {line["run"] for line in made.lines} == {1, 2}
    again = tmp_path / "again.jsonl"
    replayed = collect(again, None, *kinds, "--offline", "--calls", str(made.calls))
    assert (replayed.status, replayed.result["calls"]) == (0, 0)
    assert sorted(again.read_text().splitlines()) == sorted(made.out.read_text().splitlines())


def test_a_call_that_was_not_saved_is_an_error_without_a_model(collect, tmp_path):
    with serving(scripted(campus.MODEL)) as server:
        out = tmp_path / "runs.jsonl"
        collect(out, server.url, *PART, "--protocol", "self")
    asking = collect(out, None, *PART, "--protocol", "self", "--protocol", "fan-out", "--offline")
    assert asking.status == 1
    assert asking.result["unfinished"] == {"a call that this run needs was not saved": 2}
    assert {line["protocol"] for line in asking.lines} == {"self"}


def test_files_are_their_owners_and_hold_no_key(collect, tmp_path):
    with serving(scripted(campus.MODEL)) as server:
        collection = collect(tmp_path / "runs.jsonl", server.url, *ONE_RELAY)
    for file in (collection.out, collection.calls):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert KEY not in file.read_text()
    # The calls have rows, since prompts do; what is printed has none.
    assert campus.KEY in collection.calls.read_text()
    assert campus.KEY not in collection.printed


def test_a_providers_key_is_not_sent_to_whoever_is_at_the_url(collect, tmp_path, monkeypatch):
    monkeypatch.delenv("OAR_DRAFTER__API_KEY")
    monkeypatch.setenv("OPENAI_API_KEY", "key-of-a-provider")
    with serving(scripted(campus.MODEL)) as server:
        collection = collect(tmp_path / "runs.jsonl", server.url, *ONE_CALL)
    assert collection.status == 0
    assert server.keys == ["Bearer none"]


@pytest.mark.parametrize(
    ("options", "part"),
    [
        (("--protocol", "gossip"), "no protocol gossip: there are fan-out, relay"),
        (("--org", "nowhere"), "no question of nowhere can be scored"),
    ],
)
def test_what_cannot_be_collected_is_refused(collect, tmp_path, options, part):
    collection = collect(tmp_path / "runs.jsonl", "http://127.0.0.1:9/v1", *options)
    assert collection.status == 2
    assert part in collection.printed


@pytest.mark.parametrize(
    ("name", "text", "part"),
    [
        ("runs.jsonl", '{"question": "a"}\n', "a line has no 'protocol'"),
        ("runs.jsonl", '{"question"\n{"question": "b"}\n', "line 1: not JSON"),
        ("runs.calls.jsonl", '{"question": "a"}\n', "a line has no 'digest'"),
    ],
)
def test_a_file_of_something_else_is_not_added_to(collect, tmp_path, name, text, part):
    (tmp_path / name).write_text(text)
    collection = collect(tmp_path / "runs.jsonl", "http://127.0.0.1:9/v1", *ONE_CALL)
    assert collection.status == 2
    assert part in collection.printed
    assert (tmp_path / name).read_text() == text


def stop(pid):
    """End the hub that a killed collection left behind, and wait until it has ended."""
    os.kill(pid, signal.SIGQUIT)
    with contextlib.suppress(ProcessLookupError):
        for _ in range(200):
            time.sleep(0.05)
            os.kill(pid, 0)


class Collecting:
    """The command as a process of its own, at a model that keeps its call number ``held``."""

    def __init__(self, benchmark_root, out, held):
        self.waiting = threading.Event()
        self.out = out
        self._root = benchmark_root
        self._held = held
        self._count = 0
        self._model = scripted(campus.MODEL)

    def respond(self, request):
        self._count += 1
        if self._count == self._held:
            self.waiting.set()
            return Reply(hold=True)
        return self._model(request)

    @contextlib.contextmanager
    def started(self, *options):
        directory = Path(tempfile.mkdtemp(prefix="oar-tests-"))
        directory.chmod(0o711)  # under root the hub's OS user has to get to its own files
        with serving(self.respond) as server:
            command = [sys.executable, "-m", "oar_bench", "paper", "collect",
                       "--data", str(self._root), "--model", "openai/tiny", "--url", server.url,
                       "--out", str(self.out), *options]  # fmt: skip
            process = subprocess.Popen(
                command, env={**os.environ, "TMPDIR": str(directory)},
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            )  # fmt: skip
            try:
                assert self.waiting.wait(60)
                yield process, server, directory
            finally:
                process.kill()
                process.communicate()
                for file in directory.glob("oar-bench-*/hub/pgdata/postmaster.pid"):
                    stop(int(file.read_text().split()[0]))
                shutil.rmtree(directory)


def test_a_collection_that_was_killed_goes_on_where_it_was(collect, benchmark_root, tmp_path):
    out = tmp_path / "runs.jsonl"
    kinds = ("--protocol", "fan-out", "--protocol", "relay", "--protocol", "draft")
    killed = Collecting(benchmark_root, out, held=9)
    with killed.started(*PART, *kinds) as (process, _, _):
        process.kill()
        process.wait(20)
    calls = out.with_suffix(".calls.jsonl")
    before = [json.loads(line) for line in out.read_text().splitlines()]
    assert 0 < len(before) < 6
    assert len(calls.read_text().splitlines()) == 8
    for file in (out, calls):  # killed while writing
        with file.open("a") as torn:
            torn.write('{"question": "vi')
    with serving(scripted(campus.MODEL)) as server:
        collection = collect(out, server.url, *PART, *kinds)
    assert collection.status == 0
    assert collection.lines[: len(before)] == before
    keys = [(line["question"], line["protocol"]) for line in collection.lines]
    assert len(keys) == len(set(keys)) == 6
    assert len(collection.saved_calls) == 8 + len(server.received)
    whole = tmp_path / "whole.jsonl"
    collect(whole, None, *PART, *kinds, "--offline", "--calls", str(calls))
    assert sorted(whole.read_text().splitlines()) == sorted(out.read_text().splitlines())


def test_whoever_stops_a_collection_stops_its_call_and_its_hub(benchmark_root, tmp_path):
    stopped = Collecting(benchmark_root, tmp_path / "runs.jsonl", held=2)
    with stopped.started(*ONE_RELAY) as (process, server, directory):
        process.send_signal(signal.SIGTERM)
        assert server.left.wait(20)
        process.communicate(timeout=60)
        assert process.returncode != 0
        assert list(directory.glob("oar-bench-*")) == []
    assert (tmp_path / "runs.jsonl").read_text() == ""


@pytest.mark.parametrize("name", ["runs.jsonl", "runs.calls.jsonl"])
def test_two_collections_do_not_write_to_one_file(collect, tmp_path, name):
    with open_journal(tmp_path / name):
        second = collect(tmp_path / "runs.jsonl", "http://127.0.0.1:9/v1", *ONE_RELAY)
    assert second.status == 2
    assert f"{name}: another collection writes to this file" in second.printed.replace("\n", "")
