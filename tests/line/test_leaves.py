"""Tables that only filter another one: its rows are counted without regard to what joins them.

Facts in each kind of owner, and tables elsewhere that filter them, whose keys are all different, or
come twice, or not at all.
"""

from __future__ import annotations

import json
import random
import re
import sqlite3
from collections import Counter
from dataclasses import dataclass

import psycopg
import pytest
from oar_bench.addresses import owner_url
from oar_proxy import matching
from oar_proxy.settings import HubSettings, Listen, OwnerSettings, Settings

ALLOW = "version: 1\nkey_disclosure:\n  - {column: '*', to: ['*'], max_keys: 100000}\n"
FEW = ALLOW.replace("100000", "3")
"""Two of a leaf's rows may leave as keys, ten may not."""

FACTS = "id integer PRIMARY KEY, k bigint, j bigint, s varchar(20), kind varchar(20), n bigint"
STORES = "id bigint PRIMARY KEY, region text, name varchar(20), size bigint"
DAYS = "day bigint, shift bigint, label text, PRIMARY KEY (day, shift)"
TWICE = "k bigint, tag text"

_chance = random.Random(5)
ROWS = [
    (
        number,
        _chance.choice((1, 2, 3, 4, 7, None)),
        _chance.choice((1, 2, 3, None)),
        _chance.choice(("one", "One", "two", "two ", "", None)),
        _chance.choice(("x", "y", "Y", None)),
        _chance.choice((0, 1, -5, 2**40, None)),
    )
    for number in range(1, 201)
]
CONTENT = {
    "stores": [
        (1, "north", "one", 10),
        (2, "north", "two", 20),
        (3, "south", "One", None),
        (4, None, "two ", 10),
        (9, "north", "nine", 10),
    ],
    "days": [(1, 1, "a"), (1, 2, "b"), (2, 1, "a"), (3, 3, "c")],
    "twice": [(1, "t"), (1, "t"), (2, "t"), (3, "u"), (None, "t"), (4, "v")],
}
MANY = {
    "visits": "SELECT CASE i WHEN 9 THEN 'infinity' ELSE date '2020-01-01' + i % 3000 END AS day,"
    " i % 7 AS n, i FROM generate_series(1, 20000) AS i",
    "calendar": "SELECT date '2020-01-02' + i AS day, i % 5 = 0 AS holiday"
    " FROM generate_series(0, 2500) AS i UNION ALL SELECT 'infinity', true",
}
"""Of days: so many that they are looked up."""
TYPES = {"stores": STORES, "days": DAYS, "twice": TWICE}
TABLES = ("postgres", "sqlite", "mariadb")
DENSE = [row for row in ROWS if None not in row[1:3]]
"""The rows that have both keys: each dense_TABLE."""


def fill(connection, name, types, rows):
    connection.execute(f"CREATE TABLE {name} ({types})")
    marks = ", ".join(["%s"] * len(rows[0]))
    connection.cursor().executemany(f"INSERT INTO {name} VALUES ({marks})", rows)


@dataclass(frozen=True)
class Places:
    client: psycopg.Connection
    few: psycopg.Connection
    keyless: psycopg.Connection
    merged: psycopg.Connection


