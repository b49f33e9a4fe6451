"""Every way a statement can carry a published table gives the right rows or an error.

None ends in an empty success (what an empty stand-in table would give).
"""

from __future__ import annotations

import asyncio

import asyncpg
import psycopg
import psycopg.conninfo
import psycopg.types.numeric
import pytest
from oar_adapters.interface import OwnerError, OwnerErrorKind
from oar_proxy.snapshots import owner_fault

JOIN = "SELECT a.id, b.w FROM shop.a JOIN shop.b USING (k) ORDER BY 1, 2"
GROUPED = "SELECT d.id, d.name FROM shop.d JOIN shop.b ON b.k = d.id GROUP BY d.id ORDER BY 1"
ROWS = [(1, 100), (1, 200), (4, 100), (4, 200), (5, 900), (6, None)]

CARRIERS = {
    "select": [JOIN],
    "batch, second": ["SET oar.progress = off; " + JOIN],
    "batch in a transaction": ["BEGIN; " + JOIN + "; COMMIT"],
    "comment before": ["/* report */ -- one\n" + JOIN + " -- two"],
    "with": [f"WITH q AS ({JOIN}) SELECT * FROM q ORDER BY 1, 2"],
    "with, used twice": [f"WITH q AS ({JOIN}) SELECT q.* FROM q WHERE id IN (SELECT id FROM q) ORDER BY 1, 2"],
    "with recursive": [f"WITH RECURSIVE q AS ({JOIN}) SELECT * FROM q ORDER BY 1, 2"],
    "derived table": [f"SELECT * FROM ({JOIN}) AS q ORDER BY 1, 2"],
    "quoted names": ['SELECT "a"."id", b.w FROM "shop"."a" JOIN shop."b" USING ("k") ORDER BY 1, 2'],
    "search path": ["SET search_path = shop", JOIN.replace("shop.", "")],
    "unicode escape": ['SELECT a.id, b.w FROM shop.U&"\\0061" JOIN shop.b USING (k) ORDER BY 1, 2'],
    "upper case": ["SELECT A.ID, B.W FROM SHOP.A JOIN SHOP.B USING (K) ORDER BY 1, 2"],
    "only": [JOIN.replace("FROM shop.a", "FROM ONLY shop.a")],
    "star suffix": [JOIN.replace("shop.b", "shop.b *")],
    "parenthesised": [f"({JOIN})"],
    "set operation": [f"SELECT * FROM ({JOIN}) q UNION ALL SELECT 1, 2 WHERE false ORDER BY 1, 2"],
    "lateral": ["SELECT a.id, q.w FROM shop.a, LATERAL (SELECT w FROM shop.b WHERE b.k = a.k) q ORDER BY 1, 2"],
    "scalar subquery in a target list": ["SELECT a.id, b.w FROM (SELECT id, k FROM shop.a) a JOIN shop.b USING (k) WHERE (SELECT count(*) FROM shop.c) = 4 ORDER BY 1, 2"],
    "cursor": ["BEGIN", f"DECLARE c CURSOR FOR {JOIN}", "FETCH ALL FROM c"],
    "cursor with hold": [f"DECLARE c CURSOR WITH HOLD FOR {JOIN}", "FETCH ALL FROM c"],
    "scroll cursor in a read-only transaction": ["BEGIN READ ONLY ISOLATION LEVEL REPEATABLE READ", f"DECLARE c SCROLL CURSOR FOR {JOIN}", "FETCH ALL FROM c"],
    "cursor quoted as Tableau does": [f'DECLARE "SQL_CUR0x7f" CURSOR WITH HOLD FOR {JOIN}', 'FETCH 2048 IN "SQL_CUR0x7f"'],
    "create temp table as": [f"CREATE TEMP TABLE q AS {JOIN}", "SELECT * FROM q ORDER BY 1, 2"],
    "create temp table as, with data": [f"CREATE TEMP TABLE q AS ({JOIN}) WITH DATA", "SELECT * FROM q ORDER BY 1, 2"],
    "select into": [JOIN.replace(" FROM shop.a", " INTO TEMP q FROM shop.a"), "SELECT * FROM q ORDER BY 1, 2"],
    "create temp view": [f"CREATE TEMP VIEW q AS {JOIN}", "SELECT * FROM q ORDER BY 1, 2"],
    "view on a view": [f"CREATE TEMP VIEW q AS {JOIN}", "CREATE TEMP VIEW r AS SELECT * FROM q", "SELECT * FROM r ORDER BY 1, 2"],
    "insert": ["CREATE TEMP TABLE q (id bigint, w bigint)", f"INSERT INTO q {JOIN}", "SELECT * FROM q ORDER BY 1, 2"],
    "insert, returning": ["CREATE TEMP TABLE q (id bigint, w bigint)", f"WITH n AS (INSERT INTO q {JOIN} RETURNING *) SELECT * FROM n ORDER BY 1, 2"],
    "update from": ["CREATE TEMP TABLE q AS SELECT * FROM (VALUES (1::bigint, 0::bigint)) v(id, w)", "UPDATE q SET w = s.n FROM (SELECT a.id, sum(b.w) n FROM shop.a JOIN shop.b USING (k) GROUP BY 1) s WHERE s.id = q.id", "SELECT id, w FROM q"],
    "delete using": ["CREATE TEMP TABLE q AS SELECT * FROM (VALUES (1::bigint, 1::bigint), (3, 3)) v(id, w)", "DELETE FROM q USING shop.a, shop.b WHERE a.k = b.k AND a.id = q.id", "SELECT * FROM q"],
    "merge": ["CREATE TEMP TABLE q (id bigint, w bigint)", f"MERGE INTO q USING ({JOIN}) s ON s.id = q.id WHEN NOT MATCHED THEN INSERT VALUES (s.id, s.w)", "SELECT * FROM q ORDER BY 1, 2"],
    "prepare": [f"PREPARE p AS {JOIN}", "EXECUTE p"],
    "prepare with a parameter": ["PREPARE p(bigint, text) AS SELECT a.id, b.w FROM shop.a JOIN shop.b USING (k) WHERE $1 < 5 OR a.v = $2 ORDER BY 1, 2", "EXECUTE p(2 + 1, 'none')"],
    "execute with arguments that nothing takes": [f"PREPARE p AS {JOIN}", "EXECUTE p(1, 'two')"],
    "execute with a float of more digits than are shown": ["SET extra_float_digits = 0", "PREPARE p(float8) AS SELECT a.id, b.w FROM shop.a JOIN shop.b USING (k) WHERE $1 = 0.1::float8 + 0.2::float8 ORDER BY 1, 2", "EXECUTE p(0.1::float8 + 0.2::float8)"],
    "prepare, grouped by a key": [f"PREPARE p AS {GROUPED}", "EXECUTE p"],
    "temp view, grouped by a key": [f"CREATE TEMP VIEW q AS {GROUPED}", "SELECT * FROM q ORDER BY 1"],
    "create table as execute": [f"PREPARE p AS {JOIN}", "CREATE TEMP TABLE q AS EXECUTE p", "SELECT * FROM q ORDER BY 1, 2"],
    "values": ["SELECT * FROM (VALUES (1)) v(x) CROSS JOIN LATERAL (" + JOIN + ") q ORDER BY 2, 3"],
    "natural join with a hub table": ["SELECT h.id FROM hub_table h NATURAL JOIN shop.a ORDER BY 1"],
    "after a savepoint": ["BEGIN", "SAVEPOINT s", JOIN],
    "after an error and a rollback to a savepoint": ["BEGIN", "SAVEPOINT s", "!SELECT 1 / 0", "ROLLBACK TO s", JOIN],
}  # fmt: skip
EXPECTED = {
    "prepare, grouped by a key": [(10, "ten"), (50, "fifty")],
    "temp view, grouped by a key": [(10, "ten"), (50, "fifty")],
    "update from": [(1, 300)],
    "delete using": [(3, 3)],
    "values": [(1, *row) for row in ROWS],
    "natural join with a hub table": [(1,)],
}

