"""What a hub is made of, and which servers and databases cannot be one."""

from __future__ import annotations

import asyncio
import re
import secrets
from pathlib import Path

import psycopg
import psycopg.conninfo
import pytest
from oar_proxy import ledger
from oar_proxy.hub import bootstrap
from oar_proxy.hub.access import admin_pool, open_hub
from oar_proxy.hub.address import HubError
from oar_proxy.hub.publication import publish, publishing
from oar_proxy.settings import HubSettings


def open_and_close(dsn, **settings):
    async def run():
        async with open_hub(HubSettings(dsn=dsn, **settings)) as address:
            return address

    return asyncio.run(run())


@pytest.fixture
def owner(hub_server):
    """A role that is no superuser: ``(name, conninfo)``. Its databases go with it."""
    name = f"dba_{secrets.token_hex(3)}"
    with psycopg.connect(hub_server.conninfo, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {name} LOGIN CREATEROLE CREATEDB PASSWORD 'x'")
        connection.execute(f"GRANT CONNECT ON DATABASE postgres TO {name}")
        # The roles are the server's, and are there already: a second hub's owner is let in.
        connection.execute(
            f"GRANT oar_client, oar_auditor, oar_planner, oar_checker TO {name} WITH ADMIN OPTION"
        )
        yield (
            name,
            psycopg.conninfo.make_conninfo(
                hub_server.conninfo, user=name, password="x", dbname=f"{name}_db"
            ),
        )
        connection.execute(f'DROP DATABASE IF EXISTS "{name}_db" WITH (FORCE)')
        connection.execute(f"DROP OWNED BY {name}; DROP ROLE {name}")


@pytest.fixture
def fresh_database(hub_server):
    """Create a database as told; returns its DSN."""
    made = []
    with psycopg.connect(hub_server.conninfo, autocommit=True) as connection:

        def create(options=""):
            name = f"made_{secrets.token_hex(3)}"
            connection.execute(f"CREATE DATABASE {name} TEMPLATE template0 {options}")
            made.append(name)
            return psycopg.conninfo.make_conninfo(hub_server.conninfo, dbname=name)

        yield create
        for name in made:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


def test_the_embedded_hub_says_where_it_is(hub_server):
    assert hub_server.host.startswith("/")
    assert hub_server.database == "oar"
    assert hub_server.embedded
    assert "password" not in repr(hub_server)
    with psycopg.connect(hub_server.conninfo) as connection:
        row = connection.execute(
            "SELECT current_setting('listen_addresses'), pg_encoding_to_char(encoding),"
            " current_setting('log_min_error_statement'),"
            " current_setting('max_connections'), ARRAY(SELECT v FROM"
            " unnest(ARRAY['a', 'B', '€', '𝄞', 'ä']) AS v ORDER BY v), upper('яä')"
            " FROM pg_database WHERE datname = current_database()"
        ).fetchone()
    assert row == ("", "UTF8", "panic", "600", ["B", "a", "ä", "€", "𝄞"], "ЯÄ")


def test_a_dsn_names_the_database_or_the_settings_do(hub, hub_server):
    assert open_and_close(hub.conninfo, database="other").database == hub.database
    without = psycopg.conninfo.conninfo_to_dict(hub_server.conninfo)
    del without["dbname"]
    address = open_and_close(psycopg.conninfo.make_conninfo(**without), database=hub.database)
    assert (address.host, address.port) == (hub_server.host, hub_server.port)
    assert address.database == hub.database
    assert not address.embedded


def test_setting_up_again_changes_nothing(hub, admin):
    before = admin.execute("SELECT xmin, oid FROM pg_proc ORDER BY oid").fetchall()
    open_and_close(hub.conninfo)
    assert admin.execute("SELECT xmin, oid FROM pg_proc ORDER BY oid").fetchall() == before
    told = admin.execute("SELECT release, digest FROM oar_internal.version").fetchall()
    assert told == [(bootstrap.RELEASE, bootstrap.DIGEST)]


def test_the_digest_is_of_all_that_a_hub_is_set_up_with(hub):
    """Whatever SQL there is beside these files is of a hub that is set up already."""
    folder = Path(bootstrap.__file__).parent
    assert {path.name for path in folder.glob("*.sql")} == {
        *("bootstrap.sql", "inforce.sql", "ledger.sql"),
        "ledger_before.sql",  # reads what a former ledger left
    }
    for module in folder.parent.rglob("*.py"):
        made = re.findall(
            r"CREATE (?:OR REPLACE )?(?:FUNCTION|VIEW|TRIGGER|TABLE)[A-Z ]* (oar\w*\.\w+)",
            module.read_text(),
        )
        assert made == []


@pytest.fixture
def of_its_own(fresh_database):
    """The DSN of a hub that one test may spoil."""
    dsn = fresh_database()
    open_and_close(dsn)
    return dsn


def functions(dsn):
    with psycopg.connect(dsn) as connection:
        return connection.execute(
            "SELECT oid::regprocedure::text, prosrc, proacl::text FROM pg_proc"
            " WHERE pronamespace IN ('oar_internal'::regnamespace, 'public'::regnamespace)"
            " ORDER BY 1"
        ).fetchall()


@pytest.mark.parametrize(
    "version",
    [
        f"digest = 'of another text', release = '{bootstrap.RELEASE}'",
        "digest = 'of another text', release = '0.0.9'",
        "digest = NULL, release = NULL, version = 4",
        None,
    ],
)
def test_a_hub_that_was_set_up_otherwise_is_set_up_anew(of_its_own, version):
    before = functions(of_its_own)
    with psycopg.connect(of_its_own) as connection:
        connection.execute("DROP FUNCTION public.oar_ask, oar_internal.session_state")
        connection.execute(
            "DELETE FROM oar_internal.version"
            if version is None
            else f"UPDATE oar_internal.version SET {version}"
        )
    assert functions(of_its_own) != before
    open_and_close(of_its_own)
    assert functions(of_its_own) == before


def test_a_hub_of_before_there_was_a_digest_is_set_up_anew(of_its_own):
    with psycopg.connect(of_its_own) as connection:
        connection.execute(
            "DROP TABLE oar_internal.version; DROP VIEW oar.policies;"
            "CREATE TABLE oar_internal.version (version integer NOT NULL);"
            "INSERT INTO oar_internal.version VALUES (4)"
        )
    open_and_close(of_its_own)
    with psycopg.connect(of_its_own) as connection:
        assert connection.execute("TABLE oar.policies").fetchall() == []
        # What an oar of then reads: higher than its own number, so it does not touch the hub.
        assert connection.execute("SELECT version FROM oar_internal.version").fetchone() == (5,)


def test_what_a_newer_oar_set_up_otherwise_is_not_undone(of_its_own):
    with psycopg.connect(of_its_own, autocommit=True) as connection:
        connection.execute(
            "UPDATE oar_internal.version SET release = '99.0rc1', digest = 'its own'"
        )
        connection.execute("DROP FUNCTION public.oar_ask")
        with pytest.raises(HubError, match=r"set up by a newer oar \(99.0rc1; this is"):
            open_and_close(of_its_own)
        assert connection.execute("SELECT to_regproc('oar_ask')").fetchone() == (None,)


def test_a_newer_oar_that_needs_nothing_else_is_not_in_the_way(of_its_own):
    with psycopg.connect(of_its_own) as connection:
        connection.execute("UPDATE oar_internal.version SET release = '99.0'")
    assert open_and_close(of_its_own).database
    with psycopg.connect(of_its_own) as connection:
        assert connection.execute("SELECT release FROM oar_internal.version").fetchone() == (
            "99.0",
        )


def test_a_proxy_that_runs_does_not_undo_what_another_oar_has_set_up(of_its_own, catalog, table):
    """It goes on with what it has published, and says why nothing new is."""
    one = catalog([(("logistics", "logistics"), [table("deliveries", ("id", "integer"))])])

    async def run():
        async with (
            open_hub(HubSettings(dsn=of_its_own)) as address,
            admin_pool(address, size=1) as pool,
        ):
            async with pool.connection() as connection:
                await connection.execute(
                    "UPDATE oar_internal.version SET release = '99.0', digest = 'its own'"
                )
            with pytest.raises(HubError, match=r"set up by oar 99\.0 since this one") as told:
                async with publishing(pool) as connection:
                    await publish(connection, one)
            assert "start it with that version" in told.value.hint
            with pytest.raises(HubError, match="since this one"):
                async with pool.connection() as connection:
                    await ledger.install(connection)
            async with pool.connection() as connection:
                cursor = await connection.execute("SELECT count(*) FROM oar_internal.published")
                return await cursor.fetchone()

    assert asyncio.run(run()) == (0,)


def test_setting_up_waits_for_no_client_where_there_is_nothing_to_do(hub, client_conninfo):
    """Replacing a view waits for every transaction that has read it."""
    with psycopg.connect(client_conninfo) as reader:
        reader.execute("SELECT FROM oar.tables, oar.asks, oar.policies")

        async def start():
            async with (
                asyncio.timeout(20),
                open_hub(HubSettings(dsn=hub.conninfo)) as address,
                admin_pool(address, size=1) as pool,
                pool.connection() as connection,
            ):
                await ledger.install(connection)
            return True

        assert asyncio.run(start())


def test_several_proxies_may_start_at_once(fresh_database):
    dsn = fresh_database()

    async def run():
        async def one():
            async with open_hub(HubSettings(dsn=dsn)) as address:
                return address.database

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one()) for _ in range(4)]
        return {task.result() for task in tasks}

    assert len(asyncio.run(run())) == 1


