"""Every type a PostgreSQL owner publishes reaches the client as it was, in text and in binary."""

from __future__ import annotations

import psycopg
import pytest

COLUMNS = {
    "c_smallint": ("smallint", ["-32768", "32767", "0"]),
    "c_integer": ("integer", ["-2147483648", "2147483647", "7"]),
    "c_bigint": ("bigint", ["-9223372036854775808", "9223372036854775807", "7"]),
    "c_numeric": ("numeric", ["1.50", "NaN", "-99999999999999999999.000001"]),
    "c_money_like": ("numeric(10,2)", ["1.5", "0", "-12345678.91"]),
    "c_real": ("real", ["0.1", "NaN", "-Infinity"]),
    "c_double": ("double precision", ["0.1", "-0", "1e308"]),
    "c_boolean": ("boolean", ["true", "false", "true"]),
    "c_text": ("text", ["", "Привет, мир 🙂", "tab\ttab\\n'\"{},NULL"]),
    "c_varchar": ("character varying(20)", ["a ", "б", "NULL"]),
    "c_char": ("character(5)", ["ab", "abcde", ""]),
    "c_blanks": ("bpchar", ["ab ", "", "  x  "]),
    "c_hundreds": ("numeric(3,-2)", ["100", "-9900", "0"]),
    "c_bytea": ("bytea", ["\\x00ff", "\\x", "\\xdeadbeef"]),
    "c_date": ("date", ["2026-02-28", "infinity", "0001-01-01 BC"]),
    "c_time": ("time without time zone", ["23:59:59.999999", "00:00", "24:00"]),
    "c_timetz": ("time with time zone", ["12:00+03", "00:00-11", "23:59:59.5+00"]),
    "c_timestamp": ("timestamp without time zone", ["2026-01-01 00:00:00.000001", "-infinity", "1999-12-31"]),
    "c_timestamptz": ("timestamp with time zone", ["2026-01-01 00:00+03", "infinity", "1970-01-01 00:00Z"]),
    "c_timestamp0": ("timestamp(0) without time zone", ["2026-01-01 00:00:00.6", "2020-02-02", "2021-01-01"]),
    "c_interval": ("interval", ["1 mon", "30 days", "-1 year 2 days 03:04:05.6"]),
    "c_uuid": ("uuid", ["A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11"] * 3),
    "c_json": ("json", ['{"a": 1.0,  "b": null}', "[]", '"x"']),
    "c_jsonb": ("jsonb", ['{"b": 1.0, "a": null}', "[]", '"\\u00e9"']),
    "c_inet": ("inet", ["10.0.0.1/8", "::1", "192.168.0.1"]),
    "c_array": ("integer[]", ["{1,NULL,3}", "{}", "{{1,2},{3,4}}"]),
    "c_texts": ("text[]", ['{"a b",NULL,"NULL"}', '{"\\"q\\""}', "{}"]),
    "c_dates": ("date[]", ["{2026-01-01,infinity}", "{}", "{NULL}"]),
    "c_bits": ("bit varying(8)", ["101", "", "11111111"]),
    "c_range": ("int4range", ["[1,5)", "empty", "(,3]"]),
    "c_padded": ("bpchar[]", ['{"ab ",NULL,c}', "{}", '{" "}']),
    "c_words": ("tsvector", ["'a':1 'cat':3A", "", "'it''s' 'b\\\\c'"]),
    "c_sought": ("tsquery", ["'fat' & 'rat':*A", "", "!'a' <2> 'b c'"]),
    "c_steps": ("jsonpath", ['$."a"[*] ? (@ > 1)', "strict $", '$.b.datetime("HH24")']),
    "c_oid": ("oid", ["0", "4294967295", "16384"]),
    "c_oids": ("oid[]", ["{1,NULL}", "{}", "{4294967295}"]),
    "c_lsn": ("pg_lsn", ["0/0", "16/B374D848", "FFFFFFFF/FFFFFFFF"]),
    "c_xid8": ("xid8", ["0", "18446744073709551615", "3"]),
}  # fmt: skip


INCOMPARABLE = ("c_json", "c_steps")


@pytest.fixture(scope="module")
def typed(owners, running_proxy, new_database):
    """A proxy over a table of every type, and the same table where all tables are together."""
    columns = ", ".join(f"{name} {kind}" for name, (kind, _) in COLUMNS.items())
    rows = [
        ", ".join(psycopg.sql.Literal(values[i]).as_string(None) for _, values in COLUMNS.values())
        for i in range(3)
    ]
    filled = (
        f"CREATE TABLE kinds (id int primary key, {columns}); INSERT INTO kinds VALUES "
        + ", ".join(f"({i}, {row})" for i, row in enumerate(rows, start=1))
        + "; INSERT INTO kinds (id) VALUES (4)"
    )
    with psycopg.connect(owners.west, autocommit=True) as west:
        west.execute(filled)
    with psycopg.connect(owners.merged, autocommit=True) as together:
        together.execute(filled)
        with running_proxy(owners.settings(new_database("hub"), {})) as (_, dsn):
            yield dsn, together
        together.execute("DROP TABLE kinds")
    with psycopg.connect(owners.west, autocommit=True) as west:
        west.execute("DROP TABLE kinds")


