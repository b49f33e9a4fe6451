"""Budgets of applications: what one may ask of the owners in an hour, over all proxies of a hub.

Which application a client is, it says itself (``application_name``): a budget keeps a machine that
asks too often from the owners, and is no right of anybody's. Policies decide before it does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from fnmatch import fnmatchcase
from typing import Final, LiteralString

import psycopg
from psycopg.rows import TupleRow
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from oar_proxy.errors import BudgetExceeded, LedgerUnavailable
from oar_proxy.settings import ApplicationSettings
from oar_proxy.writer import TIMEOUT

COUNTED_AT_ONCE: Final = 20_000
"""Rows of a query that may come before they are counted. None is given to a client uncounted."""

# The hub's clock, since proxies need not agree about the time.
_HOUR: Final[LiteralString] = "pg_catalog.date_trunc('hour', pg_catalog.now(), 'UTC')"

_ADMIT: Final[LiteralString] = f"""
INSERT INTO oar_internal.application_hours AS a (application, hour, statements, rows)
VALUES (%(application)s, {_HOUR}, 1, 0)
ON CONFLICT (application, hour) DO UPDATE SET statements = a.statements + 1
WHERE (%(max_statements)s::int8 IS NULL OR a.statements < %(max_statements)s)
  AND (%(max_rows)s::int8 IS NULL OR a.rows < %(max_rows)s)
RETURNING statements
"""

_SPENT: Final[LiteralString] = f"""
SELECT statements, hour + interval '1 hour' FROM oar_internal.application_hours
WHERE application = %(application)s AND hour = {_HOUR}
"""

_RECEIVE: Final[LiteralString] = f"""
INSERT INTO oar_internal.application_hours AS a (application, hour, statements, rows)
VALUES (%(application)s, {_HOUR}, 0, %(rows)s)
ON CONFLICT (application, hour) DO UPDATE SET rows = a.rows + excluded.rows
RETURNING rows, hour + interval '1 hour'
"""

Pool = AsyncConnectionPool[psycopg.AsyncConnection[TupleRow]]


@dataclass(frozen=True, slots=True)
class Budget:
    """The budget of one client: what is configured, and the ``application`` it says to be."""

    name: str
    settings: ApplicationSettings
    application: str
    pool: Pool = field(repr=False, compare=False)

    async def admit(self) -> None:
        """Count a statement that is about to ask an owner.

        Raises :class:`BudgetExceeded` when there is nothing left, and :class:`LedgerUnavailable`.
        """
        most = self.settings
        limits = {"max_statements": most.max_statements, "max_rows": most.max_rows}
        if await self._run(_ADMIT, **limits) is not None:
            return
        # Nothing: an hour has begun between the two, and what was refused is free again.
        spent = await self._run(_SPENT) or (0, None)
        statements, free = spent
        if most.max_statements is not None and statements >= most.max_statements:
            raise self._exceeded("max_statements", "statements", most.max_statements, free)
        raise self._exceeded("max_rows", "rows", most.max_rows, free)

    async def received(self, rows: int) -> None:
        """Count rows that an owner has sent, before any of them is given away.

        They stay counted, also when they are too many. Raises as `admit`.
        """
        most = self.settings.max_rows
        if most is None or not rows:
            return
        counted = await self._run(_RECEIVE, rows=rows)
        if counted is not None and counted[0] > most:
            raise self._exceeded("max_rows", "rows", most, counted[1])

    async def _run(self, statement: LiteralString, **values: int | None) -> TupleRow | None:
        parameters = {"application": self.name, **values}
        try:
            async with asyncio.timeout(TIMEOUT), self.pool.connection() as connection:
                return await (await connection.execute(statement, parameters)).fetchone()
        except (psycopg.Error, PoolTimeout, TimeoutError) as error:
            raise LedgerUnavailable(
                f'the budget of application "{self.application}" could not be counted',
                hint="the hub's primary has to accept writes: ask the operator, then retry",
            ) from error

    def _exceeded(
        self, limit: str, what: str, most: int | None, free: datetime | None
    ) -> BudgetExceeded:
        when = "now" if free is None else f"at {free:%Y-%m-%d %H:%M} UTC"
        counts = {
            "max_statements": "statements that ask an owner",
            "max_rows": "rows that owners send",
        }[limit]
        return BudgetExceeded(
            f'application "{self.application}" has used up its {what} of this hour: {most}',
            detail=f"limit proxy/applications.{self.name}.{limit} counts {counts}, "
            "over all proxies of the hub",
            hint=f"free again {when}; the administrator of the proxy can raise it",
        )


class Budgets:
    """The budgets that are configured. An asynchronous context manager."""

    def __init__(self, conninfo: str, applications: Mapping[str, ApplicationSettings]) -> None:
        """Count in the hub at ``conninfo``."""
        self._applications = {
            name: (settings.application_name.lower(), settings)
            for name, settings in applications.items()
        }
        self._pool: Pool = AsyncConnectionPool(
            conninfo,
            kwargs={"autocommit": True, "application_name": "oar budgets"},
            min_size=0,
            max_size=2,
            open=False,
            name="oar budgets",
        )

    async def __aenter__(self) -> Budgets:
        if self._applications:
            await self._pool.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._applications:
            await self._pool.close()

    def of(self, application: str) -> Budget | None:
        """Return the first budget whose pattern an ``application_name`` matches, in any case."""
        for name, (pattern, settings) in self._applications.items():
            if fnmatchcase(application.lower(), pattern):
                return Budget(name, settings, application, self._pool)
        return None
