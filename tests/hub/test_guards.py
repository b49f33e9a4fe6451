"""Whatever reaches a published table without the proxy raises, or its answer needs no rows."""

from __future__ import annotations

import contextlib

import psycopg
import pytest

GUARDED = [
    "SELECT * FROM shop.t",
    "SELECT count(*) FROM shop.t",
    "SELECT 1 FROM shop.t WHERE id = 5",
    "SELECT * FROM t WHERE id IN (1, 2) AND name LIKE 'a%'",
    "TABLE shop.t",
    "SELECT * FROM ONLY shop.t",
    "SELECT t FROM shop.t",
    "SELECT * FROM shop.t AS a JOIN shop.u AS b USING (id)",
    "SELECT * FROM generate_series(1, 3) AS g LEFT JOIN shop.t ON t.id = g",
    "SELECT * FROM shop.t FULL JOIN shop.u USING (id)",
    "SELECT EXISTS (SELECT FROM shop.t WHERE id = 5)",
    "SELECT 1 WHERE NOT EXISTS (SELECT FROM shop.t)",
    "SELECT 1 WHERE 1 NOT IN (SELECT id FROM shop.t)",
    "SELECT (SELECT max(id) FROM shop.t)",
    "SELECT ARRAY(SELECT id FROM shop.t)",
    "SELECT * FROM generate_series(1, 2) AS g, LATERAL (SELECT * FROM shop.t WHERE id = g) AS l",
    "WITH w AS (SELECT * FROM shop.t) SELECT count(*) FROM w",
    "WITH w AS MATERIALIZED (SELECT * FROM shop.t) SELECT * FROM w LIMIT 1",
    "WITH RECURSIVE r AS (SELECT id FROM shop.t UNION SELECT id + 1 FROM r WHERE id < 3) "
    "SELECT * FROM r",
    "WITH RECURSIVE r(n) AS (SELECT 1 UNION SELECT id FROM shop.t, r WHERE id > n) SELECT * FROM r",
    "SELECT id FROM shop.t UNION SELECT 1",
    "SELECT 1 INTERSECT SELECT id FROM shop.t",
    "SELECT 1 EXCEPT SELECT id FROM shop.t",
    "VALUES ((SELECT min(id) FROM shop.t)), (2)",
    "SELECT id FROM shop.t GROUP BY ROLLUP (id) ORDER BY 1 LIMIT 1",
    "SELECT row_number() OVER (ORDER BY id) FROM shop.t",
    "COPY (SELECT * FROM shop.t) TO STDOUT",
    "BEGIN; DECLARE c CURSOR FOR SELECT * FROM shop.t; FETCH ALL FROM c",
    "DECLARE c CURSOR WITH HOLD FOR SELECT * FROM shop.t",
    "CREATE TEMP TABLE made AS SELECT * FROM shop.t",
    "CREATE TEMP TABLE made AS TABLE shop.t",
    "SELECT * INTO TEMP made FROM shop.t",
    "CREATE TEMP TABLE made (id int, name text); INSERT INTO made SELECT id, name FROM shop.t",
    "CREATE TEMP TABLE made (id int); INSERT INTO made VALUES ((SELECT max(id) FROM shop.t))",
    "CREATE TEMP TABLE made AS SELECT 1 AS id; UPDATE made SET id = 2 FROM shop.t",
    "CREATE TEMP TABLE made AS SELECT 1 AS id; DELETE FROM made USING shop.t",
    "CREATE TEMP TABLE made AS SELECT 1 AS id; MERGE INTO made USING shop.t ON t.id = made.id "
    "WHEN NOT MATCHED THEN INSERT VALUES (t.id) WHEN MATCHED THEN DELETE",
    "PREPARE p AS SELECT * FROM shop.t; EXECUTE p",
    "PREPARE p(int) AS SELECT * FROM shop.t WHERE id = $1; EXECUTE p(5)",
    "PREPARE p AS SELECT * FROM shop.t; CREATE TEMP TABLE made AS EXECUTE p",
    "EXPLAIN ANALYZE SELECT * FROM shop.t",
    "DO $$ BEGIN PERFORM * FROM shop.t; END $$",
    "DO $$ DECLARE n int; BEGIN EXECUTE 'SELECT count(*) FROM shop.t' INTO n; END $$",
    "DO $$ DECLARE r record; BEGIN FOR r IN SELECT * FROM shop.t LOOP END LOOP; END $$",
    "CREATE TEMP VIEW v AS SELECT * FROM shop.t; SELECT * FROM v",
    "CREATE FUNCTION pg_temp.f() RETURNS bigint LANGUAGE sql AS 'SELECT count(*) FROM shop.t'; "
    "SELECT pg_temp.f()",
    "CREATE FUNCTION pg_temp.f() RETURNS bigint LANGUAGE plpgsql AS "
    "'BEGIN RETURN (SELECT count(*) FROM shop.t); END'; SELECT pg_temp.f()",
    "CREATE FUNCTION pg_temp.f() RETURNS bigint LANGUAGE sql BEGIN ATOMIC "
    "SELECT count(*) FROM shop.t; END; SELECT pg_temp.f()",
    "SELECT query_to_xml('SELECT * FROM shop.t', true, false, '')",
    "BEGIN READ ONLY; SELECT * FROM shop.t",
    "BEGIN ISOLATION LEVEL SERIALIZABLE; SELECT * FROM shop.t",
    "SET enable_seqscan = off; SET plan_cache_mode = force_generic_plan; SELECT * FROM shop.t",
    "SELECT * FROM shop.t LIMIT 1 OFFSET 1",
    "SELECT oar_internal.guard('shop', 't')",
]

