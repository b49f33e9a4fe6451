"""Which reviewed answers fit what is published; and in the hub a list of them all, and their views.

A view stands over the guard views of the tables it reads, so reading it is recognised, planned and
decided like any statement over them. It runs with the reader's own privileges.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import psycopg
from psycopg import AsyncConnection, sql
from psycopg.rows import TupleRow
from psycopg.types.json import Jsonb

from oar_proxy.catalog import Catalog
from oar_proxy.hub.bootstrap import CLIENT_ROLE
from oar_proxy.hub.planner import TRANSIENT
from oar_proxy.hub.publication import PublicationRefused, check_dependents
from oar_proxy.recognition import guard_qualified
from oar_proxy.verified.entry import Entry

SCHEMA: Final = "verified"
"""Where the views are. No owner may publish in a schema of this name."""

_OURS: Final = "verified answers, published by oar"
"""The schema's comment, by which it is told from an administrator's own."""

_TIMEOUT: Final = "10s"
"""As long as the planner gets for a statement of a client."""


async def publish_answers(
    connection: AsyncConnection[TupleRow], entries: Sequence[Entry], catalog: Catalog
) -> Mapping[str, str]:
    """List the entries in the hub and make their views; return by name why some do not fit.

    ``connection`` is one of ``hub.publication.publishing`` that has published ``catalog``. The view
    of an entry that does not fit is dropped. Raises ``PublicationRefused``.
    """
    wanted = {entry.name: _content(entry, catalog) for entry in entries}
    stored = await _stored(connection)
    present = await _views(connection)
    faults: dict[str, str] = {}
    await _make_schema(connection, present, any(entry.view for entry in entries))
    kept = {
        entry.name
        for entry in entries
        if stored.get(entry.name) == (wanted[entry.name], None)
        and (entry.view is None or entry.view in (present or ()))
    }
    views_kept = {entry.view for entry in entries if entry.name in kept}
    await _drop_views(connection, (present or set()) - views_kept)
    for entry in entries:
        if entry.name in kept:
            continue
        fault = await _fault(connection, entry, catalog)
        if fault is not None:
            faults[entry.name] = fault
    if present is not None and not any(entry.view for entry in entries):
        await _drop_schema(connection)
    if stored != {name: (content, faults.get(name)) for name, content in wanted.items()}:
        await _store(connection, wanted, faults)
    return faults


async def _fault(
    connection: AsyncConnection[TupleRow], entry: Entry, catalog: Catalog
) -> str | None:
    """Try an entry's statement as a client, and its view; return why it does not fit."""
    for relation in entry.parsed.relations:
        if (relation.schema, relation.name) not in catalog.tables:
            return f'"{relation.schema}.{relation.name}" is not published'
    statement = guard_qualified(entry.statement({}), catalog)
    try:
        async with connection.transaction(force_rollback=True):
            await connection.execute(f"SET LOCAL statement_timeout = '{_TIMEOUT}'")
            await connection.execute(f"SET LOCAL ROLE {CLIENT_ROLE}")
            await connection.execute(f"EXPLAIN (COSTS OFF) {statement}".encode())
        if entry.view is not None:
            async with connection.transaction():
                await _make_view(connection, entry, statement)
    except psycopg.Error as error:
        if (error.sqlstate or "08").startswith(TRANSIENT):
            raise
        return error.diag.message_primary or "the hub does not accept it"
    return None


async def _make_view(connection: AsyncConnection[TupleRow], entry: Entry, statement: str) -> None:
    name = sql.Identifier(SCHEMA, entry.view or "")
    created = sql.SQL("CREATE VIEW {} WITH (security_invoker = true) AS\n").format(name)
    await connection.execute(created.as_bytes(connection) + statement.encode())
    await connection.execute(
        sql.SQL("COMMENT ON VIEW {} IS {}").format(name, sql.Literal(entry.question))
    )
    await connection.execute(
        sql.SQL("GRANT SELECT ON {} TO {}").format(name, sql.Identifier(CLIENT_ROLE))
    )


# --- what the hub holds ---------------------------------------------------------------------------


_Stored = dict[str, tuple[dict[str, Any], str | None]]


def _content(entry: Entry, catalog: Catalog) -> dict[str, Any]:
    """What is stored of an entry. It was tried under that version of the catalog."""
    return {
        "question": entry.question,
        "phrasings": list(entry.phrasings),
        "parameters": [f"{p.name} {p.type}" for p in entry.parameters],
        "sql": entry.sql,
        "view": entry.view,
        "reviewer": entry.reviewer,
        "reviewed": entry.reviewed.isoformat(),
        "catalog_version": entry.catalog,
        "tried": catalog.version,
    }


async def _stored(connection: AsyncConnection[TupleRow]) -> _Stored:
    cursor = await connection.execute("SELECT name, content, fault FROM oar_internal.verified")
    return {name: (content, fault) for name, content, fault in await cursor.fetchall()}


async def _store(
    connection: AsyncConnection[TupleRow],
    wanted: Mapping[str, dict[str, Any]],
    faults: Mapping[str, str],
) -> None:
    await connection.execute("DELETE FROM oar_internal.verified")
    async with connection.cursor() as cursor:
        await cursor.executemany(
            "INSERT INTO oar_internal.verified (name, content, fault) VALUES (%s, %s, %s)",
            [(name, Jsonb(content), faults.get(name)) for name, content in wanted.items()],
        )


async def _views(connection: AsyncConnection[TupleRow]) -> set[str] | None:
    """Return the names of the views, None without their schema. Raises ``PublicationRefused``."""
    cursor = await connection.execute(
        "SELECT pg_catalog.obj_description(n.oid, 'pg_namespace') = %s, ARRAY("
        "SELECT c.relname::text FROM pg_catalog.pg_class AS c"
        " WHERE c.relnamespace = n.oid AND c.relkind = 'v')"
        " FROM pg_catalog.pg_namespace AS n WHERE n.nspname = %s",
        (_OURS, SCHEMA),
    )
    row = await cursor.fetchone()
    if row is None:
        return None
    ours, names = row
    return set(names) if ours else None


async def _make_schema(
    connection: AsyncConnection[TupleRow], present: set[str] | None, needed: bool
) -> None:
    if present is not None or not needed:
        return
    try:
        async with connection.transaction():
            name = sql.Identifier(SCHEMA)
            await connection.execute(sql.SQL("CREATE SCHEMA {}").format(name))
    except psycopg.errors.DuplicateSchema as error:
        raise PublicationRefused(
            f'schema "{SCHEMA}" is in the hub already, and was not published by oar',
            hint="rename it, or publish no verified answer as a view",
        ) from error
    await connection.execute(
        sql.SQL("COMMENT ON SCHEMA {0} IS {1}; GRANT USAGE ON SCHEMA {0} TO {2}").format(
            name, sql.Literal(_OURS), sql.Identifier(CLIENT_ROLE)
        )
    )


async def _drop_schema(connection: AsyncConnection[TupleRow]) -> None:
    try:
        async with connection.transaction():
            await connection.execute(sql.SQL("DROP SCHEMA {}").format(sql.Identifier(SCHEMA)))
    except psycopg.errors.DependentObjectsStillExist:
        return  # an administrator put something of his own there


async def _drop_views(connection: AsyncConnection[TupleRow], names: Iterable[str]) -> None:
    for name in sorted(names):
        await check_dependents(connection, [(SCHEMA, name)])
        # Clients' temporary views on it go with it.
        await connection.execute(
            sql.SQL("DROP VIEW {} CASCADE").format(sql.Identifier(SCHEMA, name))
        )
