"""Where a statement needs groups of an owner's rows only, groups leave, and the answer is the same.

One table of facts in each kind of owner, and one whose rows are split, joined with a table elsewhere.
"""

from __future__ import annotations

import random
import re
import sqlite3
from collections import Counter
from dataclasses import dataclass
from decimal import Decimal

import psycopg
import psycopg.conninfo
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from oar_bench.addresses import owner_url
from oar_proxy.settings import HubSettings, Listen, OwnerSettings, Settings

ALLOW = "version: 1\nkey_disclosure:\n  - {column: '*', to: ['*'], max_keys: 100000}\n"

ROWS = 240
DIM = [
    (1, "Казань", 1),
    (2, "Omsk", 1),
    (2, "Тула", 2),
    (3, "omsk", None),
    (None, "nowhere", 3),
    (9, "none", 2),
]

INTEGERS = (0, 1, -1, 7, 2**31 - 1, -(2**31))
BIGS = (0, 5, 2**63 - 1, 2**63 - 1, -(2**63), 2**53 + 1, -7)
CENTS = ("0.00", "0.01", "-0.01", "9999999999.99", "-9999999999.99", "1.50", "10.00")
WORDS = ("bob", "Bob", "bob ", "", "Я", "zoë", "z")
DAYS = ("0001-01-01", "2024-02-29", "9999-12-31", "1999-12-31")


def facts(seed, size=ROWS):
    """Rows of (id, k, i, b, n, t, d): every value NULL at times, and all of one key's always."""
    chance = random.Random(seed)

    def pick(values, k):
        return None if k == 3 or chance.random() < 0.15 else chance.choice(values)

    rows = []
    for number in range(1, size + 1):
        k = chance.choice((1, 1, 1, 2, 2, 3, 4, None))
        rows.append(
            (
                number,
                k,
                pick(INTEGERS, k),
                pick(BIGS, k),
                pick(CENTS, k),
                pick(WORDS, k),
                pick(DAYS, k),
            )
        )
    # The only one of its key.
    return [*rows, (size + 1, 9, -5, -(2**63), "0.10", "one", "2024-02-29")]


COLUMNS = ("id", "k", "i", "b", "n", "t", "d")
TABLES = {
    "postgres": "bigint, bigint, integer, bigint, numeric(12,2), text, date",
    "sqlite": "bigint, bigint, bigint, bigint, numeric, text, date",
    "mariadb": "integer, bigint, integer, bigint, numeric(12,2), text, date",
    "split": "bigint, bigint, bigint, bigint, numeric, text, date",
}
"""Tables by the kind of their owner: the types it publishes."""
CONTENT = {name: facts(seed) for seed, name in enumerate(TABLES)}


def created(name, types, key=""):
    listed = ", ".join(f"{c} {t}" for c, t in zip(COLUMNS, types.split(", "), strict=True))
    return f"CREATE TABLE {name} ({listed}{key})"


def fill(connection, name, types, rows, key=""):
    connection.execute(created(name, types, key))
    connection.cursor().executemany(f"INSERT INTO {name} VALUES ({', '.join(['%s'] * 7)})", rows)


def fill_sqlite(path, tables):
    connection = sqlite3.connect(path)
    with connection:
        for name, rows in tables.items():
            # A collation that takes case twins for one must not make them one group.
            connection.execute(
                f"CREATE TABLE {name} (id INTEGER PRIMARY KEY, k INTEGER, i INTEGER, b INTEGER,"
                " n NUMERIC, t TEXT COLLATE NOCASE, d DATE)"
            )
            marks = "?, ?, ?, ?, CAST(? AS NUMERIC), ?, ?"
            connection.executemany(f"INSERT INTO {name} VALUES ({marks})", rows)
    connection.close()


@dataclass(frozen=True)
class Places:
    dsn: str
    merged: str
    north: str


