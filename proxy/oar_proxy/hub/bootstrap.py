"""What every hub holds before anything is published, and which oar it was set up by.

All of it is in the SQL files beside this one, ``bootstrap.sql``, ``inforce.sql``, ``ledger.sql``.
The hub remembers a digest of them, and of the statements that publish a table (``tables.py``), so
a change of these reaches every hub at the next start. Schema ``oar`` is what clients may read about
the proxy, ``oar_internal`` is the proxy's own, ``oar_plan`` holds the planning tables.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib.metadata import version
from importlib.resources import files
from typing import Final

import psycopg
import structlog
from packaging.version import Version
from psycopg import AsyncConnection, sql
from psycopg.rows import TupleRow

from oar_proxy.hub.address import HubError
from oar_proxy.hub.binaries import OLDEST_MAJOR
from oar_proxy.hub.tables import FORM

CLIENT_ROLE: Final = "oar_client"
AUDITOR_ROLE: Final = "oar_auditor"
PLANNER_ROLE: Final = "oar_planner"
CHECKER_ROLE: Final = "oar_checker"
"""May what clients may; none of them may become it."""

_ROLES: Final = (CLIENT_ROLE, AUDITOR_ROLE, PLANNER_ROLE, CHECKER_ROLE)

SCRIPTS: Final = tuple(
    files("oar_proxy.hub").joinpath(name).read_bytes()
    for name in ("bootstrap.sql", "inforce.sql", "ledger.sql")
)
"""What sets a hub up, whatever an older oar has made of it; run in this order."""

DIGEST: Final = hashlib.sha256(b"".join((*SCRIPTS, FORM.encode()))).hexdigest()
"""Says whether a hub is set up as this oar needs it, what is published included."""

RELEASE: Final = version("oar")
"""Says which of two that need a hub differently is the newer one."""

_FIRST_LOCK: Final = 0x6F617200
"""Advisory lock key: one proxy at a time sets up a hub that nobody else has reached yet."""

_FIRST_WITH_DIGEST: Final = 5
"""Up to 4, a number counted the changes; a proxy of then takes a higher one for a newer oar's."""

_CODE_POINT_COLLATIONS: Final = ("C", "POSIX", "C.UTF-8", "C.utf8", "PG_C_UTF8")

_log = structlog.get_logger(__name__)


async def create_database(
    connection: AsyncConnection[TupleRow], name: str, *, embedded: bool
) -> None:
    """Create the hub's database, ordering text by code point. ``connection``: any other database.

    Raises :class:`HubError` when the role may not.
    """
    if connection.info.server_version >= 170000:
        locale = sql.SQL("LOCALE_PROVIDER builtin BUILTIN_LOCALE 'C.UTF-8' LOCALE 'C'")
    else:
        locale = sql.SQL("LOCALE 'C.UTF-8'")
    template = sql.SQL("TEMPLATE template0 ENCODING 'UTF8'")
    statement = sql.SQL("CREATE DATABASE {} {} {}").format(sql.Identifier(name), template, locale)
    try:
        # Without a template the embedded hub's own locale is kept, and the copy is quicker.
        await connection.execute(
            sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)) if embedded else statement
        )
    except (psycopg.errors.DuplicateDatabase, psycopg.errors.UniqueViolation):
        return  # another proxy was quicker
    except psycopg.Error as error:
        raise HubError(
            f'database "{name}" is not there and could not be created: '
            f"{error.diag.message_primary}",
            hint=statement.as_string(connection),
        ) from error
    if embedded:
        await connection.execute("REVOKE CONNECT ON DATABASE postgres, template1 FROM PUBLIC")


async def bootstrap(connection: AsyncConnection[TupleRow], *, embedded: bool) -> None:
    """Set the hub up as this oar needs it. Does nothing where it is so already.

    Raises :class:`HubError` when this server, database or role cannot be a hub, and when a newer
    oar has set it up otherwise.
    """
    if not embedded:
        await _check(connection)
    async with connection.transaction():
        await alone(connection)
        found = await _found(connection)
        if found is not None and found.digest == DIGEST and await _has_roles(connection):
            return
        if found is not None and found.newer:
            raise HubError(
                f"the hub was set up by a newer oar ({found.release}; this is {RELEASE})",
                hint="run that version, or one that is newer still",
            )
        connection.add_notice_handler(_warn)
        try:
            for script in SCRIPTS:
                await connection.execute(script)
        finally:
            connection.remove_notice_handler(_warn)
        await connection.execute("DELETE FROM oar_internal.version")
        await connection.execute(
            "INSERT INTO oar_internal.version (version, release, digest) VALUES (%s, %s, %s)",
            (_FIRST_WITH_DIGEST, RELEASE, DIGEST),
        )
    if found is not None:
        _log.info("hub set up anew", release=RELEASE, before=found.release)


