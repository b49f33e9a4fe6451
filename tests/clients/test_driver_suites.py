"""The judgement over drivers' suites; the suites themselves are `make driver-suites`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from driver_suites import DIRECT, WAYS, differences, judge

PLUGINS = Path(__file__).resolve().parent / "plugins"
THROUGH = list(WAYS)[1]


def outcomes(**through):
    """Outcomes of five tests; ``through`` are those through the proxy where they are others."""
    direct = {
        "steady": "passed",
        "lost": "passed",
        "gone": "passed",
        "shaky": "passed",
        "broken": "failed",
    }
    return {way: direct if way == DIRECT else direct | through for way in WAYS}


class Repeated:
    """Runs whose repetitions fail as told."""

    def __init__(self, **failed):
        self.failed = {way: set(failed.get(way, ())) for way in WAYS}
        self.asked = None

    def repeat(self, tests):
        self.asked = tests
        return self.failed


def test_a_difference_passes_directly_and_not_so_through_the_proxy():
    found = outcomes(lost="failed", broken="passed")
    del found[THROUGH]["gone"]
    assert differences(found)["gone"][THROUGH] == "missing"
    assert set(differences(found)) == {"lost", "gone"}


@pytest.mark.parametrize(
    ("failed", "accepted", "unexplained"),
    [
        ({THROUGH: ["lost"]}, {}, 1),
        ({THROUGH: ["lost"], DIRECT: ["lost"]}, {}, 0),
        ({}, {}, 0),
        ({THROUGH: ["lost"]}, {"lost": "why"}, 0),
        ({THROUGH: ["lost"]}, {"lost": "why", "steady": "no difference"}, 0),
    ],
)
def test_what_nobody_accounts_for(failed, accepted, unexplained, capsys):
    runs = Repeated(**failed)
    assert judge(runs, outcomes(lost="failed"), accepted) == unexplained
    assert runs.asked == {"lost"} - set(accepted)
    assert ("UNEXPLAINED" in capsys.readouterr().out) == bool(unexplained)


def test_the_plugin_keeps_the_worst_outcome(tmp_path):
    (tmp_path / "test_it.py").write_text(
        "import pytest, unittest\n"
        "def test_passes(): pass\n"
        "def test_fails(): assert False\n"
        "def test_skips(): pytest.skip()\n"
        "@pytest.mark.xfail\ndef test_xfails(): assert False\n"
        "@pytest.fixture\ndef bad():\n    yield\n    raise ValueError\n"
        "def test_fails_late(bad): pass\n"
        "class Parts(unittest.TestCase):\n"
        "    def test_parts(self):\n"
        "        for n in 1, 2:\n"
        "            with self.subTest(n=n): self.assertEqual(n, 2)\n"
    )
    environment = {"OUTCOMES": str(tmp_path / "out"), "PYTHONPATH": str(PLUGINS)}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "outcomes",
        "-c",
        "/dev/null",
        "--rootdir=.",
        "test_it.py",
    ]
    subprocess.run(
        command, cwd=tmp_path, env=os.environ | environment, capture_output=True, check=False
    )
    found = json.loads((tmp_path / "out").read_text())
    assert {name.rpartition("::")[2]: outcome for name, outcome in found.items()} == {
        "test_passes": "passed",
        "test_fails": "failed",
        "test_skips": "skipped",
        "test_xfails": "skipped",
        "test_fails_late": "failed",
        "test_parts": "failed",
    }