HARMLESS = [
    # statement, its answer (None: no result set)
    ("SELECT * FROM shop.t LIMIT 0", []),
    ("SELECT * FROM shop.t WHERE false", []),
    ("SELECT count(*) FROM shop.t WHERE 1 = 0", [(0,)]),
    ("WITH w AS (SELECT * FROM shop.t) SELECT 1", [(1,)]),
    ("CREATE TEMP TABLE made AS SELECT * FROM shop.t WITH NO DATA", None),
    ("CREATE TEMP TABLE made (LIKE shop.t)", None),
    ("PREPARE p AS SELECT * FROM shop.t", None),
    ("SELECT coalesce(1, (SELECT id FROM shop.t))", [(1,)]),
]

EMPTY_OUTER_SIDE = [
    # whether the guard is reached first is the planner's choice
    "SELECT * FROM (SELECT 1 AS g WHERE random() > 2) AS o JOIN shop.t ON t.id = g",
    "SELECT * FROM (SELECT 1 AS g WHERE random() > 2) AS o, LATERAL (TABLE shop.t) AS l",
    "SELECT 1 FROM (SELECT 1 WHERE random() > 2) AS o WHERE EXISTS (TABLE shop.t)",
]

REFUSED = [
    # statement, SQLSTATE: client roles can neither write nor leave anything behind
    ("COPY shop.t TO STDOUT", "42809"),
    ("COPY shop.t (id) TO STDOUT (FORMAT binary)", "42809"),
    ("SELECT * FROM shop.t TABLESAMPLE SYSTEM (10)", "0A000"),
    ("SELECT id FROM shop.t FOR UPDATE", "42501"),
    ("INSERT INTO shop.t VALUES (1, 'a')", "55000"),
    ("UPDATE shop.t SET id = 1", "55000"),
    ("DELETE FROM shop.t", "55000"),
    ("TRUNCATE shop.t", "42809"),
    ("BEGIN; LOCK TABLE shop.t IN ACCESS EXCLUSIVE MODE", "42501"),
    ("CREATE TABLE public.kept (id int)", "42501"),
    ("CREATE TABLE shop.kept (id int)", "42501"),
    ("CREATE TABLE oar.kept (id int)", "42501"),
    ("CREATE TABLE oar_internal.kept (id int)", "42501"),
    ("CREATE VIEW public.kept AS SELECT 1", "42501"),
    ("CREATE FUNCTION public.kept() RETURNS int LANGUAGE sql AS 'SELECT 1'", "42501"),
    ("CREATE TYPE public.kept AS (a int)", "42501"),
    ("CREATE SCHEMA kept", "42501"),
    ("CREATE EXTENSION hstore", "42501"),
    ("CREATE ROLE kept", "42501"),
    ("CREATE DATABASE kept", "42501"),
    ("CREATE MATERIALIZED VIEW public.kept AS SELECT 1 AS a", "42501"),
    ("CREATE PUBLICATION kept", "42501"),
    ("CREATE EVENT TRIGGER kept ON ddl_command_end EXECUTE FUNCTION oar_ask()", "42501"),
    ("SELECT lo_create(0)", "42501"),
    ("SELECT lo_creat(-1)", "42501"),
    ("SELECT lo_from_bytea(0, 'x')", "42501"),
    ("SELECT lo_import('/etc/passwd')", "42501"),
    ("COPY (SELECT 1) TO PROGRAM 'true'", "42501"),
    ("COPY (SELECT 1) TO '/tmp/kept'", "42501"),
    ("SELECT pg_read_file('postgresql.conf')", "42501"),
    ("ALTER SYSTEM SET work_mem = '1GB'", "42501"),
    ("ALTER DATABASE oar_x SET search_path = 'x'", "3D000"),
    ("ALTER VIEW shop.t RENAME TO u2", "42501"),
    ("DROP VIEW shop.t", "42501"),
    ("COMMENT ON VIEW shop.t IS 'mine'", "42501"),
    ("CREATE OR REPLACE VIEW shop.t AS SELECT 1 AS id, 'x'::text AS name", "42501"),
    ("SET ROLE oar_planner", "42501"),
    ("SET ROLE oar_admin", "42501"),
    ("SET SESSION AUTHORIZATION oar_admin", "42501"),
    ("SET log_min_messages = 'debug5'", "42501"),
    ("SELECT * FROM oar_internal.published", "42501"),
    ("SELECT * FROM oar_internal.version", "42501"),
    ("SELECT * FROM oar_internal.any_row() AS t(a int)", "42501"),
    ("SELECT * FROM pg_authid", "42501"),
    ("BEGIN; PREPARE TRANSACTION 'kept'", "55000"),
    ("SELECT * FROM oar_ask('x') AS t(a int)", "0A000"),
    ("SELECT * FROM oar_ask_json('x')", "0A000"),
    ("SELECT * FROM oar_ask_json(NULL)", "0A000"),
    ("SELECT * FROM oar_explain('x')", "0A000"),
]


