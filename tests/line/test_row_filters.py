"""Row filters and masks: a statement means what it means over views that filter and mask."""

from __future__ import annotations

import json
import re
import time
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest

STAFF = (
    "id bigint primary key, name text, dept text, salary bigint, tenant bigint, boss bigint",
    [
        (1, "Ann", "sales", 50, 1, None), (2, "Bob", "board", 900, 1, 1), (3, "Cid", None, 60, 1, 1),
        (4, "Dee", "sales", 70, 2, 1), (5, "Eve", "ops", 80, None, 4), (6, "Fay", "ops", 55, 1, 3),
        (7, None, "board", 990, 2, 2),
    ],
)  # fmt: skip
ORDERS = (
    "id bigint, staff_id bigint, note text, amount bigint, region text",
    [
        (10, 1, "vip", 5, "eu"), (11, 1, "x", 20, "us"), (12, 2, "y", 30, "eu"), (13, 4, "z", 40, "eu"),
        (14, 6, None, 50, None), (15, None, "w", 60, "us"), (16, 6, "v", None, "eu"), (17, 3, "u", 9, "eu"),
    ],
)  # fmt: skip
NORTH = """\
version: 1
tables:
  staff:
    row_filter: tenant = 1 AND (dept <> 'board' OR dept IS NULL)
    columns: {name: {mask: null}, salary: {mask: '0'}, tenant: {mask: '42'}}
key_disclosure: [{column: '*', to: ['*']}]
"""
SOUTH = """\
version: 1
tables:
  orders:
    row_filter: amount >= 9
    columns: {note: {mask: "it's hidden"}}
key_disclosure: [{column: '*', to: ['*']}]
"""
SEEN = """\
CREATE SCHEMA seen;
CREATE VIEW seen.staff AS
  SELECT id, NULL::text AS name, dept, 0::bigint AS salary, 42::bigint AS tenant, boss FROM staff
  WHERE tenant = 1 AND (dept <> 'board' OR dept IS NULL);
CREATE VIEW seen.orders AS
  SELECT id, staff_id, 'it''s hidden'::text AS note, amount, region FROM orders WHERE amount >= 9;
SET search_path = seen;
"""

