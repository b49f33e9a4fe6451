"""Large answers of one owner, which pass through in chunks while the owner sends."""

from __future__ import annotations

import asyncio
import sqlite3
from collections import Counter

import asyncpg
import psycopg
import psycopg.conninfo
import pytest
from oar_bench.addresses import owner_url
from oar_proxy.fetch import CHUNK_ROWS
from oar_proxy.settings import HubSettings, Limits, Listen, OwnerSettings, Settings
from psycopg import errors
from waits import eventually

ROWS = 70_000
PAD = "." * 40

LITTLE = 3_000_000
"""Bytes; less than the rows of the table have: it limits what is held, not what passes."""

ALL = "SELECT id, v FROM shop.big ORDER BY id DESC"
STEPS = "SELECT sqlstate, rows FROM oar.steps WHERE ask = %s ORDER BY step"


@pytest.fixture(scope="module")
def owner(mariadb_server, new_database, tmp_path_factory):
    """PostgreSQL, SQLite and MariaDB with a large table each, and how to reach them."""
    dsn = new_database("large")
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(
            f"CREATE TABLE big AS SELECT n::bigint AS id, 'row ' || n || '{PAD}' AS v, "
            f"CASE WHEN n % 3 > 0 THEN n / 2.0 END AS x FROM generate_series(1, {ROWS}) n"
        )
        connection.execute(
            "CREATE TABLE stamped AS SELECT id, v, timestamptz '2024-02-29 12:00Z' + id * interval "
            "'1 s' AS at, jsonb_build_object('n', id) AS document FROM big"
        )
        connection.execute("ANALYZE")
    path = tmp_path_factory.mktemp("large") / "large.sqlite"
    file = sqlite3.connect(path)
    with file:
        file.execute("CREATE TABLE bulky (id INTEGER NOT NULL, v TEXT)")
        file.executemany(
            "INSERT INTO bulky VALUES (?, ?)", ((n, f"row {n}{PAD}") for n in range(1, ROWS + 1))
        )
    file.close()
    maria, maria_url = mariadb_server.new_database("large")
    mariadb_server.run(
        "CREATE TABLE many (id BIGINT PRIMARY KEY, v VARCHAR(80))",
        f"INSERT INTO many SELECT seq, concat('row ', seq, '{PAD}') FROM seq_1_to_{ROWS}",
        database=maria,
    )
    owners = {
        "large": OwnerSettings(url=owner_url(dsn), schema="shop"),
        "file": OwnerSettings(url=f"sqlite:///{path}", schema="shop"),
        "maria": OwnerSettings(url=maria_url, schema="shop"),
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
    with psycopg.connect(reach(max_bytes=LITTLE), autocommit=True) as connection:
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
        ("SELECT at, document FROM shop.stamped", [("00000", ROWS)] * 2),
        ("SELECT count(*) FROM shop.many WHERE id < 5", [("00000", 4)]),
        (f"SELECT id FROM shop.many WHERE id <= {CHUNK_ROWS}", [("00000", CHUNK_ROWS)]),
    ],
)
def test_the_owner_counts_only_what_is_more_than_a_chunk(client, statement, steps):
    client.execute(statement)
    assert recorded(client) == (steps, "00000")


@pytest.mark.parametrize(
    ("statement", "reads"),
    [
        ("SELECT id, v FROM shop.big", "shop.big"),
        ("SELECT * FROM shop.big WHERE id > 9", "shop.big"),
        ("SELECT q.v AS a, q.v AS b FROM (SELECT v FROM shop.big) AS q", "shop.big"),
        # Less is sent where the owner computes, or leaves out more rows than a scan can.
        ("SELECT id + 1 FROM shop.big", "the whole statement"),
        ("SELECT v FROM (SELECT v LIKE '%9%' AS v FROM shop.big) AS q", "the whole statement"),
        ("SELECT id FROM shop.big WHERE id * 2 = x", "the whole statement"),
        ("SELECT id FROM shop.big ORDER BY x, id", "the whole statement"),
        ("SELECT DISTINCT x FROM shop.big", "the whole statement"),
    ],
)
def test_many_rows_of_a_table_are_read_in_blocks(client, direct, statement, reads):
    ((document,),) = client.execute(f"EXPLAIN (FORMAT json) {statement}").fetchone()
    (step,) = document["Plan"]["Steps"]
    assert step["Reads"] == reads
    expected = direct.execute(statement.replace("shop.", "")).fetchall()
    found = client.execute(statement).fetchall()
    assert found == expected if "DISTINCT" not in statement else Counter(found) == Counter(expected)


