"""Joins on several columns: their keys travel as rows, and only what matches in all of them comes."""

from __future__ import annotations

from collections import Counter

import pytest

# Values of one column meet those of the other one in rows that the other side does not have.
TABLES = {
    "north": {
        "facts": ("id bigint, k int, j varchar(9), m bigint, v text",
                  [(1, 1, "a", 7, "x"), (2, 2, "b", 8, "x"), (3, 1, "a", 8, "y"), (4, None, "a", 7, "x"),
                   (5, 3, None, 7, "x"), (6, None, None, None, "y"), (7, 2, "B", 7, "x"), (8, 1, "", 9, "y"),
                   (9, 8, "d", 8, "z"), (10, 7, "q", 2, "z"), (11, 8, "r", 1, "z")]),
        "labels": ("k bigint, j text, n int", [(1, "a", 1), (2, "a", 2), (1, "b", 3), (2, "b", 4), (None, "b", 5)]),
    },
    "south": {
        "marks": ("id bigint, k bigint, j text, m bigint, w text",
                  [(1, 1, "a", 7, "p"), (2, 1, "b", 8, "p"), (3, 2, "a", 7, "q"), (4, 2, "b", 7, "q"),
                   (5, 3, None, 7, "p"), (6, None, "a", 8, "p"), (7, 2, "b ", 8, "q"), (8, 1, "a", 9, "q"),
                   (9, 8, "e", 5, None), (10, 1, "", 9, "p"), (11, 2, "B", 8, "p")]),
        "notes": ("k bigint, j text, t text", [(1, "a", "one"), (2, "a", "two"), (2, "b", "three"), (1, "", "four")]),
    },
}  # fmt: skip

DENY = "version: 1\n"
ONLY_K = "version: 1\nkey_disclosure:\n  - {column: '%s.k', to: ['*'], max_keys: 1000}\n"
FEW = "version: 1\nkey_disclosure:\n  - {column: '*', to: ['*'], max_keys: 6}\n"