def test_strangers_do_not_get_in(hub, hub_server, client_conninfo):
    with psycopg.connect(hub.conninfo, autocommit=True) as connection:
        connection.execute("CREATE ROLE stranger LOGIN PASSWORD 'x'")
        try:
            stranger = psycopg.conninfo.make_conninfo(hub.conninfo, user="stranger", password="x")
            with pytest.raises(psycopg.OperationalError, match="permission denied for database"):
                psycopg.connect(stranger)
        finally:
            connection.execute("DROP ROLE stranger")
    for database in ("postgres", "template1"):
        elsewhere = psycopg.conninfo.make_conninfo(client_conninfo, dbname=database)
        with pytest.raises(psycopg.OperationalError, match="permission denied for database"):
            psycopg.connect(elsewhere)


def test_a_role_without_superuser_can_own_a_hub(owner, capsys):
    name, dsn = owner
    address = open_and_close(dsn)
    assert address.database == f"{name}_db"
    with psycopg.connect(dsn, autocommit=True) as connection:
        assert connection.execute("SELECT count(*) FROM oar.tables").fetchone() == (0,)
        connection.execute("SET ROLE oar_planner")
    assert "large objects" in capsys.readouterr().out
    assert open_and_close(dsn).database == address.database


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("LOCALE_PROVIDER builtin BUILTIN_LOCALE 'C' LOCALE 'C'", None),
        ("LOCALE_PROVIDER libc LOCALE 'C'", None),
        ("LOCALE_PROVIDER libc LOCALE 'C.UTF-8'", None),
        ("LOCALE_PROVIDER libc LOCALE 'C' ENCODING 'LATIN1'", "encoding LATIN1"),
        ("LOCALE_PROVIDER libc LOCALE 'C' ENCODING 'SQL_ASCII'", "encoding SQL_ASCII"),
    ],
)
def test_text_has_to_be_ordered_by_code_point(fresh_database, options, message):
    dsn = fresh_database(options)
    if message is None:
        assert open_and_close(dsn).database.startswith("made_")
    else:
        with pytest.raises(HubError, match=message) as caught:
            open_and_close(dsn)
        assert "CREATE DATABASE" in caught.value.hint


