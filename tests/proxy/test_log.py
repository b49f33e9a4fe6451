from __future__ import annotations

import json
import subprocess
import sys

import pytest
from oar_proxy.log import raised_at

PROGRAM = """
import logging, structlog
from oar_proxy import log
log.configure({level!r}, {output!r})
structlog.get_logger().info("statement", route="relay", city="Пермь")
structlog.get_logger().debug("detail")
logging.getLogger("dependency").info("chatter")
logging.getLogger("dependency").warning("trouble")
try:
    1 / 0
except ZeroDivisionError:
    structlog.get_logger().exception("failed")
"""


def run(level: str, output: str) -> str:
    program = PROGRAM.format(level=level, output=output)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, check=True, encoding="utf-8"
    )
    assert done.stdout == ""
    return done.stderr


def test_json_is_one_object_a_line():
    lines = [json.loads(line) for line in run("info", "json").splitlines()]
    assert [line["event"] for line in lines] == ["statement", "trouble", "failed"]
    assert lines[0] | {"timestamp": None} == {
        "event": "statement",
        "level": "info",
        "route": "relay",
        "city": "Пермь",
        "timestamp": None,
    }
    assert "ZeroDivisionError" in lines[2]["exception"]


@pytest.mark.parametrize(
    ("level", "shown", "hidden"),
    [
        ("debug", ["statement", "detail", "chatter", "trouble"], []),
        ("info", ["statement", "trouble"], ["detail", "chatter"]),
        ("error", ["failed"], ["statement", "trouble", "detail"]),
    ],
)
def test_levels(level: str, shown: list[str], hidden: list[str]):
    text = run(level, "console")
    assert [word for word in shown if word not in text] == []
    assert [word for word in hidden if word in text] == []


def test_an_unexpected_error_is_told_by_its_places_alone():
    try:
        int("IBAN-1")
    except ValueError as error:
        places = raised_at(error)
    assert len(places) == 1
    assert places[0].startswith(f"{__file__}:")
