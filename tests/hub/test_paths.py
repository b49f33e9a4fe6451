"""Functions and operators of clients' that fit the proxy's own questions better than PostgreSQL's.

PostgreSQL takes an operator that is for exactly these types, wherever in the search path it is,
before one of its own to which it would have to cast.
"""

from __future__ import annotations

import asyncio
import secrets

import psycopg
import psycopg.conninfo
import pytest
from oar_proxy.hub.access import admin_pool, join_hub
from oar_proxy.hub.planner import Planner
from oar_proxy.hub.sentinel import WAIT
from oar_proxy.hub.users import add_user, list_users, remove_user
from oar_proxy.sessionstate import SESSION_STATE
from oar_proxy.settings import HubSettings

TYPES = (
    "oid", "regclass", "regnamespace", "regrole", "name", "text", '"char"', "smallint", "integer",
    "bigint",
)  # fmt: skip
OPERATORS = ("=", "<>", "<", ">", "<=", ">=", "||", "|", "<<")
CALLED = (
    "set_config(text, text, boolean)", "current_setting(text, boolean)", "current_setting(text)",
    "unnest(text[], text[])", "unnest(text[])", "strpos(text, text)", "quote_ident(name)",
    "has_schema_privilege(oid, text)", "pg_has_role(oid, text, text)", "pg_has_role(name, oid, text)",
    "pg_terminate_backend(integer, integer)", "to_regclass(text)", "format(text, text)",
    "array_agg(text)", "string_agg(text, text)", "to_jsonb(text)", "count(text)", "nullif(int, int)",
    "pg_try_advisory_lock(integer)", "pg_advisory_lock(integer)", "pg_advisory_unlock(integer)",
)  # fmt: skip
"""What the proxy calls, for the types it is called with where PostgreSQL has it for others."""

NAMED = "oar_internal.named('{shop.t,v,pg_class,nothing}', '{shop}', '{t}')"


@pytest.fixture
def traps(admin, publish_now, catalog, table):
    """Make them, each telling by a lock that it was called; tells which were, by whom."""
    columns = [("id", "integer", True), ("name", "text")]
    publish_now(catalog([(("owner", "shop"), [table("t", *columns)])]))
    key = secrets.randbits(30)
    body = (
        " LANGUAGE plpgsql AS $$BEGIN PERFORM pg_catalog.pg_advisory_lock_shared({0}, {1});"
        " RETURN NULL; END$$"
    )
    made = ["DROP SCHEMA IF EXISTS traps CASCADE; CREATE SCHEMA traps"]
    made.append("GRANT USAGE ON SCHEMA traps TO PUBLIC")
    named = {}
    for text in CALLED:
        named[len(named)] = text
        made.append(f"CREATE FUNCTION traps.{text} RETURNS text" + body.format(key, len(named) - 1))
    for operator in OPERATORS:
        for left in TYPES:
            for right in TYPES:
                number = len(named)
                named[number] = f"{left} {operator} {right}"
                returned = "text" if operator == "||" else "boolean"
                made.append(
                    f"CREATE FUNCTION traps.f{number}({left}, {right}) RETURNS {returned}"
                    + body.format(key, number)
                )
                made.append(
                    f"CREATE OPERATOR traps.{operator}"
                    f" (LEFTARG = {left}, RIGHTARG = {right}, FUNCTION = traps.f{number})"
                )
    admin.execute(";".join(made).encode())

    def sprung():
        held = "SELECT objid::int FROM pg_locks WHERE locktype = 'advisory' AND classid = %s"
        return {named[number] for (number,) in admin.execute(held, (key,)).fetchall()}

    yield sprung
    admin.execute("DROP SCHEMA traps CASCADE")


def test_the_traps_spring(traps, client):
    client.execute("SET search_path = public, traps")
    client.execute("SELECT FROM pg_class WHERE oid >= 16384 OR oid = to_regclass('pg_class')")
    assert traps() == {"oid >= integer", "oid = regclass"}


@pytest.mark.parametrize("path", ["traps, pg_catalog", "public, traps"])
def test_what_a_session_is_asked_is_asked_of_postgresql(traps, client, path):
    def asked():
        ((state, named),) = client.execute(f"SELECT {SESSION_STATE}, {NAMED}::text").fetchall()
        return state, named.replace(" ", "")

    client.execute("CREATE TEMP VIEW v AS SELECT id FROM shop.t")
    before = asked()
    assert '"principal"' in before[0]
    client.execute(f"SET search_path = {path}, shop")
    client.execute(WAIT.replace("$1", "4711").encode())
    state, named = asked()
    assert named == before[1]
    assert '"oar_client"' in state
    assert traps() == set()


@pytest.mark.parametrize("path", ["traps, pg_catalog", "public, traps"])
def test_a_planner_asks_postgresql(hub, traps, path):
    async def work():
        async with Planner(hub, size=1) as planner:
            for zone in ("UTC", "Asia/Tokyo"):
                for asked in (planner.explain, planner.describe, planner.check):
                    await asked("SELECT 1 AS a", {"search_path": path, "TimeZone": zone})
            assert await planner.has_xml() in (True, False)
            await planner.explain("SELECT 1", {"TimeZone": "UTC"})
            return traps()

    assert asyncio.run(work()) == set()


def test_the_proxys_own_sessions_look_names_up_in_postgresqls_schema_alone(hub, admin, traps):
    """Whatever the database's path is: an administrator may have let somebody make things in it."""
    database = hub.database
    admin.execute(f"ALTER DATABASE {database} SET search_path = traps, pg_catalog")
    name = f"eve_{secrets.token_hex(3)}"

    async def work():
        settings = HubSettings(dsn=psycopg.conninfo.make_conninfo(hub.conninfo))
        async with (
            join_hub(settings) as address,
            admin_pool(address, size=1) as pool,
            pool.connection() as connection,
        ):
            await add_user(connection, name, "x")
            assert name in {user.name for user in await list_users(connection)}
            await remove_user(connection, name)
            path = await (await connection.execute("SHOW search_path")).fetchone()
            return path, traps()

    try:
        assert asyncio.run(work()) == (("pg_catalog",), set())
    finally:
        admin.execute(f"ALTER DATABASE {database} RESET search_path")
