"""Defaults of the hub's database for sessions that set nothing."""

from __future__ import annotations

import asyncio
import secrets

import psycopg
import psycopg.conninfo
import pytest
from oar_proxy.hub.access import admin_pool
from oar_proxy.hub.address import HubAddress
from oar_proxy.hub.defaults import set_defaults


def write(dsn, values):
    async def connect():
        async with admin_pool(HubAddress("", 0, "", dsn)) as admin:
            await set_defaults(admin, values)

    asyncio.run(connect())


def shown(dsn, name):
    with psycopg.connect(dsn, autocommit=True) as connection:
        return connection.execute(f"SHOW {name}").fetchone()[0]


def test_new_sessions_have_them_and_a_later_start_changes_them(new_database):
    dsn = new_database("defaults")
    write(dsn, {"oar.protocol": "relay+", "oar.budget": "4096"})
    assert (shown(dsn, "oar.protocol"), shown(dsn, "oar.budget")) == ("relay+", "4096")
    for _ in range(2):
        write(dsn, {"oar.protocol": "compiled", "oar.budget": "4096"})
        assert (shown(dsn, "oar.protocol"), shown(dsn, "oar.budget")) == ("compiled", "4096")


def test_a_role_that_may_not_is_no_error_until_it_may(new_database, hub_server):
    dsn, role = new_database("defaults"), f"plain_{secrets.token_hex(4)}"
    database = psycopg.conninfo.conninfo_to_dict(dsn)["dbname"]
    plain = psycopg.conninfo.make_conninfo(dsn, user=role, password="p")
    with psycopg.connect(hub_server.conninfo, autocommit=True) as admin:
        admin.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'p'")
        admin.execute(f"ALTER DATABASE {database} OWNER TO {role}")
        try:
            write(plain, {"oar.protocol": "relay"})
            with pytest.raises(psycopg.errors.UndefinedObject):
                shown(dsn, "oar.protocol")
            admin.execute(f"GRANT SET ON PARAMETER oar.protocol TO {role}")
            write(plain, {"oar.protocol": "relay"})
            assert shown(plain, "oar.protocol") == "relay"
        finally:
            admin.execute(f"REVOKE SET ON PARAMETER oar.protocol FROM {role}")
            admin.execute(f"DROP DATABASE {database} WITH (FORCE)")
            admin.execute(f"DROP ROLE {role}")
