"""Which reviewed answers fit what is published; and in the hub a list of them all, and their views.

A view stands over the guard views of the tables it reads, so reading it is recognised, planned and
decided like any statement over them. It runs with the reader's own privileges.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import psycopg
from psycopg import AsyncConnection, sql
from psycopg.rows import TupleRow
from psycopg.types.json import Jsonb

from oar_proxy.catalog import Catalog
from oar_proxy.hub import withdrawal
from oar_proxy.hub.bootstrap import CHECKER_ROLE, CLIENT_ROLE
from oar_proxy.hub.planner import TRANSIENT
from oar_proxy.hub.refusals import dependents
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
    of an entry that does not fit is dropped, but for one that an administrator's own stands on.
    """
    wanted = {entry.name: _content(entry, catalog) for entry in entries}
    stored = await _stored(connection)
    views = {entry.view for entry in entries} - {None}
    present = await _views(connection)
    closed = None if present is not None or not views else await _make_schema(connection)
    held = present or set()
    outdated = await _over_withdrawn(connection)
    fitting = {name: content for name, (content, fault) in stored.items() if fault is None}
    made = {
        entry.name
        for entry in entries
        if entry.view in held - outdated
        and fitting.get(entry.name, {}).get("made") == wanted[entry.name]["made"]
    }
    kept = {
        entry.name
        for entry in entries
        if fitting.get(entry.name) == wanted[entry.name]
        and (entry.view is None or entry.name in made)
    }
    standing = await _drop_views(
        connection, held - {entry.view for entry in entries if entry.name in made}
    )
    faults: dict[str, str] = {}
    for entry in entries:
        if entry.name in kept:
            continue
        fault = standing.get(entry.view or "") or (closed if entry.view else None)
        if fault is None:
            fault = await _fault(connection, entry, catalog, make=entry.name not in made)
            if fault is not None and entry.name in made:
                await _drop_views(connection, [entry.view or ""])
        if fault is not None:
            faults[entry.name] = fault
    if present is not None and not views:
        await _drop_schema(connection)
    if stored != {name: (content, faults.get(name)) for name, content in wanted.items()}:
        await _store(connection, wanted, faults)
    return faults


async def _fault(
    connection: AsyncConnection[TupleRow], entry: Entry, catalog: Catalog, *, make: bool
) -> str | None:
    """Try an entry's statement as a client, and make its view; return why it does not fit."""
    for relation in entry.parsed.relations:
        if (relation.schema, relation.name) not in catalog.tables:
            return f'"{relation.schema}.{relation.name}" is not published'
    statement = guard_qualified(entry.statement({}), catalog)
    try:
        async with connection.transaction(force_rollback=True):
            await connection.execute(f"SET LOCAL statement_timeout = '{_TIMEOUT}'")
            await connection.execute(
                f"SELECT oar_internal.explained_as_{CHECKER_ROLE}(%s)", (statement,)
            )
        if entry.view is not None and make:
            async with connection.transaction():
                await connection.execute(_view(entry, statement))
    except psycopg.Error as error:
        if (error.sqlstate or "08").startswith(TRANSIENT):
            raise
        return error.diag.message_primary or "the hub does not accept it"
    return None


def _view(entry: Entry, statement: str) -> bytes:
    """Write what makes an entry's view."""
    name = sql.Identifier(SCHEMA, entry.view or "")
    made = sql.SQL("CREATE VIEW {} WITH (security_invoker = true) AS\n").format(name)
    # A line break ends a comment that may close the statement.
    described = sql.SQL("\n;\nCOMMENT ON VIEW {0} IS {1};\nGRANT SELECT ON {0} TO {2}").format(
        name, sql.Literal(entry.question), sql.Identifier(CLIENT_ROLE)
    )
    return made.as_bytes() + statement.encode() + described.as_bytes()


# --- what the hub holds ---------------------------------------------------------------------------


_Stored = dict[str, tuple[dict[str, Any], str | None]]


def _content(entry: Entry, catalog: Catalog) -> dict[str, Any]:
    """What is stored of an entry. It was tried under that version of the catalog.

    ``made`` is a digest of what makes its view: another release's text makes another view.
    """
    made = None
    if entry.view is not None:
        view = _view(entry, guard_qualified(entry.statement({}), catalog))
        made = hashlib.sha256(view).hexdigest()
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
        "made": made,
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
    """Return the names of the views, None without their schema."""
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


async def _over_withdrawn(connection: AsyncConnection[TupleRow]) -> set[str]:
    """Return the names of the views that stand on a form of a table that was withdrawn."""
    cursor = await connection.execute(
        "SELECT c.relname::text FROM pg_catalog.pg_class AS c"
        " JOIN pg_catalog.pg_rewrite AS r ON r.ev_class = c.oid"
        " JOIN pg_catalog.pg_depend AS d ON d.objid = r.oid"
        "  AND d.classid = 'pg_catalog.pg_rewrite'::regclass"
        "  AND d.refclassid = 'pg_catalog.pg_class'::regclass"
        " JOIN pg_catalog.pg_class AS t ON t.oid = d.refobjid"
        " WHERE c.relnamespace = pg_catalog.to_regnamespace(%s)"
        " AND t.relnamespace = pg_catalog.to_regnamespace(%s)",
        (SCHEMA, withdrawal.SCHEMA),
    )
    return {name for (name,) in await cursor.fetchall()}


async def _make_schema(connection: AsyncConnection[TupleRow]) -> str | None:
    """Make the schema of the views; say why there cannot be any."""
    name = sql.Identifier(SCHEMA)
    try:
        async with connection.transaction():
            await connection.execute(sql.SQL("CREATE SCHEMA {}").format(name))
    except psycopg.errors.DuplicateSchema:
        return f'schema "{SCHEMA}" is in the hub already, and was not published by oar: rename it'
    await connection.execute(
        sql.SQL("COMMENT ON SCHEMA {0} IS {1}; GRANT USAGE ON SCHEMA {0} TO {2}").format(
            name, sql.Literal(_OURS), sql.Identifier(CLIENT_ROLE)
        )
    )
    return None


async def _drop_schema(connection: AsyncConnection[TupleRow]) -> None:
    try:
        async with connection.transaction():
            await connection.execute(sql.SQL("DROP SCHEMA {}").format(sql.Identifier(SCHEMA)))
    except psycopg.errors.DependentObjectsStillExist:
        return  # an administrator put something of his own there


async def _drop_views(
    connection: AsyncConnection[TupleRow], names: Iterable[str]
) -> Mapping[str, str]:
    """Drop views; say of those that an administrator's own stands on why they are still there."""
    unwanted = sorted(names)
    found = await dependents(connection, [(SCHEMA, name) for name in unwanted])
    for name in unwanted:
        if (SCHEMA, name) not in found:
            # Clients' temporary views on it go with it.
            await connection.execute(
                sql.SQL("DROP VIEW {} CASCADE").format(sql.Identifier(SCHEMA, name))
            )
    return {
        name: f'the hub\'s {dependent} stands on the old form of view "{SCHEMA}.{name}": drop that'
        for (_, name), dependent in found.items()
    }
