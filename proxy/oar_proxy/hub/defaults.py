"""The ``oar.…`` settings of sessions that set nothing: defaults of the hub's database.

With them ``SHOW`` and ``RESET`` know the settings, and a role's own default, an option at start
and ``SET`` take precedence, as they do for every setting of PostgreSQL's.
"""

from __future__ import annotations

from collections.abc import Mapping

import psycopg
import structlog
from psycopg import sql

from oar_proxy.hub.access import AdminPool
from oar_proxy.hub.bootstrap import alone

_PRESENT = """
SELECT EXISTS (
  SELECT FROM pg_catalog.pg_db_role_setting AS s
  JOIN pg_catalog.pg_database AS d ON d.oid = s.setdatabase
  WHERE d.datname = current_database() AND s.setrole = 0 AND s.setconfig @> %s::text[])
"""

_log = structlog.get_logger(__name__)


async def set_defaults(admin: AdminPool, values: Mapping[str, str]) -> None:
    """Make values the defaults of new sessions, where they are not yet.

    A hub's role that may not (PostgreSQL asks for a superuser, or ``GRANT SET ON PARAMETER``) is
    no error: the proxy knows the defaults by itself, and only ``SHOW`` does not.
    """
    async with admin.connection() as connection:
        try:
            async with connection.transaction():
                await alone(connection)
                written = [f"{name}={value}" for name, value in values.items()]
                cursor = await connection.execute(_PRESENT, (written,))
                (present,) = await cursor.fetchone() or (False,)
                if present:
                    return
                for name, value in values.items():
                    await connection.execute(
                        sql.SQL("ALTER DATABASE {} SET {} = {}").format(
                            sql.Identifier(connection.info.dbname),
                            sql.Identifier(*name.split(".")),
                            sql.Literal(value),
                        )
                    )
        except psycopg.errors.InsufficientPrivilege:
            _log.warning(
                "hub: SHOW does not tell the defaults of oar settings",
                hint="as a superuser: GRANT SET ON PARAMETER "
                + ", ".join(values)
                + " TO the role of hub.dsn",
            )