STATEMENTS = {
    "inner": "SELECT f.id, m.id FROM facts f JOIN marks m USING (k, j)",
    "filtered": "SELECT f.id, m.id FROM facts f JOIN marks m USING (k, j) WHERE f.v = 'x'",
    "three columns": "SELECT f.id, n.id FROM facts f JOIN marks n USING (k, j, m)",
    "row constructors": "SELECT f.id, m.id FROM facts f JOIN marks m ON (f.j, f.k) = (m.j, m.k)",
    "left": "SELECT f.id, m.id FROM facts f LEFT JOIN marks m USING (k, j)",
    "right": "SELECT f.id, m.id FROM facts f RIGHT JOIN marks m USING (k, j) WHERE m.w = 'q'",
    "full": "SELECT f.id, m.id FROM facts f FULL JOIN marks m USING (k, j)",
    "in": "SELECT id FROM marks WHERE (k, j) IN (SELECT k, j FROM facts WHERE v = 'x')",
    "not in": "SELECT id FROM marks WHERE (k, j) NOT IN (SELECT k, j FROM facts)",
    "exists": "SELECT id FROM facts f WHERE EXISTS (SELECT FROM marks m WHERE m.k = f.k AND m.j = f.j)",
    "not exists": "SELECT id FROM facts f WHERE NOT EXISTS (SELECT FROM marks m WHERE m.k = f.k AND m.j = f.j)",
    "exists as a value": "SELECT id, EXISTS (SELECT FROM marks m WHERE m.k = f.k AND m.j = f.j) FROM facts f",
    "scalar": "SELECT id, (SELECT sum(m.id) FROM marks m WHERE m.k = f.k AND m.j = f.j) FROM facts f",
    "lateral": "SELECT f.id, l.id FROM facts f LEFT JOIN LATERAL (SELECT m.id FROM marks m"
    " WHERE m.k = f.k AND m.j = f.j ORDER BY m.id DESC LIMIT 1) l ON true",
    "crossed columns": "SELECT f.id, n.id FROM facts f JOIN marks n ON f.k = n.m AND f.m = n.k",
    "one column twice": "SELECT f.id, n.id FROM facts f JOIN marks n ON f.k = n.k AND f.m = n.k",
    "itself": "SELECT a.id, b.id, m.id FROM facts a JOIN marks m ON (a.k, a.j) = (m.k, m.j)"
    " JOIN facts b ON (b.k, b.m) = (m.k, m.m)",
    "one of two rows each": "WITH q AS NOT MATERIALIZED (SELECT * FROM marks) SELECT f.id, p.x, p.y FROM facts f"
    " JOIN (SELECT x.k, y.j, x.id AS x, y.id AS y FROM q x JOIN q y ON x.m = y.m OFFSET 0) p USING (k, j)",
    "two rows of one side": "SELECT f.id, x.id, y.id FROM marks x JOIN marks y ON x.m = y.m"
    " JOIN facts f ON f.k = x.k AND f.j = y.j",
    "beside others": "SELECT f.id, l.n, m.id FROM facts f JOIN labels l USING (k, j) JOIN marks m USING (k, j)"
    " WHERE l.n > 1",
    "chain": "SELECT l.n, m.id, t.t FROM labels l JOIN marks m USING (k, j) JOIN notes t USING (k, j)"
    " JOIN facts f USING (k, j)",
    "aggregate": "SELECT f.id, q.n FROM facts f JOIN (SELECT k, j, count(*) AS n FROM marks GROUP BY k, j) q"
    " USING (k, j)",
    "grouped by one": "SELECT f.id, q.j FROM facts f JOIN (SELECT k, max(j) AS j FROM marks GROUP BY k) q USING (k, j)",
    "grouping sets": "SELECT f.id, q.n FROM facts f JOIN (SELECT k, j, count(*) AS n FROM marks"
    " GROUP BY GROUPING SETS ((k, j), (k))) q USING (k, j)",
    "window": "SELECT f.id, q.r FROM facts f JOIN (SELECT k, j, rank() OVER (PARTITION BY k, j ORDER BY id) AS r"
    " FROM marks) q USING (k, j)",
    "window by one": "SELECT f.id, q.r FROM facts f JOIN (SELECT k, j, rank() OVER (PARTITION BY k ORDER BY id)"
    " AS r FROM marks) q USING (k, j)",
    "distinct on": "SELECT f.id, q.id FROM facts f JOIN (SELECT DISTINCT ON (k) * FROM marks ORDER BY k, id DESC) q"
    " USING (k, j)",
    "union": "SELECT f.id, q.t FROM facts f JOIN (SELECT k, j, w AS t FROM marks UNION ALL"
    " SELECT k, j, t FROM notes) q USING (k, j)",
    "limit": "SELECT f.id, q.id FROM facts f JOIN (SELECT * FROM marks ORDER BY id LIMIT 4) q USING (k, j)",
    "or": "SELECT f.id, m.id FROM facts f JOIN marks m ON f.k = m.k AND (f.j = m.j OR m.w = 'q')",
    "null-safe": "SELECT f.id, m.id FROM facts f JOIN marks m ON f.k = m.k AND f.j IS NOT DISTINCT FROM m.j",
}  # fmt: skip


@pytest.fixture(scope="module", params=["postgres", "sqlite", "mariadb"])
def places(request, two_owners):
    with two_owners(request, request.param, TABLES) as made:
        yield made


def read(found, table):
    """The step that reads a table's rows."""
    (step,) = [s for s in found if s["Reads"].startswith(f"shop.{table}")]
    return step


@pytest.mark.parametrize("reduction", ["forward", "full"])
@pytest.mark.parametrize("name", STATEMENTS)
def test_rows_equal_those_of_the_merged_tables(places, name, reduction):
    client, merged = places
    due = Counter(merged.execute(STATEMENTS[name]).fetchall())
    for policies in (
        {},
        {"north": DENY},
        {"south": DENY},
        {"north": ONLY_K % "facts", "south": ONLY_K % "marks"},
        {"north": FEW, "south": FEW},
    ):
        connection = client(**policies)
        connection.execute(f"SET oar.reduction = '{reduction}'")
        assert Counter(connection.execute(STATEMENTS[name]).fetchall()) == due, policies