REFUSED = {
    "do": ("DO $$ BEGIN PERFORM count(*) FROM shop.a; END $$", "0A000"),
    "temporary function": ("CREATE FUNCTION pg_temp.f() RETURNS bigint LANGUAGE sql AS 'SELECT count(*) FROM shop.a'; SELECT pg_temp.f()", "0A000"),
    "plpgsql function": ("CREATE FUNCTION pg_temp.g() RETURNS bigint LANGUAGE plpgsql AS 'BEGIN RETURN (SELECT count(*) FROM shop.a); END'; SELECT pg_temp.g()", "0A000"),
    "query_to_xml": ("SELECT query_to_xml('SELECT * FROM shop.a', true, false, '')", "0A000"),
    "copy of the view": ("COPY shop.a TO STDOUT", "42809"),
    "copy into": ("COPY shop.a FROM STDIN", "42501"),
    "insert into": ("INSERT INTO shop.a VALUES (1)", "25006"),
    "update": ("UPDATE shop.a SET v = 'z'", "25006"),
    "delete": ("DELETE FROM shop.a", "25006"),
    "merge into": ("MERGE INTO shop.a USING shop.b ON a.k = b.k WHEN MATCHED THEN DELETE", "25006"),
    "truncate": ("TRUNCATE shop.a", "42809"),
    "lock rows": ("SELECT * FROM shop.a FOR UPDATE", "0A000"),
    "system column": ("SELECT ctid FROM shop.a", "42703"),
    "sample": ("SELECT * FROM shop.a TABLESAMPLE system (50)", "0A000"),
    "planning table": ("SELECT * FROM oar_plan.t1", "42501"),
    "missing table": ("SELECT * FROM shop.nothing", "42P01"),
    "missing column": ("SELECT nothing FROM shop.a", "42703"),
    "question as a parameter": ("SELECT * FROM oar_ask($1)", "0A000"),
    "question in an expression": ("SELECT 1 + oar_ask('how many a')", "0A000"),
    "division by zero at an owner": ("SELECT 1 / (k - 10) FROM shop.a", "22012"),
    "number out of range at an owner": ("SELECT (k * 1000)::smallint FROM shop.a", "22003"),
    "more rows than one at an owner": ("SELECT id, (SELECT a.k FROM shop.a) FROM shop.a", "21000"),
    "explain analyze of a write": ("CREATE TEMP TABLE w (id bigint); EXPLAIN ANALYZE INSERT INTO w SELECT id FROM shop.a", "0A000"),
    "explain analyze of a new table": ("EXPLAIN ANALYZE CREATE TEMP TABLE w AS SELECT id FROM shop.a", "0A000"),
    "nested too deeply": ("SELECT " + "+".join(["id"] * 3000) + " FROM shop.a", "0A000"),
    "index": ("CREATE INDEX ON shop.a (id)", "42501"),
    "permanent table": ("CREATE TABLE public.keep AS SELECT * FROM shop.a", "42501"),
    "materialized view": ("CREATE MATERIALIZED VIEW keep AS SELECT * FROM shop.a", "0A000"),
    "plan of a missing table": ("SELECT * FROM oar_explain('SELECT * FROM nothing')", "42P01"),
    "plan of a missing column": ("SELECT * FROM oar_explain('SELECT nothing FROM hub_table')", "42703"),
    "a setting that is none": ("SET oar.max_key = 10", "42602"),
    "a setting that is none, for a session": ("SELECT 1; SET SESSION oar . purposes TO 'x'", "42602"),
    "plan of two statements": ("SELECT * FROM oar_explain('SELECT * FROM shop.a; DROP TABLE x')", "0A000"),
    "plan with a parameter": ("SELECT * FROM oar_explain('SELECT $1 FROM shop.a')", "42P02"),
    "permanent view": ("CREATE VIEW public.keep AS SELECT * FROM shop.a", "42501"),
    "guard function": ("SELECT * FROM oar_internal.guard('shop', 'a') AS t(id bigint)", "0A000"),
}  # fmt: skip


