"""The fuzzer: what it draws, how it compares, how it makes a case small, and a short run."""

from __future__ import annotations

import asyncio
import sqlite3
from collections import Counter
from contextlib import closing
from random import Random

import pytest
from oar_bench.fuzz.bed import open_bed
from oar_bench.fuzz.measure import fuzz
from oar_bench.fuzz.owners import SqliteFile
from oar_bench.fuzz.reductions import BY_SETTING, NOTHING, Permits, Variation
from oar_bench.fuzz.run import Fault, open_pair
from oar_bench.fuzz.shapes import shapes
from oar_bench.fuzz.shrink import script, shrink
from oar_bench.fuzz.statements import MODES, Case, random_case
from oar_bench.fuzz.trial import Failure, canonical, difference, hides_an_error
from oar_bench.fuzz.world import (
    KINDS,
    TYPES,
    Column,
    Table,
    World,
    create,
    insert,
    random_world,
)
from oar_bench.result import Result
from oar_bench.work import work_directory
from oar_policies.parse import parse_policy
from oar_proxy.sql.parse import parse

WORLDS = [random_world(Random(n), f"fuzz_{n}") for n in range(30)]


def result(*rows, oids=(20,)):
    return Result(tuple("c" for _ in oids), oids, rows)


def test_a_run_finds_no_difference(fuzzed):
    found = fuzzed("--seed", "7", "--count", "60", "--schemas", "3", "--shrink-check")
    assert found["statements"] == 60
    assert found["equal"] + found["skipped"] + found["errors_hidden"] + found["undetermined"] == 60
    assert found["shrink_checks"] >= (len(BY_SETTING) + 1) * found["equal"]
    assert set(found["owner_kinds"]) >= {"postgres", "sqlite"}
    assert sum(found["shapes"][s][0] for s in ("one owner", "two owners", "three owners")) == 60
    assert 0 < found["rows_moved"] <= found["rows_held"] * 3
    assert found["reduced"] > 20


PORTABLE = ("postgres", "sqlite")


def test_worlds_have_owners_of_every_kind_and_types_all_publish():
    kinds = Counter(kind for world in WORLDS for kind in world.owners.values())
    assert set(kinds) == set(KINDS)
    for world in WORLDS:
        assert {"sqlite", "mariadb"} & set(world.owners.values())
        assert {"postgres", "icu"} & set(world.owners.values())
        assert 2 <= len(world.tables) <= 6
        for table in world.tables:
            for column in table.columns:
                for owner in table.held:
                    assert column.type in TYPES[world.owners[owner]][column.family]
            for row in table.rows:
                assert all(
                    cell is not None
                    for cell, c in zip(row, table.columns, strict=True)
                    if c.not_null
                )
    tables = [table for world in WORLDS for table in world.tables]
    assert any(len(table.held) > 1 for table in tables)
    assert any(not table.rows for table in tables)
    assert any(column.folds for table in tables for column in table.columns)
    drawn = random_world(Random(1), "few", PORTABLE)
    assert set(drawn.owners.values()) == set(PORTABLE)


def test_policies_are_drawn_and_can_be_read():
    grants = []
    for world in WORLDS:
        for owner, text in world.policies.items():
            policy = parse_policy(text, owner=owner, source="drawn")
            grants.append([(grant.owners, grant.max_keys) for grant in policy.key_disclosure])
    assert [] in grants
    assert any(to is not None for listed in grants for to, _ in listed)
    assert any(most == 1 for listed in grants for _, most in listed)


