"""Forms of tables that a policy hides by now, where something of an administrator's stands on them.

That is never dropped, so the view of such a form stays, but tells nobody what it was: it is in the
proxy's own schema, its columns have lost their names, and reading it raises.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from psycopg import AsyncConnection, sql
from psycopg.rows import TupleRow

from oar_proxy.catalog import TableName
from oar_proxy.hub.refusals import dependents

SCHEMA: Final = "oar_internal"
PREFIX: Final = "withdrawn_"
"""What the names of such views begin with; the view's OID follows."""


async def withdraw(
    connection: AsyncConnection[TupleRow], views: Mapping[TableName, Sequence[Mapping[str, Any]]]
) -> None:
    """Withdraw the views of some tables, each with its columns as they are stored."""
    for key, columns in views.items():
        cursor = await connection.execute(
            "SELECT %s::pg_catalog.regclass::pg_catalog.oid",
            (sql.Identifier(*key).as_string(connection),),
        )
        (oid,) = await cursor.fetchone() or (0,)
        name = sql.Identifier(f"{PREFIX}{oid}")
        there = sql.Identifier(SCHEMA, f"{PREFIX}{oid}")
        numbered = [sql.Identifier(f"{PREFIX}{oid}_{i}") for i, _ in enumerate(columns, start=1)]
        statements = [
            # By its new name first: under its own there may be something else.
            sql.SQL("ALTER VIEW {} RENAME TO {}").format(sql.Identifier(*key), name),
            sql.SQL("ALTER VIEW {} SET SCHEMA {}").format(
                sql.Identifier(key[0], f"{PREFIX}{oid}"), sql.Identifier(SCHEMA)
            ),
            sql.SQL("COMMENT ON VIEW {} IS NULL").format(there),
        ]
        for column, number in zip(columns, numbered, strict=True):
            statements += [
                sql.SQL("ALTER VIEW {} RENAME COLUMN {} TO {}").format(
                    there, sql.Identifier(column["name"]), number
                ),
                sql.SQL("COMMENT ON COLUMN {}.{} IS NULL").format(there, number),
            ]
        declared = (
            sql.SQL("{} {}").format(number, sql.SQL(column["type"]))
            for column, number in zip(columns, numbered, strict=True)
        )
        statements.append(
            sql.SQL("CREATE OR REPLACE VIEW {} AS SELECT * FROM {}.withdrawn() AS t({})").format(
                there, sql.Identifier(SCHEMA), sql.SQL(", ").join(declared)
            )
        )
        await connection.execute(sql.SQL(";\n").join(statements))


async def withdrawn(connection: AsyncConnection[TupleRow]) -> tuple[str, ...]:
    """Drop the views on which nothing stands any more; say what stands on the others, one each."""
    cursor = await connection.execute(
        "SELECT c.relname FROM pg_catalog.pg_class AS c"
        " JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace"
        " WHERE n.nspname = %s AND c.relkind = 'v' AND pg_catalog.starts_with(c.relname, %s)"
        " ORDER BY c.relname",
        (SCHEMA, PREFIX),
    )
    views = [(SCHEMA, name) for (name,) in await cursor.fetchall()]
    standing = await dependents(connection, views) if views else {}
    for view in views:
        if view not in standing:
            # Clients' temporary views on it go with it, and views of verified answers.
            await connection.execute(sql.SQL("DROP VIEW {} CASCADE").format(sql.Identifier(*view)))
    return tuple(standing.values())