@pytest.fixture(scope="module", autouse=True)
def published(hub, publish_now, catalog, table):
    columns = [("id", "integer", True), ("name", "text")]
    wanted = catalog(
        [
            (
                ("owner", "shop"),
                [
                    table("t", *columns, primary_key=("id",), row_estimate=1e6),
                    table("u", *columns, primary_key=("id",)),
                ],
            )
        ]
    )
    assert publish_now(wanted)
    return wanted


def run(connection, statements):
    """Run a query string as psql would, draining COPY; return the last result's rows."""
    cursor = connection.cursor()
    if statements.startswith("COPY"):
        with cursor.copy(statements) as copy:
            return list(copy)
    cursor.execute(statements)
    while cursor.nextset():
        pass
    return cursor.fetchall() if cursor.description else None


@pytest.mark.parametrize("statements", GUARDED)
def test_reaching_a_table_raises(client, statements):
    with pytest.raises(psycopg.errors.FeatureNotSupported, match="does not evaluate"):
        run(client, statements)


@pytest.mark.parametrize(("statement", "answer"), HARMLESS)
def test_an_answer_that_needs_no_rows_is_right(client, statement, answer):
    assert run(client, statement) == answer


@pytest.mark.parametrize("statement", EMPTY_OUTER_SIDE)
def test_an_empty_outer_side_is_right_or_raises(client, statement):
    with contextlib.suppress(psycopg.errors.FeatureNotSupported):
        assert run(client, statement) == []


@pytest.mark.parametrize(("statement", "sqlstate"), REFUSED)
def test_a_client_is_refused(client, statement, sqlstate):
    with pytest.raises(psycopg.Error) as caught:
        run(client, statement)
    assert caught.value.sqlstate == sqlstate


def test_the_error_names_the_table_and_says_what_to_do(client):
    with pytest.raises(psycopg.errors.FeatureNotSupported) as caught:
        client.execute("DO $$ BEGIN PERFORM * FROM shop.t; END $$")
    diagnosis = caught.value.diag
    assert diagnosis.message_primary == (
        'table "shop.t" was reached by a statement form that the proxy does not evaluate'
    )
    assert "SELECT" in diagnosis.message_hint
    client.execute("SET standard_conforming_strings = off")
    with pytest.raises(psycopg.errors.FeatureNotSupported) as caught:
        client.execute("SELECT 'it\\'s' FROM shop.t")
    assert caught.value.diag.message_hint.endswith(
        "backslashes in it need standard_conforming_strings"
    )


def test_a_client_cannot_see_planning_tables(client, published):
    name = published.tables["shop", "t"].planning_name
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        client.execute(f"SELECT * FROM oar_plan.{name}")


def test_a_client_leaves_nothing_behind(client, client_conninfo, admin):
    """Everything a client may create goes with its session."""
    owned = "SELECT count(*) FROM pg_class AS c JOIN pg_roles AS r ON r.oid = c.relowner " + (
        "WHERE NOT r.rolsuper AND r.rolname LIKE 'anna %'"
    )
    with psycopg.connect(client_conninfo, autocommit=True) as other:
        other.execute("CREATE TEMP TABLE kept (id int); CREATE TEMP VIEW v AS SELECT * FROM shop.t")
        other.execute("CREATE FUNCTION pg_temp.f() RETURNS int LANGUAGE sql AS 'SELECT 1'")
        pid = other.info.backend_pid
        assert admin.execute(owned).fetchone()[0] > 0
    while admin.execute("SELECT 1 FROM pg_stat_activity WHERE pid = %s", (pid,)).fetchone():
        pass
    assert admin.execute(owned).fetchone() == (0,)
    assert admin.execute("SELECT count(*) FROM pg_largeobject_metadata").fetchone() == (0,)


def test_functions_are_listed_for_clients(client):
    rows = client.execute(
        "SELECT p.oid::regprocedure::text, pg_get_function_result(p.oid) FROM pg_proc AS p"
        " WHERE p.pronamespace = 'public'::regnamespace ORDER BY 1"
    ).fetchall()
    assert rows == [
        ("oar_ask(text)", "SETOF record"),
        ("oar_ask_json(text)", "SETOF jsonb"),
        ("oar_explain(text)", 'TABLE("QUERY PLAN" text)'),
    ]


def test_view_definitions_come_back_qualified(client):
    client.execute("SET search_path = shop")
    client.execute("CREATE TEMP VIEW v AS SELECT t.id FROM t JOIN u USING (id)")
    (body,) = client.execute("SELECT oar_internal.view_definition('v'::regclass)").fetchone()
    assert "shop.t" in body
    assert "shop.u" in body