@pytest.fixture(scope="module")
def places(mariadb_server, new_database, running_proxy, tmp_path_factory):
    """A proxy over four owners, one whose policies let few keys pass, and all tables in one place."""
    west, north, merged = (new_database(n) for n in ("west", "north", "merged"))
    directory = tmp_path_factory.mktemp("leaves")
    for dsn in (west, merged):
        with psycopg.connect(dsn) as connection:
            for name, rows in CONTENT.items():
                fill(connection, name, TYPES[name], rows)
            connection.execute("ANALYZE")
    for dsn, names in ((west, ["calendar"]), (north, ["visits"]), (merged, MANY)):
        with psycopg.connect(dsn) as connection:
            for name in names:
                connection.execute(f"CREATE TABLE {name} AS {MANY[name]}")
    for dsn, names in ((north, TABLES[:1]), (merged, TABLES)):
        with psycopg.connect(dsn) as connection:
            for name in names:
                fill(connection, name, FACTS, ROWS)
                fill(connection, f"dense_{name}", FACTS, DENSE)
    south = sqlite3.connect(directory / "south.sqlite")
    with south:
        for name, rows in (("sqlite", ROWS), ("dense_sqlite", DENSE)):
            south.execute(
                f"CREATE TABLE {name} (id INTEGER PRIMARY KEY, k INTEGER, j INTEGER,"
                " s VARCHAR(20) COLLATE NOCASE, kind VARCHAR(20), n INTEGER)"
            )
            south.executemany(f"INSERT INTO {name} VALUES (?, ?, ?, ?, ?, ?)", rows)
    south.close()
    database, url = mariadb_server.new_database(
        "leaves", options="CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci"
    )
    for name, rows in (("mariadb", ROWS), ("dense_mariadb", DENSE)):
        mariadb_server.run(
            f"CREATE TABLE {name} ({FACTS})",
            f"INSERT INTO {name} VALUES (%s, %s, %s, %s, %s, %s)",
            database=database,
            rows=rows,
        )
    urls = {
        "west": owner_url(west),
        "north": owner_url(north),
        "south": f"sqlite:///{directory / 'south.sqlite'}",
        "east": url,
    }

    def settings(hub, policy):
        path = directory / f"{hub}.yaml"
        path.write_text(policy)
        owners = {n: OwnerSettings(url=u, schema="shop", policy=path) for n, u in urls.items()}
        return Settings(
            owners=owners, hub=HubSettings(dsn=new_database(hub)), listen=Listen(port=0)
        )

    with (
        running_proxy(settings("hub_all", ALLOW)) as (_, dsn),
        running_proxy(settings("hub_few", FEW)) as (_, few),
        psycopg.connect(dsn, autocommit=True) as client,
        psycopg.connect(few, autocommit=True) as limited,
        psycopg.connect(dsn, autocommit=True) as keyless,
        psycopg.connect(merged, autocommit=True) as reference,
    ):
        for connection in (client, limited, keyless):
            connection.execute("SET search_path = shop")
        keyless.execute("SET oar.max_keys = 0")
        yield Places(client, limited, keyless, reference)


def step_of(connection, statement, table, parameters=None):
    text = f"EXPLAIN (ANALYZE, FORMAT json) {statement}"
    (((explained,),),) = (connection.execute(text, parameters).fetchall(),)
    explained = json.loads(explained) if isinstance(explained, str) else explained
    steps = explained[0]["Plan"]["Steps"]
    (found,) = [s for s in steps if s["Reads"].split(" of ")[-1].startswith(f"shop.{table}")]
    return found


def answers(places, statement, connection=None):
    ours = (connection or places.client).execute(statement).fetchall()
    assert Counter(ours) == Counter(places.merged.execute(statement).fetchall()), statement
    return ours


