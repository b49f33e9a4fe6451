"""Which policies are in force: what each proxy says in the hub, for auditors to read.

View ``oar.policies``, which ``inforce.sql`` makes, has a row for each owner of each proxy. A file
that cannot be read changes nothing of what is in force, and stands there with its time and place.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

import psycopg
from oar_policies.model import Policy
from psycopg import AsyncConnection
from psycopg.rows import TupleRow

from oar_proxy.hub.access import AdminPool
from oar_proxy.settings import Listen


@dataclass(frozen=True, slots=True)
class Failure:
    """Since when a proxy cannot read its policies, and why."""

    at: datetime
    reason: str


def proxy_name(listen: Listen) -> str:
    """Return what a proxy is called in the view: its machine, and the port it is to listen on."""
    return f"{socket.gethostname()}:{listen.port}"


async def record(admin: AdminPool, proxy: str, policies: Mapping[str, Policy]) -> None:
    """Say that these policies are in force now. Raises ``psycopg.Error``."""
    async with admin.connection() as connection, connection.transaction():
        await connection.execute(
            "DELETE FROM oar_internal.policies WHERE proxy = %s AND owner <> ALL (%s::text[])",
            (proxy, list(policies)),
        )
        await connection.execute(
            "INSERT INTO oar_internal.policies AS p (proxy, owner, digest, source)"
            " SELECT %s, u.* FROM unnest(%s::text[], %s::text[], %s::text[]) AS u"
            " ON CONFLICT (proxy, owner) DO UPDATE"
            " SET digest = excluded.digest, source = excluded.source, since = now()"
            " WHERE (p.digest, p.source) <> (excluded.digest, excluded.source)",
            (
                proxy,
                list(policies),
                [policy.digest for policy in policies.values()],
                [policy.source for policy in policies.values()],
            ),
        )
        await connection.execute(
            "INSERT INTO oar_internal.policy_readings (proxy, read_at) VALUES (%s, now())"
            " ON CONFLICT (proxy) DO UPDATE SET read_at = now()",
            (proxy,),
        )


async def record_failure(admin: AdminPool, proxy: str, reason: str) -> None:
    """Say that the policies could not be read. Raises ``psycopg.Error``."""
    async with admin.connection() as connection:
        await connection.execute(
            "INSERT INTO oar_internal.policy_readings (proxy, failed_at, failure)"
            " VALUES (%s, now(), %s) ON CONFLICT (proxy) DO UPDATE"
            " SET failed_at = excluded.failed_at, failure = excluded.failure",
            (proxy, reason),
        )


async def failure(connection: AsyncConnection[TupleRow], proxy: str) -> Failure | None:
    """Return why a proxy could not read its policies when it last tried, None where it could."""
    try:
        cursor = await connection.execute(
            "SELECT failed_at, failure FROM oar_internal.policy_readings"
            " WHERE proxy = %s AND failed_at > coalesce(read_at, '-infinity')",
            (proxy,),
        )
    except psycopg.errors.UndefinedTable:
        return None  # no proxy has used this hub yet
    row = await cursor.fetchone()
    return None if row is None else Failure(*row)
