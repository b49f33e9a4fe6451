"""TOP-N: an owner sends the first rows only, where no row behind them can matter (R27)."""

from __future__ import annotations

import re

import pytest

# North is PostgreSQL and holds a (6 rows) and d, west is PostgreSQL and holds c, south is SQLite and
# holds b; split is in parts north's and south's. None of the rows
# that a LIMIT cuts off ties with one that it leaves.
FIRST = {
    "SELECT a.id, b.w FROM a LEFT JOIN b ON b.k = a.k ORDER BY a.id LIMIT 2": 2,
    "SELECT a.id, b.id FROM a LEFT JOIN b USING (k) LEFT JOIN c ON c.id = b.id ORDER BY a.id DESC LIMIT 2": 2,
    "SELECT a.id FROM a LEFT JOIN (b JOIN c ON c.id = b.id) ON b.k = a.k ORDER BY 1 LIMIT 1": 1,
    "SELECT a.k, a.id x, b.w FROM a LEFT JOIN b ON b.k = a.id ORDER BY a.k DESC, x LIMIT 3": 3,
    "SELECT a.k, a.id FROM a LEFT JOIN b ON b.k = a.id ORDER BY a.k NULLS FIRST, a.id LIMIT 2": 2,
    "SELECT a.v, a.id, b.w FROM a LEFT JOIN b ON b.k = a.id ORDER BY a.v, a.id LIMIT 4": 4,
    "SELECT a.id, b.w FROM a LEFT JOIN b ON b.k = a.k ORDER BY a.id LIMIT 1 OFFSET 2": 3,
    "SELECT * FROM (SELECT a.id, b.w FROM a LEFT JOIN b ON b.k = a.k ORDER BY a.id LIMIT 2) q": 2,
    "SELECT id, (SELECT count(*) FROM b WHERE b.k = a.k) FROM a ORDER BY id LIMIT 2": 2,
    "SELECT id, v || random()::text < '' FROM a ORDER BY id LIMIT 2": None,
    "SELECT id, CASE WHEN v ~ 'x' THEN 1 END FROM a WHERE id > 1 ORDER BY id LIMIT 2": 2,
    "SELECT id, v ~ 'x' FROM a WHERE v <> 'z' AND k IS NOT NULL ORDER BY k, id LIMIT 2": 2,
    # near misses: each of these needs more rows, or may
    "SELECT a.id, b.w FROM a JOIN b ON b.k = a.k ORDER BY a.id LIMIT 2": None,
    "SELECT a.id, b.w FROM a RIGHT JOIN b ON b.k = a.k ORDER BY a.id, b.w LIMIT 2": None,
    "SELECT a.id, b.w FROM a LEFT JOIN b ON b.k = a.k ORDER BY b.w, a.id LIMIT 2": None,
    "SELECT a.id, b.w FROM a LEFT JOIN b ON b.k = a.k ORDER BY a.k, b.w LIMIT 2": None,
    "SELECT a.id, b.w FROM a LEFT JOIN b ON b.k = a.k WHERE b.w IS NULL ORDER BY a.id LIMIT 2": None,
    "SELECT a.id FROM a LEFT JOIN b ON b.k = a.k WHERE a.id > 2 ORDER BY a.id LIMIT 2": None,
    "SELECT DISTINCT a.v FROM a LEFT JOIN b ON b.k = a.k ORDER BY a.v LIMIT 2": None,
    "SELECT a.v, count(*) FROM a LEFT JOIN b ON b.k = a.k GROUP BY a.v ORDER BY a.v LIMIT 1": None,
    "SELECT a.id, count(*) OVER () FROM a LEFT JOIN b ON b.k = a.k ORDER BY a.id LIMIT 2": None,
    "SELECT a.id, generate_series(1, a.id - 2) FROM a LEFT JOIN b USING (k) ORDER BY a.id, 2 LIMIT 2": None,
    "SELECT (SELECT max(a.id)) FROM a ORDER BY 1 LIMIT 1": None,
    # aggregates that are no calls on the tree
    "SELECT JSON_ARRAYAGG(id ORDER BY id) FROM a LIMIT 1": None,
    "SELECT JSON_ARRAYAGG(1) FROM b LIMIT 1": None,
    "SELECT JSON_OBJECTAGG(a.id: b.w) FROM a LEFT JOIN b ON b.k = a.k WHERE a.id = 3 LIMIT 1": None,
    "SELECT JSON_ARRAYAGG(a.id ORDER BY a.id) FROM a LEFT JOIN b ON b.k = a.id + 1 LIMIT 1": None,
    "SELECT id, JSON_ARRAYAGG(id) OVER (ORDER BY id DESC) FROM a ORDER BY id LIMIT 2": None,
    "SELECT (SELECT JSON_ARRAYAGG(a.id)) FROM a LIMIT 1": None,
    "SELECT JSON_ARRAYAGG(x) FROM (SELECT id AS x FROM b ORDER BY id LIMIT 3) q LIMIT 1": None,
    "SELECT (a.id).max FROM a LEFT JOIN b ON b.k = a.k LIMIT 1": None,
    "SELECT a.count FROM a LEFT JOIN b ON b.k = a.k LIMIT 1": None,
    "SELECT a.id, b.w id FROM a LEFT JOIN b USING (k) ORDER BY a.k, a.id FETCH FIRST 2 ROWS WITH TIES": None,
    "SELECT id, v ~ 'x' FROM a WHERE v ~ 'x|y' ORDER BY id LIMIT 2": None,
    "SELECT id, v ~ 'x' FROM a WHERE id IN (SELECT k / 10 FROM b) ORDER BY id LIMIT 2": None,
    "SELECT b.id, a.v FROM b LEFT JOIN a ON a.id = b.id ORDER BY b.id LIMIT 2": None,  # SQLite
    "SELECT split.id, a.v FROM split LEFT JOIN a ON a.id = split.id ORDER BY split.id LIMIT 2": None,
}  # fmt: skip