PARTNERS = {
    "inner": "f.k = m.k AND f.j = m.j",
    "filtered": "f.k = m.k AND f.j = m.j AND f.v = 'x'",
    "three columns": "f.k = m.k AND f.j = m.j AND f.m = m.m",
    "row constructors": "f.k = m.k AND f.j = m.j",
    "left": "f.k = m.k AND f.j = m.j",
    "in": "f.k = m.k AND f.j = m.j AND f.v = 'x'",
    "exists": "f.k = m.k AND f.j = m.j",
    "not exists": "f.k = m.k AND f.j = m.j",
    "lateral": "f.k = m.k AND f.j = m.j",
    "crossed columns": "f.k = m.m AND f.m = m.k",
    "window": "f.k = m.k AND f.j = m.j",
}
"""What a row of ``marks`` shares with one of ``facts`` when it takes part."""


@pytest.mark.parametrize("name", PARTNERS)
def test_what_matches_in_each_column_alone_stays_at_its_owner(places, name, steps):
    client, merged = places
    connection = client()
    connection.execute("SET oar.reduction = 'full'")
    sent = read(steps(connection, STATEMENTS[name]), "marks")
    partner = f"EXISTS (SELECT FROM facts f WHERE {PARTNERS[name]})"
    (due,) = merged.execute(f"SELECT count(*) FROM marks m WHERE {partner}").fetchone()
    assert sent["Actual Rows"] == due
    alone = (f"EXISTS (SELECT FROM facts f WHERE {one})" for one in PARTNERS[name].split(" AND "))
    (more,) = merged.execute(f"SELECT count(*) FROM marks m WHERE {' AND '.join(alone)}").fetchone()
    assert more > due


@pytest.mark.parametrize("name", ["inner", "three columns", "in", "chain", "crossed columns"])
def test_in_full_no_row_leaves_that_joins_with_nothing(places, name, steps):
    client, merged = places
    connection = client()
    connection.execute("SET oar.reduction = 'full'")
    found = steps(connection, STATEMENTS[name])
    due = {
        "inner": "SELECT count(DISTINCT f.id) + count(DISTINCT m.id) FROM facts f JOIN marks m USING (k, j)",
        "three columns": "SELECT count(DISTINCT f.id) + count(DISTINCT n.id) FROM facts f"
        " JOIN marks n USING (k, j, m)",
        "in": "SELECT count(DISTINCT f.id) + count(DISTINCT m.id) FROM facts f JOIN marks m USING (k, j)"
        " WHERE v = 'x'",
        "chain": "SELECT count(DISTINCT l) + count(DISTINCT m.id) + count(DISTINCT t) + count(DISTINCT f.id)"
        " FROM labels l JOIN marks m USING (k, j) JOIN notes t USING (k, j) JOIN facts f USING (k, j)",
        "crossed columns": "SELECT count(DISTINCT f.id) + count(DISTINCT n.id) FROM facts f JOIN marks n"
        " ON f.k = n.m AND f.m = n.k",
    }[name]  # fmt: skip
    rows = sum(s["Actual Rows"] for s in found if not s["Reads"].startswith("keys of"))
    assert (rows,) == merged.execute(due).fetchone()


def test_one_line_of_the_plan_shows_all_columns(places, steps):
    connection = places[0]()
    found = read(steps(connection, STATEMENTS["left"]), "marks")
    (keys,) = found["Keys"]
    assert keys["From"] == "north: (shop.facts.k, shop.facts.j)"
    assert keys["To"] == "south: (marks.k, marks.j)"
    assert (keys["Rule"], keys["At Most"]) == ("north/key_disclosure[0]", 1000)
    # A row with a NULL is no key, and none comes twice.
    assert keys["Actual Keys"] == found["Actual Keys"] == 2 * 7
    lines = [line for (line,) in connection.execute(f"EXPLAIN {STATEMENTS['left']}")]
    assert (
        "    Keys: north: (shop.facts.k, shop.facts.j) -> south: (marks.k, marks.j) "
        "(rule north/key_disclosure[0], at most 1000)"
    ) in lines


