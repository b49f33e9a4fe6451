"""Subqueries that one owner answers by itself inside statements that several answer."""

from __future__ import annotations

import json
from collections import Counter

import pytest

# The statement, and the tables of each subquery that goes whole. North is PostgreSQL and holds a
# and d, south is SQLite and holds b, west holds c; split is in parts north's and south's.
WHOLE = {
    "SELECT b.id, q.n FROM b JOIN (SELECT k, count(*) n FROM a GROUP BY k) q USING (k)": ["a"],
    "SELECT a.id, q.m FROM a LEFT JOIN (SELECT k, max(w) m FROM b GROUP BY k) q USING (k)": ["b"],
    "SELECT b.id FROM b JOIN (SELECT k, v FROM a ORDER BY k DESC NULLS LAST, id LIMIT 2) q USING (k)": ["a"],
    "SELECT b.id FROM b WHERE k IN (SELECT k FROM a WHERE v <> 'z' GROUP BY k HAVING count(*) > 1)": ["a"],
    "SELECT b.id FROM b WHERE k NOT IN (SELECT k FROM a WHERE k IS NOT NULL ORDER BY k LIMIT 3)": ["a"],
    "SELECT b.id, b.w - (SELECT avg(k) FROM a) FROM b": ["a"],
    "SELECT b.id FROM b WHERE EXISTS (SELECT max(k) FROM a WHERE v = 'none' HAVING count(*) > 0)": ["a"],
    "SELECT b.id, (SELECT count(*) FROM a), (SELECT count(*) FROM a WHERE v = 'x') FROM b": ["a", "a"],
    "SELECT ARRAY(SELECT DISTINCT k FROM a ORDER BY k DESC), max(w) FROM b": ["a"],
    "WITH q AS (SELECT k, count(*) n FROM a GROUP BY k) SELECT b.id, q.n, r.n FROM b JOIN q USING (k) LEFT JOIN q r ON r.k = b.id": ["a"],
    "WITH q(x, y) AS MATERIALIZED (SELECT v, max(k) FROM a GROUP BY v) SELECT b.id, q.x FROM b JOIN q ON q.y = b.k": ["a"],
    "SELECT b.id, q.* FROM b JOIN (WITH t AS (SELECT k, id FROM a WHERE k > 0) SELECT t.k, sum(t.id) FROM t JOIN d ON d.id = t.k GROUP BY t.k) q USING (k)": ["a, d"],
    "SELECT x.k, y.k FROM (SELECT DISTINCT k FROM a) x FULL JOIN (SELECT DISTINCT k FROM b) y ON x.k = y.k": ["a", "b"],
    "SELECT b.id FROM b, LATERAL (SELECT count(*) n FROM a) q WHERE q.n > b.id": ["a"],
    "SELECT (SELECT max(v) FROM a), count(*) FROM b GROUP BY (SELECT max(v) FROM a)": ["a"],
    "SELECT b.id FROM b JOIN (SELECT k, count(*) FROM (SELECT k FROM a GROUP BY k, v) i GROUP BY k) q USING (k)": ["a"],
    "SELECT split.id FROM split JOIN (SELECT k, count(*) FROM a GROUP BY k) q USING (k)": ["a"],
    "SELECT b.id FROM b JOIN (SELECT k FROM a UNION ALL SELECT id FROM d ORDER BY 1 LIMIT 4) q USING (k)": ["a, d"],
}  # fmt: skip

IN_PARTS = (
    # correlated, or it names a CTE further out
    "SELECT b.id, (SELECT count(*) FROM a WHERE a.k = b.k) FROM b",
    "SELECT b.id FROM b WHERE EXISTS (SELECT count(*) FROM a GROUP BY a.k HAVING a.k = b.k)",
    "SELECT b.id, q.n FROM b, LATERAL (SELECT count(*) n FROM a WHERE a.k = b.k) q",
    "WITH a AS (SELECT id, k FROM shop.b WHERE w > 100) SELECT c.id FROM c JOIN "
    "(SELECT k, count(*) FROM a GROUP BY k) q ON q.k = c.id JOIN b ON b.k = q.k",
    "WITH RECURSIVE r AS (SELECT min(k) k FROM a UNION SELECT k + 10 FROM r WHERE k < 50) "
    "SELECT b.id FROM b JOIN r USING (k)",
    # rows of two owners, an arm whose type the other arm decides, what only the hub evaluates
    "SELECT b.id FROM b JOIN (SELECT a.k, count(*) FROM a JOIN b USING (k) GROUP BY a.k) q USING (k)",
    "SELECT b.id, q.x FROM b, ((SELECT NULL AS x FROM a GROUP BY k) UNION (SELECT 7)) q",
    "SELECT b.id FROM b JOIN (SELECT k, string_agg(v, '' ORDER BY v) FROM a GROUP BY k) q USING (k)",
    "SELECT b.id FROM b JOIN (SELECT k, count(*) n, count(*) n FROM a GROUP BY k) q USING (k)",
    "SELECT split.id FROM split JOIN (SELECT k, count(*) FROM split GROUP BY k) q USING (k)",
)


