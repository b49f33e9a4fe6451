"""Each statement gives, through the proxy, the rows it gives where all tables are in one place."""

from __future__ import annotations

import hashlib
from collections import Counter

import psycopg
import pytest
import structlog
from oar_adapters.interface import Batch
from oar_adapters.sqlite import SqliteSnapshot
from oar_proxy.hub.planner import Planner

STATEMENTS = [
    # joins
    "SELECT a.id, b.id FROM a JOIN b ON a.k = b.k",
    "SELECT a.id, b.id FROM a, b WHERE a.k = b.k AND a.v = 'x'",
    "SELECT a.id, b.w FROM a LEFT JOIN b ON a.k = b.k",
    "SELECT a.id, b.w FROM a RIGHT JOIN b ON a.k = b.k",
    "SELECT a.id, b.id FROM a FULL JOIN b ON a.k = b.k",
    "SELECT a.id, b.id FROM a FULL JOIN b ON a.k = b.k WHERE a.v = 'x'",
    "SELECT a.id, b.id FROM a FULL JOIN b ON a.k = b.k WHERE a.v = 'x' OR a.v IS NULL",
    "SELECT a.id, b.w FROM a LEFT JOIN b ON a.k = b.k AND b.s = 'p'",
    "SELECT a.id, b.w FROM a LEFT JOIN b ON a.k = b.k AND a.v = 'x'",
    "SELECT a.id FROM a LEFT JOIN b ON a.k = b.k WHERE b.k IS NULL",
    "SELECT a.id FROM a LEFT JOIN b ON a.k = b.k WHERE coalesce(b.w, 0) = 0",
    "SELECT a.id FROM a LEFT JOIN b ON a.k = b.k WHERE b.s IS DISTINCT FROM 'p'",
    "SELECT a.id FROM a LEFT JOIN b ON a.k = b.k WHERE NOT (b.s = 'p') IS TRUE",
    "SELECT a.id, c.u FROM a LEFT JOIN b ON a.k = b.k JOIN c ON c.k = b.k",
    "SELECT a.id, c.u FROM a LEFT JOIN (b JOIN c ON b.k = c.k) ON a.k = b.k",
    "SELECT a.id, c.u FROM a LEFT JOIN b ON a.k = b.k LEFT JOIN c ON c.k = b.k",
    "SELECT a.id FROM a, b WHERE a.k = b.k AND (b.s = 'p' OR a.v = 'y')",
    "SELECT a.id, b.id FROM a JOIN b ON a.k = b.k OR b.w = 900",
    "SELECT a.id, b.id FROM a JOIN b ON a.k = b.k / 10 * 10",
    "SELECT a.id, b.id FROM a JOIN b ON a.k < b.k",
    "SELECT count(*) FROM a, b",
    "SELECT count(*) FROM a, (SELECT 1 FROM b LIMIT 1) q",
    "SELECT * FROM a NATURAL JOIN c",
    "SELECT k, a.v, b.w FROM a FULL JOIN b USING (k) WHERE k = 10",
    "SELECT a.id, b.id FROM a JOIN b ON a.k IS NOT DISTINCT FROM b.k",
    "SELECT a.id, l.w FROM a LEFT JOIN LATERAL (SELECT w FROM b WHERE b.k = a.k "
    "ORDER BY w DESC LIMIT 1) l ON true",
    "SELECT a.id, l.n FROM a CROSS JOIN LATERAL (SELECT count(*) n FROM b WHERE b.k = a.k) l",
    "SELECT x.id, y.id FROM a x JOIN a y ON x.k = y.k JOIN b ON b.k = y.k",
    # subqueries
    "SELECT id FROM a WHERE EXISTS (SELECT 1 FROM b WHERE b.k = a.k)",
    "SELECT id FROM a WHERE k IN (SELECT k FROM b WHERE s = 'p')",
    "SELECT id, EXISTS (SELECT 1 FROM b WHERE b.k = a.k) FROM a",
    "SELECT id, k IN (SELECT k FROM b) FROM a",
    "SELECT id FROM a WHERE v = 'y' OR EXISTS (SELECT * FROM b WHERE b.k = a.k)",
    "SELECT id FROM a WHERE NOT EXISTS (SELECT 1 FROM b WHERE b.k = a.k)",
    "SELECT id FROM a WHERE k NOT IN (SELECT k FROM b)",
    "SELECT id FROM a WHERE k NOT IN (SELECT k FROM b WHERE k IS NOT NULL)",
    "SELECT id FROM a WHERE k > ALL (SELECT k FROM b)",
    "SELECT id FROM a WHERE k = ANY (SELECT k FROM b)",
    "SELECT id FROM a WHERE k > (SELECT avg(k) FROM b)",
    "SELECT id, (SELECT sum(w) FROM b WHERE b.k = a.k) FROM a",
    "SELECT id FROM a WHERE EXISTS (SELECT 1 FROM b WHERE b.w > a.id * 100)",
    "SELECT a.id, (SELECT count(*) FROM b) FROM a JOIN b USING (k)",
    "SELECT b.w * 100 / (SELECT sum(w) FROM b) FROM a JOIN b USING (k)",
    # a subquery that is written twice is one expression
    "SELECT DISTINCT ON (EXISTS (SELECT NOT EXISTS (SELECT FROM b WHERE b.k = c.k) FROM c"
    " GROUP BY NOT EXISTS (SELECT FROM b WHERE b.k = c.k))) a.id FROM a"
    " ORDER BY EXISTS (SELECT NOT EXISTS (SELECT FROM b WHERE b.k = c.k) FROM c"
    " GROUP BY NOT EXISTS (SELECT FROM b WHERE b.k = c.k)), a.id",
    "SELECT EXISTS (SELECT 1 FROM b WHERE b.k = a.k AND b.s = 'p') AS x, count(*) FROM a "
    "GROUP BY EXISTS (SELECT 1 FROM b WHERE b.k = a.k AND b.s = 'p')",
    "SELECT DISTINCT ON ((SELECT max(w) FROM b WHERE b.k = a.k)) (SELECT max(w) FROM b WHERE "
    "b.k = a.k) m FROM a JOIN c USING (k) ORDER BY (SELECT max(w) FROM b WHERE b.k = a.k)",
    "SELECT DISTINCT v, (SELECT count(*) FROM b) FROM a ORDER BY (SELECT count(*) FROM b), v",
    # sets of rows
    "SELECT a.v, count(*), sum(b.w) FROM a JOIN b USING (k) GROUP BY a.v",
    "SELECT a.id, q.n FROM a JOIN (SELECT k, sum(w) n FROM b GROUP BY k) q USING (k)",
    "SELECT a.id, q.* FROM a JOIN (SELECT s, count(*) n, min(k) k FROM b GROUP BY s) q ON q.k = a.k",
    "SELECT a.id, q.n FROM a JOIN (SELECT k, sum(w) n FROM b GROUP BY ROLLUP (k)) q USING (k)",
    "SELECT count(*) FILTER (WHERE v = 'x'), sum(CASE WHEN v = 'x' THEN 1 END), count(*) FROM a "
    "JOIN b USING (k)",
    "SELECT a.id, q.r FROM a JOIN (SELECT k, rank() OVER (ORDER BY w) r FROM b) q USING (k)",
    "SELECT a.id, q.r FROM a JOIN (SELECT k, rank() OVER (PARTITION BY k ORDER BY w) r FROM b) q "
    "USING (k)",
    "SELECT * FROM (SELECT DISTINCT ON (s) s, k FROM b ORDER BY s, k) q JOIN a USING (k)",
    "SELECT DISTINCT a.v FROM a JOIN b USING (k)",
    "SELECT a.id FROM a JOIN (SELECT * FROM b ORDER BY w DESC NULLS LAST, id LIMIT 2) q USING (k)",
    "SELECT a.id FROM a JOIN (SELECT k FROM b UNION SELECT k FROM c) q USING (k)",
    "SELECT a.id FROM a JOIN (SELECT k FROM b UNION ALL SELECT k FROM c) q USING (k)",
    "SELECT a.id FROM a JOIN (SELECT k FROM b INTERSECT SELECT k FROM c) q USING (k)",
    "SELECT k FROM b EXCEPT SELECT k FROM a",
    "SELECT k FROM a INTERSECT SELECT k FROM b",
    "WITH q AS (SELECT k, count(*) n FROM b GROUP BY k) SELECT a.id, q.n FROM a JOIN q USING (k)",
    "WITH q AS MATERIALIZED (SELECT * FROM b) SELECT a.id FROM a JOIN q USING (k) WHERE q.s = 'p'",
    "WITH q AS (SELECT * FROM b) SELECT a.id, (SELECT count(*) FROM q) FROM a JOIN q USING (k)",
    # EXPLAIN numbers the alias of what it scans twice
    "WITH q AS NOT MATERIALIZED (SELECT k, s FROM b) SELECT (SELECT count(*) FROM a JOIN q USING (k) "
    "WHERE a.v = 'x'), (SELECT count(*) FROM q WHERE s = 'p')",
    "WITH RECURSIVE r(k) AS (SELECT k FROM a WHERE id = 1 UNION SELECT b.w FROM b JOIN r ON b.k = r.k)"
    " SELECT * FROM r",
    "SELECT q.b, a.id FROM (SELECT k AS b, w AS a FROM b) q JOIN a ON q.b = a.k",
    "SELECT q.x, a.id FROM (SELECT w AS k, k AS x FROM b WHERE id < 9) q JOIN a ON q.x = a.k",
    # whole rows, columns, names
    "SELECT a::text, count(b) FROM a LEFT JOIN b USING (k) GROUP BY a",
    "SELECT to_jsonb(b) FROM a JOIN b USING (k)",
    "SELECT a.id, b.to_jsonb FROM a JOIN b USING (k)",
    "SELECT j::text FROM (a JOIN b ON a.k = b.k) AS j",
    "SELECT j.* FROM (a JOIN b USING (k)) AS j",
    "SELECT j.w, to_jsonb(j) FROM (a JOIN b USING (k)) AS j",
    "SELECT x.one FROM a AS x(one, two) JOIN b ON b.k = x.two",
    "SELECT shop.a.id FROM shop.a JOIN shop.b ON shop.a.k = shop.b.k",
    "TABLE a",
    "TABLE b ORDER BY id",
    "VALUES ((SELECT count(*) FROM a)), ((SELECT count(*) FROM b))",
    "SELECT count(*) FROM ONLY a JOIN b USING (k)",
    "SELECT d.id, d.name, count(*) FROM d JOIN b ON b.k = d.id GROUP BY d.id",
    'SELECT "o:1".id, "o:2".k FROM (SELECT k, id FROM b) AS "o:1"(k, id) JOIN (SELECT id, k FROM a) '
    'AS "o:2"(k, id) ON "o:2".id = "o:1".k',
    "WITH d AS (SELECT id FROM shop.d WHERE name LIKE 't%') SELECT d.id, count(*) FROM d JOIN b ON "
    "b.k = d.id GROUP BY d.id",
    "SELECT q.id, q.n FROM (SELECT d.id, d.name n, count(*) FROM d GROUP BY d.id, d.id) q JOIN b "
    "ON b.k = q.id",
    # one owner, an empty table, rows that are split
    "SELECT v, count(*) FROM a GROUP BY v ORDER BY v",
    "SELECT a.id, d.name FROM a JOIN d ON d.id = a.k WHERE d.name LIKE 't%'",
    "SELECT max(v), min(v), count(DISTINCT v) FROM a",
    "SELECT v FROM a WHERE v > 'X' ORDER BY v",
    "SELECT s, count(*), sum(w) FROM b GROUP BY s",
    "SELECT avg(w), max(s), min(s) FROM b WHERE s <> 'q'",
    "SELECT count(*) FROM a JOIN empty USING (k)",
    "SELECT a.id FROM a LEFT JOIN empty e USING (k)",
    "SELECT count(*), max(id) FROM split",
    "SELECT a.id, split.t FROM a JOIN split USING (k)",
    "SELECT split.id, b.w FROM split LEFT JOIN b USING (k)",
    "SELECT id FROM split WHERE NOT EXISTS (SELECT 1 FROM a WHERE a.k = split.k)",
    # hub tables and views beside published ones
    "SELECT h.id, a.v FROM hub_table h JOIN a USING (k)",
    "SELECT h.id, b.w FROM hub_table h LEFT JOIN b USING (k)",
    "SELECT * FROM kept WHERE w > 100",
    "SELECT count(*) FROM kept JOIN c ON c.id = kept.id",
    # nothing to read
    "SELECT * FROM a JOIN b USING (k) LIMIT 0",
    "SELECT count(*) FROM a JOIN b USING (k) WHERE false",
    "SELECT a.id FROM a LEFT JOIN d ON d.id = a.k",
    "SELECT 1 WHERE EXISTS (SELECT FROM b)",
]