def test_parameters_and_statements_prepared_by_sql(client):
    above = client.execute("SELECT id FROM shop.big WHERE id > %s ORDER BY id", (ROWS // 2,))
    assert above.fetchall() == [(n,) for n in range(ROWS // 2 + 1, ROWS + 1)]
    client.execute(
        "PREPARE upper_half(bigint) AS SELECT id FROM shop.big WHERE id > $1 ORDER BY id"
    )
    executed = client.execute(f"EXECUTE upper_half({ROWS // 2})")
    assert executed.fetchall() == [(n,) for n in range(ROWS // 2 + 1, ROWS + 1)]
    assert len(recorded(client)[0]) == 2


ROW_BY_ROW = [
    "SELECT * FROM shop.stamped",
    "SELECT id + 1 AS next, at::date AS day, document ->> 'n' AS n FROM shop.stamped "
    "WHERE id % 7 > 0 AND document <> '{}'",
    "SELECT CASE WHEN q.n > 9 THEN q.v END AS v FROM (SELECT id AS n, v FROM shop.stamped) AS q",
    "SELECT q.id, q.at FROM (SELECT * FROM shop.stamped) AS q",
    "SELECT s::text, s.at FROM shop.stamped AS s WHERE s.at IS NOT NULL",
]


@pytest.mark.parametrize("statement", ROW_BY_ROW)
def test_what_the_hub_evaluates_row_by_row(client, direct, statement):
    """Such columns are compared otherwise by their owner, as far as the planner knows."""
    found = client.execute(statement)
    due = direct.execute(statement.replace("shop.", ""))
    assert found.statusmessage == due.statusmessage
    assert Counter(map(repr, found)) == Counter(map(repr, due))
    steps, outcome = recorded(client)
    assert (len(steps), outcome) == (2, "00000")


def test_parameters_of_what_the_hub_evaluates_row_by_row(client):
    found = client.execute("SELECT %s::text || v, at FROM shop.stamped WHERE id > %s", ("a ", 9))
    due = sorted(f"a row {n}{PAD}" for n in range(10, ROWS + 1))
    assert sorted(row[0] for row in found) == due


def test_an_owner_that_cannot_count_while_it_sends_is_asked_again(client):
    """The first rows have been sent, and are on the ledger as that."""
    found = client.execute("SELECT id, v FROM shop.many WHERE id > 5").fetchall()
    assert sorted(found) == [(n, f"row {n}{PAD}") for n in range(6, ROWS + 1)]
    ((_, before), *others), outcome = recorded(client)
    assert 0 < before < ROWS
    assert (others, outcome) == ([("00000", ROWS - 5)] * 2, "00000")


LOOKING_AT_MORE = [
    "SELECT max(at) FROM shop.stamped",
    "SELECT at FROM shop.stamped ORDER BY at LIMIT 3",
    "SELECT DISTINCT document FROM shop.stamped WHERE id < 5",
    "SELECT at, row_number() OVER () FROM shop.stamped",
    "SELECT at FROM shop.stamped WHERE at = (SELECT max(at) FROM shop.stamped)",
    "SELECT at FROM shop.stamped WHERE id < 3 UNION ALL SELECT at FROM shop.stamped WHERE id < 4",
    "SELECT s.at FROM shop.stamped s JOIN shop.stamped t USING (id)",
    "SELECT n FROM (SELECT count(*) AS n FROM shop.stamped) q",
    # An aggregate written as an attribute.
    "SELECT (id).max FROM shop.stamped",
    "SELECT stamped.count FROM shop.stamped",
    "SELECT (s).count FROM shop.stamped s",
    "SELECT q.count FROM (SELECT id AS n FROM shop.stamped) q",
    "SELECT (id).max FROM shop.bulky LIMIT 1",
    "SELECT bulky.count FROM shop.bulky LIMIT 1",
]


@pytest.mark.parametrize("statement", LOOKING_AT_MORE)
def test_what_looks_at_more_than_a_row_is_held(reach, direct, statement):
    with psycopg.connect(reach(), autocommit=True) as client:
        found = client.execute(statement)
        due = direct.execute(statement.replace("shop.", "").replace("bulky", "big"))
        assert Counter(map(repr, found)) == Counter(map(repr, due))


SOURCES = ["big", "bulky", "many", "stamped"]


@pytest.mark.parametrize(
    "options", ["", "(FORMAT csv, HEADER)", "(FORMAT csv, HEADER false)", "(FORMAT BINARY)"]
)
@pytest.mark.parametrize("table", SOURCES)
def test_a_copy_is_one_whoever_the_owner_is(client, direct, table, options):
    with client.cursor().copy(f"COPY (SELECT id, v FROM shop.{table}) TO STDOUT {options}") as copy:
        found = b"".join(copy)
    with direct.cursor().copy(f"COPY (SELECT id, v FROM big) TO STDOUT {options}") as copy:
        assert found == b"".join(copy)
    assert len(recorded(client)[0]) == (3 if table == "many" else 2)


LATE = f"SELECT id FROM shop.stamped WHERE (document ->> 'n')::int > {ROWS - 5}"
"""The first chunks hold no row of the answer, as the hub finds."""


@pytest.mark.parametrize("options", ["", "(FORMAT csv, HEADER)", "(FORMAT BINARY)"])
def test_a_copy_that_begins_with_chunks_of_no_row(client, direct, options):
    with client.cursor().copy(f"COPY ({LATE}) TO STDOUT {options}") as copy:
        found = b"".join(copy)
    with direct.cursor().copy(f"COPY ({LATE.replace('shop.', '')}) TO STDOUT {options}") as copy:
        assert found == b"".join(copy)
    assert len(recorded(client)[0]) == 2


@pytest.mark.parametrize("table", SOURCES)
def test_a_table_is_made_of_chunks(client, direct, table):
    with client.transaction():
        made = client.execute(
            f'CREATE TEMP TABLE "made of" (a, b) ON COMMIT DROP AS '
            f"SELECT v, id FROM shop.{table} WHERE id > 1 WITH DATA"
        )
        assert made.statusmessage == f"SELECT {ROWS - 1}"
        assert len(recorded(client)[0]) == (3 if table == "many" else 2)
        content = 'SELECT count(*), sum(b), min(a), max(a) FROM "made of"'
        assert (
            client.execute(content).fetchone()
            == direct.execute(
                "SELECT count(*), sum(id), min(v), max(v) FROM big WHERE id > 1"
            ).fetchone()
        )


def test_a_table_that_fails_half_way_is_not_made(client):
    statement = f"CREATE TEMP TABLE half AS SELECT 1 / (id - {ROWS}) AS n FROM shop.big"
    with pytest.raises(errors.DivisionByZero):
        client.execute(statement)
    with client.transaction():
        with pytest.raises(errors.DivisionByZero), client.transaction():
            client.execute(statement)
        assert client.execute("SELECT to_regclass('half')").fetchone() == (None,)


@pytest.fixture
def reading(reach):
    with psycopg.connect(reach(), autocommit=True) as connection:
        yield connection


HELD = {
    "if it does not exist": "CREATE TEMP TABLE IF NOT EXISTS kept AS SELECT id FROM shop.big",
    "inserted": "INSERT INTO kept SELECT id FROM shop.big",
}


@pytest.mark.parametrize("statement", HELD.values(), ids=HELD)
def test_other_statements_that_keep_the_rows_hold_them(reading, statement):
    if statement.startswith("INSERT"):
        reading.execute("CREATE TEMP TABLE kept (id bigint)")
    reading.execute(statement)
    assert len(recorded(reading)[0]) == 1
    kept = reading.execute("SELECT count(*) FROM kept").fetchone()
    assert kept == (ROWS,)


def test_a_cursor_of_the_hubs_is_held(reach):
    with psycopg.connect(reach()) as connection:
        with connection.cursor("mine") as cursor:
            cursor.execute(ALL)
            assert [row[0] for row in cursor.fetchmany(3)] == [ROWS, ROWS - 1, ROWS - 2]
        assert len(recorded(connection)[0]) == 1
    with psycopg.connect(reach(max_bytes=LITTLE)) as connection:
        refusal = pytest.raises(errors.ProgramLimitExceeded)
        with connection.cursor("mine") as cursor, refusal as refused:
            cursor.execute(ALL)
        assert "limit proxy/limits.max_bytes" in refused.value.diag.message_detail


def with_asyncpg(dsn, work):
    async def run():
        parts = psycopg.conninfo.conninfo_to_dict(dsn)
        parts["database"] = parts.pop("dbname")
        connection = await asyncpg.connect(**parts)
        try:
            return await work(connection)
        finally:
            await connection.close()

    return asyncio.run(run())


@pytest.mark.parametrize("table", SOURCES)
def test_a_driver_that_fetches_some_rows_at_a_time(reach, client, direct, table):
    async def work(connection):
        async with connection.transaction():
            statement = f"SELECT id, v FROM shop.{table} WHERE id > $1"
            cursor = connection.cursor(statement, 3, prefetch=7_000)
            return [tuple(row) async for row in cursor]

    found = with_asyncpg(reach(max_bytes=LITTLE), work)
    assert sorted(found) == direct.execute("SELECT id, v FROM big WHERE id > 3").fetchall()
    assert len(recorded(client)[0]) == (3 if table == "many" else 2)


def test_a_portal_that_waits_keeps_the_owner_until_it_ends(reach, client, direct):
    async def work(connection):
        async with connection.transaction():
            cursor = await connection.cursor(ALL)
            taken = [row["id"] for row in await cursor.fetch(2)]
            assert open_transactions(direct) == 1
            portal = await connection.fetchval(
                "SELECT name FROM pg_cursors WHERE name LIKE '\\_\\_asyncpg%'"
            )
            with pytest.raises(asyncpg.FeatureNotSupportedError):
                async with connection.transaction():
                    await connection.execute(f'FETCH ALL FROM "{portal}"')
            taken += [row["id"] for row in await cursor.fetch(2)]
        eventually(lambda: open_transactions(direct) == 0)
        return taken

    taken = with_asyncpg(reach(max_bytes=LITTLE), work)
    assert taken == [ROWS, ROWS - 1, ROWS - 2, ROWS - 3]
    assert recorded(client) == ([("57014", None), ("00000", ROWS)], "57014")


TOTAL = 10_000_000
BOTH_HELD = "SELECT count(*) FROM shop.big JOIN shop.bulky USING (id) WHERE big.v <= bulky.v"


def test_memory_is_shared_by_all_statements(reach):
    """A portal that waits holds some chunks; with them there is no room for two whole tables."""
    dsn = reach(max_total_bytes=TOTAL)

    async def work(connection):
        async with connection.transaction():
            cursor = await connection.cursor(f"SELECT id, v || '{'x' * 100}' FROM shop.big")
            await cursor.fetch(1)
            with psycopg.connect(dsn, autocommit=True) as other:
                with pytest.raises(errors.OutOfMemory, match=f"{TOTAL} bytes") as refused:
                    other.execute(BOTH_HELD)
                return refused.value.diag

    told = with_asyncpg(dsn, work)
    assert "limit proxy/limits.max_total_bytes" in told.message_detail
    assert str(ROWS) not in told.message_primary
    with psycopg.connect(dsn, autocommit=True) as connection:
        for _ in range(3):
            assert connection.execute(BOTH_HELD).fetchone() == (ROWS,)


@pytest.mark.parametrize("statement", [BOTH_HELD, f"COPY ({BOTH_HELD}) TO STDOUT"])
def test_what_is_held_has_a_limit(client, statement):
    with pytest.raises(errors.ProgramLimitExceeded) as refused:
        client.execute(statement)
    assert "limit proxy/limits.max_bytes" in refused.value.diag.message_detail
    assert recorded(client)[1] == "54000"


@pytest.mark.parametrize("table", SOURCES)
def test_a_refusal_comes_before_the_first_row(reach, table):
    with psycopg.connect(reach(max_rows=ROWS - 1), autocommit=True) as client:
        with pytest.raises(errors.ProgramLimitExceeded, match="nothing is returned"):
            next(client.cursor().stream(f"SELECT id FROM shop.{table}"))
        (first, counted), outcome = recorded(client)
        assert (counted, outcome) == (("00000", ROWS), "54000")
        if table == "many":  # is not asked again
            assert first[0] == "00000"
            assert first[1] < ROWS - 1
        else:
            assert first == ("54000", None)
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


def test_cancelling_stops_an_owner_that_was_asked_again(reading):
    wide = WIDE.replace("shop.big", "shop.many")
    rows = reading.cursor().stream(wide)
    assert next(rows)
    reading.cancel_safe()
    with pytest.raises(errors.QueryCanceled):
        list(rows)
    steps, outcome = recorded(reading)
    assert outcome == "57014"
    assert sorted(sqlstate for sqlstate, _ in steps) == ["00000", "00000", "57014"]
    assert len(reading.execute("SELECT id FROM shop.many WHERE id > 9").fetchall()) == ROWS - 9


def test_a_client_that_leaves_stops_the_owner(direct, reach):
    leaving = psycopg.connect(reach(), autocommit=True)
    leaving.pgconn.send_query(WIDE.encode())
    eventually(lambda: open_transactions(direct) == 1)
    leaving.close()
    eventually(lambda: open_transactions(direct) == 0)


def test_the_timeout_is_for_all_of_it(reading, direct):
    """A client that does not read holds the owner's snapshot no longer than that."""
    reading.execute("SET statement_timeout = '3s'")
    rows = reading.cursor().stream(WIDE)
    assert next(rows)
    eventually(lambda: open_transactions(direct) == 0)
    with pytest.raises(errors.QueryCanceled):
        list(rows)
    assert recorded(reading) == ([("57014", None), ("00000", ROWS)], "57014")
