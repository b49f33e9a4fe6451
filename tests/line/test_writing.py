"""Statements that write tables of the session by what owners hold: what they write, what is read."""

from __future__ import annotations

import psycopg
import pytest
from waits import eventually

# north is PostgreSQL and holds a and d, south is SQLite and holds b, west is PostgreSQL and holds c.
MINE = """
CREATE TEMP TABLE mine (id bigint, k bigint, t text, day date);
INSERT INTO mine VALUES (1, 10, 'x', NULL), (2, 20, 'y', NULL), (3, 30, 'p', NULL), (9, NULL, NULL, NULL)
"""

# What is written, and how many rows of each published table its owner sends for it.
WRITES = {
    "filter": ("INSERT INTO mine SELECT id, k, v FROM a WHERE id = 5", {"a": 1}),
    "columns": ("INSERT INTO mine (k, id) SELECT k, id FROM a WHERE v = 'x'", {"a": 2}),
    "brackets": ("INSERT INTO mine (SELECT id, k FROM a WHERE id < 3)", {"a": 2}),
    "join": ("INSERT INTO mine SELECT a.id, b.w FROM a JOIN b USING (k) WHERE a.id = 1", {"a": 1, "b": 2}),
    "with before": ("WITH q AS (SELECT * FROM a WHERE id = 5) INSERT INTO mine SELECT q.id, b.w FROM q JOIN b USING (k)", {"a": 1, "b": 1}),
    "with behind": ("INSERT INTO mine WITH q AS (SELECT * FROM a WHERE id = 5) SELECT id FROM q", {"a": 1}),
    "with both": ("WITH q AS (SELECT * FROM a WHERE id = 5) INSERT INTO mine WITH a AS (SELECT id FROM q) SELECT * FROM a", {"a": 1}),
    "table": ("INSERT INTO mine (id, k, t) TABLE c", {"c": 4}),
    "values": ("INSERT INTO mine VALUES ((SELECT max(id) FROM a WHERE v = 'y'), DEFAULT)", None),
    "union": ("INSERT INTO mine SELECT id FROM a WHERE id = 1 UNION ALL SELECT id FROM c WHERE u = 'm'", {"a": 1, "c": 2}),
    "constants of the column's type": ("INSERT INTO mine (id, day) SELECT id, '2024-02-29' FROM a WHERE id = 5", {"a": 1}),
    "itself": ("INSERT INTO mine SELECT a.id, m.k FROM a JOIN mine m USING (k) WHERE a.id = 1", {"a": 1}),
    "counted": ("INSERT INTO mine SELECT count(*), a.k FROM a JOIN b USING (k) WHERE a.v = 'x' GROUP BY a.k", {"a": 1, "b": 2}),
    "limit": ("INSERT INTO mine SELECT id FROM a ORDER BY id DESC LIMIT 2", None),
    "nothing": ("INSERT INTO mine SELECT id FROM a WHERE 1 = 0", {}),
    "returning": ("INSERT INTO mine SELECT id FROM a WHERE id = 5 RETURNING id + 1", {"a": 1}),
    # What stands elsewhere is read as well.
    "returning a query": ("INSERT INTO mine SELECT id FROM a WHERE id = 5 RETURNING (SELECT sum(id) FROM c WHERE c.id > mine.id - 3)", {"a": 6, "c": 4}),
    "nothing, returning a query": ("INSERT INTO mine SELECT 5 FROM a WHERE 1 = 0 RETURNING (SELECT max(id) FROM c)", None),
    "conflict": ("INSERT INTO mine SELECT id, 77 FROM a WHERE id < 3 ON CONFLICT DO NOTHING", {"a": 2}),
    "update": ("UPDATE mine SET k = b.w FROM b WHERE b.id = mine.id AND b.s = 'p'", {"b": 2}),
    "update under an alias": ("UPDATE mine AS m SET k = b.w FROM b JOIN c USING (k) WHERE b.id = m.id AND c.u = 'm'", {"b": 2, "c": 1}),
    "update of several": ("UPDATE mine SET (k, t) = (SELECT w, s FROM b WHERE b.id = mine.id AND b.s = 'p') WHERE id < 4", {"b": 2}),
    "update of several, with more": ("UPDATE mine SET (k, t) = (SELECT w, s FROM b WHERE b.id = mine.id AND s = 'p'), id = (SELECT max(id) FROM c WHERE u = 'o') RETURNING *", None),
    "update of a row": ("UPDATE mine SET (k, t) = ROW(b.w, DEFAULT) FROM b WHERE b.id = mine.id AND b.s = 'p'", {"b": 2}),
    "update if": ("UPDATE mine SET k = 0 WHERE EXISTS (SELECT FROM a WHERE a.id = mine.id AND a.v = 'x')", {"a": 2}),
    "update by none": ("UPDATE mine SET k = 0 WHERE NOT EXISTS (SELECT FROM a WHERE a.id = mine.id AND a.v = 'x')", {"a": 2}),
    "update with": ("WITH q AS (SELECT id FROM a WHERE v = 'y') UPDATE mine SET k = -1 FROM q WHERE q.id = mine.id RETURNING mine.id", {"a": 2}),
    "delete": ("DELETE FROM mine USING b WHERE b.id = mine.id AND b.s = 'p' RETURNING mine.id, b.w", {"b": 2}),
    "delete in": ("DELETE FROM mine WHERE k IN (SELECT k FROM a WHERE id = 1)", {"a": 1}),
    "delete not in": ("DELETE FROM mine WHERE id NOT IN (SELECT id FROM a WHERE id < 3)", {"a": 2}),
    "merge": ("MERGE INTO mine USING (SELECT a.id, b.w FROM a JOIN b USING (k) WHERE a.id IN (1, 5) AND b.w <> 200) s ON s.id = mine.id WHEN MATCHED THEN UPDATE SET k = s.w WHEN NOT MATCHED THEN INSERT (id, k) VALUES (s.id, s.w)", {"a": 2, "b": 2}),
    "merge, a table": ("MERGE INTO mine USING a ON a.id = mine.id WHEN MATCHED AND a.v = 'x' THEN DELETE WHEN NOT MATCHED BY TARGET THEN INSERT (id) VALUES (a.id)", {"a": 6}),
    "merge, by source": ("MERGE INTO mine USING b ON b.id = mine.id WHEN NOT MATCHED BY SOURCE THEN DELETE WHEN MATCHED THEN UPDATE SET t = s", {"b": 6}),
    "select into": ("SELECT id, k INTO TEMP made FROM a WHERE v = 'x'; INSERT INTO mine SELECT * FROM made; DROP TABLE made", None),
    "not told how it is read": ("INSERT INTO mine SELECT id, k, trim(both 'x' from v) FROM a WHERE id = 5", {"a": 6}),
    "too deep to be printed": (f"INSERT INTO mine SELECT id, {'+'.join(['1'] * 180)} FROM a WHERE id = 5", {"a": 6}),
    "too deep to be compared": (f"INSERT INTO mine SELECT id, k FROM a WHERE {'NOT ' * 340} id = 5", {"a": 6}),
}  # fmt: skip