async def alone(connection: AsyncConnection[TupleRow]) -> None:
    """Wait until no other proxy changes the hub; none does until the transaction ends.

    By the lock of a table that clients have no right to, since every client may take an advisory
    lock, and keep it.
    """
    if not await _is_set_up(connection):
        await connection.execute("SELECT pg_catalog.pg_advisory_xact_lock(%s)", (_FIRST_LOCK,))
    if await _is_set_up(connection):
        await connection.execute("LOCK TABLE oar_internal.version IN EXCLUSIVE MODE")


async def changing(connection: AsyncConnection[TupleRow]) -> None:
    """Begin to change what the hub holds, :func:`alone`.

    Raises :class:`HubError` where another oar has set the hub up since this one was started: what
    that one needs is not undone.
    """
    await alone(connection)
    found = await _found(connection)
    if found is None or found.digest != DIGEST:
        other = "another oar" if found is None else f"oar {found.release}"
        raise HubError(
            f"the hub was set up by {other} since this one ({RELEASE}) was started",
            hint="stop this proxy, and start it with that version",
        )


@dataclass(frozen=True, slots=True)
class _Found:
    """Who set a hub up last. ``digest`` is None where it was before there was one."""

    release: str
    digest: str | None

    @property
    def newer(self) -> bool:
        """Whether that is a newer release than this."""
        return self.digest is not None and Version(self.release) > Version(RELEASE)


async def _is_set_up(connection: AsyncConnection[TupleRow]) -> bool:
    cursor = await connection.execute(
        "SELECT pg_catalog.to_regclass('oar_internal.version') IS NOT NULL"
    )
    ((known,),) = await cursor.fetchall()
    return bool(known)


async def _found(connection: AsyncConnection[TupleRow]) -> _Found | None:
    if not await _is_set_up(connection):
        return None
    cursor = await connection.execute(
        "SELECT v->>'release', v->>'digest'"
        " FROM oar_internal.version AS t, pg_catalog.to_jsonb(t) AS v"
    )
    row = await cursor.fetchone()
    release, digest = row or (None, None)
    return _Found(release or "unknown", digest)


async def _has_roles(connection: AsyncConnection[TupleRow]) -> bool:
    # Roles belong to the server, not the database: a restored dump arrives without them.
    cursor = await connection.execute(
        "SELECT count(*) FROM pg_catalog.pg_roles WHERE rolname = ANY(%s)", (list(_ROLES),)
    )
    ((present,),) = await cursor.fetchall()
    return bool(present == len(_ROLES))


def _warn(notice: psycopg.errors.Diagnostic) -> None:
    if notice.severity_nonlocalized == "WARNING":
        _log.warning(f"hub: {notice.message_primary}", hint=notice.message_hint)


async def _check(connection: AsyncConnection[TupleRow]) -> None:
    if connection.info.server_version < OLDEST_MAJOR * 10000:
        raise HubError(
            f"the hub is PostgreSQL {connection.info.server_version // 10000}, "
            f"which is older than {OLDEST_MAJOR}"
        )
    cursor = await connection.execute(
        "SELECT datcollate, pg_encoding_to_char(encoding),"
        " pg_has_role(datdba, 'MEMBER'), (SELECT rolsuper OR rolcreaterole FROM pg_roles"
        " WHERE rolname = current_user), current_user, datname, to_jsonb(d) AS whole"
        " FROM pg_database AS d WHERE datname = current_database()"
    )
    row = await cursor.fetchone()
    assert row is not None
    collation, encoding, owner, may_create_roles, role, name, whole = row
    # PostgreSQL 17 and 18 call a builtin or ICU locale datlocale; 15 and 16 daticulocale.
    provider = whole["datlocprovider"]
    locale = whole.get("datlocale") or whole.get("daticulocale") if provider != "c" else collation
    if provider == "i" or locale not in _CODE_POINT_COLLATIONS or encoding != "UTF8":
        raise HubError(
            f'database "{name}" of the hub orders text by {locale}, encoding {encoding}',
            hint="a hub orders text by code point: CREATE DATABASE … TEMPLATE template0 "
            "ENCODING 'UTF8' LOCALE 'C.UTF-8'",
        )
    if not owner:
        raise HubError(f'role "{role}" of hub.dsn does not own database "{name}"')
    if not may_create_roles:
        raise HubError(
            f'role "{role}" of hub.dsn may not create roles', hint=f'ALTER ROLE "{role}" CREATEROLE'
        )
