"""The merged tables, and when an answer is one they give."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from functools import partial

import psycopg
import pytest
from oar_bench.compare import Verdict, compare
from oar_bench.layout import BenchmarkError, Question, find_benchmarks
from oar_bench.reference import Reference, gold_statement, judge
from oar_bench.result import Result, leftover


def on_reference(postgres, benchmark_directory, body, *, keys=True):
    """Run ``body(reference)`` over the merged ``Shop`` in a database of its own."""

    async def run():
        (benchmark,) = find_benchmarks(benchmark_directory)
        connect = partial(psycopg.AsyncConnection.connect, postgres, autocommit=True)
        async with await connect(dbname="postgres") as admin:
            await admin.execute("DROP DATABASE IF EXISTS merged")
            await admin.execute("CREATE DATABASE merged")
        async with await connect(dbname="merged") as connection:
            reference = Reference(connection)
            await reference.load(benchmark.organisations["Shop"], keys=keys)
            return await body(reference)

    return asyncio.run(run())


def test_rows_of_a_split_table_are_merged_with_the_published_types(postgres, benchmark_directory):
    async def body(reference):
        song = await reference.run("Shop", "SELECT * FROM song")
        order = await reference.run("Shop", 'SELECT * FROM "order"')
        return song, order

    song, order = on_reference(postgres, benchmark_directory, body)
    assert (song.names, song.oids) == (("id", "title", "sales"), (20, 25, 701))
    assert Counter(song.rows) == Counter(
        [
            (b"1", b"a", b"0.1"),
            (b"2", b"b", b"0.2"),
            (b"3", None, None),
            (b"4", b"d", b"0.3"),
            (b"5", b"b", b"0.2"),
        ]
    )
    assert order.oids == (20, 20, 1082)
    assert order.rows[0] == (b"1", b"1", b"2024-02-29")


def test_declared_keys_where_they_hold(postgres, benchmark_directory):
    by_key = 'SELECT song_id FROM "order" GROUP BY id'
    by_broken_key = "SELECT name FROM label GROUP BY code"

    async def body(reference):
        for statement in (by_key, by_broken_key):
            try:
                await reference.run("Shop", statement)
            except psycopg.errors.GroupingError:
                yield_.append("refused")
            else:
                yield_.append("accepted")

    yield_: list[str] = []
    on_reference(postgres, benchmark_directory, body)
    on_reference(postgres, benchmark_directory, body, keys=False)
    assert yield_ == ["accepted", "refused", "refused", "refused"]


@pytest.mark.parametrize("statement", ["SELECT 1; SELECT 2", "SET a.b = 1", "", "SELECT nothing"])
def test_only_one_query_is_accepted(postgres, benchmark_directory, statement):
    async def body(reference):
        with pytest.raises(psycopg.ProgrammingError):
            await reference.run("Shop", statement)
        return await reference.run("Shop", "SELECT 3;")

    assert on_reference(postgres, benchmark_directory, body).rows == ((b"3",),)


def test_columns_that_do_not_merge(postgres, benchmark_directory):
    import sqlite3
    from contextlib import closing

    file = benchmark_directory / "orgs" / "Shop" / "cassie.sqlite"
    with closing(sqlite3.connect(file)) as database, database:
        database.execute('ALTER TABLE "Song" ADD COLUMN extra TEXT')
    with pytest.raises(BenchmarkError, match="owners of song differ in its columns"):
        on_reference(postgres, benchmark_directory, None)


@pytest.mark.parametrize(
    ("question", "statement"),
    [
        (Question("1", "o", gold_sql="SELECT IIF(a, 1, 2) FROM `t`"),
         'SELECT CASE WHEN a THEN 1 ELSE 2 END FROM "t"'),
        (Question("1", "o", gold_sql="SELECT 1", gold_sql_postgres="SELECT 2"), "SELECT 2"),
        (Question("1", "o"), None),
        (Question("1", "o", gold_sql="not a statement at all ("), None),
        (Question("1", "o", gold_sql="SELECT 1; SELECT 2"), None),
    ],
)  # fmt: skip
def test_gold_statement(question, statement):
    assert gold_statement(question) == statement


BY_SALES = "SELECT title, sales FROM song ORDER BY sales"
A, B, D, N = (b"a", b"0.1"), (b"b", b"0.2"), (b"d", b"0.3"), (None, None)
TOP = "SELECT id FROM song ORDER BY sales DESC NULLS LAST LIMIT 2"
PAGE = "SELECT id FROM song ORDER BY sales DESC NULLS LAST LIMIT 2 OFFSET 2"
EQUAL, TIES, DIFFERENT = Verdict.EQUAL, Verdict.EQUAL_WITH_TIES, Verdict.DIFFERENT


def ids(*numbers):
    return [(str(number).encode(),) for number in numbers]


@pytest.mark.parametrize(
    ("statement", "rows", "verdict"),
    [
        # No order asked for: a multiset.
        ("SELECT id FROM song", ids(5, 4, 3, 2, 1), EQUAL),
        ("SELECT id FROM song", ids(5, 4, 3, 2, 2), DIFFERENT),
        ("SELECT id FROM song", ids(5, 4, 3, 2), DIFFERENT),
        # Order asked for: only rows that tie may change places.
        (BY_SALES, [A, B, B, D, N], EQUAL),
        (BY_SALES, [B, A, B, D, N], DIFFERENT),
        ("SELECT id FROM song ORDER BY sales", ids(1, 5, 2, 4, 3), TIES),
        ("SELECT id FROM song ORDER BY sales", ids(1, 2, 4, 5, 3), DIFFERENT),
        ("SELECT DISTINCT title FROM song ORDER BY 1", [(b"a",), (b"d",), (b"b",), (None,)],
         DIFFERENT),
        # LIMIT: any of the rows that tie at the cut.
        (TOP, ids(4, 2), TIES),
        (TOP, ids(4, 5), TIES),
        (TOP, ids(2, 4), DIFFERENT),
        (TOP, ids(4, 1), DIFFERENT),
        (TOP, ids(4, 4), DIFFERENT),
        (PAGE, ids(5, 1), TIES),
        (PAGE, ids(2, 1), TIES),
        (PAGE, ids(1, 2), DIFFERENT),
        # LIMIT without an order: any rows.
        ("SELECT id FROM song LIMIT 2", ids(5, 1), TIES),
        ("SELECT id FROM song LIMIT 2", ids(5, 6), DIFFERENT),
        ("SELECT id FROM song LIMIT 2", ids(5, 5), DIFFERENT),
        # Floats of aggregates may differ in the last digits, stored ones may not.
        ("SELECT sum(sales) FROM song", [(b"0.7999999999999999",)], EQUAL),
        ("SELECT sum(sales) FROM song", [(b"0.80001",)], DIFFERENT),
        ("SELECT sum(sales) FROM song", [(None,)], DIFFERENT),
        ("SELECT sales FROM song WHERE id = 4", [(b"0.29999999999999999",)], DIFFERENT),
        ("SELECT title, sum(sales) FROM song WHERE sales > 0.1 GROUP BY 1 ORDER BY 2 DESC",
         [(b"b", b"0.4"), (b"d", b"0.30000000000000004")], EQUAL),
    ],
)  # fmt: skip
def test_compare(postgres, benchmark_directory, statement, rows, verdict):
    async def body(reference):
        want = await reference.run("Shop", statement)
        got = replace(want, rows=tuple(rows))
        found = await compare(statement, got, want, partial(reference.run, "Shop"))
        if got.rows == want.rows:
            return verdict if found.verdict is EQUAL else found.verdict
        return found.verdict

    assert on_reference(postgres, benchmark_directory, body) is verdict


def test_other_types_are_another_answer(postgres, benchmark_directory):
    async def body(reference):
        want = await reference.run("Shop", "SELECT id FROM song")
        got = replace(want, oids=(23,))
        return await compare("SELECT id FROM song", got, want, partial(reference.run, "Shop"))

    comparison = on_reference(postgres, benchmark_directory, body)
    assert (comparison.verdict, comparison.why) == (DIFFERENT, "other columns or types")


@pytest.mark.parametrize(
    ("statement", "rows", "verdict"),
    [
        # Song 2 and song 5 tie inside: counting them gives one answer, naming them two.
        ("SELECT (SELECT id FROM song ORDER BY sales = 0.2 DESC NULLS LAST LIMIT 1)", 2, TIES),
        ("SELECT (SELECT id FROM song ORDER BY sales = 0.2 DESC NULLS LAST LIMIT 1)", 5, TIES),
        ("SELECT (SELECT id FROM song ORDER BY sales = 0.2 DESC NULLS LAST LIMIT 1)", 4, DIFFERENT),
        ("SELECT max(id) FROM song", 4, DIFFERENT),
    ],
)
def test_judge(postgres, benchmark_directory, statement, rows, verdict):
    async def body(reference):
        want = await reference.run("Shop", statement)
        got = replace(want, rows=tuple(ids(rows)))
        found = await judge(reference, "Shop", statement, got, want)
        again = await reference.run("Shop", "SELECT count(*) FROM song")
        return found.verdict, got.rows == want.rows, again.rows

    found, same, rows_left = on_reference(postgres, benchmark_directory, body)
    assert found is (EQUAL if same else verdict)
    assert rows_left == ((b"5",),)


@pytest.mark.parametrize(
    ("pool", "rows", "loose", "left"),
    [
        ([(b"1",), (b"1",)], [(b"1",)], (), [(b"1",)]),
        ([(b"1",)], [(b"1",), (b"1",)], (), None),
        ([(b"1", b"0.3")], [(b"1", b"0.30000000000000004")], (), None),
        ([(b"1", b"0.3")], [(b"1", b"0.30000000000000004")], (1,), []),
        ([(b"1", b"0.3")], [(b"2", b"0.3")], (1,), None),
        ([(b"NaN",)], [(b"NaN",)], (0,), []),
        ([(None,)], [(b"0",)], (0,), None),
        # An exact match is never taken by a close one.
        ([(b"0.3",), (b"0.30000000000000004",)], [(b"0.30000000000000004",), (b"0.3",)], (0,), []),
    ],
)
def test_leftover(pool, rows, loose, left):
    assert leftover(pool, rows, frozenset(loose)) == left


def test_float_columns():
    assert Result(("a", "b"), (20, 701), ()).float_columns == {1}
