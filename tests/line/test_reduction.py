"""With ``oar.reduction = 'full'`` no owner sends a row that joins with nothing."""

from __future__ import annotations

import re
from collections import Counter

import pytest

TREES = {
    "two tables": "SELECT a.id, b.w FROM shop.a JOIN shop.b ON a.k = b.k",
    "chain": "SELECT a.id, c.u FROM shop.a JOIN shop.b ON b.id = a.id JOIN shop.c ON c.k = b.k",
    "star": "SELECT b.id FROM shop.b JOIN shop.a ON a.id = b.id JOIN shop.d ON d.id = b.k "
    "JOIN shop.c ON c.id = b.id",
    "split": "SELECT c.u, split.t FROM shop.c JOIN shop.split USING (k)",
    "semi-join": "SELECT id FROM shop.a WHERE k IN (SELECT k FROM shop.b WHERE s = 'p')",
    "outer join": "SELECT a.id, b.w FROM shop.a LEFT JOIN shop.b ON a.k = b.k",
    "nobody matches": "SELECT a.id FROM shop.a JOIN shop.empty e ON e.k = a.k JOIN shop.b ON b.id = a.id",
}


@pytest.mark.parametrize("name", TREES)
def test_only_rows_that_take_part_leave(client, merged, steps, name):
    client.execute("SET oar.reduction = 'full'")
    statement = TREES[name]
    sent = sum(s["Actual Rows"] for s in steps(client, statement) if "keys" not in s["Reads"])
    assert sent == taking_part(merged, name)
    client.execute("SET oar.reduction = 'forward'")
    forward = sum(s["Actual Rows"] for s in steps(client, statement))
    assert sent <= forward


def taking_part(merged, name):
    """Distinct rows of each table that are in the join, counted where all tables are together."""
    counts = {
        "two tables": ["SELECT count(DISTINCT a.id), count(DISTINCT b.id) FROM a JOIN b ON a.k = b.k"],
        "chain": ["SELECT count(DISTINCT a.id), count(DISTINCT b.id), count(DISTINCT c.id) FROM a "
                  "JOIN b ON b.id = a.id JOIN c ON c.k = b.k"],
        "star": ["SELECT count(DISTINCT a.id), count(DISTINCT b.id), count(DISTINCT c.id), "
                 "count(DISTINCT d.id) FROM b JOIN a ON a.id = b.id JOIN d ON d.id = b.k JOIN c "
                 "ON c.id = b.id"],
        "split": ["SELECT count(DISTINCT c.id), count(DISTINCT split.id) FROM c JOIN split USING (k)"],
        "semi-join": ["SELECT count(DISTINCT a.id), count(DISTINCT b.id) FROM a JOIN b USING (k) "
                      "WHERE s = 'p'"],
        "outer join": ["SELECT count(*) FROM a", "SELECT count(*) FROM b WHERE k IN (SELECT k FROM a)"],
        "nobody matches": ["SELECT 0"],
    }  # fmt: skip
    return sum(sum(merged.execute(query).fetchone()) for query in counts[name])


WITHOUT_KEYS = {
    # statement: the rows of each owner, of which a has one without a key, and b, c and split too
    "SELECT a.id, b.w FROM shop.a JOIN shop.b ON a.k = b.k": {"a": 5, "b": 5},
    "SELECT a.id, b.w FROM shop.a LEFT JOIN shop.b ON a.k = b.k": {"a": 6, "b": 5},
    "SELECT a.id, b.w FROM shop.a FULL JOIN shop.b ON a.k = b.k": {"a": 6, "b": 6},
    "SELECT id FROM shop.a WHERE k IN (SELECT k FROM shop.b)": {"a": 5, "b": 5},
    "SELECT id FROM shop.a WHERE k NOT IN (SELECT k FROM shop.b)": {"a": 6, "b": 6},
    "SELECT id FROM shop.a WHERE NOT EXISTS (SELECT 1 FROM shop.b WHERE b.k = a.k)": {"a": 6, "b": 5},
    "SELECT a.id, b.w FROM shop.a JOIN shop.b ON a.k IS NOT DISTINCT FROM b.k": {"a": 6, "b": 6},
    "SELECT a.id, b.w FROM shop.a JOIN shop.b ON a.k = b.k OR a.id = b.id": {"a": 6, "b": 6},
    "SELECT a.id, b.w FROM shop.a JOIN shop.b ON a.k = coalesce(b.k, 10)": {"a": 6, "b": 6},
    "SELECT a.v, sum(b.w) FROM shop.a JOIN shop.b USING (k) GROUP BY 1": {"a": 5, "b": 5},
    "SELECT c.u, split.t FROM shop.c JOIN shop.split USING (k)": {"c": 3, "split": 4},
    "SELECT a.id, c.u FROM shop.a LEFT JOIN (shop.b JOIN shop.c ON b.k = c.k) ON a.id = b.id": {"a": 6, "b": 5, "c": 3},
    "SELECT a.id FROM shop.a JOIN shop.b ON a.k = b.k WHERE a.k IS NOT NULL AND b.k > 10": {"a": 5, "b": 3},
}  # fmt: skip


