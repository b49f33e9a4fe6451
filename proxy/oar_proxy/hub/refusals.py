"""Which tables the hub cannot have, and why: the fault of one, and no other's.

Their names, their types, what is in the hub already, and what stands on the form they had.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from psycopg import AsyncConnection
from psycopg.rows import TupleRow

from oar_proxy.catalog import PublishedTable, TableName

_NAME_BYTES: Final = 63
_TABLE_COLUMNS: Final = 1600

_RESERVED_SCHEMAS: Final = frozenset(
    {"information_schema", "oar", "oar_internal", "oar_plan", "public", "verified"}
)
_SYSTEM_COLUMNS: Final = frozenset({"tableoid", "xmin", "cmin", "xmax", "cmax", "ctid"})

# The grammar of format_type for the hub's own types, so that the text can stand in a statement.
_MODIFIER: Final = re.compile(r"\([^)]*\)")
_TYPE_NAME: Final = re.compile(
    r'(?:[a-z_][a-z0-9_]*|"char")(?: [a-z]+)*'
    r"(?:\(\d{1,10}(?:,-?\d{1,10})?\))?(?: [a-z]+)*(?:\[\])?"
)


@dataclass(frozen=True, slots=True)
class RefusedTable:
    """A table that the hub does not hold as it is now.

    ``stands``: it holds the one before, which may be read.
    """

    key: TableName
    owners: tuple[str, ...]
    reason: str
    hint: str
    stands: bool = False


def refused(table: PublishedTable, reason: str, hint: str) -> RefusedTable:
    """Say why a table is not in the hub."""
    return RefusedTable(table.key, table.owners, reason, hint)


def stands(key: TableName, owners: Iterable[str], dependent: str) -> RefusedTable:
    """Say of a table that is another one by now, or gone, why the one before is in the hub."""
    return RefusedTable(
        key,
        tuple(owners),
        f"it changed or is gone, and the hub's {dependent} stands on its old form",
        "drop that; make it again when the table is published",
        stands=True,
    )


def waits(key: TableName, owners: Iterable[str], *, stands: bool) -> RefusedTable:
    """Say of a table that is another one by now, or gone, that a transaction uses the one before.

    Publication waits for a short one; with one that is longer, other tables would wait as well.
    """
    return RefusedTable(
        key,
        tuple(owners),
        "it changed or is gone, and a client's transaction still uses its old form",
        "nothing has to be done: it is published when that transaction has ended",
        stands=stands,
    )


async def refusals(
    connection: AsyncConnection[TupleRow],
    tables: Sequence[PublishedTable],
    schemas: Collection[str],
    types: Collection[str],
) -> dict[TableName, RefusedTable]:
    """Refuse those of some tables that cannot be in the hub, one reason each.

    ``schemas`` are those that were published before, ``types`` those that the hub knows.
    """
    found = [
        *_misnamed(tables),
        *await _in_others_schemas(connection, tables, schemas),
        *_of_unknown_types(tables, types),
    ]
    # The first reason is the one that is told.
    return {it.key: it for it in reversed(found)}


_RENAME: Final = "set the owner's schema to another name"
OTHERWISE: Final = "publish it otherwise, or hide it by policy (deny, deny_columns)"


def _misnamed(tables: Iterable[PublishedTable]) -> Iterator[RefusedTable]:
    for table in tables:
        if table.schema in _RESERVED_SCHEMAS or table.schema.startswith("pg_"):
            yield refused(table, f'schema "{table.schema}" is the hub\'s own', _RENAME)
            continue
        columns = [column.name for column in table.columns]
        unfit = unfit_name(table.schema) or unfit_names(table.name, columns)
        if unfit is not None:
            yield refused(table, unfit, OTHERWISE)


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


async def known_types(
    connection: AsyncConnection[TupleRow], tables: Sequence[PublishedTable]
) -> Mapping[str, bool]:
    """Return the types of columns that the hub has, and whether a key can be declared over them."""
    used = sorted({column.type for table in tables for column in table.columns})
    cursor = await connection.execute(
        """
        SELECT t.name, o.opcintype IS NOT NULL OR p.typname = 'varchar'
        FROM unnest(%s::text[], %s::text[]) AS t(name, base)
        JOIN pg_catalog.pg_type AS p ON p.oid = pg_catalog.to_regtype(t.base)
        LEFT JOIN pg_catalog.pg_opclass AS o
               ON o.opcintype = p.oid AND o.opcdefault
              AND o.opcmethod = (SELECT oid FROM pg_catalog.pg_am WHERE amname = 'btree')
        WHERE p.typtype IN ('b', 'r', 'm')
        """,
        [
            [name for name in used if _TYPE_NAME.fullmatch(name)],
            # Before PostgreSQL 16 a modifier that the type has not is an error.
            [_MODIFIER.sub("", name) for name in used if _TYPE_NAME.fullmatch(name)],
        ],
    )
    return dict(await cursor.fetchall())


def _of_unknown_types(
    tables: Iterable[PublishedTable], known: Collection[str]
) -> Iterator[RefusedTable]:
    for table in tables:
        for column in table.columns:
            if column.type not in known:
                yield refused(
                    table,
                    f'column "{column.name}" has type "{column.type}", which the hub does not know',
                    "publish the column under another type, or hide it by policy (deny_columns)",
                )
                break


async def _in_others_schemas(
    connection: AsyncConnection[TupleRow], tables: Iterable[PublishedTable], ours: Collection[str]
) -> list[RefusedTable]:
    """Refuse tables of schemas that are in the hub and were not published by oar."""
    new = {table.schema for table in tables} - set(ours) - _RESERVED_SCHEMAS
    cursor = await connection.execute(
        "SELECT nspname FROM pg_catalog.pg_namespace WHERE nspname = ANY(%s)", (sorted(new),)
    )
    others = {name for (name,) in await cursor.fetchall()}
    hint = "rename that schema, or set the owner's to another name"
    return [
        refused(
            table,
            f'schema "{table.schema}" is in the hub already, and was not published by oar',
            hint,
        )
        for table in tables
        if table.schema in others
    ]


async def in_use(
    connection: AsyncConnection[TupleRow], views: Collection[TableName]
) -> list[TableName]:
    """Return which of some views transactions use that have lasted for a second or more."""
    cursor = await connection.execute(
        """
        SELECT n.nspname, c.relname
        FROM unnest(%s::text[], %s::text[]) AS t(schema, name)
        JOIN pg_catalog.pg_namespace AS n ON n.nspname = t.schema
        JOIN pg_catalog.pg_class AS c ON c.relnamespace = n.oid AND c.relname = t.name
        WHERE EXISTS (
            SELECT FROM pg_catalog.pg_locks AS l
            JOIN pg_catalog.pg_stat_activity AS a USING (pid)
            WHERE l.locktype = 'relation' AND l.relation = c.oid AND l.granted
              AND a.datname = current_database() AND a.pid <> pg_backend_pid()
              AND a.xact_start < clock_timestamp() - interval '1 second')
        """,
        ([schema for schema, _ in views], [name for _, name in views]),
    )
    return [(schema, name) for schema, name in await cursor.fetchall()]


async def rows_held(
    connection: AsyncConnection[TupleRow], views: Collection[TableName]
) -> set[TableName]:
    """Return which of some views have rows that a table keeps: they cannot have more columns."""
    cursor = await connection.execute(
        """
        SELECT n.nspname, c.relname
        FROM unnest(%s::text[], %s::text[]) AS v(schema, name)
        JOIN pg_catalog.pg_namespace AS n ON n.nspname = v.schema
        JOIN pg_catalog.pg_class AS c ON c.relnamespace = n.oid AND c.relname = v.name
        JOIN pg_catalog.pg_type AS t ON t.oid = c.reltype
        WHERE EXISTS (
            SELECT FROM pg_catalog.pg_depend AS d
            WHERE d.refclassid = 'pg_catalog.pg_type'::regclass
              AND d.refobjid IN (t.oid, t.typarray) AND d.deptype = 'n'
              AND d.classid <> 'pg_catalog.pg_proc'::regclass)
        """,
        ([schema for schema, _ in views], [name for _, name in views]),
    )
    return {(schema, name) for schema, name in await cursor.fetchall()}


async def dependents(
    connection: AsyncConnection[TupleRow], reshaped: Collection[TableName]
) -> dict[TableName, str]:
    """Return which of some views an administrator's own views and functions stand on, and one each.

    Clients' temporary ones go with the table they were made for, and so do views of verified
    answers.
    """
    cursor = await connection.execute(
        """
        WITH RECURSIVE gone(root, oid) AS (
            SELECT c.oid, c.oid
            FROM unnest(%s::text[], %s::text[]) AS t(schema, name)
            JOIN pg_catalog.pg_namespace AS n ON n.nspname = t.schema
            JOIN pg_catalog.pg_class AS c ON c.relnamespace = n.oid AND c.relname = t.name
            UNION
            SELECT gone.root, r.ev_class
            FROM gone
            JOIN pg_catalog.pg_depend AS d
              ON d.refclassid = 'pg_catalog.pg_class'::regclass AND d.refobjid = gone.oid
             AND d.classid = 'pg_catalog.pg_rewrite'::regclass
            JOIN pg_catalog.pg_rewrite AS r ON r.oid = d.objid
            JOIN pg_catalog.pg_class AS v ON v.oid = r.ev_class
            JOIN pg_catalog.pg_namespace AS n ON n.oid = v.relnamespace AND n.nspname = 'verified'
        )
        , standing(root, classid, objid) AS (
            SELECT root, 'pg_catalog.pg_class'::regclass, oid FROM gone
            UNION ALL
            SELECT gone.root, 'pg_catalog.pg_type'::regclass, part.oid
            FROM gone
            JOIN pg_catalog.pg_type AS t ON t.typrelid = gone.oid,
            LATERAL (VALUES (t.oid), (t.typarray)) AS part(oid)
        )
        SELECT n.nspname, c.relname,
               pg_catalog.pg_describe_object(d.classid, d.objid, d.objsubid)
        FROM standing AS s
        JOIN pg_catalog.pg_class AS c ON c.oid = s.root
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
    return {(schema, name): dependent for schema, name, dependent in await cursor.fetchall()}
