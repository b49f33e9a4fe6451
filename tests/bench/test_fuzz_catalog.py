"""The fuzzer over columns of every type, with what PostgreSQL's catalog has to call."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from random import Random

import psycopg
import pytest
from oar_adapters.interface import BINARY_TYPES, base_type
from oar_adapters.postgres.sql import TEXT_FORMAT_TYPES
from oar_adapters.postgres.whole import AGGREGATES, FUNCTIONS
from oar_bench.fuzz.calls import Calls, call_case, writable
from oar_bench.fuzz.catalog import read_catalog
from oar_bench.fuzz.compared import compared_case
from oar_bench.fuzz.samples import SAMPLES, WILD, typed_world
from oar_bench.fuzz.trial import Failure, difference
from oar_bench.fuzz.world import KINDS
from oar_bench.result import Result
from oar_proxy.sql.parse import parse

TAME = replace(typed_world(Random(1), "tame", KINDS, wild=False), settings={})
WILDS = [typed_world(Random(n), "wild", KINDS, wild=True) for n in range(10)]


@pytest.fixture(scope="module")
def calls(hub_server):
    async def read():
        async with await psycopg.AsyncConnection.connect(hub_server.conninfo) as connection:
            return await read_catalog(connection)

    return asyncio.run(read())


def test_a_run_over_the_catalog_finds_no_difference(fuzzed):
    found = fuzzed("--catalog", "--seed", "5", "--count", "120", "--schemas", "4")
    assert found["statements"] == 120
    assert found["with_rows"] > 60
    assert found["errors"] < 30


def test_owners_have_a_column_of_every_type_that_is_published():
    assert set(map(base_type, SAMPLES)) >= BINARY_TYPES | TEXT_FORMAT_TYPES
    assert SAMPLES.keys() >= WILD.keys()
    types = {column.type for table in TAME.tables for column in table.columns}
    assert types == SAMPLES.keys()
    assert {kind for world in WILDS for kind in world.owners.values()} == set(KINDS)


def test_what_is_called_is_what_the_catalog_has(calls):
    named = {kind: {call.name for call in calls if call.kind == kind} for kind in
             ("function", "operator", "aggregate", "window")}  # fmt: skip
    assert len(named["function"]) > 1200
    assert len(named["aggregate"]) > 50
    assert named["function"] >= FUNCTIONS
    assert named["aggregate"] >= AGGREGATES
    assert {"||", "@>", "~~", "<->", "@@"} <= named["operator"]
    assert "lag" in named["window"]
    for kind in ("now", "random", "current_schema", "pg_get_viewdef", "has_table_privilege"):
        assert kind not in named["function"]
    assert sum(map(writable, calls)) > 0.9 * len(calls)


def test_calls_parse_and_repeat_with_their_seed(calls):
    calls = Calls(calls)
    modes = Counter()
    for number in range(400):
        case = call_case(Random(number), TAME, calls)
        assert case == call_case(Random(number), TAME, calls)
        assert _is_sound(case)
        modes[case.mode] += 1
    assert len(modes) == 6


def test_comparisons_parse_and_repeat_with_their_seed():
    for number in range(400):
        world = WILDS[number % len(WILDS)]
        case = compared_case(Random(number), world)
        assert case == compared_case(Random(number), world)
        assert _is_sound(case)


def _is_sound(case):
    (parsed,) = parse(case.sql)
    used = {number for number, _, _ in parsed.parameters}
    return used == set(range(1, len(case.arguments[0]) + 1))


def test_modifiers_of_columns_are_compared():
    case = compared_case(Random(1), WILDS[0])
    one, other = (Result(("c",), (1700,), (), (modifier,)) for modifier in (-1, 393222))
    assert difference(case, [one], [one]) is None
    assert difference(case, [one], [other]) == "other columns or types"
    either = replace(case, sql=f"({case.sql}) EXCEPT SELECT 1.5")
    assert difference(either, [one], [other]) is None


def test_which_error_of_several_rows_is_met_is_not_compared():
    case = compared_case(Random(1), WILDS[0])
    row, syntax, ours = (Failure(state, "") for state in ("22003", "42601", "HV000"))
    assert difference(case, [row], [syntax]) is None
    assert difference(replace(case, fallible=False), [row], [syntax]) is not None
    assert difference(case, [ours], [syntax]) is not None
