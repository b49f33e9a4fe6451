"""Worlds under policies and their twins: what is drawn, and whether a rule that is lost is found."""

from __future__ import annotations

import asyncio
from random import Random

import psycopg
import pytest
from oar_bench.fuzz import governed
from oar_bench.fuzz.governed import Condition, Rule, governed_world
from oar_bench.fuzz.twins import fuzz_twins
from oar_bench.fuzz.world import KINDS, Column
from oar_bench.work import work_directory
from oar_policies.parse import parse_policy

PORTABLE = ("postgres", "sqlite")
NUMBER = Column("k", "bigint", "int")


def test_a_run_finds_no_difference_and_tells_nothing(fuzzed):
    found = fuzzed("--governed", "--seed", "3", "--count", "60")
    assert found["statements"] == 60
    assert found["equal"] > found["refused"] > 0
    assert found["with_rows"] > 10
    assert found["explained"] > 3
    assert (found["different"], found["told"]) == (0, 0)
    assert set(found["owner_kinds"]) >= set(PORTABLE)


@pytest.mark.parametrize(("lost", "kind"), [("row_filter", "different"), ("columns", "told")])
def test_a_rule_that_is_lost_is_found(monkeypatch, lost, kind):
    written = Rule.written.fget

    def without(rule):
        return {name: value for name, value in written(rule).items() if name != lost}

    monkeypatch.setattr(governed.Rule, "written", property(without))
    with work_directory() as directory:
        told = asyncio.run(fuzz_twins(seed=3, count=160, directory=directory, kinds=PORTABLE))
    assert told.counts[kind] >= 1
    assert len(told.faults) == told.counts["different"] + told.counts["told"]
    assert all(fault.startswith("fuzz_") for fault in told.faults)


def test_policies_are_drawn_and_read_and_each_rule_is_among_them():
    said = set()
    for number in range(60):
        drawn = governed_world(Random(number), f"fuzz_{number}", KINDS)
        for world in (drawn.world, drawn.twin):
            assert world.policies.keys() == world.owners.keys()
            for owner, text in world.policies.items():
                for rule in parse_policy(text, owner=owner, source="drawn").tables.values():
                    said.update(
                        name for name in ("deny", "deny_columns", "row_filter", "masks", "require_filter")
                        if getattr(rule, name)
                    )  # fmt: skip
                    said.update(use.output for use in rule.columns.values())
                    said.update("filter" for use in rule.columns.values() if not use.filter)
    assert said >= {"deny", "deny_columns", "row_filter", "masks", "require_filter", "filter", "aggregate_only"}  # fmt: skip


def test_twins_publish_the_same_but_for_values_that_are_not_put_out():
    differing = 0
    for number in range(60):
        drawn = governed_world(Random(number), f"fuzz_{number}", KINDS)
        differing += drawn.world.tables != drawn.twin.tables
        for table in drawn.published.tables:
            of_world, of_twin = drawn.world.table(table.name), drawn.twin.table(table.name)
            assert {c.name for c in table.columns} <= {c.name for c in of_world.columns}
            assert of_world.columns == of_twin.columns
            for owner, rows in table.held.items():
                assert len(rows) <= len(of_world.held[owner])
                assert len(rows) <= len(
                    of_twin.held[owner.replace(drawn.world.name, drawn.twin.name)]
                )
    assert differing > 30


@pytest.mark.parametrize(
    ("operator", "there"),
    [
        ("=", ["5"]),
        ("<>", ["1", "7"]),
        ("IN", ["5", "7"]),
        ("NOT IN", ["1"]),
        (">=", ["5", "7"]),
        ("<", ["1"]),
        ("NOT <", ["5", "7"]),
        ("IS NULL", [None]),
        ("IS NOT NULL", ["1", "5", "7"]),
        ("<> OR NULL", ["1", "7", None]),
    ],
)
def test_a_condition_holds_as_in_sql(operator, there, hub):
    condition = Condition(NUMBER, operator, ("5", "7"))
    cells = ["1", "5", "7", None]
    assert [cell for cell in cells if condition.holds(cell)] == there
    with psycopg.connect(hub.conninfo) as connection:
        rows = connection.execute(
            "SELECT k::text FROM unnest(ARRAY[1, 5, 7, NULL]::bigint[]) AS t(k)"
            f" WHERE {condition.sql}".encode()
        ).fetchall()
    assert [cell for (cell,) in rows] == there
