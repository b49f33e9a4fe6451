"""Large answers of one owner, which pass through in chunks while the owner sends."""

from __future__ import annotations

import asyncio
import sqlite3
import time

import asyncpg
import psycopg
import psycopg.conninfo
import pytest
from oar_proxy.run import CHUNK_ROWS
from oar_proxy.settings import HubSettings, Limits, Listen, OwnerSettings, Settings
from psycopg import errors

ROWS = 70_000
ALL = "SELECT id, v FROM shop.big ORDER BY id DESC"
STEPS = "SELECT sqlstate, rows FROM oar.steps WHERE ask = %s ORDER BY step"


@pytest.fixture(scope="module")
def owner(hub_server, new_database, tmp_path_factory):
    """A PostgreSQL database and an SQLite file with a large table each, and how to reach them."""
    dsn = new_database("large")
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(
            "CREATE TABLE big AS SELECT n::bigint AS id, 'row ' || n AS v, "
            f"CASE WHEN n % 3 > 0 THEN n / 2.0 END AS x FROM generate_series(1, {ROWS}) n"
        )
        connection.execute("ANALYZE")
    path = tmp_path_factory.mktemp("large") / "large.sqlite"
    file = sqlite3.connect(path)
    with file:
        file.execute("CREATE TABLE bulky (id INTEGER NOT NULL, v TEXT)")
        file.executemany(
            "INSERT INTO bulky VALUES (?, ?)", ((n, f"row {n}") for n in range(1, ROWS + 1))
        )
    file.close()
    parts = psycopg.conninfo.conninfo_to_dict(dsn)
    url = (
        f"postgres://{parts['user']}:{parts['password']}@/{parts['dbname']}"
        f"?host={hub_server.host}&port={hub_server.port}"
    )
    owners = {
        "large": OwnerSettings(url=url, schema="shop"),
        "file": OwnerSettings(url=f"sqlite:///{path}", schema="shop"),
    }
    return dsn, owners


@pytest.fixture(scope="module")
def reach(owner, new_database, running_proxy):
    """Reach a proxy over these owners with some of the limits changed; one for each set."""
    opened = {}

    def proxy(**limits):
        key = tuple(limits.items())
        if key not in opened:
            hub = HubSettings(dsn=new_database("hub"))
            settings = Settings(
                owners=owner[1], hub=hub, listen=Listen(port=0), limits=Limits(**limits)
            )
            context = running_proxy(settings)
            opened[key] = context, context.__enter__()[1]
        return opened[key][1]

    yield proxy
    for context, _ in opened.values():
        context.__exit__(None, None, None)


@pytest.fixture
def client(reach):
    # Less than the rows of the table have: it limits what is held, not what passes.
    with psycopg.connect(reach(max_bytes=1_500_000), autocommit=True) as connection:
        yield connection


@pytest.fixture
def direct(owner):
    with psycopg.connect(owner[0], autocommit=True) as connection:
        yield connection


def recorded(client):
    """The steps of the client's last ask, and how that ended."""
    latest = "SELECT ask, sqlstate FROM oar.asks ORDER BY at DESC LIMIT 1"
    ask, outcome = client.execute(latest).fetchone()
    return client.execute(STEPS, (ask,)).fetchall(), outcome


def eventually(condition):
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "did not happen"
        time.sleep(0.02)


class ExtendedCursor(psycopg.Cursor):
    """Prepares every statement."""

    def execute(self, query, params=None, **options):
        return super().execute(query, params, prepare=True, **options)


@pytest.mark.parametrize("cursor_class", [ExtendedCursor, psycopg.ClientCursor])
def test_every_row_in_its_order(client, direct, cursor_class):
    cursor = cursor_class(client)
    statement = "SELECT id, v, x FROM shop.big ORDER BY x DESC NULLS LAST, id"
    assert cursor.execute(statement).fetchall() == (
        direct.execute(statement.replace("shop.", "")).fetchall()
    )
    assert cursor.statusmessage == f"SELECT {ROWS}"
    assert recorded(client) == ([("00000", ROWS), ("00000", ROWS)], "00000")


@pytest.mark.parametrize(
    ("statement", "steps"),
    [
        (f"SELECT id FROM shop.big WHERE id <= {CHUNK_ROWS}", [("00000", CHUNK_ROWS)]),
        ("SELECT id FROM shop.big LIMIT 50000", [("00000", 50_000)]),
        ("SELECT FROM shop.big", [("00000", ROWS)] * 2),
        ("SELECT id, v FROM shop.bulky", [("00000", ROWS)] * 2),
        ("SELECT id, v FROM shop.big LIMIT ALL OFFSET 5", [("00000", ROWS - 5)] * 2),
    ],
)
def test_the_owner_counts_only_what_is_more_than_a_chunk(client, statement, steps):
    assert client.execute(statement).rowcount == steps[0][1]
    assert recorded(client) == (steps, "00000")