STATEMENTS = [
    "SELECT * FROM staff ORDER BY id",
    "TABLE orders",
    "SELECT count(*) FROM staff",
    "SELECT count(*), count(name), sum(salary), max(tenant), min(dept) FROM staff",
    "SELECT name, note FROM staff JOIN orders ON staff_id = staff.id",
    "SELECT staff.id, amount FROM staff LEFT JOIN orders ON staff_id = staff.id ORDER BY 1, 2",
    "SELECT staff.id, amount FROM staff RIGHT JOIN orders ON staff_id = staff.id ORDER BY 1, 2",
    "SELECT staff.id, amount FROM staff FULL JOIN orders ON staff_id = staff.id ORDER BY 1, 2",
    "SELECT id FROM staff WHERE salary > 40",
    "SELECT id FROM staff WHERE salary = 0 AND name IS NULL ORDER BY id",
    "SELECT id FROM staff WHERE name = 'Ann'",
    "SELECT id FROM staff WHERE tenant = 2",
    "SELECT id FROM staff WHERE tenant = 1",
    "SELECT id FROM staff WHERE NOT (tenant = 1)",
    "SELECT id FROM staff WHERE dept = 'board' OR salary = 900",
    "SELECT id FROM orders WHERE note LIKE 'v%'",
    "SELECT id FROM orders WHERE note LIKE 'it%' ORDER BY id",
    "SELECT id FROM orders WHERE amount < 9",
    "SELECT id FROM orders WHERE amount IS NULL",
    "SELECT id FROM orders WHERE NOT amount >= 9 OR amount IS NULL",
    "SELECT EXISTS (SELECT FROM staff WHERE tenant = 2)",
    "SELECT EXISTS (SELECT FROM orders WHERE amount < 9)",
    "SELECT s.id, EXISTS (SELECT FROM orders o WHERE o.staff_id = s.id) FROM staff s ORDER BY 1",
    "SELECT id FROM orders WHERE staff_id NOT IN (SELECT id FROM staff) ORDER BY id",
    "SELECT id FROM orders o WHERE NOT EXISTS (SELECT FROM staff s WHERE s.id = o.staff_id)"
    " ORDER BY id",
    "SELECT id FROM orders WHERE staff_id IN (SELECT id FROM staff WHERE salary < 10) ORDER BY id",
    "SELECT id FROM orders WHERE staff_id IN (SELECT salary FROM staff)",
    "SELECT id FROM orders WHERE amount IN (SELECT tenant FROM staff)",
    "SELECT o.id FROM orders o JOIN staff s ON s.salary = o.amount",
    "SELECT o.id, s.id FROM orders o JOIN staff s ON s.name = o.note",
    "SELECT o.id, s.id FROM orders o JOIN staff s ON s.tenant = o.amount + 2",
    "SELECT s.id, b.id FROM staff s JOIN staff b ON s.boss = b.id ORDER BY 1",
    "SELECT s.id, b.id FROM staff s LEFT JOIN staff b ON s.boss = b.id ORDER BY 1",
    "SELECT s.id, o.id FROM staff s JOIN staff b ON s.boss = b.id JOIN orders o"
    " ON o.staff_id = b.id ORDER BY 1, 2",
    "SELECT dept, count(*) FROM staff GROUP BY dept ORDER BY 1",
    "SELECT name, salary, count(*) FROM staff GROUP BY name, salary",
    "SELECT tenant, sum(amount) FROM staff JOIN orders ON staff_id = staff.id GROUP BY tenant",
    "SELECT region, sum(amount), count(note) FROM orders GROUP BY region ORDER BY 1",
    "SELECT id FROM staff ORDER BY salary DESC, id LIMIT 2",
    "SELECT id, name FROM staff ORDER BY name, id DESC LIMIT 1",
    "SELECT id FROM orders ORDER BY amount LIMIT 1",
    "SELECT count(*) FROM (SELECT FROM orders LIMIT 100) AS q",
    "SELECT max(id), min(amount) FROM orders",
    "SELECT DISTINCT salary, note FROM staff, orders",
    "SELECT id FROM staff UNION ALL SELECT amount FROM orders ORDER BY 1",
    "SELECT salary FROM staff UNION SELECT amount FROM orders ORDER BY 1",
    "SELECT id FROM staff INTERSECT SELECT staff_id FROM orders ORDER BY 1",
    "SELECT staff_id FROM orders EXCEPT SELECT id FROM staff ORDER BY 1",
    "SELECT s::text FROM staff s ORDER BY id",
    "SELECT (s).name, (s).id FROM staff s ORDER BY 2",
    "SELECT s.id, row_to_json(s) ->> 'salary' FROM staff s ORDER BY 1",
    "SELECT to_jsonb(o) FROM orders o ORDER BY id",
    "SELECT x.n, x.i FROM staff AS x(i, n, d, p, t, b) ORDER BY 2",
    "SELECT * FROM (SELECT name AS who, id FROM staff) AS q WHERE who IS NULL ORDER BY id",
    "WITH w AS (SELECT id, salary FROM staff) SELECT sum(salary), max(id) FROM w",
    "WITH w AS MATERIALIZED (SELECT * FROM orders) SELECT note, amount FROM w ORDER BY amount",
    "SELECT CASE WHEN salary > 40 THEN 'rich' ELSE 'poor' END, id FROM staff ORDER BY id",
    "SELECT s.id, l.amount FROM staff s, LATERAL (SELECT amount FROM orders o WHERE"
    " o.staff_id = s.id ORDER BY amount LIMIT 1) AS l ORDER BY 1",
    "SELECT id, rank() OVER (ORDER BY salary), sum(salary) OVER () FROM staff ORDER BY id",
    "SELECT \"name\", U&\"sal\\0061ry\" FROM staff WHERE U&\"n\\0061me\" IS NULL",
    "SELECT * FROM staff JOIN orders USING (id)",
    "SELECT * FROM staff NATURAL JOIN (SELECT staff_id AS id, note AS name FROM orders) AS q",
    "SELECT * FROM staff NATURAL JOIN (SELECT staff_id AS id, 0::bigint AS salary FROM orders) q"
    " ORDER BY 1",
    "SELECT array(SELECT note FROM orders), array(SELECT id FROM staff ORDER BY id)",
    "SELECT (SELECT max(salary) FROM staff), (SELECT sum(amount) FROM orders)",
    "SELECT id FROM staff WHERE salary::text || name IS NULL ORDER BY id",
    "SELECT count(*) FROM staff WHERE 1 / (salary + 1) > 0",
    "SELECT coalesce(name, 'nobody'), upper(note) FROM staff, orders WHERE staff.id = staff_id",
    "SELECT count(*) FILTER (WHERE salary > 0), count(*) FILTER (WHERE tenant = 42) FROM staff",
    "SELECT sum(amount) FROM orders HAVING max(note) = 'vip'",
    "SELECT dept FROM staff GROUP BY dept HAVING sum(salary) > 0",
    "SELECT 1 FROM staff WHERE id = 4",
    "SELECT staff.* FROM staff JOIN orders ON orders.amount = staff.salary",
]  # fmt: skip


