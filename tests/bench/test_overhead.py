"""The overhead benchmarks run and compare; what they measure is not asserted."""

from __future__ import annotations

import json
import shutil

import pytest
from oar_bench.cli import app
from oar_bench.overhead.processes import OverheadError, interleaved, program
from typer.testing import CliRunner

BOUNCER = shutil.which("pgbouncer", path="/usr/sbin:/usr/bin:/usr/local/bin")


def test_contestants_take_turns_and_the_median_counts():
    order = []
    figures = {"a": iter([5.0, 1.0, 3.0]), "b": iter([2.0, 2.0, 9.0])}

    def contestant(name):
        order.append(name)
        return next(figures[name])

    medians = interleaved({n: (lambda n=n: contestant(n)) for n in figures}, 3)
    assert order == ["a", "b"] * 3
    assert medians == {"a": 3.0, "b": 2.0}


def test_a_missing_program_is_named():
    with pytest.raises(OverheadError, match="pg_nothing is not installed"):
        program("pg_nothing")


def test_join():
    result = CliRunner().invoke(app, ["overhead", "join", "--rows", "100000"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout.splitlines()[-1])
    assert found["rows"] == 100_000
    assert set(found["cases"]["50 keys"]["ms"]) == {
        "oar",
        "by hand",
        "postgres_fdw",
        "postgres_fdw tuned",
    }
    assert all(ms > 0 for case in found["cases"].values() for ms in case["ms"].values())


def test_join_of_too_few_rows_is_refused():
    result = CliRunner().invoke(app, ["overhead", "join", "--rows", "1000"])
    assert result.exit_code == 2
    assert "100,000 rows or more" in result.stderr


@pytest.mark.skipif(BOUNCER is None, reason="pgbouncer is not installed")
def test_pass_through():
    arguments = ["overhead", "pass-through", "--scale", "1", "--seconds", "1", "--rounds", "1"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout.splitlines()[-1])
    assert found["rows_copied"] == 100_000
    for figure in ("latency_ms", "throughput_tps", "copy_ms"):
        assert set(found[figure]) == {"direct", "oar", "pgbouncer", "ratio"}