def on_merged(statement: str) -> str:
    return statement.replace("shop.", "")


def described(cursor):
    return [(c.name, c.type_code) for c in cursor.description]


@pytest.mark.parametrize("statement", STATEMENTS)
def test_rows_equal_those_of_the_merged_tables(client, merged, statement):
    expected = merged.execute(on_merged(statement))
    actual = client.execute(statement)
    assert described(actual) == described(expected)
    assert Counter(map(repr, actual.fetchall())) == Counter(map(repr, expected.fetchall()))


@pytest.mark.parametrize("statement", STATEMENTS)
def test_rows_are_the_same_with_binary_results_under_repeatable_read(line, merged, statement):
    expected = merged.execute(on_merged(statement), binary=True).fetchall()
    with psycopg.connect(line.dsn) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.read_only = True
        actual = connection.execute(statement, binary=True).fetchall()
    assert Counter(map(repr, actual)) == Counter(map(repr, expected))


@pytest.mark.parametrize("statement", STATEMENTS)
def test_rows_are_the_same_when_reduced_in_full(line, merged, statement):
    expected = merged.execute(on_merged(statement)).fetchall()
    with psycopg.connect(line.dsn, autocommit=True) as client:
        client.execute("SET oar.reduction = 'full'")
        actual = client.execute(statement).fetchall()
    assert Counter(map(repr, actual)) == Counter(map(repr, expected))


