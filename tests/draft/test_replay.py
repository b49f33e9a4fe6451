"""Recorded drafts by question."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from oar_proxy.catalog import Catalog
from oar_proxy.draft import Draft, Question
from oar_proxy.drafters.replay import InvalidRecording, ReplayDrafter


def propose(drafter: ReplayDrafter, text: str) -> Draft:
    return asyncio.run(drafter.propose(Question(text, "anna"), Catalog(), ()))


def recording(path: Path, *lines: object) -> Path:
    file = path / "drafts.jsonl"
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    file.write_text("\n".join(texts), encoding="utf-8")
    return file


@pytest.mark.parametrize(
    ("text", "draft"),
    [
        ("How many?", Draft("SELECT count(*) FROM t", "replay")),
        ("  How\tmany?", Draft("SELECT count(*) FROM t", "replay")),
        ("Who?", Draft(None, "replay", "the recorded draft abstains")),
        ("Where?", Draft(None, "replay", "no draft is recorded for this question")),
    ],
)
def test_a_mapping_answers_by_question(text: str, draft: Draft):
    drafter = ReplayDrafter({"How many?": "SELECT count(*) FROM t", "Who?": " "})
    assert propose(drafter, text) == draft


def test_a_file_answers_and_other_dialects_become_postgresql(tmp_path: Path):
    file = recording(
        tmp_path,
        {"question": "One?", "sql": "SELECT a FROM t WHERE b ~ 'x'", "id": 1},
        "",
        {"question": "Two?", "sql": "SELECT IFNULL(`a`, 0) FROM t", "dialect": "sqlite"},
        {"question": "Three?", "sql": ""},
    )
    drafter = ReplayDrafter.from_file(file)
    assert propose(drafter, "One?").sql == "SELECT a FROM t WHERE b ~ 'x'"
    assert propose(drafter, "Two?").sql == 'SELECT COALESCE("a", 0) FROM t'
    assert propose(drafter, "Three?").sql is None


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("not json", "line 1: needs a question"),
        ({"sql": "SELECT 1"}, "line 1: needs a question"),
        ({"question": "", "sql": "SELECT 1"}, "line 1: needs a question"),
        ({"question": "q", "sql": None}, "line 1: needs a question"),
        ({"question": "q", "sql": "SELECT 1", "rows": []}, "line 1: needs a question"),
        ({"question": "q", "sql": "SELECT (", "dialect": "sqlite"}, "cannot be read as"),
        ({"question": "q", "sql": "SELECT 1", "dialect": "klingon"}, "cannot be read as"),
        ({"question": "q", "sql": "SELECT 1; SELECT 2", "dialect": "mysql"}, "exactly one"),
    ],
)
def test_a_line_that_is_no_recording_is_refused(tmp_path: Path, line: object, message: str):
    with pytest.raises(InvalidRecording, match=message):
        ReplayDrafter.from_file(recording(tmp_path, line))


def test_two_drafts_for_one_question_are_refused_and_a_repetition_is_not(tmp_path: Path):
    one = {"question": "q", "sql": "SELECT 1"}
    assert propose(ReplayDrafter.from_file(recording(tmp_path, one, one)), "q").sql == "SELECT 1"
    with pytest.raises(InvalidRecording, match="another draft above"):
        ReplayDrafter.from_file(recording(tmp_path, one, {"question": "q", "sql": "SELECT 2"}))