def rows(connection, statement):
    return connection.execute(statement).fetchall()


@pytest.mark.parametrize("statement", FIRST)
def test_the_first_rows_are_those_of_the_merged_tables(client, merged, statement):
    if "random" not in statement:
        assert sorted(map(repr, rows(client, statement))) == sorted(
            map(repr, rows(merged, statement))
        )


@pytest.mark.parametrize("statement", FIRST)
def test_no_more_rows_leave_than_can_matter(client, statement):
    told = client.execute(f"EXPLAIN (ANALYZE, FORMAT json) {statement}").fetchone()[0][0]["Plan"]
    (step,) = [
        s
        for s in told["Steps"]
        if s["Reads"] in ("shop.a", "the whole statement") and "LIMIT" in s["SQL"]
    ] or [None]
    limited = step is not None and "ORDER BY" in step["SQL"] and step["Reads"] == "shop.a"
    assert limited == (FIRST[statement] is not None)
    if limited:
        assert step["Actual Rows"] == FIRST[statement]


# What each owner sends of it: north has two rows of split, south three.
PREVIEWS = {
    "SELECT a.id, b.w FROM a LEFT JOIN b ON b.k = a.k LIMIT 2": ("a", [2]),
    "SELECT id, t || 'x' FROM split LIMIT 1": ("split", [1, 1]),
    "SELECT q.x FROM (SELECT id AS x, t FROM split) q LIMIT 1 OFFSET 1": ("split", [2, 2]),
    "SELECT * FROM (SELECT q.* FROM (SELECT id FROM split) q LIMIT 1) r": ("split", [1, 1]),
    "SELECT x.n FROM split AS x(n) LIMIT 1": ("split", [1, 1]),
    # near misses
    "SELECT q.id FROM (SELECT id FROM split LIMIT 2) q LIMIT 1": ("split", [2, 3]),
    "SELECT q.id FROM (SELECT id FROM split WHERE k < 90) q LIMIT 1": ("split", [2, 2]),
    "SELECT upper(t) FROM split LIMIT 1": ("split", [2, 3]),
    "SELECT q.count FROM (SELECT id FROM split) q LIMIT 1": ("split", [2, 3]),
}


@pytest.mark.parametrize("statement", PREVIEWS)
def test_a_preview_needs_any_rows(client, merged, statement):
    table, sent = PREVIEWS[statement]
    told = client.execute(f"EXPLAIN (ANALYZE, FORMAT json) {statement}").fetchone()[0][0]["Plan"]
    assert [
        s["Actual Rows"] for s in told["Steps"] if s["Reads"].startswith(f"shop.{table}")
    ] == sent
    shown = rows(client, statement)
    assert len(shown) == len(rows(merged, statement))
    behind = re.sub(r" LIMIT \d+( OFFSET \d+)?", "", statement)
    assert set(shown) <= set(rows(merged, behind))
