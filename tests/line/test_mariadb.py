"""PostgreSQL joined with MariaDB gives what the merged tables give, whatever MariaDB's collations.

The MariaDB owner compares text without regard to case and trailing blanks, and keeps time in another
zone than its clients.
"""

from __future__ import annotations

from collections import Counter

import psycopg
import pytest
from oar_bench.addresses import owner_url
from oar_proxy.settings import HubSettings, Listen, OwnerSettings, Settings

ALLOW = "version: 1\nkey_disclosure:\n  - {column: '*', to: ['*'], max_keys: 100000}\n"

PEOPLE = (
    "people (code text, big numeric, day date, town text)",
    [("bob", 1, "2024-02-29", "Казань"), ("Bob", 2**63, "2024-03-01", "казань"),
     ("bob ", 2**64 - 1, None, "Казань "), ("BOB", None, "1999-12-31", None), ("zoë", 7, "2024-02-29", ""),
     ("zoe", 8, "2024-03-31", "O'Fallon"), (None, 9, "2025-01-01", "a\\b"), ("alone", 10, None, "x"),
     ("😀", 11, "2024-02-29", "x")],
)  # fmt: skip
ORDERS = (
    "orders (id integer, code text, big numeric(20,0), at timestamptz, day date, sum numeric(10,2),"
    " paid boolean, note text)",
    [(1, "bob", 1, "2024-02-28 23:30:00+00", "2024-02-29", "10.50", True, "a%b"),
     (2, "bob", 2, "2024-02-29 00:00:00+00", "2024-02-29", "0.10", False, "A_b"),
     (3, "BOB", 2**63, "2024-02-29 12:00:00.5+00", "2024-03-01", None, True, None),
     (4, "bob  ", 2**64 - 1, "2024-03-31 01:30:00+00", None, "7.00", None, "0"),
     (5, "bob ", 3, None, "1999-12-31", "-1.00", True, "0abc"),
     (6, "zoe", 7, "2025-01-01 00:00:00+00", "2025-01-01", "3.00", False, "abc"),
     (7, None, None, None, None, None, None, ""), (8, "nobody", 12, None, "2024-02-29", "1.00", True, " "),
     (9, "😀", 11, "2024-02-29 00:00:00+00", "2024-02-29", "5.00", False, "a\\b"),
     (10, "😁", 13, None, None, "6.00", True, "ж")],
)  # fmt: skip

STATEMENTS = [
    "SELECT p.code, o.id FROM people p JOIN orders o USING (code)",
    "SELECT p.code, o.id FROM people p LEFT JOIN orders o USING (code)",
    "SELECT p.code, o.id FROM people p RIGHT JOIN orders o USING (code)",
    "SELECT p.code, o.id FROM people p FULL JOIN orders o USING (code)",
    "SELECT code FROM people WHERE code NOT IN (SELECT code FROM orders WHERE code IS NOT NULL)",
    "SELECT id FROM orders o WHERE NOT EXISTS (SELECT FROM people p WHERE p.code = o.code)",
    "SELECT p.code, o.id FROM people p JOIN orders o USING (code) WHERE o.code = 'bob'",
    "SELECT p.code, o.id FROM people p JOIN orders o USING (code) WHERE o.code <> 'bob'",
    "SELECT p.code, o.id FROM people p JOIN orders o USING (code) WHERE o.code > 'BOB'",
    "SELECT p.code, o.id FROM people p JOIN orders o USING (code) WHERE o.code LIKE 'b%'",
    "SELECT p.code, o.id FROM people p JOIN orders o USING (code) WHERE o.note LIKE 'a\\%b'",
    "SELECT p.code, o.id FROM people p JOIN orders o USING (code) WHERE o.note LIKE '%\\\\b'",
    "SELECT p.town, o.id FROM people p JOIN orders o ON p.town = o.note",
    "SELECT p.code, o.id FROM people p JOIN orders o USING (big)",
    "SELECT p.code, o.id FROM people p JOIN orders o USING (big) WHERE o.big > 9223372036854775807",
    "SELECT p.code, o.id FROM people p JOIN orders o USING (day)",
    "SELECT p.code, o.id, o.at FROM people p JOIN orders o ON p.day = (o.at AT TIME ZONE 'UTC')::date",
    "SELECT p.code, o.id FROM people p JOIN orders o USING (code) WHERE o.at >= '2024-02-29 00:00+00'",
    "SELECT p.code, sum(o.sum), count(*), bool_or(o.paid) FROM people p JOIN orders o USING (code) GROUP BY p.code",
    "SELECT code, count(*), min(note), max(note) FROM orders GROUP BY code",
    "SELECT count(*), count(DISTINCT code) FROM orders",
    "SELECT DISTINCT code FROM orders ORDER BY code DESC NULLS LAST",
    "SELECT id FROM orders WHERE paid AND note IN ('0abc', 'a%b', 'A%B')",
    "SELECT id FROM orders WHERE NOT (code = 'bob' OR note = 'abc')",
    "SELECT id, big / 2, sum % 3 FROM orders ORDER BY id LIMIT 3",
]


