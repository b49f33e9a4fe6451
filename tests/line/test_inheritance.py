"""Tables that others inherit from: ``ONLY`` reads what it reads where all tables are in one place."""

from __future__ import annotations

import sqlite3
from collections import Counter
from contextlib import ExitStack, closing

import psycopg
import pytest
from oar_bench.addresses import owner_url
from oar_proxy.settings import HubSettings, Listen, OwnerSettings, Settings

NORTH = """
CREATE TABLE people (id int, name text, born date);
CREATE TABLE staff (salary int) INHERITS (people);
CREATE TABLE chiefs (car text) INHERITS (staff);
INSERT INTO people VALUES (1, 'ann', '1980-01-01'), (2, 'bob', '1990-01-01'), (3, NULL, NULL);
INSERT INTO staff VALUES (4, 'cid', '1970-01-01', 10), (5, 'dan', NULL, NULL), (2, 'bob', NULL, 7);
INSERT INTO chiefs VALUES (6, 'eve', '1960-01-01', 90, 'van'), (1, 'ann', NULL, 80, NULL);
CREATE TABLE days (day int, label text) PARTITION BY RANGE (day);
CREATE TABLE days_1 PARTITION OF days FOR VALUES FROM (0) TO (4);
CREATE TABLE days_2 PARTITION OF days FOR VALUES FROM (4) TO (9);
INSERT INTO days SELECT i, 'day ' || i FROM generate_series(0, 8) AS i;
CREATE VIEW everybody AS SELECT id, name FROM people;
CREATE TABLE large (id int, n int);
CREATE TABLE large_too () INHERITS (large);
INSERT INTO large SELECT i, i % 7 FROM generate_series(1, 60000) AS i;
INSERT INTO large_too SELECT i, i % 7 FROM generate_series(60001, 120000) AS i;
"""
SPLIT = """
CREATE TABLE visits (id int, place text);
CREATE TABLE old_visits () INHERITS (visits);
INSERT INTO visits VALUES ({0}1, 'here'), ({0}2, 'there');
INSERT INTO old_visits VALUES ({0}3, 'here'), ({0}4, 'nowhere');
"""
MORE_VISITS = """
INSERT INTO visits VALUES (21, 'here'), (22, 'there');
INSERT INTO old_visits VALUES (23, 'here'), (24, 'nowhere');
"""
MARKS = [(1, "a"), (2, "b"), (2, "c"), (4, "d"), (6, "e"), (None, "f"), (60001, "g"), (7, "h")]

STATEMENTS = {
    "rows": "SELECT * FROM ONLY people",
    "and children": "SELECT * FROM people *",
    "in brackets": "SELECT p.name FROM ONLY (people) AS p WHERE p.id > 1",
    "a command": "TABLE ONLY people",
    "a child that has one": "SELECT * FROM ONLY staff",
    "a table without children": "SELECT * FROM ONLY chiefs",
    "partitions": "SELECT * FROM ONLY days",
    "partitions are counted": "SELECT count(*) FROM ONLY days",
    "a view": "SELECT * FROM ONLY everybody",
    "counted": "SELECT count(*), sum(id) FROM ONLY people",
    "grouped": "SELECT name, count(*) FROM ONLY people GROUP BY name",
    "first rows": "SELECT id, name FROM ONLY people ORDER BY id DESC LIMIT 2",
    "conditions": "SELECT id FROM ONLY people WHERE born > '1985-01-01' OR name IS NULL",
    "both ways": "SELECT a.id, b.id AS other FROM ONLY people a JOIN people b USING (name)",
    "the other way round": "SELECT a.id, b.id AS other FROM people a JOIN ONLY people b USING (name)",
    "below": "SELECT id FROM people WHERE id NOT IN (SELECT id FROM ONLY people)",
    "a row as a value": "SELECT p FROM ONLY people AS p",
    "a row as text": "SELECT p::text, (p).name FROM ONLY people AS p",
    "keys from elsewhere": "SELECT p.name, m.mark FROM marks m JOIN ONLY people p USING (id)"
    " WHERE m.mark < 'd'",
    "keys to elsewhere": "SELECT m.mark FROM ONLY staff s JOIN marks m USING (id) WHERE s.salary = 7",
    "left": "SELECT m.mark, p.name FROM marks m LEFT JOIN ONLY people p USING (id)",
    "not exists": "SELECT m.mark FROM marks m WHERE NOT EXISTS (SELECT FROM ONLY people p WHERE p.id = m.id)",
    "joined at their owner": "SELECT m.mark, p.name FROM ONLY people p JOIN staff s ON s.id = p.id"
    " JOIN marks m ON m.id = s.id",
    "a semi-join at their owner": "SELECT m.mark FROM staff s JOIN ONLY people p ON p.id = s.id"
    " JOIN marks m ON m.id = s.id WHERE p.name = 'bob'",
    "groups for keys": "SELECT count(*), max(m.mark) FROM ONLY people p JOIN marks m USING (id)",
    "groups of a subquery": "SELECT m.mark, q.n FROM marks m JOIN (SELECT id, count(*) AS n FROM ONLY people"
    " GROUP BY id) q USING (id)",
    "first rows of a subquery": "SELECT m.mark FROM marks m JOIN (SELECT id FROM ONLY people ORDER BY id DESC"
    " LIMIT 2) q USING (id)",
    "subqueries that differ by it": "SELECT m.mark, (SELECT count(*) FROM people p WHERE p.id = m.id) AS n,"
    " (SELECT count(*) FROM ONLY people p WHERE p.id = m.id) AS o FROM marks m"
    " GROUP BY m.mark, (SELECT count(*) FROM people p WHERE p.id = m.id),"
    " (SELECT count(*) FROM ONLY people p WHERE p.id = m.id)",
    "a set": "SELECT id FROM people EXCEPT SELECT id FROM ONLY people",
    "a CTE": "WITH q AS MATERIALIZED (SELECT * FROM ONLY people) SELECT * FROM q JOIN marks USING (id)",
    "elsewhere nothing inherits": "SELECT * FROM ONLY marks",
    "rows of several owners": "SELECT id, place FROM ONLY visits",
    "joined rows of several": "SELECT v.id, m.mark FROM ONLY visits v LEFT JOIN marks m USING (id)",
    "all rows of several": "SELECT id, place FROM visits",
    "many": "SELECT id, n FROM ONLY large",
    "many, joined": "SELECT l.id, m.mark FROM ONLY large l JOIN marks m ON m.id = l.id",
    "many, counted": "SELECT n, count(*) FROM ONLY large GROUP BY n",
}  # fmt: skip