@pytest.mark.parametrize("prepare", [False, True])
@pytest.mark.parametrize(
    "statement",
    [
        "SELECT a FROM a",
        "SELECT x, b FROM a x LEFT JOIN b USING (k)",
        "SELECT x, p FROM a x(p, q)",
        "SELECT to_jsonb(v), v FROM a v(p, q, r)",
        "SELECT row_to_json(x), (x).*, (x).v, x.row_to_json, pg_typeof(x.*) FROM a x",
        "SELECT DISTINCT split FROM split WHERE split IS NOT NULL",
        "SELECT array_agg(e), count((e.*)) FROM empty e",
        "WITH q AS (SELECT d FROM d) SELECT (q.d).name FROM q",
        "SELECT x.one, x FROM (SELECT a AS one, d FROM a JOIN d ON d.id = a.k) x",
    ],
)
def test_a_row_as_a_value_has_its_tables_type(client, merged, statement, prepare):
    expected = merged.execute(statement).fetchall()
    actual = client.execute(statement, prepare=prepare).fetchall()
    assert Counter(map(repr, actual)) == Counter(map(repr, expected))


def test_a_table_of_rows_as_values(client, merged):
    for connection in (client, merged):
        connection.execute("CREATE TEMPORARY TABLE taken AS SELECT x, id FROM a x")
    statement = "SELECT taken.x, (taken.x).v, w FROM taken JOIN b ON (taken.x).k = b.k"
    expected = merged.execute(statement).fetchall()
    assert Counter(client.execute(statement).fetchall()) == Counter(expected)
    for connection in (client, merged):
        connection.execute("DROP TABLE taken")


