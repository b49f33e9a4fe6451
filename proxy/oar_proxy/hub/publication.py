"""Writing the catalog into the hub: guard views for clients, planning tables for the planner.

A client sees ``<schema>.<table>`` as a view over a function that raises, so a statement the proxy
did not catch fails instead of finding no rows (wire.md, finding 1). The planner sees
``oar_plan.<planning name>``, an empty table with the same columns and the keys and NOT NULLs the
owners enforce: it reasons from them, so nothing weaker may be declared.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import psycopg
from psycopg import AsyncConnection, sql
from psycopg.rows import TupleRow
from psycopg.types.json import Jsonb

from oar_proxy.catalog import Catalog, PublishedTable, TableName
from oar_proxy.hub.access import AdminPool
from oar_proxy.hub.address import HubError
from oar_proxy.hub.bootstrap import changing
from oar_proxy.hub.tables import FIRST_FORM, FORM, comments, guard_view, planning, planning_table

_LOCK_TIMEOUT: Final = "500ms"
"""Less than deadlock_timeout (1 s): publication gives way before a client could be the victim."""

_NAME_BYTES: Final = 63
_TABLE_COLUMNS: Final = 1600

_RESERVED_SCHEMAS: Final = frozenset(
    {"information_schema", "oar", "oar_internal", "oar_plan", "public", "verified"}
)
_SYSTEM_COLUMNS: Final = frozenset({"tableoid", "xmin", "cmin", "xmax", "cmax", "ctid"})

# The grammar of format_type for the hub's own types, so that the text can stand in a statement.
_TYPE_NAME: Final = re.compile(
    r'(?:[a-z_][a-z0-9_]*|"char")(?: [a-z]+)*'
    r"(?:\(\d{1,10}(?:,-?\d{1,10})?\))?(?: [a-z]+)*(?:\[\])?"
)


class PublicationRefused(HubError):
    """The catalog cannot be published as it is; the hub keeps what it had."""


class PublicationBlocked(HubError):
    """A client's transaction holds a table that changed; the hub keeps what it had. Try later."""


@asynccontextmanager
async def publishing(
    pool: AdminPool, *, keep: bool = True
) -> AsyncIterator[AsyncConnection[TupleRow]]:
    """One transaction that changes what the hub publishes, while no other proxy does.

    Without ``keep`` nothing of it stays. Raises :class:`PublicationBlocked` and :class:`HubError`.
    """
    try:
        async with pool.connection() as connection, connection.transaction(force_rollback=not keep):
            await connection.execute(f"SET LOCAL lock_timeout = '{_LOCK_TIMEOUT}'")
            await connection.execute("SET LOCAL search_path = ''")
            await changing(connection)
            yield connection
    except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected) as error:
        raise PublicationBlocked(
            "the catalog changed, and a client's transaction still uses the old one"
        ) from error
    except psycopg.Error as error:
        reason = error.diag.message_primary or "the hub could not be reached"
        raise HubError(f"the catalog could not be published: {reason}") from error


@dataclass(frozen=True, slots=True)
class _Stored:
    """A table as the hub holds it."""

    position: int
    content: dict[str, Any]


async def publish(connection: AsyncConnection[TupleRow], catalog: Catalog) -> bool:
    """Make the hub hold exactly this catalog. Returns whether it changed.

    ``connection`` is :func:`publishing`. Tables that did not change are not touched, and sessions
    go on. Raises :class:`PublicationRefused`.
    """
    stored = await _stored(connection)
    wanted = {
        key: _Stored(position, _content(table))
        for position, (key, table) in enumerate(catalog.tables.items(), start=1)
    }
    if stored == wanted:
        return False
    changed = [
        table
        for key, table in catalog.tables.items()
        if key not in stored or stored[key].content != wanted[key].content
    ]
    _check_names(changed)
    keyable = await _check_types(connection, changed)
    schemas = await _published_schemas(connection)
    await _check_schemas(connection, set(catalog.schemas) - schemas)
    reshaped = {
        key for key in stored if key not in wanted or _shape(stored[key]) != _shape(wanted[key])
    }
    await check_dependents(connection, reshaped)
    statements = [
        *_drop(stored, wanted, reshaped),
        *_create_schemas(catalog, schemas),
        *_create(changed, stored, reshaped, keyable),
    ]
    if statements:
        await connection.execute(sql.SQL(";\n").join(statements))
    await _store(connection, catalog, wanted)
    for schema in sorted(schemas - set(catalog.schemas)):
        await _drop_schema(connection, schema)
    await _set_search_path(connection, catalog)
    return True


