"""Asking the hub's planner: statements over planning tables, and drafts over guard views.

Nothing is executed here: EXPLAIN without ANALYZE plans, which evaluates immutable functions over
constants and nothing else. Those may be anybody's, so it is done by a function that runs as a role
of few rights and undoes what was set. Of one text it takes one statement, so that none can bring a
second one along.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Self

import psycopg
from psycopg import AsyncConnection, sql
from psycopg.rows import TupleRow
from psycopg_pool import AsyncConnectionPool

from oar_proxy.errors import HubConnectionLost
from oar_proxy.hub.access import ended
from oar_proxy.hub.address import HubAddress
from oar_proxy.hub.bootstrap import CHECKER_ROLE, PLANNER_ROLE

PLAN_SHAPE: Final[Mapping[str, str]] = {
    # Hash joins and sequential scans only: then a join's type says which side may be reduced by
    # the other's keys, and every predicate on a table is a filter of its scan.
    "enable_nestloop": "off",
    "enable_mergejoin": "off",
    "enable_memoize": "off",
    "enable_material": "off",
    "enable_indexscan": "off",
    "enable_indexonlyscan": "off",
    "enable_bitmapscan": "off",
    "enable_tidscan": "off",
    "enable_incremental_sort": "off",
    "enable_presorted_aggregate": "off",
    "enable_self_join_elimination": "off",  # an occurrence is asked for on its own
    "enable_partitionwise_join": "off",
    "enable_partitionwise_aggregate": "off",
    "max_parallel_workers_per_gather": "0",
    "debug_parallel_query": "off",
    # The order of many tables is searched for, not all of them compared: for eighteen that took
    # seconds. The seed is fixed, so that the same statement always gets the same plan.
    "geqo": "on",
    "geqo_threshold": "12",
    "geqo_seed": "0",
    "jit": "off",
}
"""Settings of every planning connection; those a server version lacks are left out."""

_CONNECTION_SETTINGS: Final[Mapping[str, str]] = {
    "default_transaction_read_only": "on",
    "statement_timeout": "10s",  # planning a join of dozens of tables takes a second at most
    "lock_timeout": "5s",  # publication holds planning tables for as long as its own transaction
    "plan_cache_mode": "force_generic_plan",  # a NULL for a parameter is not to be planned with
}

_EXPLAIN: Final = "EXPLAIN (VERBOSE, FORMAT JSON) "
"""What ``oar_internal.explained_as_…`` write before a statement."""

_NOT_A_SESSION_SETTING: Final = frozenset({"role", "session_authorization"})


TRANSIENT: Final = ("08", "53", "55P03", "57", "58")
"""How SQLSTATEs begin that say nothing about a statement."""


class PlanningFailed(Exception):
    """The hub would not plan a statement.

    ``position`` counts characters of the statement from 1. No row was near: the message can
    quote nothing but the statement and the catalog.
    """

    def __init__(
        self, sqlstate: str, message: str, position: int | None = None, hint: str | None = None
    ) -> None:
        super().__init__(message)
        self.sqlstate = sqlstate
        self.message = message
        self.position = position
        self.hint = hint


class Planner:
    """A few planning connections. Use as an asynchronous context manager."""

    def __init__(self, address: HubAddress, *, size: int = 4) -> None:
        self._plans = _pool(address, PLANNER_ROLE, PLAN_SHAPE, size)
        self._checks = _pool(address, CHECKER_ROLE, {}, 2)

    async def __aenter__(self) -> Self:
        await self._plans.open(wait=True)
        await self._checks.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._plans.close()
        await self._checks.close()

    async def explain(
        self, statement: str, session_settings: Mapping[str, str] | None = None
    ) -> list[dict[str, Any]]:
        """Return the plan (``EXPLAIN … FORMAT JSON``) of a statement over planning tables.

        ``session_settings`` are those of the client that bear on meaning (``TimeZone``,
        ``DateStyle``, ``search_path`` …). Raises :class:`PlanningFailed`.
        """
        return await _explain(self._plans, statement, session_settings or {}, exact=True)

    async def has_xml(self) -> bool:
        """Tell whether the hub can read XML: not every build can."""
        try:
            await _explain(self._plans, "SELECT '<a/>'::pg_catalog.xml", {}, exact=False)
        except PlanningFailed as failure:
            if failure.sqlstate == "0A000":
                return False
            raise
        return True

    async def describe(
        self, query: str, session_settings: Mapping[str, str] | None = None
    ) -> list[tuple[str, str]] | None:
        """Return name and type of each output column of a query over planning tables.

        None when a type is not one of the built-in ones that travel undecoded. The query runs
        with LIMIT 0; the caller vouches for its functions. Raises :class:`PlanningFailed`.
        """
        async with self._plans.connection() as connection:
            try:
                await _adopt(connection, session_settings or {}, exact=True)
                cursor = connection.cursor(binary=True)
                statement = f"SELECT * FROM (\n{query}\n) AS q LIMIT 0"
                await cursor.execute(statement.encode())
                result = cursor.pgresult
            except psycopg.Error as error:
                raise _failure(error) from error
        if result is None:
            return None
        columns: list[tuple[str, str]] = []
        for number in range(result.nfields):
            kind = _type_name(result.ftype(number), result.fmod(number))
            if kind is None:
                return None
            columns.append(((result.fname(number) or b"").decode(), kind))
        return columns

    async def reads_alike(
        self,
        query: str,
        types: Sequence[str],
        then: Mapping[str, str],
        now: Mapping[str, str],
    ) -> bool:
        """Tell whether constants are the same when a query is parsed under other settings.

        It is over planning tables, with parameters of these types. Raises :class:`PlanningFailed`.
        """
        taken = f"({', '.join(types)})" if types else ""
        given = f"({', '.join(['NULL'] * len(types))})" if types else ""
        plans: list[Any] = []
        async with self._plans.connection() as connection:
            cursor = connection.cursor(binary=True)
            try:
                for name, settings in (("then", then), ("now", now)):
                    await _adopt(connection, settings, exact=True)
                    await cursor.execute(f"PREPARE oar_{name}{taken} AS {query}".encode())
                # What was parsed stays so, and is printed under the same settings now.
                for name in ("then", "now"):
                    plans.append(await _explained(connection, f"EXECUTE oar_{name}{given}"))
            except psycopg.Error as error:
                raise _failure(error) from error
            finally:
                await cursor.execute("DEALLOCATE ALL")
        return bool(plans[0] == plans[1])

    async def check(
        self, statement: str, session_settings: Mapping[str, str] | None = None
    ) -> str | None:
        """Return why a statement over published tables is not valid for a client, or None.

        Raises ``HubConnectionLost`` where the hub could not tell.
        """
        try:
            await _explain(self._checks, statement, session_settings or {}, exact=False)
        except PlanningFailed as failure:
            if failure.sqlstate.startswith(TRANSIENT):
                raise HubConnectionLost(
                    f"the hub did not check the statement: {failure.message}", hint="try again"
                ) from failure
            return failure.message if failure.hint is None else f"{failure.message}: {failure.hint}"
        return None


class _PlanningConnection(AsyncConnection[TupleRow]):
    """Remembers the session settings it has, so that a statement costs one round trip.

    ``role`` is what it plans as. ``sees_less``: than a session with these settings, for which a
    name may mean something else.
    """

    role: str
    applied: Mapping[str, str]
    sees_less: bool = False


_PlanningPool = AsyncConnectionPool[_PlanningConnection]


def _pool(address: HubAddress, role: str, settings: Mapping[str, str], size: int) -> _PlanningPool:
    async def configure(connection: _PlanningConnection) -> None:
        await _set(connection, dict(_CONNECTION_SETTINGS) | dict(settings))
        await connection.execute(sql.SQL("SET ROLE {}").format(sql.Identifier(role)))
        connection.role = role
        connection.applied = {}

    return AsyncConnectionPool(
        address.session,
        connection_class=_PlanningConnection,
        kwargs={"autocommit": True, "application_name": "oar planner", "prepare_threshold": None},
        configure=configure,
        check=ended,
        min_size=1,
        max_size=size,
        open=False,
        name=f"oar {role}",
    )


# The session that asks may have set the search path, and made what is in it: here no function of
# few rights is around it. So each name says its schema, and each operator.
_SET: Final = """
SELECT pg_catalog.set_config(s.name, s.value, false)
FROM ROWS FROM (pg_catalog.unnest(%s::pg_catalog.text[]), pg_catalog.unnest(%s::pg_catalog.text[]))
    AS s(name, value)