def test_an_order_is_kept(client, merged):
    statement = (
        "SELECT v, a.id FROM a JOIN d ON true ORDER BY v DESC NULLS LAST, a.id, name LIMIT 7"
    )
    assert client.execute(statement).fetchall() == merged.execute(statement).fetchall()


@pytest.mark.parametrize("value", [10, 50, 99, None])
def test_parameters_reach_the_owners_as_values(client, merged, value):
    statement = (
        "SELECT a.id, b.w, %s::bigint FROM a JOIN b ON a.k = b.k WHERE b.k = %s AND b.s <> %s"
    )
    arguments = (value, value, "q")
    expected = merged.execute(statement, arguments).fetchall()
    for prepare in (False, True, True):
        assert client.execute(statement, arguments, prepare=prepare).fetchall() == expected


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT id FROM shop.d WHERE EXISTS (SELECT FROM shop.a AS d WHERE d.id = shop.d.id)",
        "WITH d AS (SELECT 1 AS id) SELECT shop.d.id FROM shop.d WHERE shop.d.id IN "
        "(SELECT d.id FROM d WHERE shop.d.id > 0)",
        "SELECT shop.d.id FROM shop.d, LATERAL (SELECT d.x + shop.d.id FROM (VALUES (7)) d(x)) q",
    ],
)
def test_a_schema_before_a_column_that_tells_two_of_a_name_apart_is_refused(client, statement):
    """The rows come under an alias, which has no schema."""
    with pytest.raises(psycopg.errors.FeatureNotSupported) as caught:
        client.execute(statement)
    assert '"shop.d"' in str(caught.value)
    assert "alias" in caught.value.diag.message_hint


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT shop.d.id FROM shop.d WHERE EXISTS (SELECT FROM shop.a x WHERE x.k = shop.d.id)",
        "SELECT shop.d.id FROM shop.d UNION ALL SELECT shop.d.id FROM shop.d WHERE shop.d.id > 10",
        "SELECT shop.d.name FROM d, shop.b WHERE shop.b.k = shop.d.id",
    ],
)
def test_a_schema_before_a_column_is_understood(client, merged, statement):
    wanted = merged.execute(statement.replace("shop.", ""))
    assert Counter(client.execute(statement).fetchall()) == Counter(wanted.fetchall())