# --- what the hub holds ---------------------------------------------------------------------


def _content(table: PublishedTable) -> dict[str, Any]:
    return {
        "columns": [
            {"name": c.name, "type": c.type, "not_null": c.not_null, "comment": c.comment}
            for c in table.columns
        ],
        "owners": list(table.owners),
        "primary_key": list(table.primary_key),
        "unique_keys": [list(key) for key in table.unique_keys],
        "comment": table.comment,
        "planning_name": table.planning_name,
        "form": FORM,
    }


def _shape(stored: _Stored) -> tuple[str, list[tuple[str, str]]]:
    """Return what a guard view is made of: a change of anything else leaves the view alone."""
    columns = [(column["name"], column["type"]) for column in stored.content["columns"]]
    return stored.content["form"], columns


async def _stored(connection: AsyncConnection[TupleRow]) -> dict[TableName, _Stored]:
    cursor = await connection.execute(
        "SELECT schema, name, position, content FROM oar_internal.published"
    )
    return {
        (schema, name): _Stored(position, {"form": FIRST_FORM, **content})
        for schema, name, position, content in await cursor.fetchall()
    }


async def _published_schemas(connection: AsyncConnection[TupleRow]) -> set[str]:
    cursor = await connection.execute("SELECT name FROM oar_internal.published_schema")
    return {name for (name,) in await cursor.fetchall()}


async def _store(
    connection: AsyncConnection[TupleRow], catalog: Catalog, wanted: dict[TableName, _Stored]
) -> None:
    await connection.execute(
        "DELETE FROM oar_internal.published; DELETE FROM oar_internal.published_schema"
    )
    async with connection.cursor() as cursor:
        await cursor.executemany(
            "INSERT INTO oar_internal.published (schema, name, position, content)"
            " VALUES (%s, %s, %s, %s)",
            [(*key, stored.position, Jsonb(stored.content)) for key, stored in wanted.items()],
        )
        await cursor.execute(
            "INSERT INTO oar_internal.published_schema SELECT unnest(%s::text[])",
            (list(catalog.schemas),),
        )


# --- what can be published ------------------------------------------------------------------


def _check_names(tables: Sequence[PublishedTable]) -> None:
    for table in tables:
        where = f"{table.owners[0]}: {table.schema}.{table.name}"
        if table.schema in _RESERVED_SCHEMAS or table.schema.startswith("pg_"):
            raise PublicationRefused(
                f'owner {table.owners[0]}: schema "{table.schema}" is the hub\'s own',
                hint="set the owner's schema to another name",
            )
        unfit = unfit_name(table.schema) or unfit_names(
            table.name, [column.name for column in table.columns]
        )
        if unfit is not None:
            raise PublicationRefused(f"owner {where}: {unfit}")


def unfit_name(name: str) -> str | None:
    """Say why PostgreSQL has no schema, table or column of a name; None: it may have."""
    if not name or "\0" in name or len(name.encode()) > _NAME_BYTES:
        return f'name "{name}" is empty or longer than {_NAME_BYTES} bytes'
    return None


def unfit_names(table: str, columns: Sequence[str]) -> str | None:
    """Say why PostgreSQL has no table of a name with such columns; None: it may have."""
    unfit = next(filter(None, map(unfit_name, (table, *columns))), None)
    if unfit is not None:
        return unfit
    for name, times in Counter(columns).items():
        if name in _SYSTEM_COLUMNS or times > 1:
            return f'column name "{name}" is PostgreSQL\'s own or used twice'
    if len(columns) > _TABLE_COLUMNS:
        return f"more than {_TABLE_COLUMNS} columns"
    return None