def plan(client, statement):
    return client.execute(f"EXPLAIN (FORMAT json) {statement}").fetchone()[0][0]["Plan"]


def subqueries(client, statement):
    prefix = "a subquery of "
    reads = [step["Reads"] for step in plan(client, statement)["Steps"]]
    return [read.removeprefix(prefix) for read in reads if read.startswith(prefix)]


def rows(connection, statement, parameters=None):
    return Counter(map(repr, connection.execute(statement, parameters).fetchall()))


@pytest.mark.parametrize("statement", WHOLE)
def test_a_subquery_of_one_owner_is_answered_by_it(client, merged, statement):
    assert sorted(subqueries(client, statement)) == sorted(WHOLE[statement])
    assert rows(client, statement) == rows(merged, statement)


@pytest.mark.parametrize("statement", IN_PARTS)
def test_other_subqueries_are_evaluated_by_the_hub(client, merged, statement):
    assert subqueries(client, statement) == []
    assert rows(client, statement) == rows(merged, statement.replace("shop.", ""))


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT b.id FROM b JOIN (SELECT k, count(*) FROM a WHERE v = %s GROUP BY k) q USING (k)",
        "SELECT b.id FROM b JOIN (SELECT k FROM a WHERE v <> %s ORDER BY k LIMIT 1) q USING (k)"
        " WHERE b.w > 0",
    ],
)
def test_its_parameters_go_with_it(client, merged, statement):
    assert subqueries(client, statement.replace("%s", "'x'")) == ["a"]
    for _ in range(7):  # also as a statement the driver has prepared
        assert rows(client, statement, ["x"]) == rows(merged, statement, ["x"])


def test_only_its_own_rows_leave_the_owner(client):
    statement = "SELECT b.id, q.n FROM b, (SELECT count(*) n, max(v) FROM a) q"
    told = client.execute(f"EXPLAIN (ANALYZE, FORMAT json) {statement}").fetchone()[0][0]["Plan"]
    (step,) = [s for s in told["Steps"] if s["Reads"] == "a subquery of a"]
    assert step["Actual Rows"] == 1


def test_keys_are_looked_up_among_its_outputs(client):
    statement = "SELECT q.n FROM b JOIN (SELECT k, count(*) n FROM a GROUP BY k) q USING (k) WHERE b.w = 200"
    told = client.execute(f"EXPLAIN (ANALYZE, FORMAT json) {statement}").fetchone()[0][0]["Plan"]
    (step,) = [s for s in told["Steps"] if s["Reads"] == "a subquery of a"]
    assert [key["To"] for key in step["Keys"]] == ["north: a.k"]
    assert step["Actual Rows"] == 1


@pytest.mark.parametrize("carrier", ["COPY ({}) TO STDOUT", "CREATE TEMP TABLE made AS {}"])
def test_every_form_of_statement_takes_them(client, merged, carrier):
    statement = "SELECT b.id, q.n FROM b JOIN (SELECT k, count(*) n FROM a GROUP BY k) q USING (k)"
    if carrier.startswith("COPY"):
        with client.cursor().copy(carrier.format(statement)) as copied:
            got = Counter(map(repr, copied.rows()))
        wanted = Counter(repr(tuple(map(str, row))) for row in merged.execute(statement))
        assert got == wanted
    else:
        client.execute(carrier.format(statement))
        assert rows(client, "SELECT * FROM made") == rows(merged, statement)
        client.execute("DROP TABLE made")


def test_one_that_may_give_other_rows_is_asked_once(client):
    """Two rows of the subquery tie for its place: keys and rows have to be of the same one."""
    statement = (
        "SELECT count(*) FROM b JOIN (SELECT k FROM a WHERE k IS NOT NULL ORDER BY v LIMIT 3) q "
        "USING (k) JOIN c ON c.id = b.id JOIN d ON d.id = q.k"
    )
    client.execute("SET oar.reduction = full")
    told = plan(client, statement)
    client.execute("RESET oar.reduction")
    asked = [s for s in told["Steps"] if "a subquery of a" in json.dumps(s)]
    assert len(asked) == 1
    assert any("asked twice" in note for note in told["Notes"])