FILTERED = {
    "one condition": "SELECT f.kind, count(*), sum(f.n) FROM stores t JOIN TABLE f ON f.k = t.id WHERE t.region = 'north' GROUP BY f.kind",
    "total": "SELECT count(*), sum(f.n), min(f.n), avg(f.n) FROM TABLE f JOIN stores t ON t.id = f.k WHERE region = 'north'",
    "rows alone": "SELECT count(*) FROM stores t, TABLE f WHERE t.id = f.k AND t.size = 10",
    "no condition": "SELECT f.kind, count(*) FROM TABLE f, stores t WHERE f.k = t.id GROUP BY 1",
    "using": "SELECT kind, count(n) FROM (SELECT id AS pk, k, kind, n FROM TABLE) f, stores t WHERE f.k = t.id GROUP BY 1",
    "distinct": "SELECT DISTINCT f.kind FROM TABLE f JOIN stores t ON t.id = f.k WHERE t.region = 'north'",
    "of its own too": "SELECT f.kind, count(*) FROM TABLE f JOIN stores t ON t.id = f.k WHERE t.region = 'north' AND f.n > 0 GROUP BY 1",
    "of the key": "SELECT f.kind, count(*) FROM TABLE f JOIN stores t ON t.id = f.k WHERE t.id < 3 GROUP BY 1",
    "several": "SELECT f.kind, sum(f.n) FROM TABLE f JOIN stores t ON t.id = f.k JOIN stores u ON u.id = f.j WHERE t.region IN ('north', 'south') AND u.size = 10 GROUP BY 1",
    "rows as keys": "SELECT f.kind, sum(f.n) FROM TABLE f JOIN days d ON d.day = f.j AND d.shift = f.k WHERE d.label <> 'b' GROUP BY 1",
    "outer beside": "SELECT f.kind, count(*), count(d.label) FROM stores t JOIN TABLE f ON f.k = t.id LEFT JOIN days d ON d.day = f.j WHERE t.region = 'north' GROUP BY 1",
    "filter and having": "SELECT kind, count(*) FILTER (WHERE f.n > 0) FROM TABLE f JOIN stores t ON t.id = f.k GROUP BY 1 HAVING count(*) > 3 ORDER BY 2, 1 NULLS FIRST LIMIT 2",
    "in a subquery": "SELECT max(q.c) FROM (SELECT f.kind, count(*) c FROM TABLE f JOIN stores t ON t.id = f.k WHERE t.region = 'north' GROUP BY 1) q",
    "in": "SELECT f.kind, count(*) FROM TABLE f WHERE f.k IN (SELECT id FROM stores WHERE region = 'north') GROUP BY 1",
    "in, keys twice": "SELECT f.kind, count(*), sum(n) FROM TABLE f WHERE f.k IN (SELECT k FROM twice WHERE tag = 't') GROUP BY 1",
    "in, keys twice, no NULL": "SELECT f.kind, count(*) FROM TABLE f WHERE f.k IN (SELECT k FROM twice WHERE tag = 't' AND k > 0) GROUP BY 1",
    "in, NULL first": "SELECT count(*) FROM TABLE f WHERE f.k IN (SELECT t.k FROM twice t WHERE t.tag = 't')",
    "exists": "SELECT f.kind, count(*) FROM TABLE f WHERE EXISTS (SELECT 1 FROM stores t WHERE t.id = f.k AND t.region = 'north') GROUP BY 1",
    "exists by rows": "SELECT f.kind, count(*) FROM TABLE f WHERE EXISTS (SELECT label FROM days d WHERE d.day = f.j AND f.k = d.shift AND d.label <> 'b') GROUP BY 1",
    "no such row": "SELECT f.kind, count(*) FROM TABLE f JOIN stores t ON t.id = f.k WHERE t.region = 'west' GROUP BY 1",
    "no such row, total": "SELECT count(*), sum(f.n) FROM TABLE f JOIN stores t ON t.id = f.k WHERE t.region = 'west'",
}  # fmt: skip

APART = {
    "key selected": "SELECT f.k, count(*) FROM TABLE f JOIN stores t ON t.id = f.k WHERE t.region = 'north' GROUP BY 1",
    "leaf selected": "SELECT t.name, count(*) FROM TABLE f JOIN stores t ON t.id = f.k WHERE t.region = 'north' GROUP BY 1",
    "leaf aggregated": "SELECT f.kind, sum(t.size) FROM TABLE f JOIN stores t ON t.id = f.k WHERE t.region = 'north' GROUP BY 1",
    "compared with another": "SELECT f.kind, count(*) FROM TABLE f JOIN stores t ON t.id = f.k WHERE t.size > f.n GROUP BY 1",
    "unequal": "SELECT f.kind, count(*) FROM TABLE f JOIN stores t ON t.id = f.k AND t.size <> f.j GROUP BY 1",
    "outer": "SELECT f.kind, count(*) FROM TABLE f LEFT JOIN stores t ON t.id = f.k AND t.region = 'north' GROUP BY 1",
    "filter of the leaf": "SELECT f.kind, count(*) FILTER (WHERE t.size = 10) FROM TABLE f JOIN stores t ON t.id = f.k GROUP BY 1",
    "keys twice": "SELECT f.kind, count(*), sum(f.n) FROM TABLE f JOIN twice t ON t.k = f.k WHERE t.tag = 't' GROUP BY 1",
    "kept for the hub": "SELECT f.kind, count(*) FROM TABLE f JOIN stores t ON t.id = f.k WHERE length(t.region) = 5 GROUP BY 1",
    "part of a key": "SELECT f.kind, count(*) FROM TABLE f JOIN days d ON d.day = f.j GROUP BY 1",
    "correlated": "SELECT f.kind, count(*), (SELECT count(*) FROM days d WHERE d.day > t.id) FROM TABLE f JOIN stores t ON t.id = f.k GROUP BY f.kind, t.id",
    "two by one column": "SELECT f.kind, count(*) FROM TABLE f JOIN stores t ON t.id = f.k JOIN days d ON d.day = f.j AND d.shift = f.k GROUP BY 1",
    "two columns of one": "SELECT f.kind, count(*) FROM TABLE f JOIN days d ON d.day = f.k AND d.shift = f.k GROUP BY 1",
    "in, of two columns": "SELECT f.kind, count(*) FROM TABLE f WHERE (f.j, f.k) IN (SELECT day, shift FROM days) GROUP BY 1",
    "not in": "SELECT f.kind, count(*) FROM TABLE f WHERE f.k NOT IN (SELECT id FROM stores WHERE region = 'north') GROUP BY 1",
    "in, or else": "SELECT f.kind, count(*) FROM TABLE f WHERE f.k IN (SELECT id FROM stores WHERE region = 'north') OR f.n = 0 GROUP BY 1",
    "exists, aggregated": "SELECT f.kind, count(*) FROM TABLE f WHERE EXISTS (SELECT count(*) FROM stores t WHERE t.id = f.k AND t.region = 'north') GROUP BY 1",
    "exists, compared with more": "SELECT f.kind, count(*) FROM TABLE f WHERE EXISTS (SELECT 1 FROM stores t WHERE t.id = f.k AND t.size > f.n) GROUP BY 1",
    "in, the first of each": "SELECT f.kind, count(*) FROM TABLE f WHERE f.k IN (SELECT DISTINCT ON (tag) k FROM twice ORDER BY tag, k DESC NULLS LAST) GROUP BY 1",
    "in, limited": "SELECT f.kind, count(*) FROM TABLE f WHERE f.k IN (SELECT id FROM stores ORDER BY id LIMIT 2) GROUP BY 1",
    "in, computed": "SELECT f.kind, count(*) FROM TABLE f WHERE f.k IN (SELECT id + 1 FROM stores WHERE region = 'north') GROUP BY 1",
    "in, of two tables": "SELECT f.kind, count(*) FROM TABLE f WHERE f.k IN (SELECT t.id FROM stores t JOIN twice w ON w.k = t.id) GROUP BY 1",
    "null-safe": "SELECT f.kind, count(*) FROM TABLE f JOIN twice t ON t.k IS NOT DISTINCT FROM f.k GROUP BY 1",
    "another beside": "SELECT f.kind, count(*) FROM TABLE f JOIN stores t ON t.id = f.k JOIN stores u ON u.id = t.size GROUP BY 1",
}  # fmt: skip

