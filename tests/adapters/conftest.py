"""Owners for the adapters' tests: databases on the shared server, files of their own."""

from __future__ import annotations

import secrets

import psycopg
import psycopg.conninfo
import pytest
from oar_bench.addresses import owner_url
from psycopg import sql


def _owner_database(admin_conninfo, *, options=""):
    """Make a database and a login role that may read it; returns both connection strings."""
    name, password = f"owner_{secrets.token_hex(4)}", secrets.token_urlsafe()
    reader = f"reader_{secrets.token_hex(4)}"
    with psycopg.connect(admin_conninfo, autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name} {options}")
        admin.execute(
            sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(
                sql.Identifier(reader), sql.Literal(password)
            )
        )
    conninfo = psycopg.conninfo.make_conninfo(admin_conninfo, dbname=name)
    with psycopg.connect(conninfo, autocommit=True) as owner:
        owner.execute(
            f"GRANT USAGE ON SCHEMA public TO {reader};"
            f"ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO {reader};"
            # What a careless owner might allow: the adapter has to stay read-only by itself.
            f"ALTER DEFAULT PRIVILEGES GRANT INSERT, UPDATE, DELETE ON TABLES TO {reader};"
            f"GRANT CREATE ON SCHEMA public TO {reader}"
        )
    reading = psycopg.conninfo.make_conninfo(conninfo, user=reader, password=password)
    return name, conninfo, owner_url(reading)


def _drop(admin_conninfo, name):
    with psycopg.connect(admin_conninfo, autocommit=True) as admin:
        admin.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(scope="module")
def postgres_owner(hub_server):
    """An owner's database: ``(conninfo of its owner, url of a reader)``."""
    name, conninfo, url = _owner_database(hub_server.conninfo)
    yield conninfo, url
    _drop(hub_server.conninfo, name)


@pytest.fixture(scope="module")
def icu_owner(icu_server):
    """As ``postgres_owner``, where text orders otherwise than by its bytes."""
    name, conninfo, url = _owner_database(icu_server)
    yield conninfo, url
    _drop(icu_server, name)


@pytest.fixture(scope="module")
def container_owner():
    """As ``postgres_owner``, on the server people run: an image of another version."""
    from testcontainers.postgres import PostgresContainer

    with PostgresContainer("postgres:16", driver=None) as container:
        _, conninfo, url = _owner_database(container.get_connection_url())
        yield conninfo, url
