"""The fuzzer: what it draws, how it compares, how it makes a case small, and a short run."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from random import Random

import pytest
from oar_bench.cli import app
from oar_bench.fuzz.bed import open_bed
from oar_bench.fuzz.run import Fault
from oar_bench.fuzz.shrink import script, shrink
from oar_bench.fuzz.statements import MODES, Case, random_case
from oar_bench.fuzz.trial import Failure, canonical, difference, hides_an_error
from oar_bench.fuzz.world import Column, Table, World, create, insert, random_world
from oar_bench.result import Result
from oar_bench.work import work_directory
from oar_proxy import sqltree
from typer.testing import CliRunner

WORLDS = [random_world(Random(n), f"fuzz_{n}") for n in range(30)]


def result(*rows, oids=(20,)):
    return Result(tuple("c" for _ in oids), oids, rows)


def test_a_run_finds_no_difference():
    ran = CliRunner().invoke(
        app, ["fuzz", "--seed", "7", "--count", "60", "--schemas", "3", "--shrink-check"]
    )
    if ran.exception and not isinstance(ran.exception, SystemExit):
        raise ran.exception
    found = json.loads(ran.stdout.splitlines()[-1])
    assert ran.exit_code == 0, ran.stdout
    assert (found["statements"], found["different"], found["failed"]) == (60, 0, 0)
    assert found["equal"] + found["skipped"] + found["errors_hidden"] + found["undetermined"] == 60
    assert found["shrink_checks"] == 3 * found["equal"]
    assert 0 < found["rows_moved"] <= found["rows_held"] * 3
    assert found["reduced"] > 20


def test_worlds_have_owners_of_both_kinds_and_types_both_publish():
    for world in WORLDS:
        assert set(world.owners.values()) == {"postgres", "sqlite"}
        assert 2 <= len(world.tables) <= 5
        for table in world.tables:
            kinds = {world.owners[owner] for owner in table.held}
            types = {column.type for column in table.columns}
            if "sqlite" in kinds:
                assert not types & {"integer", "smallint", "character varying", "uuid"}
            for row in table.rows:
                assert all(
                    cell is not None
                    for cell, c in zip(row, table.columns, strict=True)
                    if c.not_null
                )
    assert any(len(table.held) > 1 for world in WORLDS for table in world.tables)
    assert any(not table.rows for world in WORLDS for table in world.tables)


def test_statements_parse_and_repeat_with_their_seed():
    modes = Counter()
    for number, world in enumerate(WORLDS):
        for turn in range(20):
            case = random_case(Random(f"{number}/{turn}"), world)
            assert case == random_case(Random(f"{number}/{turn}"), world)
            (parsed,) = sqltree.parse(case.sql)
            used = {number for number, _, _ in parsed.parameters}
            assert used == set(range(1, len(case.arguments[0]) + 1))
            assert case.tables
            modes[case.mode] += 1
    assert set(modes) == set(MODES)


CASE = Case("SELECT 1", "simple", frozenset())
ONE, TWO = (b"1",), (b"2",)
DIVISION = Failure("22012", "division by zero")


@pytest.mark.parametrize(
    ("case", "got", "want", "same"),
    [
        (CASE, result(ONE, TWO), result(TWO, ONE), True),
        (CASE, result(ONE, ONE), result(ONE, TWO), False),
        (CASE, result(ONE), result(ONE, ONE), False),
        (CASE, result(ONE), result(ONE, oids=(23,)), False),
        (Case("", "simple", frozenset(), ordered=True), result(ONE, TWO), result(TWO, ONE), False),
        (CASE, Failure("42703", "a"), Failure("42P01", "b"), True),
        (CASE, Failure("HV000", "a"), Failure("42P01", "b"), False),
        (CASE, result(ONE), DIVISION, False),
        (CASE, result((b"1.50",), oids=(1700,)), result((b"1.5",), oids=(1700,)), True),
        (CASE, result((b"0.1",), oids=(701,)), result((b"0.1000000000001",), oids=(701,)), False),
        (Case("", "simple", frozenset(), loose=True), result((b"0.1",), oids=(701,)),
         result((b"0.1000000000001",), oids=(701,)), True),
    ],
)  # fmt: skip
def test_answers_are_compared(case, got, want, same):
    assert (difference(case, [got], [want]) is None) == same


def test_an_error_that_rows_bring_about_may_be_hidden_and_no_other():
    assert hides_an_error([result(ONE)], [DIVISION])
    assert not hides_an_error([DIVISION], [result(ONE)])
    assert not hides_an_error([result(ONE)], [Failure("42703", "no column")])


def test_numbers_are_written_alike_to_their_last_digit():
    long = b"123456789012345678901234567890.50"
    assert canonical([(long, b"-0", None)], (1700, 701, 1700)) == ((long[:-1], b"0", None),)


KEYS = World(
    "small",
    {"small_1": "postgres", "small_2": "sqlite"},
    (
        Table("a", (Column("k", "bigint", "int"), Column("s", "text", "text")), (),
              {"small_1": tuple((str(n), "it's") for n in range(8))}),
        Table("b", (Column("k", "bigint", "int"), Column("f", "boolean", "bool")), (),
              {"small_2": tuple((str(n), "t") for n in range(5, 12))}),
    ),
    {},
)  # fmt: skip


def test_a_case_is_made_small():
    """The proxy is right, so the difference is one of rows the reference alone is given."""
    sql = (
        "SELECT a.k, (SELECT count(*) FROM b WHERE b.f) AS n FROM a JOIN b ON a.k = b.k AND b.f "
        "WHERE a.s <> 'x' AND (a.k > 2 OR a.k IS NULL) ORDER BY 1, 2"
    )
    fault = Fault(KEYS, Case(sql, "cursor", frozenset({"a", "b"}), ordered=True), "", (), ())

    async def shrunk(directory):
        async with open_bed(directory) as bed:
            kept = await shrink(bed, fault)
            async with bed.batch([KEYS]) as batch, bed.reference() as reference:
                await batch.replace_rows(KEYS, KEYS.tables[0], "small_1", ())
                await reference.execute("SET search_path = small")
                cursor = await reference.execute("SELECT count(*) FROM a")
                return kept, await cursor.fetchone()

    with work_directory() as directory:
        kept, (rows,) = asyncio.run(shrunk(directory))
    assert kept == fault  # nothing differs, so nothing is cut
    assert rows == 8


def test_a_wrong_plan_is_found_and_made_small(monkeypatch):
    from oar_bench.fuzz.measure import fuzz
    from oar_proxy.hub import planreading

    wrong = planreading._REDUCIBLE | {"Left": ("Outer", "Inner"), "Right": ("Outer", "Inner")}
    monkeypatch.setattr(planreading, "_REDUCIBLE", wrong)
    with work_directory() as directory:
        tally = asyncio.run(fuzz(seed=5, count=120, schemas=2, directory=directory, examples=1))
    assert tally.counts["different"] >= 1
    (example,) = tally.examples
    assert len(example.case.sql) <= max(len(fault.case.sql) for fault in tally.faults)
    text = script(example)
    assert "CREATE TABLE" in text
    assert "-- reference: " in text


def test_a_script_says_everything():
    fault = Fault(KEYS, CASE, "other rows", (result(ONE),), (DIVISION,), "oar.max_keys = 0")
    lines = script(fault).splitlines()
    assert "-- owner small_2 (sqlite), published in schema small" in lines
    assert 'CREATE TABLE "b" ("k" INTEGER, "f" BOOLEAN);' in lines
    assert "SET oar.max_keys = 0;" in lines
    assert "-- proxy: 1 rows" in lines
    assert "-- reference: error 22012: division by zero" in lines


def test_tables_are_written_for_each_kind():
    table = KEYS.tables[1]
    rows = (("1", "f"), (None, None))
    assert create(table, "postgres", "s") == 'CREATE TABLE "s"."b" ("k" bigint, "f" boolean)'
    assert insert(table, rows, "sqlite") == "INSERT INTO \"b\" VALUES ('1', 0), (NULL, NULL)"
    assert insert(table, (), "postgres") is None