@pytest.fixture(scope="module")
def places(mariadb_server, new_database, running_proxy, tmp_path_factory):
    """A proxy over four owners, and all their tables in one database."""
    west, north, merged, hub = (new_database(n) for n in ("west", "north", "merged", "hub"))
    made_up = "CREATE TABLE drawn (k bigint, i integer, s smallint, b bigint, n numeric(6,2), h numeric(5,-2),"
    made_up += " t text, v varchar(3), d date, at timestamptz, x double precision, j jsonb, u numeric) WITH (autovacuum_enabled = off)"
    directory = tmp_path_factory.mktemp("partial")
    with psycopg.connect(west) as connection:
        connection.execute("CREATE TABLE dim (k bigint, city text, grp integer)")
        connection.cursor().executemany("INSERT INTO dim VALUES (%s, %s, %s)", DIM)
    with psycopg.connect(merged) as connection:
        connection.execute("CREATE TABLE dim (k bigint, city text, grp integer)")
        connection.cursor().executemany("INSERT INTO dim VALUES (%s, %s, %s)", DIM)
        for name, types in TABLES.items():
            fill(connection, name, types, CONTENT[name])
        connection.execute(made_up)
    half = ROWS // 2
    with psycopg.connect(north) as connection:
        fill(connection, "postgres", TABLES["postgres"], CONTENT["postgres"], ", PRIMARY KEY (id)")
        fill(connection, "split", TABLES["split"], CONTENT["split"][:half])
        connection.execute(made_up)
    south = directory / "south.sqlite"
    fill_sqlite(south, {"sqlite": CONTENT["sqlite"], "split": CONTENT["split"][half:]})
    database, url = mariadb_server.new_database(
        "shop", options="CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci"
    )
    mariadb_server.run(
        "CREATE TABLE mariadb (id int PRIMARY KEY, k bigint, i int, b bigint, n decimal(12,2), t text, d date)",
        "INSERT INTO mariadb VALUES (%s, %s, %s, %s, %s, %s, %s)",
        database=database,
        rows=CONTENT["mariadb"],
    )
    policy = directory / "allow.yaml"
    policy.write_text(ALLOW)
    urls = {
        "west": owner_url(west),
        "north": owner_url(north),
        "south": f"sqlite:///{south}",
        "east": url,
    }
    owners = {n: OwnerSettings(url=u, schema="shop", policy=policy) for n, u in urls.items()}
    settings = Settings(owners=owners, hub=HubSettings(dsn=hub), listen=Listen(port=0))
    with running_proxy(settings) as (_, dsn):
        yield Places(dsn, merged, north)


@pytest.fixture(scope="module")
def client(places):
    with psycopg.connect(places.dsn, autocommit=True) as connection:
        connection.execute("SET search_path = shop")
        yield connection


@pytest.fixture(scope="module")
def merged(places):
    with psycopg.connect(places.merged, autocommit=True) as connection:
        yield connection


ALL = "count(*), count(f.{0}), sum(f.{0}), min(f.{0}), max(f.{0}), avg(f.{0})"
EXTREMES = "count(f.{0}), min(f.{0}), max(f.{0})"