ALLOW = "version: 1\nkey_disclosure:\n  - {column: '*', to: ['*'], max_keys: 1000}\n"
RULES = (
    ALLOW
    + """tables:
  people: {row_filter: "id < 5", columns: {name: {mask: 'x'}}}
  staff: {min_group: {entity: id, size: 2}}
"""
)


@pytest.fixture(scope="module")
def databases(new_database, tmp_path_factory):
    """How two PostgreSQL owners and an SQLite file are reached, and their merged tables."""
    north, west, merged = (new_database(name) for name in ("north", "west", "merged"))
    for dsn, script in (
        (north, NORTH + SPLIT.format(1)),
        (west, SPLIT.format(2)),
        (merged, NORTH + SPLIT.format(1) + MORE_VISITS + "CREATE TABLE marks (id int, mark text)"),
    ):
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(script)
            connection.execute("ANALYZE")
    with psycopg.connect(merged, autocommit=True) as connection:
        connection.cursor().executemany("INSERT INTO marks VALUES (%s, %s)", MARKS)
    path = tmp_path_factory.mktemp("owners") / "south.sqlite"
    with closing(sqlite3.connect(path, isolation_level=None)) as south:
        south.execute("CREATE TABLE marks (id integer, mark text)")
        south.executemany("INSERT INTO marks VALUES (?, ?)", MARKS)
    return {
        "north": owner_url(north),
        "west": owner_url(west),
        "south": f"sqlite:///{path}",
    }, merged


@pytest.fixture(scope="module")
def client_under(databases, new_database, running_proxy, tmp_path_factory):
    """Connect to a proxy over the owners, of which north has a policy."""

    def connect(rules):
        directory = tmp_path_factory.mktemp("policies")
        policy, norths = directory / "policy.yaml", directory / "north.yaml"
        policy.write_text(ALLOW)
        norths.write_text(rules)
        owners = {
            name: OwnerSettings(
                url=url, schema="shop", policy=norths if name == "north" else policy
            )
            for name, url in databases[0].items()
        }
        hub = HubSettings(dsn=new_database("hub"))
        settings = Settings(owners=owners, hub=hub, listen=Listen(port=0))
        _, dsn = stack.enter_context(running_proxy(settings))
        # What is the same text again may be another view here.
        opened = psycopg.connect(dsn, autocommit=True, prepare_threshold=None)
        client = stack.enter_context(opened)
        client.execute("SET search_path = shop")
        return client

    with ExitStack() as stack:
        yield connect


@pytest.fixture(scope="module")
def places(databases, client_under):
    """A client of a proxy that allows every key edge, and one of the merged tables."""
    with psycopg.connect(databases[1], autocommit=True) as merged:
        yield client_under(ALLOW), merged


def rows(connection, statement):
    return Counter(connection.execute(statement).fetchall())


@pytest.mark.parametrize("name", STATEMENTS)
def test_rows_equal_those_of_the_merged_tables(places, name):
    client, merged = places
    due = rows(merged, STATEMENTS[name])
    for reduction in ("forward", "full"):
        client.execute(f"SET oar.reduction = '{reduction}'")
        assert rows(client, STATEMENTS[name]) == due
    # Fetched by a cursor, and through a view.
    client.execute(f"CREATE TEMPORARY VIEW v AS {STATEMENTS[name]}")
    assert rows(client, "SELECT * FROM v") == due
    client.execute("DROP VIEW v")


def test_children_are_left_out_of_what_a_session_writes(places):
    for connection in places:
        connection.execute("CREATE TEMPORARY TABLE mine AS SELECT id, name FROM people")
        connection.execute("DELETE FROM mine USING ONLY people p WHERE p.id = mine.id")
        connection.execute("UPDATE mine SET name = s.salary FROM ONLY staff s WHERE s.id = mine.id")
        connection.execute("INSERT INTO mine SELECT id, name FROM ONLY staff")
    client, merged = places
    assert rows(client, "TABLE mine") == rows(merged, "TABLE mine")


def test_rules_hold_for_a_table_without_its_children(client_under):
    client = client_under(RULES)
    people = Counter([(1, "x"), (2, "x"), (3, "x")])
    assert rows(client, "SELECT id, name FROM ONLY people") == people
    assert rows(client, "SELECT p.id, p.name FROM ONLY shop.people p") == people
    children = Counter([(4, "x"), (2, "x"), (1, "x")])
    assert rows(client, "SELECT id, name FROM people") == people + children
    joined = rows(client, "SELECT p::text FROM ONLY people p JOIN marks USING (id)")
    assert joined == Counter({("(1,x,1980-01-01)",): 1, ("(2,x,1990-01-01)",): 2})
    # Groups that are large enough with the children's rows only are not shown without them.
    assert rows(client, "SELECT count(*) FROM ONLY staff WHERE id > 3") == Counter([(2,)])
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        client.execute("SELECT name FROM ONLY staff")