EITHER = {
    "a key missing": "SELECT f.kind, count(*) FROM TABLE f JOIN twice t ON t.k = f.k WHERE t.tag IN ('u', 'v') OR t.k IS NULL GROUP BY 1",
    "in and joined": "SELECT f.kind, sum(n) FROM TABLE f JOIN stores t ON t.id = f.k WHERE f.j IN (SELECT DISTINCT k FROM twice WHERE tag = 't') AND t.size = 10 GROUP BY 1",
    "full beside": "SELECT f.kind, count(*), sum(f.n) FROM TABLE f FULL JOIN days d ON d.day = f.j JOIN stores t ON t.id = f.k WHERE t.region = 'north' GROUP BY 1",
    "nullable side": "SELECT f.kind, count(*), count(d.label) FROM days d LEFT JOIN TABLE f ON d.day = f.j JOIN stores t ON t.id = f.k GROUP BY 1",
    "of a leaf": "SELECT f.kind, count(*) FROM TABLE f JOIN stores t ON t.id = f.k JOIN twice w ON w.k = t.id WHERE w.tag = 'v' GROUP BY 1",
    "only joined": "SELECT count(*) FROM TABLE f JOIN stores t ON t.id = f.k",
    "of a range of both": "SELECT f.kind, count(*) FROM TABLE f JOIN stores t ON t.id = f.k WHERE t.id > 1 AND f.k < 4 GROUP BY 1",
    "a constant key": "SELECT f.kind, count(*) FROM TABLE f JOIN stores t ON t.id = f.k WHERE t.id = 2 GROUP BY 1",
    "false": "SELECT count(*) FROM TABLE f JOIN stores t ON t.id = f.k WHERE t.region = 'north' AND false",
    "rolled up": "SELECT f.kind, f.j, count(*) FROM TABLE f JOIN stores t ON t.id = f.k WHERE t.region = 'north' GROUP BY ROLLUP (1, 2)",
    "in, twice the same": "SELECT f.kind, count(*) FROM TABLE f WHERE f.k IN (SELECT id FROM stores WHERE size = 10) AND f.j IN (SELECT id FROM stores WHERE size = 10) GROUP BY 1",
    "exists, without": "SELECT f.kind, count(*) FROM TABLE f WHERE EXISTS (SELECT 1 FROM stores t WHERE t.region = 'north') GROUP BY 1",
    "exists, of the same names": "SELECT kind, count(*) FROM TABLE WHERE EXISTS (SELECT 1 FROM twice WHERE k = j) GROUP BY 1",
    "in, named within": "SELECT kind, count(*) FROM TABLE WHERE k IN (SELECT k FROM twice WHERE tag = 't' AND j = 2) GROUP BY 1",
    "windowed": "SELECT f.kind, count(*), rank() OVER (ORDER BY count(*) DESC, f.kind) FROM TABLE f JOIN stores t ON t.id = f.k WHERE t.size = 10 GROUP BY 1",
    "united": "SELECT f.kind, count(*) FROM TABLE f JOIN stores t ON t.id = f.k WHERE t.size = 10 GROUP BY 1 UNION ALL SELECT t.region, count(*) FROM TABLE f JOIN stores t ON t.id = f.k GROUP BY 1",
    "a view of it": "WITH north AS (SELECT id FROM stores WHERE region = 'north') SELECT f.kind, count(*) FROM TABLE f JOIN north ON north.id = f.k GROUP BY 1",
    "distinct on": "SELECT DISTINCT ON (f.kind) f.kind FROM TABLE f JOIN stores t ON t.id = f.k WHERE t.region = 'north' ORDER BY f.kind",
    "ordered aggregate": "SELECT string_agg(f.kind, ',' ORDER BY f.id) FROM TABLE f JOIN stores t ON t.id = f.k WHERE t.region = 'north'",
    "lateral": "SELECT t.region, l.c FROM stores t, LATERAL (SELECT count(*) c FROM TABLE f JOIN days d ON d.day = f.j AND d.shift = f.k WHERE f.k >= t.id) l",
    "in the select list": "SELECT t.name, (SELECT count(*) FROM TABLE f JOIN days d ON d.day = f.j AND d.shift = f.k WHERE f.k = t.id) FROM stores t",
    "one column for two": "SELECT f.kind, count(*) FROM TABLE f JOIN stores t ON t.id = f.k AND t.id = f.j GROUP BY 1",
}