STATEMENTS = {
    "integers": f"SELECT d.city, {ALL.format('i')} FROM dim d JOIN TABLE f USING (k) GROUP BY d.city",
    "bigints": f"SELECT d.city, {ALL.format('b')} FROM dim d JOIN TABLE f ON f.k = d.k GROUP BY 1",
    "several": "SELECT f.k, sum(f.i), avg(b), max(b), count(i) FROM TABLE f, dim d WHERE f.k = d.k GROUP BY 1",
    "mean": "SELECT d.city, avg(f.b) FROM dim d JOIN TABLE f USING (k) GROUP BY 1",
    "sum and minimum": "SELECT city, sum(b), min(b) FROM dim JOIN TABLE f USING (k) GROUP BY 1",
    "sum and maximum": "SELECT city, max(b), sum(b) FROM dim JOIN TABLE f USING (k) GROUP BY 1",
    "extremes": "SELECT city, max(b), min(b) FROM dim JOIN TABLE f USING (k) GROUP BY 1",
    "count": "SELECT city, count(b) FROM dim JOIN TABLE f USING (k) GROUP BY 1",
    "nothing but rows": "SELECT city, count(*) FROM dim JOIN TABLE f USING (k) GROUP BY 1",
    "left": "SELECT d.city, count(f.i), sum(f.i), count(*) FROM dim d LEFT JOIN TABLE f USING (k) GROUP BY 1",
    "right": "SELECT d.city, count(f.i), sum(f.i), count(*) FROM dim d RIGHT JOIN TABLE f USING (k) GROUP BY 1",
    "full": "SELECT d.city, f.k, min(f.i), avg(f.i) FROM dim d FULL JOIN TABLE f ON d.k = f.k GROUP BY 1, 2",
    "nested joins": "SELECT x.city, max(f.i) FROM dim x LEFT JOIN (dim d JOIN TABLE f ON f.k = d.k) ON x.k = d.k GROUP BY 1",
    "unequal": "SELECT d.city, sum(f.i), count(*) FROM dim d JOIN TABLE f ON f.k < d.k GROUP BY d.city",
    "crossed": "SELECT count(*), sum(f.i), min(f.b), avg(f.b), count(d.k) FROM TABLE f, dim d",
    "condition": "SELECT city, sum(i) FROM dim JOIN TABLE f USING (k) WHERE f.t <> 'bob' OR f.t IS NULL GROUP BY 1",
    "filter": "SELECT city, sum(i) FILTER (WHERE f.t = 'bob'), sum(i), max(i) FILTER (WHERE grp > 1) FROM dim JOIN TABLE f USING (k) GROUP BY 1",
    "having": "SELECT city FROM dim JOIN TABLE f USING (k) GROUP BY 1 HAVING sum(i) > 0 AND max(b) > 10",
    "order": "SELECT city, sum(i) AS i FROM dim JOIN TABLE f USING (k) GROUP BY 1 ORDER BY i DESC NULLS LAST, avg(b), 1",
    "limit": "SELECT city, sum(i) FROM dim JOIN TABLE f USING (k) GROUP BY 1 ORDER BY 1 LIMIT 2",
    "grouping sets": "SELECT city, f.t, sum(i), count(*) FROM dim JOIN TABLE f USING (k) GROUP BY GROUPING SETS ((city), (f.t), ())",
    "case twins": "SELECT f.t, count(*), sum(i) FROM dim JOIN TABLE f USING (k) GROUP BY f.t",
    "expression": "SELECT city, coalesce(sum(f.i), 0) / 2, max(i)::bigint - min(i) FROM dim JOIN TABLE f USING (k) GROUP BY 1",
    "plain expression": "SELECT lower(f.t), f.k % 2, sum(i) FROM dim JOIN TABLE f USING (k) GROUP BY 1, 2",
    "window": "SELECT city, rank() OVER (ORDER BY sum(i)), sum(count(*)) OVER () FROM dim JOIN TABLE f USING (k) GROUP BY 1",
    "level above": "SELECT max(q.s), count(*) FROM (SELECT f.k, sum(f.i) s FROM TABLE f GROUP BY f.k) q JOIN dim d ON d.k = q.k",
    "common table": "WITH q AS (SELECT k, sum(i) s, count(*) FROM TABLE f GROUP BY k) SELECT q.*, city FROM q JOIN dim USING (k)",
    "correlated": "SELECT d.city, (SELECT sum(f.i) FROM TABLE f WHERE f.k = d.k) FROM dim d",
    "in": "SELECT city FROM dim WHERE k IN (SELECT k FROM TABLE f GROUP BY k HAVING count(i) > 10)",
    "lateral": "SELECT d.city, l.* FROM dim d CROSS JOIN LATERAL (SELECT max(f.i), count(*) FROM TABLE f WHERE f.k >= d.k) l",
    "union": "SELECT k, sum(i) FROM TABLE f GROUP BY k UNION ALL SELECT k, count(grp) FROM dim GROUP BY k",
    "distinct": "SELECT DISTINCT city, f.t FROM dim JOIN TABLE f USING (k)",
    "distinct on": "SELECT DISTINCT ON (city) city, f.t FROM dim JOIN TABLE f USING (k) ORDER BY city, f.t",
    "distinct argument": "SELECT city, count(DISTINCT f.t), sum(i) FROM dim JOIN TABLE f USING (k) GROUP BY 1",
    "multiset": "SELECT city, array_agg(f.t ORDER BY f.t), string_agg(city, ','), sum(i) FROM dim JOIN TABLE f USING (k) GROUP BY 1",
    "twice": "SELECT f.k, sum(f.i), max(g.b) FROM TABLE f JOIN TABLE g ON f.k = g.k JOIN dim ON dim.k = g.k GROUP BY 1",
}  # fmt: skip
"""Statements that need no row of ``TABLE`` as such, whoever owns it."""