@pytest.fixture(scope="module", params=["postgres", "sqlite", "mariadb"])
def opened(request, two_owners):
    tables = {"north": {"staff": STAFF}, "south": {"orders": ORDERS}}
    with two_owners(request, request.param, tables) as (client, merged):
        merged.execute(SEEN)
        yield client, merged


def as_multiset(rows):
    return sorted(map(repr, rows))


@pytest.mark.parametrize("statement", STATEMENTS)
def test_the_answer_is_that_of_views(opened, statement):
    client, merged = opened
    proxy = client(north=NORTH, south=SOUTH)
    said, seen = proxy.execute(statement), merged.execute(statement)
    assert [c.name for c in said.description] == [c.name for c in seen.description]
    rows, expected = said.fetchall(), seen.fetchall()
    assert as_multiset(rows) == as_multiset(expected)
    if "ORDER BY" in statement:
        assert rows == expected


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT shop.staff.name, shop.staff.id FROM shop.staff ORDER BY shop.staff.salary, 2",
        "SELECT d.salary FROM ONLY shop.staff AS d",
        'SELECT "shop"."staff"."salary" FROM "shop"."staff"',
    ],
)
def test_names_with_a_schema_are_masked_as_well(opened, statement):
    client, merged = opened
    proxy = client(north=NORTH, south=SOUTH)
    rows = proxy.execute(statement).fetchall()
    assert rows == merged.execute(statement.replace("shop", "seen")).fetchall()


def test_every_carrier_of_a_statement_is_filtered_and_masked(opened):
    client, merged = opened
    proxy = client(north=NORTH, south=SOUTH)
    expected = merged.execute("SELECT * FROM staff ORDER BY id").fetchall()
    proxy.execute("CREATE TEMPORARY VIEW kept AS SELECT * FROM staff")
    assert proxy.execute("SELECT * FROM kept ORDER BY id").fetchall() == expected
    assert proxy.execute("SELECT salary FROM kept WHERE salary > 0").fetchall() == []
    proxy.execute("DROP VIEW kept")
    proxy.execute("CREATE TEMPORARY TABLE kept AS SELECT * FROM staff")
    assert proxy.execute("SELECT * FROM kept ORDER BY id").fetchall() == expected
    proxy.execute("DROP TABLE kept")
    proxy.execute("PREPARE kept (bigint) AS SELECT * FROM staff WHERE salary < $1 ORDER BY id")
    assert proxy.execute("EXECUTE kept (10)").fetchall() == expected
    assert proxy.execute("EXECUTE kept (0)").fetchall() == []
    proxy.execute("DEALLOCATE kept")
    proxy.execute("DECLARE kept CURSOR WITH HOLD FOR SELECT * FROM staff ORDER BY id")
    assert proxy.execute("FETCH ALL FROM kept").fetchall() == expected
    proxy.execute("CLOSE kept")
    with proxy.cursor().copy("COPY (SELECT name, salary FROM staff) TO STDOUT") as copy:
        assert {bytes(block) for block in copy} == {b"\\N\t0\n"}
    bound = proxy.execute("SELECT id FROM staff WHERE name IS NOT DISTINCT FROM %s", ["Ann"])
    assert bound.fetchall() == []


def test_the_filter_is_in_the_plan_and_on_the_wire_and_no_masked_column(opened):
    client, _ = opened
    proxy = client(north=NORTH, south=SOUTH)
    (document,) = proxy.execute("EXPLAIN (FORMAT json) SELECT * FROM staff").fetchone()
    (step,) = document[0]["Plan"]["Steps"]
    rules = [f"north/tables.staff.columns.{c}.mask" for c in ("name", "salary", "tenant")]
    assert step["Rules"] == ["north/tables.staff.row_filter", *rules]
    selected, _, condition = step["SQL"].partition("WHERE")
    assert "tenant" in condition
    assert not {"name", "salary", "tenant"} & set(selected.replace('"', " ").split())
    assert any("north/tables.staff.row_filter" in note for note in document[0]["Plan"]["Notes"])
    told = [
        row[0] for row in proxy.execute("SELECT * FROM public.oar_explain('SELECT 1 FROM staff')")
    ]
    assert any("Rule: north/tables.staff.row_filter" in line for line in told)