def test_each_column_is_on_the_ledger_with_the_number_of_rows(places):
    connection = places[0]()
    connection.execute(STATEMENTS["left"])
    disclosed = connection.execute(
        "SELECT from_column, to_column, keys FROM oar.disclosures WHERE ask = "
        "(SELECT ask FROM oar.steps ORDER BY step DESC LIMIT 1) ORDER BY from_column"
    ).fetchall()
    # k has five values: their number would say less than what left.
    assert disclosed == [("shop.facts.j", "marks.j", 7), ("shop.facts.k", "marks.k", 7)]
    carried = connection.execute("SELECT keys FROM oar.steps ORDER BY step DESC LIMIT 1").fetchone()
    assert carried == (14,)


def test_a_column_that_a_policy_keeps_leaves_the_other_one_by_itself(places, steps):
    connection = places[0](north=ONLY_K % "facts")
    found = read(steps(connection, STATEMENTS["left"]), "marks")
    (keys,) = found["Keys"]
    assert (keys["From"], keys["To"]) == ("north: shop.facts.k", "south: marks.k")
    assert keys["Actual Keys"] == 5
    (denied,) = found["Denied"]
    assert denied["From"] == "north: shop.facts.j"


def test_more_rows_than_may_travel_go_column_by_column(places, steps):
    client, merged = places
    connection = client(north=FEW, south=FEW)
    found = read(steps(connection, STATEMENTS["left"]), "marks")
    assert found["Notes"] == [
        "edge shop.facts.k, shop.facts.j to south carries 7 keys, at most 6 by "
        "north/key_disclosure[0].max_keys: each column by itself",
        "edge shop.facts.j to south carries 7 keys, at most 6 by "
        "north/key_disclosure[0].max_keys: asked without them",
    ]
    assert found["Actual Keys"] == 5
    (due,) = merged.execute(
        "SELECT count(*) FROM marks WHERE k IN (SELECT k FROM facts)"
    ).fetchone()
    assert found["Actual Rows"] == due


def test_tables_of_one_owner_join_on_all_columns_inside(places, steps):
    connection = places[0]()
    connection.execute("SET oar.reduction = 'full'")
    found = steps(connection, STATEMENTS["beside others"])
    (facts,) = [s for s in found if s["Reads"].startswith("shop.facts")]
    assert {
        "From": "north: (shop.labels.k, shop.labels.j)",
        "To": "north: (facts.k, facts.j)",
    } in facts["Semi-Joins"]
    for step in found:
        inside = step.get("Semi-Joins", ())
        assert all(edge["To"].endswith(".j)") for edge in inside)


@pytest.mark.parametrize("name", ["one of two rows each", "two rows of one side"])
def test_columns_of_two_rows_do_not_travel_as_one(places, name, steps):
    connection = places[0]()
    for reduction in ("forward", "full"):
        connection.execute(f"SET oar.reduction = '{reduction}'")
        for step in steps(connection, STATEMENTS[name]):
            assert not any("(" in key["From"] for key in step.get("Keys", ()))


@pytest.mark.parametrize("reduction", ["forward", "full"])
@pytest.mark.parametrize(
    "statement",
    [
        "SELECT c.u, split.t FROM c JOIN split USING (id, k)",
        "SELECT c.u, split.t FROM c LEFT JOIN split ON split.id = c.id AND split.k = c.k",
        "SELECT t FROM split WHERE (k, id) IN (SELECT k, id FROM c WHERE u = 'm')",
    ],
)
def test_owners_that_share_a_table_give_and_get_rows_of_keys(
    client, merged, statement, reduction, steps
):
    due = Counter(merged.execute(statement).fetchall())
    client.execute(f"SET oar.reduction = '{reduction}'; SET search_path = shop")
    assert Counter(client.execute(statement).fetchall()) == due
    keys = [key for step in steps(client, statement) for key in step.get("Keys", ())]
    assert keys
    assert all(key["To"].count(",") == 1 and "(" in key["To"] for key in keys)