def test_statements_parse_and_repeat_with_their_seed():
    modes = Counter()
    for number, world in enumerate(WORLDS):
        for turn in range(20):
            case = random_case(Random(f"{number}/{turn}"), world)
            assert case == random_case(Random(f"{number}/{turn}"), world)
            (parsed,) = parse(case.sql)
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
        async with open_bed(directory, PORTABLE) as bed:
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
    from oar_proxy.hub import planreading

    wrong = planreading._REDUCIBLE | {"Left": ("Outer", "Inner"), "Right": ("Outer", "Inner")}
    monkeypatch.setattr(planreading, "_REDUCIBLE", wrong)
    with work_directory() as directory:
        tally = asyncio.run(
            fuzz(seed=5, count=120, directory=directory, examples=1, kinds=PORTABLE)
        )
    assert tally.counts["different"] >= 1
    (example,) = tally.examples
    assert len(example.case.sql) <= max(len(fault.case.sql) for fault in tally.faults)
    text = script(example)
    assert "CREATE TABLE" in text
    assert "-- reference: " in text


def test_a_script_says_everything():
    fault = Fault(KEYS, CASE, "other rows", (result(ONE),), (DIVISION,), BY_SETTING[0])
    lines = script(fault).splitlines()
    assert "-- owner small_2 (sqlite), published in schema small" in lines
    assert 'CREATE TABLE "b" ("k" INTEGER, "f" BOOLEAN);' in lines
    assert "SET oar.max_keys = 0;" in lines
    assert "-- proxy: 1 rows" in lines
    assert "-- reference: error 22012: division by zero" in lines


def test_a_file_is_written_when_its_reader_in_this_process_ends(tmp_path):
    async def write_beside_a_reader():
        async with asyncio.TaskGroup() as tasks:
            reader = sqlite3.connect(file.path, isolation_level=None)
            reader.execute("BEGIN")
            reader.execute("SELECT * FROM t")
            writer = tasks.create_task(file.run(["INSERT INTO t VALUES (2)"]))
            await asyncio.sleep(0.1)
            assert not writer.done()
            reader.close()

    file = SqliteFile(tmp_path / "owner.sqlite")
    asyncio.run(file.run(["CREATE TABLE t (a)", "INSERT INTO t VALUES (1)"]))
    asyncio.run(write_beside_a_reader())
    with closing(sqlite3.connect(file.path)) as found:
        assert found.execute("SELECT count(*) FROM t").fetchone() == (2,)


def test_tables_are_written_for_each_kind():
    table = KEYS.tables[1]
    rows = (("1", "f"), (None, None))
    assert create(table, "postgres", "s") == 'CREATE TABLE "s"."b" ("k" bigint, "f" boolean)'
    assert insert(table, rows, "sqlite") == "INSERT INTO \"b\" VALUES ('1', 0), (NULL, NULL)"
    assert insert(table, (), "postgres") is None
    folds = Table("c", (Column("s", "text", "text", folds=True),), (), {})
    binary = Table("c", (Column("s", "text", "text"),), (), {})
    assert create(folds, "sqlite") == 'CREATE TABLE "c" ("s" TEXT COLLATE NOCASE)'
    assert create(folds, "icu") == 'CREATE TABLE "c" ("s" text COLLATE ci)'
    assert create(folds, "mariadb") == 'CREATE TABLE "c" ("s" VARCHAR(60))'
    assert "nopad_bin" in create(binary, "mariadb")


def test_single_reductions_are_left_out_or_alone():
    permits = Permits()
    names = ("whole statement", "keys 1.k > 2.k", "condition on 1: (k > 5)")

    def permitted(variation):
        permits.vary("someone", variation)
        permit = permits("someone")
        assert permit is not None
        return [permit(name) for name in names]

    assert permits("someone") is None
    assert permitted(NOTHING) == [False, False, False]
    assert permits.asked("someone") == names[1:]
    assert permits("other") is None
    assert permits.asked("other") == ()
    assert permitted(Variation("without", names[1])) == [False, False, True]
    assert permitted(Variation("only", names[1])) == [False, True, False]
    permits.end("someone")
    assert permits("someone") is None


