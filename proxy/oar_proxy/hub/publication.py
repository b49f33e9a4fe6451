"""Writing the catalog into the hub: guard views for clients, planning tables for the planner.

A client sees ``<schema>.<table>`` as a view over a function that raises, so a statement the proxy
did not catch fails instead of finding no rows (wire.md, finding 1). The planner sees
``oar_plan.<planning name>``, an empty table with the same columns and the keys and NOT NULLs the
owners enforce: it reasons from them, so nothing weaker may be declared.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
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
from oar_proxy.hub.planner import TRANSIENT
from oar_proxy.hub.refusals import (
    OTHERWISE,
    RefusedTable,
    dependents,
    in_use,
    known_types,
    refusals,
    refused,
    rows_held,
    stands,
    waits,
)
from oar_proxy.hub.tables import FIRST_FORM, FORM, comments, guard_view, planning, planning_table
from oar_proxy.hub.withdrawal import withdraw, withdrawn

_LOCK_TIMEOUT: Final = "500ms"
"""Less than deadlock_timeout (1 s): publication gives way before a client could be the victim."""


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

    def as_hidden(self) -> _Stored:
        """Return the table as one that is not to be listed any more."""
        return _Stored(self.position, {**self.content, "hidden": True})


@dataclass(frozen=True, slots=True)
class Published:
    """What the hub holds: a catalog without what it refuses, and whether that is another one.

    ``outdated`` is what an administrator's objects are called that stand on what is hidden by now.
    """

    catalog: Catalog
    changed: bool
    refused: tuple[RefusedTable, ...] = ()
    outdated: tuple[str, ...] = ()


Hides = Callable[[str, str, Collection[str]], bool]
"""Whether an owner's policy hides a table, or one of some columns of it, from everybody."""


def hides_nothing(_owner: str, _table: str, _columns: Collection[str]) -> bool:
    """Whatever the hub held before may still be seen."""
    return False


async def publish(
    connection: AsyncConnection[TupleRow], catalog: Catalog, hides: Hides = hides_nothing
) -> Published:
    """Make the hub hold this catalog, but for tables that it cannot have.

    ``connection`` is :func:`publishing`. Tables that did not change are not touched, and sessions
    go on. Nothing is left to see of what ``hides`` tells of, whatever stands on it.
    """
    stored = await _stored(connection)
    schemas = await _published_schemas(connection)
    contents = {key: _content(table) for key, table in catalog.tables.items()}
    changed = [
        table
        for key, table in catalog.tables.items()
        if key not in stored or stored[key].content != contents[key]
    ]
    types = await known_types(connection, changed)
    faults = await refusals(connection, changed, schemas, types)
    becoming = await _becoming(connection, stored, contents, faults, hides)
    faults = faults | becoming.faults
    wanted = {
        key: _Stored(position, contents[key])
        for position, key in enumerate(catalog.tables, start=1)
        if key not in faults
    }
    fitting = catalog.less(faults)
    if stored == wanted | becoming.standing:
        return Published(fitting, False, tuple(faults.values()), await withdrawn(connection))
    old = {key: held for key, held in stored.items() if key not in becoming.standing}
    await withdraw(connection, {key: old[key].content["columns"] for key in becoming.withdrawn})
    await _execute(
        connection, [*_drop(old, wanted, becoming.dropped), *_create_schemas(fitting, schemas)]
    )
    kept = stored.keys() - becoming.dropped - becoming.withdrawn - becoming.extended
    made = {
        table.key: list(_create(table, types, view=table.key not in kept))
        for table in changed
        if table.key in wanted
    }
    for key, reason in (await _make(connection, made)).items():
        faults[key] = refused(catalog.tables[key], reason, OTHERWISE)
        del wanted[key]
    present = schemas | set(fitting.schemas)
    fitting = catalog.less(faults)
    holding = {*fitting.schemas, *(schema for schema, _ in becoming.standing)}
    await _store(connection, holding, wanted | becoming.standing)
    for schema in sorted(present - holding):
        await _drop_schema(connection, schema)
    await _set_search_path(connection, fitting)
    return Published(fitting, old != wanted, tuple(faults.values()), await withdrawn(connection))


@dataclass(frozen=True, slots=True)
class _Becoming:
    """What becomes of the views that there are and that are not to be as they are."""

    dropped: set[TableName]
    withdrawn: set[TableName]
    extended: set[TableName]
    standing: dict[TableName, _Stored]
    faults: dict[TableName, RefusedTable]


