"""Client users: login roles of the hub that are members of ``oar_client`` and nothing more.

Clients authenticate against these roles directly (the proxy relays the exchange), so the hub
alone keeps passwords, as SCRAM-SHA-256 verifiers. The verifier is computed here: a password never
stands in a statement, where a log could pick it up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import psycopg
from psycopg import AsyncConnection, sql
from psycopg.rows import TupleRow

from oar_proxy.hub.address import HubError
from oar_proxy.hub.bootstrap import AUDITOR_ROLE, CLIENT_ROLE

_RESERVED_PREFIXES: Final = ("pg_", "oar_")
_RESERVED_NAMES: Final = frozenset(
    {"public", "none", "current_role", "current_user", "session_user"}
)
_NAME_BYTES: Final = 63


@dataclass(frozen=True, slots=True)
class User:
    """A client user. ``connection_limit`` None: as many as the hub has."""

    name: str
    auditor: bool
    connection_limit: int | None


def is_reserved(name: str) -> bool:
    """Tell whether a role name can never be a client's: PostgreSQL's or the proxy's own."""
    folded = name.lower()
    return folded.startswith(_RESERVED_PREFIXES) or folded in _RESERVED_NAMES


async def add_user(
    connection: AsyncConnection[TupleRow],
    name: str,
    password: str,
    *,
    auditor: bool = False,
    connection_limit: int | None = None,
) -> None:
    """Create a client user. ``auditor``: may also read everyone's entries on the ledger.

    Raises :class:`HubError` for a name that is taken or reserved, or an empty password.
    """
    _check_name(name)
    role = sql.Identifier(name)
    groups = [CLIENT_ROLE, AUDITOR_ROLE] if auditor else [CLIENT_ROLE]
    create = sql.SQL(
        "CREATE ROLE {} LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION NOBYPASSRLS INHERIT"
        " CONNECTION LIMIT {} PASSWORD {}"
    ).format(
        role,
        sql.Literal(-1 if connection_limit is None else connection_limit),
        sql.Literal(_verifier(connection, name, password)),
    )
    grant = sql.SQL("GRANT {} TO {}").format(
        sql.SQL(", ").join(sql.Identifier(group) for group in groups), role
    )
    try:
        async with connection.transaction():
            await connection.execute(create)
            await connection.execute(grant)
    except psycopg.errors.DuplicateObject as error:
        raise HubError(f'user "{name}" exists already') from error


async def set_password(connection: AsyncConnection[TupleRow], name: str, password: str) -> None:
    """Change a client user's password. Raises :class:`HubError` when there is no such user."""
    await _require(connection, name)
    await connection.execute(
        sql.SQL("ALTER ROLE {} PASSWORD {}").format(
            sql.Identifier(name), sql.Literal(_verifier(connection, name, password))
        )
    )


async def list_users(connection: AsyncConnection[TupleRow]) -> list[User]:
    """Return the client users, by name."""
    cursor = await connection.execute(
        "SELECT r.rolname, pg_has_role(r.oid, %s, 'MEMBER'), nullif(r.rolconnlimit, -1)"
        " FROM pg_roles AS r JOIN pg_auth_members AS m ON m.member = r.oid"
        " JOIN pg_roles AS g ON g.oid = m.roleid"
        " WHERE g.rolname = %s AND r.rolcanlogin AND NOT r.rolsuper"
        " AND r.rolname <> current_user GROUP BY r.oid, r.rolname, r.rolconnlimit"
        ' ORDER BY r.rolname COLLATE "C"',
        (AUDITOR_ROLE, CLIENT_ROLE),
    )
    return [User(*row) for row in await cursor.fetchall()]


async def remove_user(connection: AsyncConnection[TupleRow], name: str) -> None:
    """End a client user's sessions and drop it.

    Raises :class:`HubError` when there is no such user.
    """
    await _require(connection, name)
    role = sql.Identifier(name)
    # First no new session, then none at all: a session would outlive its role.
    await connection.execute(sql.SQL("ALTER ROLE {} NOLOGIN").format(role))
    if connection.info.parameter_status("is_superuser") != "on":
        await connection.execute(sql.SQL("GRANT {} TO CURRENT_USER").format(role))
    await connection.execute(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE usename = %s", (name,)
    )
    async with connection.transaction():
        # Nothing permanent can be a client's, but default privileges it set for itself can.
        await connection.execute(sql.SQL("DROP OWNED BY {}").format(role))
        await connection.execute(sql.SQL("DROP ROLE {}").format(role))


async def may_read_verifiers(connection: AsyncConnection[TupleRow]) -> bool:
    """Tell whether the connection's role may read what the hub keeps of passwords."""
    cursor = await connection.execute(
        "SELECT pg_catalog.has_column_privilege('pg_catalog.pg_authid', 'rolname', 'SELECT')"
        " AND pg_catalog.has_column_privilege('pg_catalog.pg_authid', 'rolpassword', 'SELECT')"
    )
    return await cursor.fetchone() == (True,)


async def password_verifier(connection: AsyncConnection[TupleRow], name: str) -> str | None:
    """Return what the hub keeps of a user's password; None: no such user, or no password."""
    cursor = await connection.execute(
        "SELECT rolpassword FROM pg_catalog.pg_authid"
        " WHERE rolname OPERATOR(pg_catalog.=) %s::pg_catalog.name",
        (name,),
    )
    found = await cursor.fetchone()
    return None if found is None else found[0]


async def _require(connection: AsyncConnection[TupleRow], name: str) -> None:
    if name not in {user.name for user in await list_users(connection)}:
        raise HubError(f'there is no user "{name}"', hint="oar user list shows who there is")


def _check_name(name: str) -> None:
    if not name or "\0" in name or len(name.encode()) > _NAME_BYTES:
        raise HubError(f"a user's name has 1 to {_NAME_BYTES} bytes")
    if is_reserved(name):
        raise HubError(
            f'user name "{name}" is reserved', hint="names beginning with pg_ or oar_ are"
        )


def _verifier(connection: AsyncConnection[TupleRow], name: str, password: str) -> str:
    if not password or "\0" in password:
        raise HubError("a password may not be empty")
    return connection.pgconn.encrypt_password(
        password.encode(), name.encode(), b"scram-sha-256"
    ).decode("ascii")