LOOKED_UP = {
    *("one condition", "total", "rows alone", "no condition", "distinct", "of its own too"),
    *("of the key", "several", "outer beside", "filter and having", "in a subquery", "in"),
    *("in, keys twice, no NULL", "exists", "in and joined", "only joined", "rolled up"),
    *(
        "in, twice the same",
        "windowed",
        "united",
        "distinct on",
        "in, keys twice",
        "in, NULL first",
    ),
    *("a key missing", "another beside", "exists, of the same names"),
}
"""Those in which one integer says which rows count, and no key comes twice of a leaf that is joined."""


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("name", FILTERED)
def test_rows_are_counted_without_regard_to_a_leaf(places, name, table):
    statement = FILTERED[name].replace("TABLE", table)
    answers(places, statement)
    if name != "using":  # a subquery that renames: its columns are no table's
        step = step_of(places.client, statement, table)
        assert step["Only Filtered By"]
        assert name == "several" or not re.search(r"\bk\b", step["Reads"])


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("name", APART)
def test_rows_are_told_apart_where_it_matters_which_one_they_join(places, name, table):
    statement = APART[name].replace("TABLE", table)
    answers(places, statement)
    assert "Only Filtered By" not in step_of(places.client, statement, table)


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("name", [*FILTERED, *APART, *EITHER])
def test_keys_that_may_not_all_travel_tell_nothing_about_the_others(places, name, table):
    for connection in (places.few, places.client):
        answers(places, (FILTERED | APART | EITHER)[name].replace("TABLE", table), connection)


@pytest.fixture
def looked_up(monkeypatch):
    """What came of looking few rows up, too."""
    outcomes, marked = [], matching.marked

    def seen(*arguments, **options):
        outcomes.append(marked(*arguments, **options) is not None)
        return marked(*arguments, **options)

    monkeypatch.setattr(matching, "WORTHWHILE", 0)
    monkeypatch.setattr(matching, "marked", seen)
    return outcomes


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("name", [*FILTERED, *APART, *EITHER])
def test_rows_are_looked_up_among_keys_that_do_not_travel(places, name, table, looked_up):
    statement = (FILTERED | APART | EITHER)[name]
    answers(places, statement.replace("TABLE", table), places.keyless)
    looked_up.clear()
    answers(places, statement.replace("TABLE", f"dense_{table}"), places.keyless)
    assert any(looked_up) == (name in LOOKED_UP)