@pytest.mark.parametrize(
    ("lacking", "message"),
    [
        ("NOCREATEROLE", "may not create roles"),
        ("NOCREATEDB", "is not there and could not be created"),
    ],
)
def test_a_role_that_may_too_little_is_refused(hub_server, owner, lacking, message):
    name, dsn = owner
    with psycopg.connect(hub_server.conninfo, autocommit=True) as connection:
        connection.execute(f"ALTER ROLE {name} {lacking}")
    with pytest.raises(HubError, match=message):
        open_and_close(dsn)


def test_a_role_that_does_not_own_the_database_is_refused(hub, owner):
    name, dsn = owner
    with psycopg.connect(hub.conninfo, autocommit=True) as connection:
        connection.execute(f"GRANT CONNECT ON DATABASE {hub.database} TO {name}")
    with pytest.raises(HubError, match="does not own database"):
        open_and_close(psycopg.conninfo.make_conninfo(dsn, dbname=hub.database))


@pytest.mark.parametrize(
    ("dsn", "message"),
    [
        ("host=/nowhere port=1 user=x password=secret", "could not be set up"),
    ],
)
def test_an_unusable_dsn_is_refused_without_its_password(dsn, message):
    with pytest.raises(HubError, match=message) as caught:
        open_and_close(dsn)
    assert "secret" not in str(caught.value)
