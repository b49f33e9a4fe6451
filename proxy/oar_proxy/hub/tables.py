"""The statements that make a published table in the hub: its guard view and its planning table."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Final

from psycopg import sql

from oar_proxy.catalog import PublishedColumn, PublishedTable

KEY_COLUMNS: Final = 32
"""Of a key that PostgreSQL can hold."""


def planning_table(table: PublishedTable, keyable: frozenset[str]) -> Iterator[sql.Composable]:
    """Make the empty table that statements are planned over, with keys of types that can be one."""
    name = planning(table.planning_name)
    parts: list[sql.Composable] = [
        sql.SQL("{} {}{}").format(
            sql.Identifier(column.name),
            sql.SQL(column.type),
            sql.SQL(" NOT NULL" if column.not_null else ""),
        )
        for column in table.columns
    ]
    parts += _keys(table, keyable)
    yield sql.SQL("CREATE TABLE {} ({})").format(name, sql.SQL(", ").join(parts))
    yield sql.SQL("GRANT SELECT ON {} TO oar_planner").format(name)


def _keys(table: PublishedTable, keyable: frozenset[str]) -> Iterator[sql.Composable]:
    """Return the keys that PostgreSQL can hold; one left out only leaves the planner less to use.

    PRIMARY KEY implies NOT NULL, which not every owner's does (SQLite): then it is UNIQUE here.
    """
    declared = [key for key in (table.primary_key, *table.unique_keys) if key]
    for key in dict.fromkeys(declared):
        columns = [table.column(name) for name in key]
        if len(key) > KEY_COLUMNS or any(c.type not in keyable for c in columns):
            continue
        primary = key == table.primary_key and all(column.not_null for column in columns)
        yield sql.SQL("{} ({})").format(
            sql.SQL("PRIMARY KEY" if primary else "UNIQUE"),
            sql.SQL(", ").join(map(sql.Identifier, key)),
        )


def guard_view(table: PublishedTable) -> Iterator[sql.Composable]:
    """Make the view that clients see, or give the one there is columns after its own."""
    name = sql.Identifier(*table.key)
    columns = sql.SQL(", ").join(
        sql.SQL("{} {}").format(sql.Identifier(column.name), sql.SQL(column.type))
        for column in table.columns
    )
    yield sql.SQL(
        "CREATE OR REPLACE VIEW {} AS SELECT * FROM oar_internal.guard({}, {}) AS t({})"
    ).format(name, sql.Literal(table.schema), sql.Literal(table.name), columns)
    yield sql.SQL("GRANT SELECT ON {} TO oar_client").format(name)


def comments(table: PublishedTable) -> Iterator[sql.Composable]:
    """Comment on the view and its columns, as owners do."""
    yield sql.SQL("COMMENT ON VIEW {} IS {}").format(
        sql.Identifier(*table.key), _text(table.comment)
    )
    for column in table.columns:
        yield sql.SQL("COMMENT ON COLUMN {} IS {}").format(
            sql.Identifier(*table.key, column.name), _text(column.comment)
        )


def _text(comment: str | None) -> sql.Literal:
    return sql.Literal(comment.replace("\0", "") if comment else None)


def planning(name: str) -> sql.Identifier:
    """Return what a planning table is called."""
    return sql.Identifier("oar_plan", name)


def _form() -> str:
    columns = (
        PublishedColumn("a", "bigint", not_null=True, comment="a"),
        PublishedColumn("b", "text", not_null=False, comment=None),
        PublishedColumn("c", "json", not_null=True, comment=None),
    )
    keys = (("a",), ("b", "a"), ("c",))
    table = PublishedTable("schema", "table", columns, (), "planning", keys[0], keys[1:], "table")
    made = (*planning_table(table, frozenset({"bigint", "text"})), *guard_view(table))
    texts = (statement.as_bytes() for statement in (*made, *comments(table)))
    return hashlib.sha256(b";".join(texts)).hexdigest()


FORM: Final = _form()
"""A digest of the statements for one table that has of everything: the same where they are."""

FIRST_FORM: Final = "01663a444019006cbb2a7734563ce6c888c1fb0451260cbda7711de86f90e46b"
"""What tables have that were made before this was kept with them."""