async def _becoming(
    connection: AsyncConnection[TupleRow],
    stored: Mapping[TableName, _Stored],
    contents: Mapping[TableName, Mapping[str, Any]],
    faults: Collection[TableName],
    hides: Hides,
) -> _Becoming:
    """Decide about each view; one that has to go and cannot stands, or what it shows does not."""
    reshaped = {
        key
        for key, old in stored.items()
        if key not in contents or key in faults or _shape(old.content) != _shape(contents[key])
    }
    extended = {
        key
        for key in reshaped & contents.keys() - set(faults)
        if _extends(contents[key], stored[key].content)
    }
    extended -= await rows_held(connection, extended)
    dropped = reshaped - extended
    hidden = {key for key in dropped if _hidden(key, stored[key].content, hides)}
    withdrawn: set[TableName] = set()
    standing: dict[TableName, _Stored] = {}
    unfit: dict[TableName, RefusedTable] = {}
    for key, dependent in (await dependents(connection, dropped)).items():
        if key in hidden:
            withdrawn.add(key)
        else:
            standing[key] = stored[key]
            unfit[key] = stands(key, stored[key].content["owners"], dependent)
    for key in await in_use(connection, reshaped - standing.keys()):
        standing[key] = stored[key].as_hidden() if key in hidden else stored[key]
        unfit[key] = waits(key, stored[key].content["owners"], stands=key not in hidden)
    gone = standing.keys()
    return _Becoming(dropped - withdrawn - gone, withdrawn - gone, extended - gone, standing, unfit)


async def _execute(
    connection: AsyncConnection[TupleRow], statements: Sequence[sql.Composable]
) -> None:
    if statements:
        await connection.execute(sql.SQL(";\n").join(statements))


async def _make(
    connection: AsyncConnection[TupleRow], made: Mapping[TableName, Sequence[sql.Composable]]
) -> dict[TableName, str]:
    """Make tables, all at once where that goes; say of each that the hub does not take why."""
    together = [statement for statements in made.values() for statement in statements]
    if not together or await _fault(connection, together) is None:
        return {}
    faults = {key: await _fault(connection, statements) for key, statements in made.items()}
    return {key: fault for key, fault in faults.items() if fault is not None}


async def _fault(
    connection: AsyncConnection[TupleRow], statements: Sequence[sql.Composable]
) -> str | None:
    try:
        async with connection.transaction():
            await _execute(connection, statements)
    except psycopg.Error as error:
        if (error.sqlstate or "08").startswith((*TRANSIENT, "40")):
            raise
        return f"the hub has no table like it: {error.diag.message_primary or error.sqlstate}"
    return None


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


def _shape(content: Mapping[str, Any]) -> tuple[str, list[tuple[str, str]]]:
    """Return what a guard view is made of: a change of anything else leaves the view alone."""
    return content["form"], _columns(content)


def _columns(content: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(column["name"], column["type"]) for column in content["columns"]]


def _extends(content: Mapping[str, Any], old: Mapping[str, Any]) -> bool:
    """Whether PostgreSQL can make one view of another, and what stands on it stays."""
    before = _columns(old)
    return _columns(content)[: len(before)] == before


def _hidden(key: TableName, content: Mapping[str, Any], hides: Hides) -> bool:
    columns = [column["name"] for column in content["columns"]]
    return any(hides(owner, key[1], columns) for owner in content["owners"])


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
    connection: AsyncConnection[TupleRow],
    schemas: Collection[str],
    held: Mapping[TableName, _Stored],
) -> None:
    await connection.execute(
        "DELETE FROM oar_internal.published; DELETE FROM oar_internal.published_schema"
    )
    async with connection.cursor() as cursor:
        await cursor.executemany(
            "INSERT INTO oar_internal.published (schema, name, position, content)"
            " VALUES (%s, %s, %s, %s)",
            [(*key, stored.position, Jsonb(stored.content)) for key, stored in held.items()],
        )
        await cursor.execute(
            "INSERT INTO oar_internal.published_schema SELECT unnest(%s::text[])",
            (list(schemas),),
        )


# --- statements -----------------------------------------------------------------------------


def _drop(
    stored: dict[TableName, _Stored], wanted: dict[TableName, _Stored], dropped: set[TableName]
) -> Iterator[sql.Composable]:
    for key in dropped:
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
    table: PublishedTable, keyable: Mapping[str, bool], *, view: bool
) -> Iterator[sql.Composable]:
    yield from planning_table(table, frozenset(name for name, may in keyable.items() if may))
    if view:
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