def run(connection, statements):
    rows = None
    for statement in statements:
        if statement.startswith("!"):
            with pytest.raises(psycopg.Error):
                connection.execute(statement[1:])
            continue
        cursor = connection.execute(statement)
        while cursor.nextset():
            if cursor.description is not None:
                break
        rows = cursor.fetchall() if cursor.description is not None else None
    return rows


@pytest.mark.parametrize("name", CARRIERS)
def test_a_carrier_gives_the_right_rows(client, name):
    assert run(client, CARRIERS[name]) == EXPECTED.get(name, ROWS)


@pytest.mark.parametrize(
    "name", [n for n, said in CARRIERS.items() if not any(";" in s or s[0] == "!" for s in said)]
)
def test_a_carrier_works_as_a_prepared_statement(client, name):
    rows = None
    for statement in CARRIERS[name]:
        cursor = client.execute(statement, prepare=True)
        rows = cursor.fetchall() if cursor.description is not None else None
    expected = EXPECTED.get(name, ROWS)
    assert rows == expected


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_meaning_is_refused(client, name):
    statement, sqlstate = REFUSED[name]
    with pytest.raises(psycopg.Error) as failure:
        client.execute(statement)
    assert failure.value.sqlstate == sqlstate
    assert client.execute("SELECT count(*) FROM shop.a").fetchone() == (6,)