@pytest.mark.parametrize("condition", ["holiday", "c.day < '2021-01-01'", "c.day > '2020-03-01'"])
@pytest.mark.parametrize(
    "statement",
    [
        "SELECT v.n, count(*) FROM visits v JOIN calendar c USING (day) WHERE {} GROUP BY 1",
        "SELECT i % 2, sum(n) FROM visits WHERE day IN (SELECT c.day FROM calendar c WHERE {}) GROUP BY 1",
    ],
)
def test_many_days_are_looked_up(places, statement, condition, monkeypatch):
    marked, outcomes = matching.marked, []
    monkeypatch.setattr(
        matching,
        "marked",
        lambda *args, **named: outcomes.append(marked(*args, **named)) or outcomes[-1],
    )
    answers(places, statement.format(condition), places.keyless)
    assert [outcome is not None for outcome in outcomes] == [True]


@pytest.mark.parametrize("table", TABLES)
def test_text_keys_filter_as_the_hub_compares_them(places, table):
    """An owner that takes case twins for one is asked for rows, or compares exactly."""
    for condition in ("t.region = 'north'", "t.size = 10", "t.name <> 'nine'", "true"):
        answers(
            places,
            f"SELECT f.kind, count(*) FROM {table} f JOIN stores t ON t.name = f.s"
            f" WHERE {condition} GROUP BY f.kind",
        )


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("reduction", ["forward", "full"])
def test_a_prepared_statement_is_filtered_by_what_it_is_executed_with(places, table, reduction):
    text = (
        f"SELECT f.kind, count(*), sum(f.n) FROM {table} f JOIN stores t ON t.id = f.k"
        " WHERE t.region = %s GROUP BY f.kind"
    )
    places.client.execute(f"SET oar.reduction = '{reduction}'")
    try:
        for region in ("north", "south", "nowhere"):
            ours = places.client.execute(text, [region], prepare=True).fetchall()
            theirs = places.merged.execute(text, [region]).fetchall()
            assert Counter(ours) == Counter(theirs)
    finally:
        places.client.execute("RESET oar.reduction")


def test_using_is_the_equality_that_it_is(places, new_database):
    """A column that USING merges and nothing else names is one that is joined by."""
    for merged in ("count(*)", "k, count(*)"):
        grouped = " GROUP BY k" if merged.startswith("k") else ""
        statement = f"SELECT {merged} FROM postgres JOIN twice USING (k) WHERE tag = 'v'{grouped}"
        answers(places, statement)
        step = step_of(places.client, statement, "postgres")
        assert ("Only Filtered By" in step) == (not grouped)


@pytest.mark.parametrize("seed", range(40))
def test_random_statements_over_leaves(places, seed):
    chance = random.Random(seed)
    table = chance.choice(TABLES)
    leaves = chance.sample(["stores t", "days d", "twice w"], chance.randint(1, 3))
    conditions, relations = [], [f"{table} f", *leaves]
    if "stores t" in leaves:
        conditions.append(
            chance.choice(["t.id = f.k", "f.k = t.id AND t.size = 10", "t.name = f.s"])
        )
    if "days d" in leaves:
        conditions.append(chance.choice(["d.day = f.j AND d.shift = f.k", "d.day = f.j"]))
    if chance.random() < 0.4:
        conditions.append(
            chance.choice(
                [
                    "f.j IN (SELECT k FROM twice WHERE tag = 't')",
                    "f.k IN (SELECT id FROM stores WHERE size > 5)",
                    "EXISTS (SELECT 1 FROM stores x WHERE x.id = f.k AND x.region = 'south')",
                ]
            )
        )
    if "twice w" in leaves:
        conditions.append(chance.choice(["w.k = f.k AND w.tag = 'v'", "w.k = f.j", "w.k = f.k"]))
    conditions += chance.sample(
        ["f.n > 0", "f.kind <> 'x'", "f.k < 4", "f.j = 1"], chance.randint(0, 2)
    )
    outputs = chance.sample(["count(*)", "sum(f.n)", "count(f.s)", "max(f.n)", "min(f.k)"], 3)
    by = chance.sample(["f.kind", "f.j", "f.s"], chance.randint(0, 2))
    chance.shuffle(relations)
    grouped = f" GROUP BY {', '.join(by)}" if by else ""
    answers(
        places,
        f"SELECT {', '.join(by + outputs)} FROM {', '.join(relations)}"
        f" WHERE {' AND '.join(conditions)}{grouped}",
        chance.choice([places.client, places.few]),
    )