async def _check_types(
    connection: AsyncConnection[TupleRow], tables: Sequence[PublishedTable]
) -> frozenset[str]:
    """Check that the hub knows every type; return those that a key can be declared over."""
    used = sorted({column.type for table in tables for column in table.columns})
    cursor = await connection.execute(
        """
        SELECT t.name,
               p.typtype IN ('b', 'r', 'm'),
               o.opcintype IS NOT NULL OR p.typname = 'varchar'
        FROM unnest(%s::text[]) AS t(name)
        LEFT JOIN pg_catalog.pg_type AS p ON p.oid = pg_catalog.to_regtype(t.name)
        LEFT JOIN pg_catalog.pg_opclass AS o
               ON o.opcintype = p.oid AND o.opcdefault
              AND o.opcmethod = (SELECT oid FROM pg_catalog.pg_am WHERE amname = 'btree')
        """,
        ([name for name in used if _TYPE_NAME.fullmatch(name)],),
    )
    known = {name: keyable for name, usable, keyable in await cursor.fetchall() if usable}
    for table in tables:
        for column in table.columns:
            if column.type not in known:
                raise PublicationRefused(
                    f"owner {table.owners[0]}: column {table.schema}.{table.name}.{column.name} "
                    f'has type "{column.type}", which the hub does not know',
                    hint="publish it under another type, or hide the column by policy",
                )
    return frozenset(name for name, keyable in known.items() if keyable)


async def _check_schemas(connection: AsyncConnection[TupleRow], new: set[str]) -> None:
    cursor = await connection.execute(
        "SELECT nspname FROM pg_catalog.pg_namespace WHERE nspname = ANY(%s)", (sorted(new),)
    )
    for (name,) in await cursor.fetchall():
        raise PublicationRefused(
            f'schema "{name}" is in the hub already, and was not published by oar',
            hint="rename it, or set the owner's schema to another name",
        )


async def check_dependents(
    connection: AsyncConnection[TupleRow], reshaped: Collection[TableName]
) -> None:
    """Refuse to take away what an administrator's own views and functions stand on.

    Clients' temporary ones go with the table they were made for, and so do views of verified
    answers. Raises :class:`PublicationRefused`.
    """
    cursor = await connection.execute(
        """
        WITH RECURSIVE gone(oid) AS (
            SELECT c.oid
            FROM unnest(%s::text[], %s::text[]) AS t(schema, name)
            JOIN pg_catalog.pg_namespace AS n ON n.nspname = t.schema
            JOIN pg_catalog.pg_class AS c ON c.relnamespace = n.oid AND c.relname = t.name
            UNION
            SELECT r.ev_class
            FROM gone
            JOIN pg_catalog.pg_depend AS d
              ON d.refclassid = 'pg_catalog.pg_class'::regclass AND d.refobjid = gone.oid
             AND d.classid = 'pg_catalog.pg_rewrite'::regclass
            JOIN pg_catalog.pg_rewrite AS r ON r.oid = d.objid
            JOIN pg_catalog.pg_class AS v ON v.oid = r.ev_class
            JOIN pg_catalog.pg_namespace AS n ON n.oid = v.relnamespace AND n.nspname = 'verified'
        )
        , standing(relation, classid, objid) AS (
            SELECT oid, 'pg_catalog.pg_class'::regclass, oid FROM gone
            UNION ALL
            SELECT t.typrelid, 'pg_catalog.pg_type'::regclass, part.oid
            FROM gone
            JOIN pg_catalog.pg_type AS t ON t.typrelid = gone.oid,
            LATERAL (VALUES (t.oid), (t.typarray)) AS part(oid)
        )
        SELECT n.nspname, c.relname,
               pg_catalog.pg_describe_object(d.classid, d.objid, d.objsubid)
        FROM standing AS s
        JOIN pg_catalog.pg_class AS c ON c.oid = s.relation
        JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
        JOIN pg_catalog.pg_depend AS d
          ON d.refclassid = s.classid AND d.refobjid = s.objid AND d.deptype = 'n'
        LEFT JOIN pg_catalog.pg_rewrite AS r
          ON d.classid = 'pg_catalog.pg_rewrite'::regclass AND r.oid = d.objid
        LEFT JOIN pg_catalog.pg_class AS v
          ON v.oid = r.ev_class OR (d.classid = 'pg_catalog.pg_class'::regclass AND v.oid = d.objid)
        LEFT JOIN pg_catalog.pg_proc AS f
          ON d.classid = 'pg_catalog.pg_proc'::regclass AND f.oid = d.objid
        WHERE (v.relpersistence <> 't' AND v.oid NOT IN (SELECT oid FROM gone))
           OR NOT pg_catalog.pg_is_other_temp_schema(f.pronamespace)
        """,
        ([schema for schema, _ in reshaped], [name for _, name in reshaped]),
    )
    for schema, name, dependent in await cursor.fetchall():
        raise PublicationRefused(
            f"table {schema}.{name} changed, and the hub's {dependent} stands on its old form",
            hint="drop it; make it again when the table is published",
        )