def test_parameters_and_statements_prepared_by_sql(client):
    above = client.execute("SELECT id FROM shop.big WHERE id > %s ORDER BY id", (ROWS // 2,))
    assert above.fetchall() == [(n,) for n in range(ROWS // 2 + 1, ROWS + 1)]
    client.execute(
        "PREPARE upper_half(bigint) AS SELECT id FROM shop.big WHERE id > $1 ORDER BY id"
    )
    executed = client.execute(f"EXECUTE upper_half({ROWS // 2})")
    assert executed.fetchall() == [(n,) for n in range(ROWS // 2 + 1, ROWS + 1)]
    assert len(recorded(client)[0]) == 2


def test_what_is_not_read_to_its_end_at_once_is_held(reach):
    """Cursors, and statements that keep the rows at the hub."""
    dsn = reach()
    with psycopg.connect(dsn) as connection:
        with connection.cursor("mine") as cursor:
            cursor.execute(ALL)
            assert [row[0] for row in cursor.fetchmany(3)] == [ROWS, ROWS - 1, ROWS - 2]
        assert len(recorded(connection)[0]) == 1
        connection.execute("CREATE TEMP TABLE kept AS SELECT id FROM shop.big")
        assert connection.execute("SELECT count(*) FROM kept").fetchone() == (ROWS,)

    async def portal():
        parts = psycopg.conninfo.conninfo_to_dict(dsn)
        parts["database"] = parts.pop("dbname")
        connection = await asyncpg.connect(**parts)
        async with connection.transaction():
            got = [row["id"] async for row in connection.cursor(ALL, prefetch=30_000)]
        await connection.close()
        return got

    assert asyncio.run(portal()) == list(range(ROWS, 0, -1))


@pytest.mark.parametrize("table", ["big", "bulky"])
def test_a_refusal_comes_before_the_first_row(reach, table):
    with psycopg.connect(reach(max_rows=ROWS - 1), autocommit=True) as client:
        with pytest.raises(errors.ProgramLimitExceeded, match="nothing is returned"):
            next(client.cursor().stream(f"SELECT id FROM shop.{table}"))
        assert recorded(client) == ([("54000", None), ("00000", ROWS)], "54000")
        assert client.execute(f"SELECT id FROM shop.{table} WHERE id < {ROWS}").rowcount == ROWS - 1


def test_an_error_after_some_rows_is_an_error(client):
    """The owner counts without dividing."""
    rows = client.cursor().stream(f"SELECT 1 / (id - {ROWS}) FROM shop.big")
    for _ in range(CHUNK_ROWS):
        next(rows)
    with pytest.raises(errors.DivisionByZero):
        list(rows)
    steps, outcome = recorded(client)
    assert [sqlstate for sqlstate, _ in steps] == [outcome, "00000"]
    assert outcome != "00000"


def open_transactions(direct):
    return direct.execute(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
        "AND application_name = 'oar' AND state <> 'idle'"
    ).fetchone()[0]


@pytest.fixture
def reading(reach):
    with psycopg.connect(reach(), autocommit=True) as connection:
        yield connection


WIDE = "SELECT id, v || '" + "x" * 2000 + "' FROM shop.big"
"""More than all the sockets on the way take while nobody reads."""


def test_cancelling_stops_the_owner(reading, direct):
    rows = reading.cursor().stream(WIDE)
    assert next(rows)
    assert open_transactions(direct) == 1
    reading.cancel_safe()
    with pytest.raises(errors.QueryCanceled):
        list(rows)
    assert open_transactions(direct) == 0
    assert recorded(reading) == ([("57014", None), ("00000", ROWS)], "57014")
    assert reading.execute(ALL).rowcount == ROWS


def test_a_client_that_leaves_stops_the_owner(direct, reach):
    leaving = psycopg.connect(reach(), autocommit=True)
    leaving.pgconn.send_query(WIDE.encode())
    eventually(lambda: open_transactions(direct) == 1)
    leaving.close()
    eventually(lambda: open_transactions(direct) == 0)


def test_the_timeout_is_for_all_of_it(reading, direct):
    """A client that does not read holds the owner's snapshot no longer than that."""
    reading.execute("SET statement_timeout = '1s'")
    rows = reading.cursor().stream(WIDE)
    assert next(rows)
    eventually(lambda: open_transactions(direct) == 0)
    with pytest.raises(errors.QueryCanceled):
        list(rows)
    assert recorded(reading) == ([("57014", None), ("00000", ROWS)], "57014")