ELSEWHERE = {
    "decimals": ("postgres mariadb", f"SELECT d.city, {ALL.format('n')} FROM dim d JOIN TABLE f USING (k) GROUP BY 1"),
    "decimal extremes": ("sqlite split", "SELECT d.city, count(n), min(f.n)::numeric(12,2), max(f.n)::numeric(12,2) FROM dim d JOIN TABLE f USING (k) GROUP BY 1"),
    "text": ("postgres sqlite", f"SELECT d.city, {EXTREMES.format('t')} FROM dim d JOIN TABLE f USING (k) GROUP BY 1"),
    "dates": ("postgres sqlite", f"SELECT d.city, {EXTREMES.format('d')} FROM dim d JOIN TABLE f USING (k) GROUP BY 1"),
}  # fmt: skip
"""Statements for some owners."""

CASES = [(table, name, "forward") for table in TABLES for name in STATEMENTS]
CASES += [(table, name, "forward") for name in ELSEWHERE for table in ELSEWHERE[name][0].split()]
CASES += [("split", name, "full") for name in STATEMENTS]


def readers(steps, table):
    return [step for step in steps if re.search(rf"\bshop\.{table}\b", step["Reads"])]


def raw(connection, statement):
    """Names, types and rows as they come: Python has no infinite date."""
    result = connection.execute(statement).pgresult
    columns = range(result.nfields)
    described = [(result.fname(i), result.ftype(i), result.fmod(i)) for i in columns]
    return described, [
        tuple(result.get_value(row, i) for i in columns) for row in range(result.ntuples)
    ]


def same(client, merged, statement):
    (found, rows), (due, due_rows) = raw(client, statement), raw(merged, statement)
    assert found == due
    assert Counter(rows) == Counter(due_rows)
    if "ORDER BY 1" in statement or statement.endswith(", 1"):
        assert rows == due_rows


@pytest.mark.parametrize(("table", "name", "reduction"), CASES)
def test_groups_leave_and_the_answer_is_the_same(client, merged, steps, table, name, reduction):
    client.execute(f"SET oar.reduction = '{reduction}'")
    text = STATEMENTS.get(name) or ELSEWHERE[name][1]
    statement = text.replace("TABLE", table)
    same(client, merged, statement)
    asked = [s for s in steps(client, statement) if not s["Reads"].startswith("keys of")]
    asked = [s for s in asked if re.search(rf'"{table}"', s["SQL"])]
    assert asked
    for step in asked:
        # The owner of a whole subquery answers that.
        reads = "partial aggregates of|counts of|subquery"
        assert re.search(reads, step["Reads"]), step
        assert re.search(r"count\(|GROUP BY", step["SQL"])
    assert sum(step["Actual Rows"] for step in asked) < ROWS / 2 * text.count("TABLE")


NOT_AGGREGATED = {
    "condition": "SELECT city, sum(f.i) FROM dim JOIN TABLE f USING (k) WHERE f.i > 0 GROUP BY 1",
    "unqualified": "SELECT city, sum(f.i) FROM dim JOIN TABLE f USING (k) WHERE i > 0 GROUP BY 1",
    "join": "SELECT city, sum(f.i) FROM dim JOIN TABLE f ON dim.k = f.k AND grp < f.i GROUP BY 1",
    "merged": "SELECT city, sum(f.i) FROM dim JOIN TABLE f USING (k) JOIN (SELECT 7 AS i) q USING (i) GROUP BY 1",
    "grouped": "SELECT city, sum(f.i), f.i FROM dim JOIN TABLE f USING (k) GROUP BY 1, f.i",
    "expression": "SELECT city, sum(f.i % 100), sum(f.i) FROM dim JOIN TABLE f USING (k) GROUP BY 1",
    "cast": "SELECT city, avg(f.i::numeric) FROM dim JOIN TABLE f USING (k) GROUP BY 1",
    "distinct": "SELECT city, sum(DISTINCT f.i) FROM dim JOIN TABLE f USING (k) GROUP BY 1",
    "other aggregate": "SELECT city, sum(f.i), array_agg(f.i ORDER BY f.i) FROM dim JOIN TABLE f USING (k) GROUP BY 1",
    "deviation": "SELECT city, round(stddev(f.k)), sum(f.i), round(var_pop(f.i)) FROM dim JOIN TABLE f USING (k) GROUP BY 1",
    "ordered": "SELECT city, percentile_disc(0.5) WITHIN GROUP (ORDER BY f.i) FROM dim JOIN TABLE f USING (k) GROUP BY 1",
    "filter": "SELECT city, sum(f.i) FILTER (WHERE f.i > 0) FROM dim JOIN TABLE f USING (k) GROUP BY 1",
    "window": "SELECT DISTINCT city, sum(f.i) OVER (PARTITION BY city) FROM dim JOIN TABLE f USING (k)",
    "subquery": "SELECT city, sum(f.i) FROM dim JOIN TABLE f USING (k) WHERE EXISTS (SELECT 1 FROM dim e WHERE e.k = f.i) GROUP BY 1",
    "outer aggregate": "SELECT city, (SELECT sum(f.i)) FROM dim JOIN TABLE f USING (k) GROUP BY 1",
    "shadowed": "SELECT city, sum(i) FROM dim JOIN TABLE f USING (k) WHERE EXISTS (SELECT 1 FROM dim f WHERE i > f.grp) GROUP BY 1",
    "whole row": "SELECT city, sum(f.i), count(f) FROM dim JOIN TABLE f USING (k) GROUP BY 1",
    "function of rows": "SELECT f.to_jsonb ->> 'k', count(*) FROM dim JOIN TABLE f USING (k) GROUP BY f.to_jsonb",
    "renamed": "SELECT city, sum(z) FROM dim JOIN TABLE f(id, k, z) USING (k) GROUP BY 1",
    "star": "SELECT sum(q.i) FROM (SELECT f.* FROM TABLE f JOIN dim USING (k)) q",
    "join alias": "SELECT city, sum(j.i) FROM (dim JOIN TABLE f USING (k)) AS j WHERE j.i > 0 GROUP BY 1",
    "natural": "SELECT city, sum(i) FROM dim NATURAL JOIN TABLE f GROUP BY 1",
    "below": "SELECT city, sum(q.i) FROM (SELECT k, i FROM TABLE f) q JOIN dim USING (k) GROUP BY 1",
    "volatile": "SELECT city, sum(f.i) FROM dim JOIN TABLE f USING (k) WHERE random() < 2 GROUP BY 1",
    "unique": "SELECT city, sum(f.i) FROM dim JOIN TABLE f USING (k) GROUP BY city, f.id",
}  # fmt: skip
"""Near misses: ``i`` is used where its values matter."""