def test_keys_are_those_of_the_rows_that_are_left(opened, steps):
    client, _ = opened
    proxy = client(north=NORTH, south=SOUTH)
    joined = "SELECT o.id FROM staff s JOIN orders o ON o.staff_id = s.id WHERE s.dept <> 'x'"
    (_, south) = steps(proxy, joined)
    assert south["Owner"] == "south"
    # Ann and Fay; not Dee of another tenant, nor Bob of the board.
    assert south["Actual Keys"] == 2


@pytest.mark.parametrize(
    ("condition", "reason"),
    [
        ("salary >", "one condition"),
        ("wage > 1", 'column "wage" does not exist'),
        ("salary > 1) OR (true", "one condition"),
        ("salary = 'many'", "invalid input syntax for type bigint"),
        ("salary", "must be type boolean"),
        ("random() < 0.5", "comparisons of a column with a constant"),
        ("now() > '2020-01-01'", "comparisons of a column with a constant"),
        ("dept = current_user", "comparisons of a column with a constant"),
        ("lower(dept) = 'ops'", "comparisons of a column with a constant"),
        ("id IN (SELECT 1)", "other rows"),
        ("oar_internal.session_state(NULL) IS NULL", "comparisons of a column with a constant"),
        ("true", "comparisons of a column with a constant"),
        ("false", "comparisons of a column with a constant"),
        ("dept = 'today'", "depends on the day"),
        ("tenant = 1; SELECT 1", "one condition|syntax|multiple"),
        ("tenant = $1", "parameter"),
    ],
)
def test_a_filter_that_cannot_be_read_leaves_its_table_unpublished(
    owners, new_hub, running_proxy, capsys, condition, reason
):
    policy = (
        f"version: 1\ntables:\n  a:\n    row_filter: {json.dumps(condition)}\n".replace(
            "salary", "id"
        )
        .replace("dept", "v")
        .replace("tenant", "k")
    )
    reason = reason.replace("salary", "id")
    with running_proxy(owners.settings(new_hub(), {"north": policy})) as (_, dsn), \
            psycopg.connect(dsn, autocommit=True) as client:  # fmt: skip
        with pytest.raises(psycopg.errors.UndefinedTable):
            client.execute("SELECT count(*) FROM shop.a")
        assert client.execute("SELECT count(*) FROM shop.d").fetchone() == (4,)
    said = capsys.readouterr()
    told = said.out + said.err
    assert "table not published" in told
    assert re.search(reason, told), told


def test_a_mask_that_is_no_value_of_its_column_leaves_its_table_unpublished(proxy):
    client = proxy({"north": "version: 1\ntables: {a: {columns: {k: {mask: 'many'}}}}\n"})
    with pytest.raises(psycopg.errors.UndefinedTable):
        client.execute("SELECT count(*) FROM shop.a")


TIMES = (
    "id bigint, day date, at timestamptz, span interval, code char(4), note text",
    [(1, "2020-01-01", "2020-01-01 00:00Z", "1 day", "ab", "n"),
     (2, "2020-01-01", "2020-01-01 00:00Z", "1 day", "AB", "n")],
)  # fmt: skip


def test_a_mask_is_one_value_whatever_a_session_sets(request, two_owners):
    masks = {"day": "02/03/2024", "at": "2024-02-03 10:00", "span": "-1 day 02:00", "note": "today"}
    policy = json.dumps(
        {"version": 1, "tables": {"times": {"columns": {c: {"mask": m} for c, m in masks.items()}}}}
    )
    tables = {"north": {"times": TIMES}, "south": {"other": ("id bigint", [(1,)])}}
    asked = (
        "SELECT DISTINCT day - date '2024-02-03', extract(epoch FROM at)::bigint,"
        " extract(epoch FROM span)::bigint, note FROM times"
    )
    due = [(0, 1706954400, -86400 + 7200, "today")]
    with two_owners(request, "postgres", tables) as (client, _):
        proxy = client(north=policy)
        for setting in ("DateStyle = 'ISO, DMY'", "TimeZone = 'Asia/Tokyo'",
                        "IntervalStyle = 'sql_standard'"):  # fmt: skip
            proxy.execute(f"SET {setting}")
            assert proxy.execute(asked).fetchall() == due, setting
        join = f"{asked.replace(' FROM times', '')} FROM times JOIN other USING (id)"
        assert proxy.execute(join).fetchall() == due
        proxy.execute("RESET DateStyle; RESET TimeZone; RESET IntervalStyle")
        moving = client(north=policy.replace("02/03/2024", "today"))
        with pytest.raises(psycopg.errors.UndefinedTable):
            moving.execute("SELECT count(*) FROM times")