@pytest.mark.parametrize("options", ["", " (FORMAT csv, HEADER)", " WITH (FORMAT binary)"])
def test_copy_of_a_join_equals_the_merged_tables(client, merged, options):
    statement = f"COPY ({JOIN}) TO STDOUT{options}"
    with client.cursor().copy(statement) as copied:
        actual = b"".join(copied)
    with merged.cursor().copy(statement.replace("shop.", "")) as copied:
        expected = b"".join(copied)
    assert actual == expected
    assert actual


def test_copy_keeps_every_type(client, merged):
    statement = "COPY (SELECT v, k::numeric, now() > 'epoch' FROM shop.a ORDER BY id) TO STDOUT"
    with client.cursor().copy(statement) as copied:
        actual = b"".join(copied)
    with merged.cursor().copy(statement.replace("shop.", "")) as copied:
        assert actual == b"".join(copied)


def test_explain_asks_no_owner_and_analyze_does(client):
    plan = [line for (line,) in client.execute(f"EXPLAIN {JOIN}")]
    assert plan[0].startswith("Federated Query  (cost=")
    assert not any("Actual" in line for line in plan)
    ran = [line for (line,) in client.execute(f"EXPLAIN (ANALYZE) {JOIN}")]
    assert sum("Actual" in line for line in ran) == 2
    document = client.execute(f"EXPLAIN (FORMAT json) {JOIN}").fetchone()[0]
    assert document[0]["Plan"]["Owner Cover"] == 2


def test_columns_are_known_before_an_owner_is_asked(line):
    async def describe():
        connection = await asyncpg.connect(**asyncpg_arguments(line.dsn))
        try:
            prepared = await connection.prepare(JOIN)
            with psycopg.connect(line.hub, autocommit=True) as hub:
                steps = hub.execute("SELECT count(*) FROM oar.steps").fetchone()
            names = [attribute.name for attribute in prepared.get_attributes()]
            rows = [tuple(row) for row in await prepared.fetch()]
            return steps, names, rows
        finally:
            await connection.close()

    with psycopg.connect(line.hub, autocommit=True) as hub:
        before = hub.execute("SELECT count(*) FROM oar.steps").fetchone()
    assert asyncio.run(describe()) == (before, ["id", "w"], ROWS)


def asyncpg_arguments(dsn):
    parts = psycopg.conninfo.conninfo_to_dict(dsn)
    return {
        "host": parts["host"],
        "port": int(parts["port"]),
        "user": parts["user"],
        "password": parts["password"],
        "database": parts["dbname"],
    }


def test_a_named_cursor_reads_in_portions(client):
    with client.transaction(), client.cursor(name="portions") as cursor:
        cursor.itersize = 2
        cursor.execute(JOIN)
        assert list(cursor) == ROWS