@pytest.mark.parametrize("name", NOT_AGGREGATED)
@pytest.mark.parametrize("table", ["postgres", "sqlite"])
def test_a_column_whose_values_matter_is_not_aggregated(client, merged, steps, table, name):
    client.execute("SET oar.reduction = 'forward'")
    statement = NOT_AGGREGATED[name].replace("TABLE", table)
    same(client, merged, statement)
    for step in readers(steps(client, statement), table):
        assert not re.search(r'(sum|min|max)\((t\.)?"i"', step["SQL"]), step
        if name in (
            "whole row",
            "function of rows",
            "renamed",
            "star",
            "join alias",
            "natural",
            "below",
            "unique",
        ):
            assert "count(*)" not in step["SQL"]


def test_a_step_says_what_it_counts_by(client):
    statement = "SELECT city, sum(i), count(*) FROM dim JOIN postgres f USING (k) GROUP BY 1"
    lines = [line for (line,) in client.execute(f"EXPLAIN {statement}")]
    assert any(line.endswith("reads partial aggregates of shop.postgres f by k") for line in lines)
    assert any(line.endswith("reads counts of shop.dim by k, city") for line in lines)


def test_numbers_that_do_not_fit_are_no_number(client, merged):
    same(client, merged, "SELECT f.k, sum(f.b), avg(f.b) FROM postgres f, dim d GROUP BY f.k")


WRONG = {"i": "'x'", "b": "1.5", "t": "x'00'", "d": "'2023-02-30'"}


@pytest.mark.parametrize("column", WRONG)
@pytest.mark.parametrize("function", ["count", "max"])
def test_a_value_of_another_type_is_not_aggregated(
    new_database, running_proxy, tmp_path, column, function
):
    fill_sqlite(
        tmp_path / "s.sqlite",
        {"facts": [(1, 1, 1, 1, "1", "a", "2024-01-01"), (2, 1, 2, 2, "2", "b", "2024-01-01")]},
    )
    with sqlite3.connect(tmp_path / "s.sqlite") as connection:
        connection.execute(f"UPDATE facts SET {column} = {WRONG[column]} WHERE id = 1")
    west = new_database("west")
    with psycopg.connect(west) as connection:
        connection.execute("CREATE TABLE dim AS SELECT 1::bigint AS k")
    owners = {
        "west": OwnerSettings(url=owner_url(west), schema="shop"),
        "south": OwnerSettings(url=f"sqlite:///{tmp_path}/s.sqlite", schema="shop"),
    }
    opened = Settings(
        owners=owners, hub=HubSettings(dsn=new_database("hub")), listen=Listen(port=0)
    )
    statement = f"SELECT {function}(f.{column}) FROM shop.facts f JOIN shop.dim USING (k)"
    with running_proxy(opened) as (_, dsn), psycopg.connect(dsn, autocommit=True) as client:
        lines = [line for (line,) in client.execute(f"EXPLAIN {statement}")]
        assert any("partial aggregates of shop.facts f by k" in line for line in lines)
        with pytest.raises(psycopg.Error, match=f'"{column}"') as caught:
            client.execute(statement)
    assert caught.value.sqlstate == "HV004"