@pytest.fixture
def writers(client, merged):
    for connection in (client, merged):
        connection.execute("SET search_path = shop, public")
        connection.execute(MINE)
    merged.execute("SET search_path = public")
    yield client, merged
    merged.execute("DROP TABLE IF EXISTS mine")


def written(connection, statement):
    cursor = connection.execute(statement)
    told = cursor.fetchall() if cursor.description else []
    return sorted(map(repr, told)), connection.execute(
        "SELECT * FROM mine ORDER BY 1, 2, 3"
    ).fetchall()


@pytest.mark.parametrize("name", WRITES)
def test_what_is_written_is_what_the_merged_tables_would_give(writers, name):
    client, merged = writers
    statement, _ = WRITES[name]
    assert written(client, statement) == written(merged, statement)


@pytest.mark.parametrize("name", [name for name, (_, rows) in WRITES.items() if rows is not None])
def test_owners_send_what_it_is_written_by(writers, line, name):
    client, _ = writers
    statement, due = WRITES[name]
    with psycopg.connect(line.hub, autocommit=True) as hub:
        counts = "SELECT count(*), count(sqlstate) FROM oar.asks"
        before, _ = hub.execute(counts).fetchone()
        client.execute(statement)
        # The outcome is written while the answer is on its way.
        eventually(lambda: hub.execute(counts).fetchone() == (before + 1, before + 1))
        sent = hub.execute(
            "SELECT s.tables, s.rows FROM oar.steps AS s"
            " JOIN (SELECT ask FROM oar.asks ORDER BY at DESC LIMIT 1) AS q USING (ask)"
        ).fetchall()
    assert {name.rpartition(".")[2]: rows for (name,), rows in sent} == due


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT id INTO TEMP made FROM a",
        "SELECT id INTO TEMP made FROM a UNION SELECT id FROM c",
        "WITH w AS (INSERT INTO mine SELECT id FROM c RETURNING id) SELECT count(*) FROM w JOIN a USING (id)",
        "WITH w AS (DELETE FROM mine RETURNING id) SELECT id FROM w UNION SELECT id FROM a",
    ],
)
def test_explain_analyze_says_that_it_would_not_write(writers, statement):
    client, _ = writers
    before = client.execute("SELECT * FROM mine").fetchall()
    with pytest.raises(psycopg.errors.FeatureNotSupported, match="takes a SELECT only"):
        client.execute(f"EXPLAIN ANALYZE {statement}")
    assert client.execute("SELECT * FROM mine").fetchall() == before
    assert client.execute("SELECT to_regclass('made')").fetchone() == (None,)
    (plan, *_) = client.execute(f"EXPLAIN {statement}").fetchone()
    assert plan.startswith("Federated Query")


