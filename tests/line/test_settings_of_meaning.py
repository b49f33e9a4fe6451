"""Settings of a session that change what its statements mean, for owners as for the hub."""

from __future__ import annotations

from collections import Counter

import psycopg
import pytest

CASES = {
    "transform_null_equals = on": [
        "SELECT id FROM a WHERE k = NULL",
        "SELECT a.id, b.id FROM a LEFT JOIN b ON b.k = a.k WHERE b.k = NULL",
        "SELECT a.id FROM a JOIN b ON b.id = a.id WHERE a.k = NULL",
        "SELECT c.id, q.n FROM c, (SELECT count(*) n FROM a WHERE k = NULL) q",
    ],
    "array_nulls = off": [
        "SELECT id FROM a WHERE v = ANY ('{NULL,x}'::text[])",
        "SELECT a.id FROM a JOIN b ON b.id = a.id WHERE a.v IS NULL OR a.v = ANY ('{NULL,x}'::text[])",
    ],
    **{
        f"DateStyle = 'ISO, {order}'": [
            "SELECT id, '01/02/03'::date FROM a WHERE '01/02/03'::date = date '2003-02-01'",
            "SELECT id FROM a WHERE date '01/02/03' IN ('2003-01-02', '2001-02-03')",
            "SELECT q.id FROM (SELECT id FROM a WHERE '01/02/03'::date > '2002-01-01' LIMIT 2) q, b",
        ]
        for order in ("MDY", "DMY", "YMD")
    },
    "timezone_abbreviations = 'India'": [
        "SELECT a.id FROM a JOIN b ON b.id = a.id WHERE a.id < 3 AND "
        "timestamptz '2026-01-01 00:00 IST' < timestamptz '2025-12-31 20:00 UTC'",
        "SELECT count(*) FROM a WHERE timestamptz '2026-01-01 00:00 IST' < "
        "timestamptz '2025-12-31 20:00 UTC'",
    ],
}


@pytest.mark.parametrize(
    ("setting", "statement"), [(s, each) for s, statements in CASES.items() for each in statements]
)
def test_a_setting_holds_for_owners_as_for_the_hub(client, merged, setting, statement):
    answers = []
    for connection in (client, merged):
        connection.execute(f"SET {setting}")
        try:
            rows = connection.execute(statement).fetchall()
        finally:
            connection.execute(f"RESET {setting.split()[0]}")
        answers.append(Counter(map(repr, rows)))
    assert answers[0] == answers[1]


def test_a_plan_does_not_outlive_the_collation_it_was_made_for(client):
    """A temporary table may come back under its name with text that compares otherwise."""
    statement = "EXPLAIN (FORMAT json) SELECT a.id FROM a JOIN b USING (k) JOIN h ON h.v = a.v"
    notes = []
    for collation in ("", "COLLATE pg_unicode_fast"):
        client.execute(f"CREATE TEMP TABLE h (v text {collation})")
        notes.append(client.execute(statement).fetchone()[0][0]["Plan"].get("Notes", []))
        client.execute("DROP TABLE h")
    assert notes == [[], ["read unreduced: it has text with a collation of its own"]]


PLUS = "bigint) RETURNS bigint IMMUTABLE LANGUAGE sql AS 'SELECT $1 + "


@pytest.fixture
def administrator(line):
    """An administrator of the hub, whose schemas and functions are not for other tests."""
    with psycopg.connect(line.hub, autocommit=True) as connection:
        yield connection
        connection.execute("DROP SCHEMA IF EXISTS built_in CASCADE")
        connection.execute("DROP FUNCTION IF EXISTS public.plus(bigint)")
        connection.execute(f"DROP SCHEMA IF EXISTS {own_schema(line)} CASCADE")


def own_schema(line):
    return psycopg.conninfo.conninfo_to_dict(line.dsn)["user"]


@pytest.mark.parametrize("trusted", ["PUBLIC", "{own}"], ids=["everyone's", "the client's alone"])
def test_functions_of_the_clients_own_schema_are_meant(line, client, administrator, trusted):
    """Nobody else has that schema in front of the others, and perhaps nobody else may use it."""
    own = own_schema(line)
    administrator.execute(f"CREATE FUNCTION public.plus({PLUS} 1'")
    administrator.execute(f"CREATE SCHEMA {own}")
    administrator.execute(f"CREATE FUNCTION {own}.plus({PLUS} 2'")
    administrator.execute(f"GRANT USAGE ON SCHEMA {own} TO {trusted.format(own=own)}")
    found = client.execute("SELECT a.id, b.id FROM a JOIN b USING (k) WHERE a.k = plus(8)")
    assert sorted(found) == [(1, 1), (1, 2), (4, 1), (4, 2)]


@pytest.mark.parametrize(
    ("statement", "due"),
    [
        ("SELECT sum(id) FROM a", 121),
        ("SELECT sum(a.id) FROM a JOIN d ON d.id = a.k", 110),
        ("SELECT sum(a.id) FROM a JOIN c USING (id)", 110),
        ("SELECT c.id + q.n FROM c, (SELECT sum(id) AS n FROM a) q WHERE c.id = 1", 122),
    ],
)
def test_what_takes_the_name_of_a_built_in_function_is_meant(client, administrator, statement, due):
    administrator.execute(
        "CREATE SCHEMA built_in; CREATE AGGREGATE built_in.sum(bigint) "
        "(sfunc = int8pl, stype = bigint, initcond = '100'); "
        "GRANT USAGE ON SCHEMA built_in TO PUBLIC"
    )
    client.execute("SET search_path = built_in, shop, pg_catalog")
    assert client.execute(statement).fetchone() == (due,)