@pytest.fixture(scope="module")
def places(mariadb_server, new_database, running_proxy, tmp_path_factory):
    """A proxy over both owners, and the merged tables."""
    north, merged, hub = (new_database(name) for name in ("north", "merged", "hub"))
    for dsn, tables in ((north, (PEOPLE,)), (merged, (PEOPLE, ORDERS))):
        with psycopg.connect(dsn) as connection:
            for definition, rows in tables:
                connection.execute(f"CREATE TABLE {definition}")
                name, marks = definition.split()[0], ", ".join(["%s"] * len(rows[0]))
                connection.cursor().executemany(f"INSERT INTO {name} VALUES ({marks})", rows)
    database, url = mariadb_server.new_database(
        "shop", options="CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci"
    )
    mariadb_server.run(
        "CREATE TABLE orders (id int PRIMARY KEY, code varchar(20), big bigint unsigned,"
        " at timestamp(6) NULL, day date, sum decimal(10,2), paid tinyint(1), note text,"
        " INDEX (code), INDEX (big))",
        "SET time_zone = '+00:00'",
        "INSERT INTO orders VALUES (%s, %s, %s, %s, %s, %s, %s, %s)",
        database=database,
        rows=[(*row[:3], row[3] and row[3].removesuffix("+00"), *row[4:]) for row in ORDERS[1]],
    )
    policy = tmp_path_factory.mktemp("policies") / "allow.yaml"
    policy.write_text(ALLOW)
    owners = {
        "north": OwnerSettings(url=owner_url(north), schema="shop", policy=policy),
        "south": OwnerSettings(
            url=url, schema="shop", policy=policy, options={"tinyint1": "boolean"}
        ),
    }
    settings = Settings(owners=owners, hub=HubSettings(dsn=hub), listen=Listen(port=0))
    with running_proxy(settings) as (_, dsn):
        yield dsn, merged


@pytest.fixture(scope="module")
def client(places):
    with psycopg.connect(places[0], autocommit=True) as connection:
        connection.execute("SET search_path = shop; SET TIME ZONE 'Asia/Tokyo'")
        yield connection


@pytest.fixture(scope="module")
def merged(places):
    with psycopg.connect(places[1], autocommit=True) as connection:
        connection.execute("SET TIME ZONE 'Asia/Tokyo'")
        yield connection


@pytest.mark.parametrize("reduction", ["forward", "full"])
@pytest.mark.parametrize("statement", STATEMENTS)
def test_rows_equal_those_of_the_merged_tables(client, merged, statement, reduction):
    client.execute(f"SET oar.reduction = '{reduction}'")
    found, due = client.execute(statement), merged.execute(statement)
    assert [c.name for c in found.description] == [c.name for c in due.description]
    assert Counter(map(repr, found.fetchall())) == Counter(map(repr, due.fetchall()))


@pytest.mark.parametrize("key", ["code", "big", "day"])
def test_keys_reach_mariadb_and_only_their_rows_leave(client, merged, steps, key):
    client.execute("SET oar.reduction = 'forward'")
    statement = f"SELECT p.code, o.id FROM people p JOIN orders o USING ({key})"
    sent = steps(client, statement)
    assert {step["Owner"] for step in sent} == {"north", "south"}
    rows = {step["Owner"]: step["Actual Rows"] for step in sent}
    matched = {
        "south": f"SELECT count(*) FROM orders WHERE {key} IN (SELECT {key} FROM people)",
        "north": f"SELECT count(*) FROM people WHERE {key} IN (SELECT {key} FROM orders)",
    }
    exact = {owner: merged.execute(text).fetchone()[0] for owner, text in matched.items()}
    assert any(rows[owner] == exact[owner] for owner in exact), sent