def test_a_read_only_transaction_joins(client):
    client.read_only = True
    with client.transaction():
        assert client.execute(JOIN).fetchall() == ROWS


def test_an_error_of_ours_aborts_the_transaction(client):
    client.execute("BEGIN")
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        client.execute("DELETE FROM shop.a")
    with pytest.raises(psycopg.errors.InFailedSqlTransaction):
        client.execute(JOIN)
    client.execute("ROLLBACK")
    assert client.execute(JOIN).fetchall() == ROWS


def test_a_temporary_table_shadows_a_published_one(client):
    client.execute("SET search_path = shop")
    client.execute("CREATE TEMP TABLE a (id bigint)")
    assert client.execute("SELECT count(*) FROM a").fetchone() == (0,)
    assert client.execute("SELECT count(*) FROM shop.a").fetchone() == (6,)
    client.execute("DROP TABLE a")
    assert client.execute("SELECT count(*) FROM a").fetchone() == (6,)


def test_a_role_that_is_set_needs_the_privileges_and_no_more(client, line):
    user = psycopg.conninfo.conninfo_to_dict(line.dsn)["user"]
    with psycopg.connect(line.hub, autocommit=True) as hub:
        hub.execute("CREATE ROLE reading")
        hub.execute(f"GRANT USAGE ON SCHEMA shop TO reading; GRANT reading TO {user}")
        hub.execute("GRANT SELECT ON shop.a, public.kept TO reading")
        try:
            client.execute("SET ROLE reading")
            assert client.execute("SELECT count(*) FROM shop.a").fetchone() == (6,)
            assert client.execute("SELECT count(*) > 0 FROM public.kept").fetchone() == (True,)
            with pytest.raises(psycopg.errors.InsufficientPrivilege, match="for view c"):
                client.execute("SELECT count(*) FROM shop.c")
            client.execute("BEGIN; SET LOCAL search_path = shop")
            assert client.execute("SELECT count(*) FROM a").fetchone() == (6,)
            client.execute("ROLLBACK")
            with pytest.raises(psycopg.errors.UndefinedTable):
                client.execute("SELECT count(*) FROM nowhere.a")
        finally:
            client.close()
            hub.execute("DROP OWNED BY reading; DROP ROLE reading")


@pytest.mark.parametrize("batch", ["{}", "SELECT 1; {}; SELECT 2", "BEGIN; {}"])
def test_what_the_hub_finds_wrong_comes_before_what_planning_does(client, line, batch):
    client.execute("SET oar.max_keys = 'many'")
    with psycopg.connect(line.hub, autocommit=True) as hub:
        asked = hub.execute("SELECT count(*) FROM oar.asks").fetchone()
        hub.execute("REVOKE SELECT ON shop.c FROM oar_client")
        try:
            for statement, error in (
                ("SELECT * FROM shop.c", psycopg.errors.InsufficientPrivilege),
                ("SELECT nothing FROM shop.a", psycopg.errors.UndefinedColumn),
                ("SELECT id FROM shop.a", psycopg.errors.InvalidParameterValue),
            ):
                with pytest.raises(error):
                    client.execute(batch.format(statement))
                client.rollback()
                assert client.execute("SELECT 3").fetchone() == (3,)
        finally:
            hub.execute("GRANT SELECT ON shop.c TO oar_client")
        assert hub.execute("SELECT count(*) FROM oar.asks").fetchone() == asked


OF_AN_ADMINISTRATOR = """
CREATE TABLE public.secured (id bigint, who text);
INSERT INTO public.secured VALUES (1, 'somebody'), (2, 'nobody');
CREATE POLICY own ON public.secured USING (who = current_user);
ALTER TABLE public.secured ENABLE ROW LEVEL SECURITY;
CREATE VIEW public.all_of AS SELECT id, v, who FROM shop.a JOIN public.secured USING (id);
CREATE VIEW public.above AS SELECT id FROM public.all_of;
CREATE VIEW public.own_of WITH (security_invoker) AS
    SELECT id, v, who FROM shop.a JOIN public.secured USING (id);
CREATE VIEW public.beside AS SELECT id FROM shop.a;
CREATE VIEW public.without AS SELECT who FROM public.secured;
GRANT SELECT ON public.secured, public.all_of, public.above, public.own_of, public.beside,
    public.without TO oar_client;
"""