WHERE pg_catalog.current_setting(s.name, true) IS NOT NULL
"""


async def _set(connection: _PlanningConnection, settings: Mapping[str, str]) -> None:
    await connection.execute(_SET, (list(settings), list(settings.values())))


async def _explain(
    pool: _PlanningPool, statement: str, settings: Mapping[str, str], *, exact: bool
) -> list[dict[str, Any]]:
    if forbidden := {name.lower() for name in settings} & _NOT_A_SESSION_SETTING:
        raise ValueError(f"not a session setting: {', '.join(sorted(forbidden))}")
    try:
        async with pool.connection() as connection:
            await _adopt(connection, settings, exact=exact)
            return await _explained(connection, statement)
    except psycopg.Error as error:
        raise _failure(error) from error


async def _explained(connection: _PlanningConnection, statement: str) -> list[dict[str, Any]]:
    cursor = await connection.execute(
        sql.SQL("SELECT oar_internal.{}(%s)").format(
            sql.Identifier(f"explained_as_{connection.role}")
        ),
        (statement,),
    )
    (plan,) = await cursor.fetchone() or (None,)
    if plan is None:
        raise PlanningFailed("58000", "the hub's planner gave no plan")
    return list(plan)


def _legible(settings: Mapping[str, str]) -> Mapping[str, str]:
    """Have dates printed in ISO's style, and read in the session's order of day and month.

    The literals of a plan go to owners, whose sessions read ISO. No text of a date is a constant
    to the planner: that cast is not immutable.
    """
    style = settings.get("DateStyle")
    return (
        settings if style is None else {**settings, "DateStyle": f"ISO,{style.partition(',')[2]}"}
    )


_TYPES: Final[Mapping[int, str]] = {
    16: "boolean",
    17: "bytea",
    20: "bigint",
    21: "smallint",
    23: "integer",
    25: "text",
    700: "real",
    701: "double precision",
    1042: "character",
    1043: "character varying",
    1082: "date",
    1083: "time without time zone",
    1114: "timestamp without time zone",
    1184: "timestamp with time zone",
    1700: "numeric",
    2950: "uuid",
}
"""OIDs of built-in types: the same in every PostgreSQL."""

_VARHDRSZ: Final = 4
"""Modifiers of varlena types count the header of the value."""


def _type_name(oid: int, modifier: int) -> str | None:
    """Spell a type as ``format_type`` does; None for others than those above."""
    name = _TYPES.get(oid)
    if name is None or modifier < 0:
        return name
    if name in ("character", "character varying"):
        return f"{name}({modifier - _VARHDRSZ})"
    if name == "numeric":
        packed = modifier - _VARHDRSZ
        scale = ((packed & 0x7FF) ^ 0x400) - 0x400  # eleven bits, of which one is the sign
        return f"numeric({packed >> 16},{scale})"
    return None


_SEES_LESS: Final = """
SELECT EXISTS (
  SELECT FROM pg_catalog.pg_namespace n
  WHERE pg_catalog.strpos(
      pg_catalog.concat(', ', pg_catalog.current_setting('search_path'), ', '),
      pg_catalog.concat(', ', pg_catalog.quote_ident(n.nspname), ', ')) OPERATOR(pg_catalog.>) 0
    AND NOT pg_catalog.has_schema_privilege(n.oid, 'USAGE')
    AND (EXISTS (SELECT FROM pg_catalog.pg_proc p
                 WHERE p.pronamespace OPERATOR(pg_catalog.=) n.oid)
         OR EXISTS (SELECT FROM pg_catalog.pg_operator o
                    WHERE o.oprnamespace OPERATOR(pg_catalog.=) n.oid)
         OR EXISTS (SELECT FROM pg_catalog.pg_type t
                    WHERE t.typnamespace OPERATOR(pg_catalog.=) n.oid
                      AND t.typtype OPERATOR(pg_catalog.=)
                          ANY ('{d,e,r,m}'::pg_catalog."char"[]))))