@pytest.mark.parametrize("statement", WITHOUT_KEYS)
def test_rows_without_a_key_join_with_nothing_and_stay(client, merged, steps, statement):
    """Whoever may know keys: what is NULL tells nobody anything."""
    client.execute("SET oar.max_keys = 0")
    sent = {}
    for step in steps(client, statement):
        table = re.search(r"shop\.(\w+)", step["Reads"])[1]
        sent[table] = sent.get(table, 0) + step["Actual Rows"]
    assert sent == WITHOUT_KEYS[statement]
    ours = client.execute(statement).fetchall()
    theirs = merged.execute(statement.replace("shop.", "")).fetchall()
    assert Counter(ours) == Counter(theirs)


def test_keys_come_before_rows_and_are_on_the_ledger(client, steps):
    client.execute("SET oar.reduction = 'full'")
    asked = [(s["Owner"], s["Reads"]) for s in steps(client, TREES["two tables"])]
    assert asked == [
        ("south", "keys of shop.b"),
        ("north", "shop.a"),
        ("south", "shop.b"),
    ]
    edges = client.execute(
        "SELECT from_column, to_column, keys FROM oar.disclosures ORDER BY step DESC LIMIT 2"
    ).fetchall()
    assert edges == [("shop.a.k", "b.k", 3), ("shop.b.k", "a.k", 4)]


def test_a_ring_of_joins_falls_back(client):
    client.execute("SET oar.reduction = 'full'")
    ring = (
        "SELECT count(*) FROM shop.a JOIN shop.b ON a.k = b.k JOIN shop.c ON c.id = b.id "
        "AND c.k = a.id"
    )
    plan = client.execute(f"EXPLAIN (FORMAT json) {ring}").fetchone()[0][0]["Plan"]
    assert plan["Notes"] == ["not reduced in full: its joins form a ring"]


@pytest.mark.parametrize(
    ("statement", "asked"),
    [
        ("SELECT a.id, a.k, b.w FROM shop.a JOIN shop.b ON a.id = b.id", {"id", "w"}),
        ("SELECT x.k, y.id FROM shop.a x JOIN shop.b y ON y.id = x.id", {"id"}),
        ("SELECT a.id, k, b.w FROM shop.a JOIN shop.b USING (k)", {"k", "w"}),
        ("SELECT a.k, b FROM shop.a JOIN shop.b ON a.id = b.id", {"id", "k", "w", "s"}),
        ("SELECT a.k, b.* FROM shop.a JOIN shop.b ON a.id = b.id", {"id", "k", "w", "s"}),
        ("SELECT a.k FROM shop.a WHERE a.id IN (SELECT b.id FROM shop.b)", {"id"}),
        ("SELECT a.k, (b).w FROM shop.a JOIN shop.b ON a.id = b.id", {"id", "k", "w", "s"}),
        ("SELECT j.w FROM (shop.a JOIN shop.b USING (k)) AS j", {"id", "k", "w", "s"}),
    ],
)
def test_columns_of_another_tables_names_stay(client, merged, statement, asked):
    """A column that is qualified is that table's, and no other's that has one of its name."""
    (document,) = client.execute(f"EXPLAIN (FORMAT json) {statement}").fetchone()
    steps = document[0]["Plan"]["Steps"]
    (sql,) = (s["SQL"] for s in steps if "shop.b" in s["Reads"])
    outputs = sql.partition(" FROM ")[0]
    assert {name for name in ("id", "k", "w", "s") if f'"{name}"' in outputs} == asked
    rows = client.execute(statement).fetchall()
    assert Counter(map(repr, rows)) == Counter(
        map(repr, merged.execute(statement.replace("shop.", "")).fetchall())
    )