def test_a_view_that_shows_rows_of_its_owner_does_not_show_fewer(owners, new_hub, running_proxy):
    """PostgreSQL reads a view as its owner; in a statement of ours it is read as the client."""
    hub = new_hub()
    count = "SELECT count(*) FROM public."
    with running_proxy(owners.settings(hub, {})) as (refresh, dsn):
        with psycopg.connect(hub, autocommit=True) as administrator:
            administrator.execute(OF_AN_ADMINISTRATOR)
        refresh()
        with psycopg.connect(dsn, autocommit=True) as client:
            for view in ("all_of", "above", "all_of, public.secured"):
                with pytest.raises(
                    psycopg.errors.FeatureNotSupported, match='"secured" as its owner'
                ):
                    client.execute(f"{count}{view}")
            assert client.execute(f"{count}own_of").fetchone() == (0,)
            assert client.execute(f"{count}secured JOIN shop.a USING (id)").fetchone() == (0,)
            # Also beside a view of an administrator's, and where the hub answers alone.
            assert client.execute(f"{count}beside, public.secured").fetchone() == (0,)
            assert client.execute(f"{count}without").fetchone() == (2,)
            client.execute("CREATE TEMP VIEW mine AS SELECT a.id FROM shop.a, public.secured")
            assert client.execute("SELECT count(*) FROM mine").fetchone() == (0,)


def test_privileges_are_the_hubs(client, line):
    with psycopg.connect(line.hub, autocommit=True) as hub:
        client.execute("CREATE TEMP TABLE q (id bigint)")
        hub.execute("REVOKE SELECT ON shop.c FROM oar_client")
        try:
            for statement in (
                "SELECT * FROM shop.c",
                "COPY (SELECT * FROM shop.c) TO STDOUT",
                "CREATE TEMP TABLE q2 AS SELECT * FROM shop.c",
                "BEGIN; DECLARE x CURSOR FOR SELECT * FROM shop.c",
                "EXPLAIN ANALYZE SELECT * FROM shop.c",
                "EXPLAIN SELECT * FROM shop.c",
                "PREPARE p AS SELECT * FROM shop.c; EXECUTE p",
                "DEALLOCATE ALL; PREPARE p AS SELECT * FROM shop.c; EXPLAIN EXECUTE p",
                "DEALLOCATE ALL; PREPARE p AS SELECT * FROM shop.c; CREATE TEMP TABLE q3 AS EXECUTE p",
                "SELECT * FROM oar_explain('SELECT * FROM shop.c')",
                "SELECT * FROM shop.a WHERE EXISTS (SELECT FROM shop.c)",
                "INSERT INTO pg_temp.q SELECT id FROM shop.c",
            ):
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    client.execute(statement)
                client.rollback()
        finally:
            hub.execute("GRANT SELECT ON shop.c TO oar_client")


def test_execute_runs_what_the_name_means_now(client):
    client.execute("PREPARE p AS SELECT count(*) FROM shop.a")
    run = "EXECUTE p"
    assert client.execute(run, prepare=True).fetchone() == (6,)
    client.execute("DEALLOCATE p")
    client.execute("PREPARE p AS SELECT count(*) FROM shop.c")
    assert client.execute(run, prepare=True).fetchone() == (4,)
    client.execute("DEALLOCATE p")
    client.execute("PREPARE p AS SELECT 7::bigint AS count")
    assert client.execute(run, prepare=True).fetchone() == (7,)
    client.execute("DEALLOCATE p")
    gone = (psycopg.errors.InvalidSqlStatementName, psycopg.errors.FeatureNotSupported)
    with pytest.raises(gone):
        client.execute(run, prepare=True)


