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
    **{
        f"DateStyle = 'ISO, {order}'": [
            "SELECT id, '01/02/03'::date FROM a WHERE '01/02/03'::date = date '2003-02-01'",
            "SELECT id FROM a WHERE date '01/02/03' IN ('2003-01-02', '2001-02-03')",
            "SELECT q.id FROM (SELECT id FROM a WHERE '01/02/03'::date > '2002-01-01' LIMIT 2) q, b",
        ]
        for order in ("MDY", "DMY", "YMD")
    },
    **{
        f"IntervalStyle = '{style}'": [
            "SELECT id, (timestamp '2020-01-03 04:00' - timestamp '2020-01-01')::text FROM a",
            "SELECT id, v || (timestamp '2020-01-01' - timestamp '2020-01-03 04:00') FROM a",
        ]
        for style in ("iso_8601", "sql_standard", "postgres_verbose")
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


def test_owners_arrays_are_not_read_where_null_is_no_null_in_them(client):
    client.execute("SET array_nulls = off")
    for statement in ("SELECT id FROM a", "COPY (SELECT v FROM a) TO STDOUT"):
        with pytest.raises(psycopg.errors.FeatureNotSupported) as refused:
            client.execute(statement)
        assert refused.value.diag.message_hint == "SET array_nulls TO on"


@pytest.mark.parametrize("style", ["ISO", "SQL", "Postgres", "German"])
@pytest.mark.parametrize("order", ["MDY", "DMY", "YMD"])
def test_parameters_are_dates_in_every_style(client, merged, style, order):
    """SQL's and PostgreSQL's style print the year last where YMD reads it first."""
    values = [
        ("date", "2003-02-01"), ("date", "0044-03-15 BC"), ("date", "infinity"),
        ("timestamp", "2003-02-01 04:05:06.7"), ("timestamp", "0044-03-15 00:00 BC"),
        ("timestamptz", "2003-02-01 04:05:06+03"), ("timestamptz", "0044-03-15 00:00+00 BC"),
    ]  # fmt: skip
    for kind, value in values:
        answers = []
        for connection in (client, merged):
            connection.execute(f"SET DateStyle = '{style}, {order}'")
            query = f"SELECT id, $1::{kind}::text, $1 > timestamp '2002-01-01' FROM a"
            connection.execute(f"PREPARE dated({kind}) AS {query} WHERE $1 = '{value}'::{kind}")
            try:
                cursor = psycopg.RawCursor(connection)
                bound = f"{query} WHERE $1::{kind} = '{value}'::{kind}"
                sent = cursor.execute(bound, [value]).fetchall()
                answers.append([sent, connection.execute(f"EXECUTE dated('{value}')").fetchall()])
            finally:
                connection.execute("DEALLOCATE dated")
                connection.execute("RESET DateStyle")
        assert answers[0][0]
        assert [list(map(Counter, answer)) for answer in answers[:1]] == [
            list(map(Counter, answer)) for answer in answers[1:]
        ]


def test_dates_that_would_be_read_as_others_are_refused(client):
    client.execute("SET DateStyle = 'SQL, YMD'")
    client.execute("PREPARE ranged(daterange) AS SELECT id FROM a WHERE date '2003-02-01' <@ $1")
    try:
        with pytest.raises(psycopg.errors.FeatureNotSupported) as refused:
            client.execute("EXECUTE ranged('[2003-01-02,2003-03-04]')")
        assert refused.value.diag.message_hint == "SET DateStyle TO ISO"
        client.execute("SET DateStyle = 'SQL, MDY'")
        assert client.execute("EXECUTE ranged('[2003-01-02,2003-03-04]')").fetchall()
    finally:
        client.execute("DEALLOCATE ranged")
        client.execute("RESET DateStyle")


WHOLE = {
    "extra_float_digits = 3": {"SELECT id / 3.0::float8 FROM a": True},
    "extra_float_digits = 0": {"SELECT id / 3.0::float8 FROM a": False},
    "IntervalStyle = 'iso_8601'": {"SELECT id FROM a WHERE v = 'x'": False},
    "DateStyle = 'SQL, MDY'": {"SELECT id FROM a WHERE v = 'x'": False},
    **{
        f"DateStyle = 'ISO, {order}'": {
            "SELECT count(*) FROM a WHERE v < '1 of 2' AND k > '1'": order == "MDY",
            "SELECT count(*) FROM a WHERE v <> 'x' AND date '2026-02-01' > '2026-01-15'": True,
            "SELECT id FROM a WHERE date '01/02/03' > '2026-01-15' OR id > 2": order == "MDY",
            "SELECT id FROM a WHERE v::date > '2026-01-15'": order == "MDY",
            "SELECT id FROM a WHERE '2026-01-15 00:00'::timestamp > '2026-01-15' OR id > 2": True,
        }
        for order in ("MDY", "DMY", "YMD")
    },
}


@pytest.mark.parametrize(
    ("setting", "statement", "whole"),
    [(setting, *each) for setting, cases in WHOLE.items() for each in cases.items()],
)
def test_a_statement_goes_whole_where_no_setting_makes_another_of_it(
    client, setting, statement, whole
):
    client.execute(f"SET {setting}")
    try:
        (plan,) = client.execute(f"EXPLAIN (FORMAT json) {statement}").fetchone()
    finally:
        client.execute(f"RESET {setting.split()[0]}")
    (step,) = plan[0]["Plan"]["Steps"]
    assert (step["Reads"] == "the whole statement") is whole


# What each is read by, a value that makes another constant of it, and such a constant.
CONSTANTS = {
    "TimeZone": ("Asia/Tokyo", "timestamptz '2026-01-01 00:00' > '2025-12-31 20:00+00'"),
    "DateStyle": ("ISO, DMY", "date '01/02/2026' > '2026-01-15'"),
    "IntervalStyle": ("sql_standard", "interval '-1 02:03:04' > interval '-1 day'"),
    "transform_null_equals": ("on", "a.k = NULL"),
    "standard_conforming_strings": ("off", r"'a\\b' = 'a' || chr(92) || chr(92) || 'b'"),
}
EXECUTED = {
    "by the protocol": lambda c, statement: c.execute(statement, prepare=True),
    "by SQL": lambda c, _: c.execute("EXECUTE given"),
    "by SQL, to copy": lambda c, _: c.execute("CREATE TEMP TABLE made AS EXECUTE given"),
}


@pytest.mark.parametrize("how", EXECUTED)
@pytest.mark.parametrize("setting", CONSTANTS)
@pytest.mark.parametrize("tables", ["a", "a JOIN b USING (id)"])
def test_constants_of_what_is_prepared_are_not_read_again(client, setting, how, tables):
    """PostgreSQL goes by what they meant; where that is something else now, nothing is answered."""
    value, constant = CONSTANTS[setting]
    statement = f"SELECT id, {constant} AS c FROM {tables}"
    client.execute(f"PREPARE given AS {statement}")
    before = client.execute(statement, prepare=True).fetchall()
    client.execute(f"SET {setting} = '{value}'")
    with pytest.raises(psycopg.errors.FeatureNotSupported) as refused:
        EXECUTED[how](client, statement)
    if setting != "standard_conforming_strings":
        assert refused.value.diag.source_function == "RevalidateCachedQuery"
        assert client.execute(f"{statement} WHERE true", prepare=True).fetchall() != before
        assert f"under {setting} = '" in refused.value.diag.message_detail
    client.execute(f"RESET {setting}")
    assert EXECUTED[how](client, statement).rowcount == len(before)


@pytest.mark.parametrize("setting", CONSTANTS)
@pytest.mark.parametrize(
    "statement",
    [
        "SELECT id, v, '2026-01-01 12:00+03'::timestamptz AS t FROM a WHERE v > 'x' OR id = $1",
        "SELECT id, $1::timestamptz AS t, w FROM a JOIN b USING (id) WHERE v < '01/02/2026'",
        "SELECT id, (interval '2 days')::text AS i, date '2026-03-04' FROM a WHERE $1 = id AND k IS NULL",
    ],
)
def test_what_no_setting_makes_another_constant_of_is_answered(client, merged, setting, statement):
    value, _ = CONSTANTS[setting]
    given = "2026-01-01 12:00" if "timestamptz AS t, w" in statement else 3
    found = []
    for connection in (client, merged):
        cursor = psycopg.RawCursor(connection)
        cursor.execute(statement, (given,), prepare=True)
        connection.execute(f"SET {setting} = '{value}'")
        found.append(Counter(cursor.execute(statement, (given,), prepare=True).fetchall()))
        connection.execute(f"RESET {setting}")
    assert found[0] == found[1]


def test_another_search_path_has_constants_read_again(client, merged):
    found = []
    for connection, path in ((client, "shop"), (merged, "public")):
        connection.execute(f"SET search_path = {path}")
        connection.execute("PREPARE given AS SELECT id, timestamptz '2026-01-01 00:00' FROM a")
        connection.execute(
            f"SET TimeZone = 'Asia/Tokyo'; SET search_path = {path}, information_schema"
        )
        found.append(Counter(connection.execute("EXECUTE given").fetchall()))
        connection.execute("DEALLOCATE given; RESET TimeZone; RESET search_path")
    assert found[0] == found[1]


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