@pytest.mark.parametrize(
    "statement", ["SELECT count(*) FROM a", "SELECT * FROM a JOIN b USING (k)"]
)
def test_a_fault_of_the_proxy_is_on_the_ledger(client, monkeypatch, statement):
    def fault(*_):
        raise ZeroDivisionError("a row")

    with monkeypatch.context() as patched:
        patched.setattr("oar_proxy.rows.Rows.add", fault)
        with pytest.raises(psycopg.errors.InternalError_) as refused:
            client.execute(statement)
    assert "a row" not in str(refused.value)
    latest = "SELECT sqlstate FROM oar.asks ORDER BY at DESC LIMIT 1"
    assert client.execute(latest).fetchone() == ("XX000",)
    assert client.execute(statement).fetchone() is not None


@pytest.mark.parametrize(
    "statement", ["SELECT * FROM b", "SELECT count(*) FROM a JOIN b USING (k)"]
)
@pytest.mark.parametrize(
    "mangled",
    [
        lambda batch: (*batch.columns[:-1], batch.columns[-1][:-1]),
        lambda batch: (*batch.columns[:-1], [*batch.columns[-1], None]),
        lambda batch: batch.columns[:-1],
        lambda batch: (*batch.columns, batch.columns[0]),
    ],
    ids=["a cell less", "a cell more", "a column less", "a column more"],
)
def test_an_adapter_that_sends_no_rows_but_something_is_found_out(
    client, monkeypatch, statement, mangled
):
    sent = SqliteSnapshot.run

    async def run(snapshot, query):
        async for batch in sent(snapshot, query):
            yield Batch(mangled(batch), batch.rows)

    with monkeypatch.context() as patched:
        patched.setattr(SqliteSnapshot, "run", run)
        with pytest.raises(psycopg.errors.FdwError, match="owner south sent columns that do not"):
            client.execute(statement)
    assert client.execute(statement).fetchone() is not None