def test_a_reduction_is_left_out_also_where_the_plan_is_known():
    """EXPLAIN as the case: its answer is the plan."""
    joined = "SELECT a.k FROM a JOIN b ON a.k = b.k WHERE a.k > 2"
    explained = Case(f"EXPLAIN {joined}", "simple", frozenset())

    async def plans(directory):
        async with (
            open_bed(directory, PORTABLE) as bed,
            bed.batch([KEYS]) as batch,
            open_pair(bed, batch) as pair,
        ):
            await pair.enter(KEYS)
            await pair.ask(explained, NOTHING)
            names = pair.reductions()
            ways = [None, NOTHING, *(Variation("only", name) for name in names), None]
            answers = [await pair.ask(explained, way) for way in ways]
            return names, [b"".join(row[0] for row in answer.rows) for (answer,) in answers]

    with work_directory() as directory:
        names, (plain, nothing, *alone, again) = asyncio.run(plans(directory))
    assert plain == again
    assert sum(name.startswith("keys") for name in names) == 2
    assert sum(name.startswith("condition") for name in names) == 1
    assert b"Keys: " in plain
    assert b" > " in plain
    assert b"WHERE" not in nothing
    for name, plan in zip(names, alone, strict=True):
        assert (b"Keys: " in plan) <= name.startswith("keys")
        assert (b" > " in plan) == name.startswith("condition")


FOUR = World(
    "four",
    {"one": "postgres", "two": "mariadb"},
    tuple(
        Table(name, (Column("k", "bigint", "int"),), (), {owner: ()})
        for name, owner in (("a", "one"), ("b", "one"), ("c", "two"))
    ),
    {},
)


@pytest.mark.parametrize(
    ("sql", "named"),
    [
        ("SELECT a.k FROM a JOIN b ON a.k = b.k", {"one owner"}),
        ("SELECT a.k FROM a LEFT JOIN c ON a.k = c.k", {"two owners", "outer join"}),
        ("SELECT a.k FROM a JOIN b ON a.k = b.k JOIN c ON b.k = c.k",
         {"tables of one owner in a wider join"}),
        ("SELECT a.k FROM a, (SELECT count(*) AS n FROM c) AS q",
         {"derived table", "aggregate below", "one owner's derived table with an operator"}),
        ("SELECT a.k FROM a WHERE k = (SELECT max(c.k) FROM c WHERE c.k = a.k)",
         {"correlated scalar subquery", "aggregate below"}),
        ("SELECT a.k FROM a WHERE k NOT IN (SELECT c.k FROM c LIMIT 1)",
         {"NOT IN", "LIMIT below", "one owner's NOT IN with an operator"}),
        ("WITH q AS NOT MATERIALIZED (SELECT k FROM c GROUP BY ROLLUP (k)) "
         "SELECT 1 FROM q AS x, q AS y, a",
         {"CTE", "CTE inlined twice", "grouping sets in a CTE inlined twice"}),
        ("WITH a AS (SELECT k FROM a) SELECT k FROM a", {"one owner", "CTE named like a table"}),
        ("SELECT b.k FROM a AS b", {"alias named like a table"}),
        ("SELECT a.k, sum(c.k), min(c.k) FROM a JOIN c ON a.k = c.k GROUP BY a.k",
         {"aggregate of several owners", "aggregate of several owners, two of one column"}),
        ("SELECT count(DISTINCT c.k) FILTER (WHERE a.k > 1) FROM a FULL JOIN c ON a.k = c.k",
         {"full join", "aggregate of several owners", "aggregate of several owners, outer join",
          "aggregate of several owners, FILTER", "aggregate of several owners, DISTINCT"}),
        ("SELECT a.k FROM a JOIN a AS x ON true ORDER BY 1 LIMIT 1", {"same table twice", "top-N"}),
    ],
)  # fmt: skip
def test_shapes_have_names(sql, named):
    found = shapes(sql, FOUR)
    assert named <= found
    assert not any(name.startswith("aggregate of several") for name in found - named)


def test_a_run_ends_when_its_minutes_are_over():
    with work_directory() as directory:
        tally = asyncio.run(fuzz(seed=3, minutes=0.02, directory=directory, kinds=PORTABLE))
    assert 0 < tally.counts["statements"] < 20 * 100
    assert not tally.faults