# --- rows that are made up ------------------------------------------------------------------------


def optional(strategy):
    return st.none() | strategy


DRAWN = st.tuples(
    st.sampled_from([None, 1, 2]),
    optional(st.integers(-(2**31), 2**31 - 1)),
    optional(st.integers(-(2**15), 2**15 - 1)),
    optional(st.integers(-(2**63), 2**63 - 1) | st.sampled_from([2**63 - 1, -(2**63)])),
    optional(
        st.integers(-999999, 999999).map(lambda n: Decimal(n).scaleb(-2)) | st.just(Decimal("NaN"))
    ),
    optional(st.integers(-99999, 99999).map(lambda n: n * 100)),
    optional(st.text("aAбZ ", max_size=3)),
    optional(st.text("aAбZ ", max_size=3)),
    optional(st.sampled_from(["infinity", "-infinity", "2024-02-29", "0044-03-15 BC"])),
    optional(st.sampled_from(["infinity", "2024-02-29 01:02:03.000004+05", "1999-01-01 00:00Z"])),
    optional(st.sampled_from([0.0, -0.0, 1.5, float("nan")])),
    optional(st.sampled_from(["1.0", "1", '{"a": 1}'])),
    optional(st.sampled_from(["1.0", "1.00", "NaN"])),
)
NUMBERS = ("i", "s", "b", "n", "h")
ORDERED = (*NUMBERS, "t", "v", "d", "at")
SELECTED = ", ".join(
    [f"sum(f.{c}) AS sum_{c}, avg(f.{c}) AS avg_{c}" for c in NUMBERS]
    + [f"min(f.{c}) AS min_{c}, max(f.{c}) AS max_{c}" for c in ORDERED]
    + [f"count(f.{c}) AS count_{c}" for c in (*ORDERED, "x", "j")]
)
DRAWINGS = [
    f"SELECT f.k, count(*), {SELECTED} FROM drawn f LEFT JOIN dim USING (k) GROUP BY f.k",
    "SELECT f.k, count(*), sum(f.i), avg(f.b), avg(f.n), sum(f.h) FROM drawn f, dim GROUP BY f.k",
    "SELECT f.k, sum(f.i), min(f.i), avg(f.b), min(f.b), avg(f.n), min(f.n) FROM drawn f, dim GROUP BY f.k",
    "SELECT f.k, sum(f.i), max(f.i), avg(f.b), max(f.b), avg(f.n), max(f.n) FROM drawn f, dim GROUP BY f.k",
    "SELECT f.k, f.x::text, f.j::text, f.u::text, count(*), sum(f.i), avg(f.n) FROM drawn f, dim GROUP BY f.k, f.x::text, f.j::text, f.u::text",
    "SELECT f.k, array_agg(f.u ORDER BY f.u::text, f.x::text), array_agg(f.x::text ORDER BY f.x::text), sum(f.i) "
    "FROM drawn f, dim GROUP BY f.k",
]  # fmt: skip


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(rows=st.lists(DRAWN, max_size=14))
def test_rows_that_are_made_up_have_the_aggregates_of_those_they_stand_for(
    places, client, merged, steps, rows
):
    client.execute("SET oar.reduction = 'forward'")
    for dsn in (places.north, places.merged):
        with psycopg.connect(dsn) as connection:
            connection.execute("TRUNCATE drawn")
            marks = ", ".join(["%s"] * 13)
            connection.cursor().executemany(f"INSERT INTO drawn VALUES ({marks})", rows)
    for statement in DRAWINGS:
        (step,) = readers(steps(client, statement), "drawn")
        assert step["Reads"].startswith("partial aggregates of shop.drawn f by k")
        same(client, merged, statement)