# --- statements -----------------------------------------------------------------------------


def _drop(
    stored: dict[TableName, _Stored], wanted: dict[TableName, _Stored], reshaped: set[TableName]
) -> Iterator[sql.Composable]:
    for key in reshaped:
        yield sql.SQL("DROP VIEW IF EXISTS {} CASCADE").format(sql.Identifier(*key))
    for key, old in stored.items():
        if key not in wanted or wanted[key].content != old.content:
            yield sql.SQL("DROP TABLE IF EXISTS {}").format(planning(old.content["planning_name"]))


def _create_schemas(catalog: Catalog, present: set[str]) -> Iterator[sql.Composable]:
    for schema in catalog.schemas:
        if schema not in present:
            name = sql.Identifier(schema)
            yield sql.SQL("CREATE SCHEMA {}").format(name)
            yield sql.SQL("GRANT USAGE ON SCHEMA {} TO oar_client").format(name)
        tables = (table for key, table in catalog.tables.items() if key[0] == schema)
        owners = dict.fromkeys(owner for table in tables for owner in table.owners)
        comment = f"tables of {', '.join(owners)}"
        yield sql.SQL("COMMENT ON SCHEMA {} IS {}").format(
            sql.Identifier(schema), sql.Literal(comment)
        )


def _create(
    changed: Sequence[PublishedTable],
    stored: dict[TableName, _Stored],
    reshaped: set[TableName],
    keyable: frozenset[str],
) -> Iterator[sql.Composable]:
    for table in changed:
        yield from planning_table(table, keyable)
        if table.key not in stored or table.key in reshaped:
            yield from guard_view(table)
        yield from comments(table)


async def _drop_schema(connection: AsyncConnection[TupleRow], schema: str) -> None:
    try:
        async with connection.transaction():
            await connection.execute(sql.SQL("DROP SCHEMA {}").format(sql.Identifier(schema)))
    except psycopg.errors.DependentObjectsStillExist:
        return  # an administrator put something of his own there: it stays, and so does the schema


async def _set_search_path(connection: AsyncConnection[TupleRow], catalog: Catalog) -> None:
    # New sessions find published tables without a schema; those under way keep their own path.
    path = ["$user", "public", *catalog.schemas]
    cursor = await connection.execute(
        """
        SELECT EXISTS (
            SELECT FROM pg_catalog.pg_db_role_setting AS s
            JOIN pg_catalog.pg_database AS d ON d.oid = s.setdatabase
            WHERE d.datname = current_database() AND s.setrole = 0 AND s.setconfig @> ARRAY[(
                SELECT 'search_path=' || string_agg(quote_ident(p.name), ', ' ORDER BY p.place)
                FROM unnest(%s::text[]) WITH ORDINALITY AS p(name, place))])
        """,
        (path,),
    )
    (present,) = await cursor.fetchone() or (False,)
    if not present:
        await connection.execute(
            sql.SQL("ALTER DATABASE {} SET search_path = {}").format(
                sql.Identifier(connection.info.dbname),
                sql.SQL(", ").join(map(sql.Identifier, path)),
            )
        )
