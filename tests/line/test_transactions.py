"""Transactions that PostgreSQL promises one moment read one moment of each owner, too."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing

import asyncpg
import psycopg
import psycopg.conninfo
import pytest
from oar_bench.addresses import owner_url
from oar_proxy.fetch import CHUNK_ROWS
from oar_proxy.settings import HubSettings, Limits, Listen, OwnerSettings, Settings
from psycopg import errors
from waits import SECONDS, blocked, eventually, once

OWNERS = ("postgres", "sqlite", "mariadb")
LEVELS = {"REPEATABLE READ": True, "SERIALIZABLE": True, "READ COMMITTED": False}
LARGE = 8 * CHUNK_ROWS


class Counted:
    """Owners of a table each, to which a row can be added, and a proxy over them."""

    def __init__(self, request, new_database, directory):
        self.north = new_database("north")
        with psycopg.connect(self.north, autocommit=True) as connection:
            connection.execute("CREATE TABLE at_postgres AS SELECT 1::bigint AS id")
            connection.execute(f"CREATE TABLE large AS SELECT generate_series(1, {LARGE}) AS id")
            connection.execute("CREATE TABLE texts AS SELECT 'x'::text AS t")
        self.path = directory / "south.sqlite"
        with closing(sqlite3.connect(self.path)) as file, file:
            file.execute("PRAGMA journal_mode = wal")
            file.execute("CREATE TABLE at_sqlite (id INTEGER NOT NULL)")
            file.execute("INSERT INTO at_sqlite VALUES (1)")
        self.mariadb = request.getfixturevalue("mariadb_server")
        self.database, url = self.mariadb.new_database("west")
        self.mariadb.run("CREATE TABLE at_mariadb (id BIGINT)", database=self.database)
        self.mariadb.run(
            "INSERT INTO at_mariadb VALUES (1)",
            f"CREATE VIEW slow AS SELECT sleep({SECONDS}) AS s",
            database=self.database,
        )
        urls = {"north": owner_url(self.north), "south": f"sqlite:///{self.path}", "west": url}
        self.owners = {n: OwnerSettings(url=u, schema="shop") for n, u in urls.items()}

    def settings(self, hub, **limits):
        return Settings(
            owners=self.owners,
            hub=HubSettings(dsn=hub),
            listen=Listen(port=0),
            limits=Limits(**limits),
        )

    def add(self, kind):
        statement = f"INSERT INTO at_{kind} VALUES (1)"
        if kind == "postgres":
            with psycopg.connect(self.north, autocommit=True) as connection:
                connection.execute(statement)
        elif kind == "sqlite":
            with closing(sqlite3.connect(self.path)) as file, file:
                file.execute(statement)
        else:
            self.mariadb.run(statement, database=self.database)

    def left(self):
        """Transactions that are open at the PostgreSQL owner."""
        with psycopg.connect(self.north, autocommit=True) as connection:
            return connection.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
                " AND application_name = 'oar' AND state <> 'idle'"
            ).fetchone()[0]

    def sleeping(self):
        """Statements that wait at MariaDB."""
        return self.mariadb.run(
            "SELECT id FROM information_schema.processlist"
            f" WHERE db = '{self.database}' AND state = 'User sleep'"
        )

    def nothing_left(self):
        eventually(lambda: self.left() == 0)


@pytest.fixture(scope="module")
def counted(request, new_database, tmp_path_factory):
    return Counted(request, new_database, tmp_path_factory.mktemp("counted"))


@pytest.fixture(scope="module")
def dsn(counted, new_database, running_proxy):
    with running_proxy(counted.settings(new_database("hub"))) as (_, dsn):
        yield dsn


@pytest.fixture
def client(dsn):
    with psycopg.connect(dsn, autocommit=True) as connection:
        yield connection


def rows(client, kind, **options):
    return client.execute(f"SELECT count(id) FROM shop.at_{kind}", **options).fetchone()[0]


def rows_of(cursor):
    """The one number of each result of a query string."""
    found = []
    while True:
        if cursor.description is not None:
            found.append(cursor.fetchone()[0])
        if not cursor.nextset():
            return found


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("kind", OWNERS)
def test_statements_of_a_transaction_read_one_moment(client, counted, kind, level):
    client.execute(f"BEGIN ISOLATION LEVEL {level}")
    first = rows(client, kind)
    counted.add(kind)
    again = [rows(client, kind), rows(client, kind, prepare=True), rows(client, kind, prepare=True)]
    client.execute("COMMIT")
    assert again == [first if LEVELS[level] else first + 1] * 3
    assert rows(client, kind) == first + 1
    counted.nothing_left()


@pytest.mark.parametrize("kind", OWNERS)
def test_the_moment_of_an_owner_is_the_one_at_which_it_is_first_asked(client, counted, kind):
    other = "sqlite" if kind == "postgres" else "postgres"
    with client.transaction():
        client.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        rows(client, other)
        counted.add(kind)
        both = f"SELECT (SELECT count(*) FROM shop.at_{kind}), count(*) FROM shop.at_{other}"
        before = client.execute(both).fetchone()
        counted.add(kind)
        counted.add(other)
        assert client.execute(both).fetchone() == before
        join = f"SELECT count(*) FROM shop.at_{kind} JOIN shop.at_{other} USING (id)"
        assert client.execute(join).fetchone() == (before[0] * before[1],)


def test_a_transaction_in_the_same_query_string_reads_another_moment(client, counted):
    count = "SELECT count(*) FROM shop.at_postgres"
    begin = "BEGIN ISOLATION LEVEL REPEATABLE READ"
    first = rows_of(client.execute(f"{begin}; {count}; {count}"))
    counted.add("postgres")
    second = rows_of(client.execute(f"{count}; COMMIT; {begin}; {count}; COMMIT; {count}"))
    assert first == [first[0]] * 2
    assert second == [first[0], first[0] + 1, first[0] + 1]
    counted.nothing_left()


def test_the_level_may_be_the_session_s_default(dsn, counted):
    with psycopg.connect(dsn, autocommit=True) as client:
        client.execute("SET default_transaction_isolation = 'repeatable read'")
        first = rows(client, "postgres")
        counted.add("postgres")
        assert rows(client, "postgres") == first + 1
        counted.nothing_left()


@pytest.mark.parametrize("how", ["rollback", "disconnect", "error"])
def test_nothing_is_kept_at_an_owner_behind_the_transaction(dsn, counted, how):
    with psycopg.connect(dsn, autocommit=True) as client:
        client.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        rows(client, "postgres")
        assert counted.left() == 1
        if how == "error":
            with pytest.raises(errors.DivisionByZero):
                client.execute("SELECT 1 / 0")
        if how != "disconnect":
            client.execute("ROLLBACK")
            counted.nothing_left()
    counted.nothing_left()


def test_what_failed_at_an_owner_is_not_read_at_another_moment(client, counted):
    client.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    assert rows(client, "sqlite") > 0
    client.execute("SAVEPOINT s")
    with pytest.raises(errors.DivisionByZero, match="owner north"):
        client.execute("SELECT sum(1 / (id - 1)) FROM shop.at_postgres")
    client.execute("ROLLBACK TO s")
    assert rows(client, "sqlite") > 0
    with pytest.raises(psycopg.Error) as refused:
        rows(client, "postgres")
    assert refused.value.sqlstate == "72000"
    assert "READ COMMITTED" in refused.value.diag.message_hint
    client.execute("ROLLBACK")
    assert rows(client, "postgres") > 0


def test_what_was_read_when_another_owner_failed_is_told_of_with_that_owner(client, counted):
    client.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    assert rows(client, "mariadb") > 0
    client.execute("SAVEPOINT s")
    both = "SELECT (SELECT sum(1 / (length(t) - 1)) FROM shop.texts), count(s) FROM shop.slow"
    with psycopg.connect(counted.north) as locker:
        locker.execute("LOCK TABLE texts")
        # North goes on, and fails, when both are at it.
        reading = once(lambda: counted.sleeping() and blocked(counted.north), locker.rollback)
        with reading, pytest.raises(errors.DivisionByZero, match="owner north"):
            client.execute(both)
    client.execute("ROLLBACK TO s")
    for kind, said in (
        ("mariadb", "it was being read when the statement failed at owner north"),
        ("postgres", "a statement failed at owner north"),
    ):
        with pytest.raises(psycopg.Error, match="snapshot of owner") as refused:
            rows(client, kind)
        assert refused.value.sqlstate == "72000"
        assert refused.value.diag.message_detail == said
        client.execute("ROLLBACK TO s")
    assert rows(client, "sqlite") > 0
    client.execute("ROLLBACK")


def test_a_statement_that_was_cancelled_takes_the_moment_with_it(client, counted):
    client.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    rows(client, "postgres")
    client.execute("SAVEPOINT s")
    with psycopg.connect(counted.north) as locker:
        locker.execute("LOCK TABLE texts")
        waiting = once(lambda: blocked(counted.north), client.cancel_safe)
        with waiting, pytest.raises(errors.QueryCanceled):
            client.execute("SELECT count(*) FROM shop.texts")
    client.execute("ROLLBACK TO s")
    for _ in range(2):
        client.execute("SAVEPOINT s")
        with pytest.raises(psycopg.Error) as refused:
            rows(client, "postgres")
        assert refused.value.sqlstate == "72000"
        assert "owner north" in str(refused.value)
        assert refused.value.diag.message_detail == "a statement that read it was cancelled"
        client.execute("ROLLBACK TO s")
    assert rows(client, "sqlite") > 0
    client.execute("ROLLBACK")
    counted.nothing_left()


def test_a_moment_that_has_lasted_too_long_is_gone(counted, new_database, running_proxy):
    settings = counted.settings(new_database("hub"), statement_timeout=3)
    with running_proxy(settings) as (_, dsn), psycopg.connect(dsn, autocommit=True) as client:
        client.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        rows(client, "postgres")
        counted.nothing_left()
        with pytest.raises(psycopg.Error) as refused:
            rows(client, "postgres")
        assert refused.value.sqlstate == "72000"
        assert refused.value.diag.message_detail == "it ended with the time that it may take"
        client.execute("ROLLBACK")
        assert rows(client, "postgres") > 0


async def asked(dsn, work):
    """Do some work in a transaction of asyncpg, which fetches rows a few at a time."""
    parts = psycopg.conninfo.conninfo_to_dict(dsn)
    parts["database"] = parts.pop("dbname")
    connection = await asyncpg.connect(**parts)
    try:
        async with asyncio.timeout(30), connection.transaction(isolation="repeatable_read"):
            return await work(connection)
    finally:
        await connection.close()


def test_a_portal_that_is_left_open_keeps_its_owner_for_itself(dsn, counted):
    async def work(connection):
        cursor = await connection.cursor("SELECT id FROM shop.large")
        found = [len(await cursor.fetch(CHUNK_ROWS + 5))]
        with pytest.raises(asyncpg.ObjectInUseError, match="owner north is still sending"):
            async with connection.transaction():
                await connection.fetchval("SELECT count(*) FROM shop.at_postgres")
        assert await connection.fetchval("SELECT count(*) FROM shop.at_sqlite")
        found.append(len(await cursor.fetch(LARGE)))
        found.append(await connection.fetchval("SELECT count(*) FROM shop.large"))
        return found

    assert asyncio.run(asked(dsn, work)) == [CHUNK_ROWS + 5, LARGE - CHUNK_ROWS - 5, LARGE]
    counted.nothing_left()


def test_a_portal_that_is_closed_early_leaves_the_moment_as_it_is(dsn, counted):
    count = "SELECT count(*) FROM shop.at_postgres"

    async def work(connection):
        found = [await connection.fetchval(count)]
        await asyncio.to_thread(counted.add, "postgres")
        for _ in range(5):
            # The next Bind replaces the portal of which it took one row.
            assert await connection.fetchval("SELECT id FROM shop.large")
            found.append(await connection.fetchval(count))
        return found

    first, *others = asyncio.run(asked(dsn, work))
    assert others == [first] * 5
    counted.nothing_left()