NAMELESS = [
    "SELECT $1 FROM shop.a WHERE id = 1",
    "SELECT id, $1, ($1), $1::text, coalesce($1, 2), $1 AS x FROM shop.a ORDER BY id",
    "SELECT a.id, $1 FROM shop.a JOIN shop.b USING (k) ORDER BY 1",
    'SELECT "?column?" FROM (SELECT $1, id FROM shop.a) q WHERE "?column?" = 5 ORDER BY id',
    "SELECT (SELECT $1), (SELECT ($1)) FROM shop.a",
    "SELECT (ARRAY[$1])[1], $1 IN (1, $1), - $1, id + $1 FROM shop.a ORDER BY id",
    "SELECT CASE WHEN id = 1 THEN 7 ELSE $1 END FROM shop.a ORDER BY id",
    "SELECT $1 UNION SELECT id::int FROM shop.a ORDER BY 1",
    "WITH q AS (SELECT $1, count(*) FROM shop.a GROUP BY $1) SELECT * FROM q",
    "SELECT $1 FROM shop.a GROUP BY id, $1 HAVING count(*) = $1 - 4 ORDER BY $1 LIMIT $1 - 3",
    "VALUES ($1, (SELECT count(*) FROM shop.a))",
]


@pytest.mark.parametrize("statement", NAMELESS)
def test_what_is_only_a_parameter_keeps_its_name(client, merged, statement):
    merged.execute("SET search_path = public")
    merged.execute(f"PREPARE n(int) AS {statement.replace('shop.', '')}")
    due = merged.execute("EXECUTE n(5)")
    named, rows = [column.name for column in due.description], due.fetchall()
    merged.execute("DEALLOCATE n")
    client.execute(f"PREPARE n(int) AS {statement}")
    raw = psycopg.RawCursor(client)
    executed = [client.execute("EXECUTE n(5)")]
    # And as drivers do: described before it has a value.
    typed = (psycopg.types.numeric.Int4(5),)
    executed += [psycopg.RawCursor(client).execute(statement, typed) for _ in range(2)]
    executed.append(raw.execute(statement, typed, prepare=True))
    for cursor in executed:
        assert [column.name for column in cursor.description] == named
        assert cursor.fetchall() == rows


def test_a_prepared_statement_follows_the_search_path(client):
    client.execute("CREATE TEMP TABLE d AS SELECT 1::bigint AS id")
    client.execute("SET search_path = shop, pg_temp")
    for _ in range(2):
        assert client.execute("SELECT id FROM d ORDER BY 1", prepare=True).fetchall()[-1] == (50,)
    client.execute("SET search_path = pg_temp, shop")
    assert client.execute("SELECT id FROM d ORDER BY 1", prepare=True).fetchall() == [(1,)]
    client.execute("SET search_path = shop, pg_temp")
    assert client.execute("SELECT id FROM d ORDER BY 1", prepare=True).fetchall()[-1] == (50,)


HUBS_OWN = {
    "first of a string": "PREPARE h AS SELECT 1; SELECT 2",
    "last of a string": "SELECT 2; PREPARE g AS SELECT 3; PREPARE h AS SELECT 1",
    "deeper than is read here": "PREPARE h AS SELECT 1" + " - 1 + 1" * 2_000,
}


@pytest.mark.parametrize("string", HUBS_OWN.values(), ids=HUBS_OWN)
def test_what_the_hub_alone_has_prepared_is_executed(client, string):
    client.execute(string)
    assert client.execute("EXECUTE h").fetchall() == [(1,)]


@pytest.mark.parametrize(
    ("sqlstate", "ours"),
    [
        ("22012", ("22012", "division by zero at owner shop")),
        ("21000", ("21000", "cardinality violation at owner shop")),
        ("23514", ("23514", "check violation at owner shop")),
        ("42P17", ("HV000", "owner shop refused a query (SQLSTATE 42P17)")),
    ],
)
def test_what_a_statement_meets_anywhere_keeps_its_sqlstate(sqlstate, ours):
    error = owner_fault("shop", OwnerError(OwnerErrorKind.REFUSED, "its own words", sqlstate))
    assert (error.sqlstate, error.message) == ours
