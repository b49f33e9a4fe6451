"""The overhead benchmarks run and compare; what they measure is not asserted."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from decimal import Decimal

import pytest
from oar_bench.cli import app
from oar_bench.overhead import peers, stages, volume
from oar_bench.overhead.join import CASES, Figures, Moved, growing, same
from oar_bench.overhead.processes import OverheadError, interleaved, program
from oar_bench.work import work_directory
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


@pytest.fixture(scope="module")
def found():
    """What one run of the joins printed."""
    result = CliRunner().invoke(
        app, ["overhead", "join", "--rows", "100000", "--rounds", "1", "--json"]
    )
    assert result.exit_code == 0, result.output
    (line,) = result.stdout.splitlines()
    return json.loads(line)


def test_join_leaves_nothing_out(found):
    if found["skipped"]:
        pytest.skip("; ".join(found["skipped"].values()))
    assert all(peers.DUCKDB in case["ms"] for case in found["cases"].values())


def test_join(found):
    assert found["rows"] == 100_000
    there = [name for name in peers.CONTESTANTS if name not in found["skipped"]]
    assert set(there) >= set(peers.CONTESTANTS) - {peers.DUCKDB}
    names = [*(case.name for case in CASES), *(case.name for case in growing(100_000))]
    assert list(found["cases"]) == names
    without_hub = ("one owner's GROUP BY", "unselective GROUP BY", "100,000 keys")
    for name, case in found["cases"].items():
        assert set(there) - set(case["ms"]) == (
            set(peers.FEEDING) if name in without_hub else set()
        )
        for peer, ratios in case["ratio"].items():
            for asked, ratio in ratios.items():
                ours, theirs = case["ms"]["oar"][asked], case["ms"][peer][asked]
                assert ratio == pytest.approx(ours / theirs, rel=0.01)
    moved = {name: case["moved"] for name, case in found["cases"].items()}
    assert moved["one owner's GROUP BY"] == {"rows": 40, "keys": 0, "queries": 1}
    assert (moved["50 keys"]["keys"], moved["outer join, 150 keys"]["keys"]) == (50, 150)
    assert (moved["1,000 keys"]["keys"], moved["10,000 keys"]["keys"]) == (1000, 10_000)
    # All keys of so few rows travel, and what comes back for them are groups.
    assert moved["unselective GROUP BY"] == {"rows": 100_040, "keys": 100_000, "queries": 2}
    if "memory" not in found["skipped"]:
        for case in found["cases"].values():
            memory = case["memory_mib"]
            assert 0 < memory["proxy_before"] <= memory["proxy_peak"]
            assert 0 < memory["hub_before"] <= memory["hub_peak"]


def test_ratios_are_of_the_same_asking():
    ms = {"oar": {"first": 6.0, "again": 3.0}, "by hand": {"first": 2.0, "again": 1.5}}
    figures = Figures(CASES[0], ms, Moved(1, 1, 1), None)
    assert figures.ratio("by hand", "first") == 3.0
    assert figures.ratio("by hand", "again") == 2.0
    assert figures.ratio("DuckDB", "first") is None


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        ([("a", 1, Decimal("2.50")), (None, 2, 0)], [(None, 2, 0.0), ("a", 1.0, 2.5)], True),
        ([("a", Decimal("0.333333333333"))], [("a", 1 / 3)], True),
        ([("a", 1)], [("a", 1), ("a", 1)], False),
        ([("1",)], [(1,)], False),
        ([(0,)], [(None,)], False),
    ],
)
def test_answers_of_two_engines(one, other, equal):
    assert (same(one) == same(other)) is equal


def test_a_peer_that_is_not_installed_is_left_out_with_the_reason(monkeypatch):
    monkeypatch.setitem(sys.modules, "duckdb", None)
    why = r"duckdb is not installed \(the project's extra bench: pip install '.\[bench\]'\)"
    with pytest.raises(peers.Unavailable, match=why), peers.duckdb(None):
        pass


def test_another_number_is_another_text_of_the_same_query():
    query = CASES[1].query
    assert query.text(1) != query.text(2)
    assert query.text(1).replace("AS n1,", "AS n2,") == query.text(2)
    assert query.text_at_hub(1).count("%s") == 4
    assert "WHERE" not in query.text_at_hub(1)


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


def test_volume():
    """Of forty megabytes; that more takes no more is read off a run of ten thousand."""
    arguments = ["overhead", "volume", "--gigabytes", "0.04", "--json"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    cases = json.loads(result.stdout)["cases"]
    assert set(cases) == set(volume.CASES)
    for case in cases.values():
        assert 0.04 <= case["gigabytes"] < 0.042
        assert 0 < case["proxy_before"] <= case["proxy_peak"] < 1000


def test_stages_are_timed_without_what_they_call_of_each_other(monkeypatch):
    clock, now = stages.Clock(), 0

    def take(seconds):
        nonlocal now
        now += seconds

    monkeypatch.setattr(stages.time, "perf_counter", lambda: now)

    async def outer():
        take(1)
        await clock.wraps("inner", inner)()
        take(2)
        clock.wraps("quick", take)(10)
        take(4)

    async def inner():
        await asyncio.sleep(0)
        take(20)

    asyncio.run(clock.wraps("outer", outer)())
    assert clock.seconds == {"outer": 7, "inner": 20, "quick": 10}


def test_stages_of_a_federated_statement():
    with work_directory() as directory:
        found = stages.measure(directory, rows=10_000, rounds=2)
    assert list(found) == [case.name for case in stages.CASES]
    for name, medians in found.items():
        asked = {stage for stage in ("ledger", "owners") if medians[stage] > 0}
        assert asked == (set() if name == "passes through" else {"ledger", "owners"}), name
    assert found["join of two, first"]["plan"] > found["join of two, again"]["plan"]
    assert found["join of two, first"]["cover"] > 0