STATEMENTS = {
    "whole": "SELECT * FROM {} ORDER BY id",
    "scanned": "SELECT kinds.* FROM {}, (VALUES (1)) v(x) ORDER BY id",
    "of no row": "SELECT DISTINCT coalesce(c_money_like, c_money_like) FROM {} LIMIT 0",
    "as text": "SELECT id, kinds::text FROM {} ORDER BY id",
    "joined": "SELECT kinds.*, a.v FROM {} LEFT JOIN {schema}a ON a.id = kinds.id ORDER BY kinds.id",
}


def raw(connection, statement, *, binary):
    """The bytes of the answer as they come, with names, types and modifiers."""
    cursor = psycopg.RawCursor(connection)
    cursor.format = psycopg.pq.Format.BINARY if binary else psycopg.pq.Format.TEXT
    result = cursor.execute(statement).pgresult
    columns = range(result.nfields)
    described = [(result.fname(i), result.ftype(i), result.fmod(i)) for i in columns]
    rows = [[result.get_value(r, i) for i in columns] for r in range(result.ntuples)]
    return described, rows


@pytest.mark.parametrize("binary", [False, True], ids=["text", "binary"])
@pytest.mark.parametrize("name", STATEMENTS)
@pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo"])
def test_every_type_passes_unchanged(typed, name, zone, binary):
    dsn, together = typed
    with psycopg.connect(dsn, autocommit=True) as client:
        for connection in (client, together):
            connection.execute(f"SET TimeZone = '{zone}'")
        actual = raw(client, STATEMENTS[name].format("shop.kinds", schema="shop."), binary=binary)
        expected = raw(together, STATEMENTS[name].format("kinds", schema=""), binary=binary)
    assert actual[0] == expected[0]
    assert actual[1] == expected[1]


@pytest.mark.parametrize("column", [c for c in COLUMNS if c not in INCOMPARABLE])
def test_every_type_can_be_compared(typed, column):
    dsn, together = typed
    kind, values = COLUMNS[column]
    for value in values:
        literal = psycopg.sql.Literal(value).as_string(None)
        for operator in ("=", "<>", "<", ">="):
            condition = f"{column} {operator} {literal}::{kind}"
            statement = f"SELECT id FROM TABLE WHERE {condition} ORDER BY id"
            joined = (
                f"SELECT x.id, y.id FROM TABLE x JOIN TABLE y ON x.{column} = y.{column} "
                f"JOIN (VALUES (1)) one(n) ON true WHERE x.{condition} ORDER BY 1, 2"
            )
            with psycopg.connect(dsn, autocommit=True) as client:
                for text in (statement, joined):
                    expected = together.execute(text.replace("TABLE", "kinds")).fetchall()
                    assert (
                        client.execute(text.replace("TABLE", "shop.kinds")).fetchall() == expected
                    )


@pytest.mark.parametrize("column", [c for c in COLUMNS if c not in INCOMPARABLE])
def test_every_type_can_be_a_parameter(typed, column):
    """PostgreSQL calls a parameter's type ``character`` where it means one of any length."""
    dsn, together = typed
    _, values = COLUMNS[column]
    statements = [
        f"SELECT id FROM TABLE WHERE {column} = $1 ORDER BY id",
        f"SELECT x.id FROM TABLE x JOIN (VALUES (1)) one(n) ON true WHERE (x.{column} = $1) IS TRUE "
        "ORDER BY 1",
        f"SELECT x.id FROM TABLE x LEFT JOIN SCHEMAa a ON a.id = x.id WHERE x.{column} >= $1 "
        f"OR x.{column} IN ($1, $1) ORDER BY 1",
    ]
    with psycopg.connect(dsn, autocommit=True) as client:
        for text in statements:
            ours = text.replace("TABLE", "shop.kinds").replace("SCHEMA", "shop.")
            theirs = text.replace("TABLE", "kinds").replace("SCHEMA", "")
            client.execute(f"PREPARE given AS {ours}")
            for value in values:
                wanted = psycopg.RawCursor(together).execute(theirs, [value]).fetchall()
                assert psycopg.RawCursor(client).execute(ours, [value]).fetchall() == wanted
                literal = psycopg.sql.Literal(value).as_string(None)
                assert client.execute(f"EXECUTE given({literal})").fetchall() == wanted
            client.execute("DEALLOCATE given")


def test_what_cannot_be_grouped_by_is_counted_beside_a_key(typed):
    """A grouped key determines its row, but a view has no key: columns that are used join it."""
    dsn, together = typed
    statement = (
        "SELECT x.id, x.c_text, count(y.c_json), count(x.c_json), count(c_steps) "
        "FROM TABLE x JOIN (SELECT id, c_json FROM TABLE) y ON x.id = y.id GROUP BY x.id ORDER BY 1"
    )
    expected = together.execute(statement.replace("TABLE", "kinds")).fetchall()
    with psycopg.connect(dsn, autocommit=True) as client:
        assert client.execute(statement.replace("TABLE", "shop.kinds")).fetchall() == expected
