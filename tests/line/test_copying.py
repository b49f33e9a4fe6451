"""COPY of what owners hold: in every format, under every setting that text depends on."""

from __future__ import annotations

import asyncio
import subprocess
from contextlib import ExitStack

import asyncpg
import psycopg
import pytest
from oar_bench.addresses import owner_url
from oar_proxy.hub.binaries import find_binaries
from oar_proxy.settings import HubSettings, Listen, OwnerSettings, Settings

COLUMNS = (
    "id int, f float8, r real, d date, t timestamp, z timestamptz, n numeric, c character(3),"
    " v varchar, s text, b bytea, u uuid, y boolean, i interval, j jsonb"
)
ROWS = """
(1, 0.1::float8 + 0.2, 1e-7, '2003-02-01', '2003-02-01 04:05:06.7', '2003-02-01 04:05+03', 1.50,
 'a', 'q"q', E'tab\\tline\\nback\\\\', E'\\\\x005c', '00000000-0000-0000-0000-000000000001', true,
 '1 day 2 h', '{"a": [1, "ü"]}'),
(2, 'NaN', 'infinity', '0044-03-15 BC', 'infinity', '-infinity', 'NaN', '', '', E'\\\\N', '',
 NULL, false, '-1 mon', 'null'),
(3, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)
"""
STATEMENTS = {
    "one owner's, whole": "SELECT * FROM {0}kinds ORDER BY id",
    "one owner's, row by row": "SELECT s || '$1', f, d, t FROM {0}kinds WHERE d <> '2003-02-02'",
    "two owners'": "SELECT k.*, w.f, w.d, w.c FROM {0}kinds AS k JOIN {0}wide AS w USING (id)",
    "no row": "SELECT * FROM {0}kinds WHERE id > 3",
    "rows without columns": "SELECT FROM {0}wide",
}
FORMATS = {
    "text": "",
    "csv": "(FORMAT csv, HEADER, NULL '-', FORCE_QUOTE *)",
    "binary": "(FORMAT binary)",
}
SETTINGS = {
    **{
        f"DateStyle = '{style}, {order}'": f"SET DateStyle TO '{style}, {order}'"
        for style in ("ISO", "SQL", "Postgres", "German")
        for order in ("MDY", "DMY", "YMD")
    },
    **{f"extra_float_digits = {n}": f"SET extra_float_digits TO {n}" for n in (-3, 0, 3)},
    "bytea_output": "SET bytea_output TO escape",
    "IntervalStyle": "SET IntervalStyle TO iso_8601",
    "TimeZone": "SET TimeZone TO 'Asia/Kathmandu'",
    "client_encoding": "SET client_encoding TO LATIN1",
}


@pytest.fixture(scope="module")
def line(owners, new_database, running_proxy, tmp_path_factory):
    """Connections to a proxy before two owners and to their tables merged, and to where they go."""
    with ExitStack() as stack:

        def database(name, tables):
            dsn = new_database(name)
            connection = stack.enter_context(psycopg.connect(dsn, autocommit=True))
            for table in tables:
                connection.execute(f"CREATE TABLE {table} ({COLUMNS}); ANALYZE {table}")
                connection.execute(f"INSERT INTO {table} VALUES {ROWS}")
            return dsn, connection

        policy = tmp_path_factory.mktemp("copying") / "open.yaml"
        policy.write_text(owners.ALLOW)
        asked = {}
        for name, table in (("north", "kinds"), ("south", "wide")):
            dsn, _ = database(name, [table])
            asked[name] = OwnerSettings(url=owner_url(dsn), schema="shop", policy=policy)
        merged_dsn, merged = database("merged", ["kinds", "wide"])
        settings = Settings(
            owners=asked, hub=HubSettings(dsn=new_database("hub")), listen=Listen(port=0)
        )
        _, dsn = stack.enter_context(running_proxy(settings))
        client = stack.enter_context(psycopg.connect(dsn, autocommit=True))
        yield client, merged, dsn, merged_dsn


def copied(connection, query, options=""):
    with connection.cursor().copy(f"COPY ({query}) TO STDOUT {options}") as copy:
        return b"".join(copy)


def both(line, name, options=""):
    client, merged, *_ = line
    query = STATEMENTS[name]
    return copied(client, query.format("shop."), options), copied(merged, query.format(""), options)


@pytest.mark.parametrize("options", FORMATS)
@pytest.mark.parametrize("name", STATEMENTS)
def test_a_copy_is_that_of_the_merged_tables(line, name, options):
    found, expected = both(line, name, FORMATS[options])
    assert found == expected


@pytest.mark.parametrize("setting", SETTINGS)
def test_it_is_so_under_every_setting(line, setting):
    client, merged, *_ = line
    try:
        for connection in (client, merged):
            connection.execute(SETTINGS[setting])
        for name in STATEMENTS:
            found, expected = both(line, name)
            assert found == expected, name
    finally:
        for connection in (client, merged):
            connection.execute("RESET ALL")


PORTALS = "SELECT count(*) FROM pg_cursors WHERE name LIKE 'oar:%'"


def test_nothing_is_kept_for_it_behind_it(line):
    client = line[0]
    with client.transaction():
        (before,) = client.execute(PORTALS).fetchone()
        for name in STATEMENTS:
            found, expected = both(line, name)
            assert found == expected
            assert client.execute(PORTALS).fetchone() == (before,)
        with pytest.raises(psycopg.errors.DivisionByZero), client.transaction():
            copied(client, "SELECT k.id / (w.id - 3) FROM shop.kinds k JOIN shop.wide w USING (id)")
        found, expected = both(line, "two owners'")
        assert found == expected


def test_a_string_of_statements_may_have_several(line):
    answers = []
    for reached, schema in zip(line[2:], ("shop.", ""), strict=True):
        one, two = (STATEMENTS[n].format(schema) for n in ("one owner's, whole", "two owners'"))
        command = f"COPY ({one}) TO STDOUT; SELECT 1; COPY ({two}) TO STDOUT"
        psql = find_binaries().directory / "psql"
        answers.append(subprocess.check_output([psql, "-XAt", "-c", command, reached]))
    assert answers[0] == answers[1]
    assert answers[0].count(b"\n") > 6


def test_a_driver_copies_by_the_extended_protocol(line):
    client, merged, dsn, _ = line
    query = STATEMENTS["two owners'"]

    async def work():
        options = psycopg.conninfo.conninfo_to_dict(dsn)
        connection = await asyncpg.connect(
            host=options["host"],
            port=int(options["port"]),
            user=options["user"],
            password=options["password"],
            database=options.get("dbname", client.info.dbname),
        )
        parts = []

        async def take(data):
            parts.append(data)

        try:
            await connection.copy_from_query(query.format("shop."), output=take, format="binary")
            async with connection.transaction():
                await connection.copy_from_query(query.format("shop."), output=take)
        finally:
            await connection.close()
        return b"".join(parts)

    expected = copied(merged, query.format(""), "(FORMAT binary)") + copied(
        merged, query.format("")
    )
    assert asyncio.run(work()) == expected