@pytest.mark.parametrize(
    ("condition", "due"),
    [
        ("code = 'ab'", [1]),
        ("code IN ('ab ', 'x')", [1]),
        ("code <> 'AB'", [1]),
        ("code < 'a'", [2]),
    ],
)
def test_a_filter_compares_padded_text(request, two_owners, condition, due):
    tables = {"north": {"times": TIMES}, "south": {"other": ("id bigint", [(1,), (2,)])}}
    policy = json.dumps({"version": 1, "tables": {"times": {"row_filter": condition}}})
    with two_owners(request, "postgres", tables) as (client, merged):
        proxy = client(north=policy)
        rows = "SELECT id::int FROM times ORDER BY 1"
        assert [n for (n,) in proxy.execute(rows)] == due
        # And so does a statement's own condition, at the owner.
        open_ = client()
        asked = f"SELECT t.id::int FROM times t LEFT JOIN other USING (id) WHERE t.{condition}"
        assert [n for (n,) in open_.execute(asked)] == due
        assert [n for (n,) in merged.execute(asked)] == due
        told = open_.execute(f"EXPLAIN (FORMAT json) {asked}").fetchone()[0][0]["Plan"]
        assert " WHERE " in told["Steps"][0]["SQL"]


def test_an_owner_that_cannot_filter_faithfully_is_not_asked(request, two_owners):
    key = "10000000-0000-0000-0000-000000000000"
    orders = ("id bigint, staff_id bigint, amount bigint, token uuid", [(1, 1, 5, key)])
    tables = {"north": {"staff": STAFF}, "south": {"orders": orders}}
    # MariaDB sorts these by other bytes first.
    south = f"version: 1\ntables: {{orders: {{row_filter: \"token >= '{key}'\"}}}}\n"
    with two_owners(request, "mariadb", tables) as (client, _):
        proxy = client(north="version: 1", south=south)
        for statement in (
            "SELECT count(*) FROM orders",
            "SELECT amount FROM orders WHERE staff_id = 1",
            "EXPLAIN SELECT amount FROM orders",
            "SELECT s.id FROM staff s WHERE EXISTS (SELECT FROM orders WHERE staff_id = s.id)",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege) as refused:
                proxy.execute(statement)
            assert "south/tables.orders.row_filter" in refused.value.diag.message_detail
        assert proxy.execute("SELECT count(*) FROM oar.steps").fetchone() == (0,)


def test_rows_of_a_split_table_are_filtered_by_each_holder_for_itself(proxy):
    north = "version: 1\ntables: {split: {row_filter: 'k < 60', columns: {t: {mask: '-'}}}}\n"
    client = proxy({"north": north})
    rows = client.execute("SELECT id, t FROM shop.split ORDER BY id").fetchall()
    # The mask of one holder is everybody's: nobody sees whose a row is.
    assert rows == [(1, "-"), (3, "-"), (4, "-"), (5, "-")]


def test_a_filter_that_is_put_in_force_later_holds_for_prepared_statements(
    owners, new_hub, running_proxy
):
    settings = owners.settings(new_hub(), {"north": "version: 1\n"})
    settings = settings.model_copy(update={"catalog_refresh": 0.2})
    path: Path = settings.owners["north"].policy
    with running_proxy(settings) as (_, dsn), psycopg.connect(dsn, autocommit=True) as client:
        client.prepare_threshold = 0
        assert client.execute("SELECT count(*) FROM shop.a").fetchone() == (6,)
        path.write_text("version: 1\ntables: {a: {row_filter: k = 10}}\n")
        deadline = time.monotonic() + 30
        rows = 6
        while rows != 2 and time.monotonic() < deadline:
            with suppress(psycopg.errors.InsufficientPrivilege):  # between policy and catalog
                (rows,) = client.execute("SELECT count(*) FROM shop.a").fetchone()
            assert rows in (6, 2)
        assert rows == 2