"""
"""Whether a schema of the path is passed over, in which a function, operator or type may lie."""


async def _adopt(
    connection: _PlanningConnection, settings: Mapping[str, str], *, exact: bool
) -> None:
    """Have a connection read a text as the session does. Raises :class:`PlanningFailed`."""
    legible = _legible(settings)
    if connection.applied != legible:
        await _apply(connection, legible)
    if exact and connection.sees_less:
        raise PlanningFailed("42501", "permission denied for a schema of the search path")


async def _apply(connection: _PlanningConnection, settings: Mapping[str, str]) -> None:
    try:
        for name in connection.applied.keys() - settings.keys():
            await connection.execute(sql.SQL("RESET {}").format(sql.Identifier(name)))
        await _set(connection, settings)
        cursor = await connection.execute(_SEES_LESS)
        (connection.sees_less,) = await cursor.fetchone() or (True,)
    except BaseException:
        await connection.close()  # nobody knows what it has now; the pool opens another
        raise
    connection.applied = dict(settings)


def _failure(error: psycopg.Error) -> PlanningFailed:
    diagnosis = error.diag
    # Of another query it would be one inside of somebody's function.
    ours = (diagnosis.internal_query or "").startswith(_EXPLAIN)
    position = diagnosis.internal_position if ours else diagnosis.statement_position
    return PlanningFailed(
        error.sqlstate or "58000",
        diagnosis.message_primary or "the hub's planner could not be reached",
        max(1, int(position) - len(_EXPLAIN)) if position else None,
        diagnosis.message_hint,
    )