def test_comments_that_tools_add_make_no_new_plan(client, monkeypatch):
    """And what a comment says about who asks goes no further; the ledger knows the client's text."""
    planned = []
    explain = Planner.explain

    async def counted(self, statement, settings=None):
        planned.append(statement)
        return await explain(self, statement, settings)

    monkeypatch.setattr(Planner, "explain", counted)
    said = "SELECT a.id, '/* no -- comment */' FROM a JOIN b ON a.k = b.k /* {} */ WHERE b.w > 150 -- {}"
    texts = [said.format(f"user {n}", f"asked for by dashboard {7 * n}") for n in (1, 2)]
    answers = [Counter(client.execute(text).fetchall()) for text in texts]
    assert answers[0] == answers[1] != Counter()
    assert len(planned) == 1
    assert "user" not in planned[0]
    ledger = "SELECT statement FROM oar.asks ORDER BY at DESC LIMIT 2"
    wanted = {(hashlib.sha256(text.encode()).hexdigest(),) for text in texts}
    assert set(client.execute(ledger).fetchall()) == wanted


@pytest.mark.parametrize(
    ("cursor_class", "before"),
    [
        (psycopg.ClientCursor, "SELECT /* é comment */ "),
        (psycopg.ClientCursor, "SELECT 1; -- é\n SELECT "),
        (psycopg.ClientCursor, "TABLE d; SELECT id, "),
        (psycopg.ClientCursor, "/* SELECT nothing FROM a /* another */ */ SELECT "),
        (psycopg.ClientCursor, "SELECT 1; -- SELECT nothing FROM a /* another */\n SELECT "),
        (psycopg.RawCursor, "/* é comment */ SELECT $1::int, "),
        (psycopg.RawCursor, "SELECT $1::int, /* é comment */ "),
    ],
)
def test_an_error_is_where_it_is_in_what_the_client_sent(client, cursor_class, before):
    parameters = (1,) if "$1" in before else None
    with pytest.raises(psycopg.errors.UndefinedColumn) as caught:
        cursor_class(client).execute(f"{before}nothing FROM a /* another */", parameters)
    assert caught.value.diag.statement_position == str(len(before) + 1)


def test_the_log_has_the_sqlstate_that_the_client_was_told(line):
    with (
        structlog.testing.capture_logs() as log,
        psycopg.connect(line.dsn, autocommit=True) as client,
    ):
        for told, statement in (
            (psycopg.errors.UndefinedColumn, "SELECT nonesuch FROM shop.a"),
            (psycopg.errors.DatatypeMismatch, "SELECT 1 FROM shop.a WHERE id"),
            (psycopg.errors.DivisionByZero, "SELECT 1 / 0 FROM shop.a"),
        ):
            with pytest.raises(told):
                client.execute(statement)
    logged = [line["sqlstate"] for line in log if line.get("protocol") == "simple"]
    assert logged == ["42703", "42804", "22012"]