def test_a_table_is_not_made_of_a_prepared_statement_that_writes(writers):
    client, _ = writers
    client.execute("PREPARE p AS INSERT INTO mine SELECT id FROM a WHERE id = 5")
    with pytest.raises(psycopg.errors.WrongObjectType, match="is not a SELECT"):
        client.execute("CREATE TEMP TABLE made AS EXECUTE p")
    client.execute("EXECUTE p")
    assert client.execute("SELECT count(*) FROM mine").fetchone() == (5,)


def test_constants_of_a_prepared_insert_keep_their_meaning_or_are_refused(writers):
    client, _ = writers
    client.execute(
        "PREPARE p AS INSERT INTO mine (id, day) SELECT id, '02/03/2024' FROM a WHERE id = 5"
    )
    client.execute("EXECUTE p")
    client.execute("SET DateStyle = 'ISO, DMY'")
    with pytest.raises(psycopg.errors.FeatureNotSupported):
        client.execute("EXECUTE p")
    days = client.execute("SELECT day::text FROM mine WHERE day IS NOT NULL").fetchall()
    assert days == [("2024-02-03",)]


LOCKING = {
    "one of two": "SELECT t.id, b.w FROM t JOIN b USING (k) FOR UPDATE OF t",
    "skipping": "SELECT t.id FROM a JOIN t USING (k) JOIN b USING (k) FOR SHARE OF t SKIP LOCKED",
    "by its alias": "SELECT mine.id FROM t AS mine, a WHERE a.k = mine.k FOR NO KEY UPDATE OF mine",
    "of a subquery": "SELECT q.id FROM (SELECT * FROM t WHERE id > 0) AS q JOIN b USING (k) FOR UPDATE OF q",
    "in a subquery": "SELECT q.id FROM (SELECT * FROM t FOR UPDATE) AS q JOIN b USING (k)",
    "beside what is compared": "SELECT id FROM t WHERE k IN (SELECT k FROM b) FOR UPDATE",
    "beside a CTE": "WITH q AS (SELECT k FROM b) SELECT t.id FROM t JOIN q USING (k) FOR UPDATE OF t",
}  # fmt: skip


@pytest.mark.parametrize("name", LOCKING)
def test_rows_of_a_session_s_own_tables_are_locked(client, merged, name):
    found = []
    for connection in (client, merged):
        connection.execute("CREATE TEMPORARY TABLE t AS SELECT id, k FROM a")
        try:
            with connection.transaction():
                rows = connection.execute(LOCKING[name]).fetchall()
                # PostgreSQL writes into a row who locks it.
                locked = connection.execute("SELECT id FROM t WHERE xmax <> 0").fetchall()
            found.append((sorted(rows), sorted(locked)))
        finally:
            connection.execute("DROP TABLE t")
    assert found[0] == found[1]
    assert found[0][1]


def test_owners_send_no_more_where_rows_are_locked(writers):
    client = writers[0]
    (document,) = client.execute(
        "EXPLAIN (ANALYZE, FORMAT json) SELECT a.id FROM mine JOIN a ON a.id = mine.id"
        " WHERE a.v = 'x' FOR UPDATE OF mine"
    ).fetchone()
    assert [step["Actual Rows"] for step in document[0]["Plan"]["Steps"]] == [2]


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT t.id FROM t JOIN b USING (k) FOR UPDATE",
        "SELECT t.id FROM t JOIN b USING (k) FOR UPDATE OF b",
        "SELECT t.id FROM t JOIN b USING (k) FOR UPDATE OF t FOR SHARE OF b",
        "SELECT t.id FROM t JOIN (SELECT * FROM b) AS q USING (k) FOR UPDATE OF q",
        "SELECT t.id FROM t JOIN (SELECT * FROM b FOR UPDATE) AS q USING (k)",
        "SELECT v.id FROM t JOIN kept AS v USING (id) FOR UPDATE OF v",
    ],
)
def test_rows_of_owners_are_not(client, statement):
    client.execute("CREATE TEMPORARY TABLE t AS SELECT id, k FROM a")
    with pytest.raises(psycopg.errors.FeatureNotSupported, match="cannot lock rows of a pub") as no:
        client.execute(statement)
    assert "FOR UPDATE OF" in no.value.diag.message_hint
