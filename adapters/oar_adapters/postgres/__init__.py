"""PostgreSQL owners, through asyncpg.

Values are never decoded: the sixteen types with a stable binary format pass as the bytes the
owner sent, everything else as text. Each snapshot is one connection in one ``REPEATABLE READ READ
ONLY`` transaction, which is always rolled back.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from oar_adapters.encodings import UTF8, holds
from oar_adapters.interface import (
    Agreement,
    Capabilities,
    Column,
    Comparison,
    Membership,
    NullTest,
    OwnerError,
    OwnerErrorKind,
    OwnerSchema,
    PatternMatch,
    Predicate,
    Query,
    Scan,
    Statement,
    Table,
    base_type,
)
from oar_adapters.options import check, integer, names, number
from oar_adapters.postgres import schema as catalog
from oar_adapters.postgres import sql
from oar_adapters.postgres.portal import Connection
from oar_adapters.postgres.session import Transactions, left, translated
from oar_adapters.postgres.snapshot import PostgresSnapshot
from oar_adapters.postgres.whole import AGGREGATES, CHARACTERS, FUNCTIONS, speaks_alike
from oar_adapters.predicates import (
    TEXTS,
    Leaf,
    agreement,
    comparable,
    constants,
    pattern_is_complete,
)

_OPTIONS: Final = frozenset({"schemas", "tables", "pool_size", "connect_timeout"})


def connect(url: str, options: Mapping[str, str]) -> PostgresAdapter:
    """Make the adapter of the PostgreSQL database a URL names (``oar.adapters`` entry point).

    Options: ``schemas`` (comma list, default ``public``), ``tables`` (comma list of names and
    shell patterns, default all), ``pool_size`` (connections, default 8), ``connect_timeout``
    (seconds, default 10). Raises ``ValueError`` for an unknown option or an unusable value.
    """
    check(options, _OPTIONS, "a PostgreSQL owner")
    if not url.lower().startswith(("postgres://", "postgresql://")):
        raise ValueError("owner URL has the form postgresql://user@host:port/database")
    return PostgresAdapter(
        url,
        schemas=names(options, "schemas", "public"),
        tables=names(options, "tables"),
        pool_size=integer(options, "pool_size", "8", 1, 1000),
        connect_timeout=number(options, "connect_timeout", "10", 0.1, 600),
    )


class PostgresAdapter:
    """One PostgreSQL database. See :class:`~oar_adapters.interface.Adapter`."""

    def __init__(
        self,
        url: str,
        *,
        schemas: Sequence[str],
        tables: Sequence[str],
        pool_size: int,
        connect_timeout: float,
    ) -> None:
        self._transactions = Transactions(url, pool_size, connect_timeout)
        self._schemas = tuple(schemas)
        self._tables = tuple(tables)
        self._pool_size = pool_size
        self._connect_timeout = connect_timeout
        self._database: catalog.Database | None = None
        self._discovery = catalog.Discovery(OwnerSchema(()), {}, frozenset())

    @property
    def capabilities(self) -> Capabilities:
        """What whole statements agree on: nothing until :meth:`schema` has read the database."""
        owner = self._database
        if owner is None:
            return Capabilities("postgres", snapshots=self._pool_size)
        return Capabilities(
            "postgres",
            statements=True,
            functions=owner.functions if owner.unicode else owner.functions - CHARACTERS,
            aggregates=AGGREGATES,
            text_order=owner.bytewise and owner.unicode,
            snapshots=self._pool_size,
            interleaves=True,
            semi_joins=True,
            first_rows=True,
            composite_keys=True,
            digested_types=sql.DIGESTED if owner.unicode else sql.DIGESTED - TEXTS,
        )

    async def schema(self) -> OwnerSchema:
        """Read tables, columns, keys, comments and row estimates from the catalogs."""
        seconds = self._connect_timeout + 60.0
        async with self._transactions.begin(seconds) as (connection, deadline):
            with translated("reading its catalogs"):
                found = await _discovered(connection, self._schemas, self._tables, deadline)
        self._database, self._discovery = found
        return self._discovery.schema

    def supports(self, table: Table, predicate: Predicate) -> bool:
        """Tell whether the owner keeps at least the rows PostgreSQL would keep."""
        verdict = agreement(predicate, lambda leaf: self._agreement(table, leaf))
        return verdict is not Agreement.NONE

    def supports_statement(self, statement: Statement) -> bool:
        """Tell whether the owner's answer equals the hub's: :mod:`oar_adapters.postgres.whole`."""
        owner = self._database
        return (
            owner is not None
            and holds(statement.sql, owner.encoding) is True
            and speaks_alike(statement, self._discovery.unlike, owner.version)
        )

    def counts(self, query: Scan) -> bool:
        """Tell whether the owner answers a counted scan: any column can be told apart here."""
        try:
            sql.scan(query)
        except ValueError:
            return False
        return all(map(sql.tells, query.partials))

    def render(self, query: Query) -> str:
        """Return the SQL that is sent; key lists are ``$1``, ``$2`` and so on."""
        return sql.written(query)

    @asynccontextmanager
    async def snapshot(
        self,
        timeout: float,  # noqa: ASYNC109 - named so by the contract
    ) -> AsyncIterator[PostgresSnapshot]:
        """Open a repeatable-read snapshot; it is taken before this returns."""
        async with self._transactions.begin(timeout) as (connection, deadline):
            snapshot = PostgresSnapshot(
                connection,
                deadline,
                self._transactions,
                self._discovery.wide,
                UTF8 if self._database is None else self._database.encoding,
            )
            try:
                yield snapshot
            finally:
                await snapshot.close()

    async def close(self) -> None:
        """Close every connection; the owner stops a query that still runs."""
        await self._transactions.close()

    def _agreement(self, table: Table, leaf: Leaf) -> Agreement:
        try:
            column = table.column(leaf.column)
            sql.condition(table, leaf)
        except (KeyError, ValueError):
            return Agreement.NONE
        encoding = UTF8 if self._database is None else self._database.encoding
        if not all(holds(constant, encoding) is True for constant in constants(leaf)):
            return Agreement.NONE
        return _leaf_agreement(column, leaf)


def _leaf_agreement(column: Column, leaf: Leaf) -> Agreement:
    match leaf:
        case NullTest():
            return Agreement.EXACT
        case PatternMatch(pattern=pattern):
            # LIKE counts characters, so the encodings have to agree on what one is: `ordered`.
            usable = (
                column.equality is Agreement.EXACT
                and base_type(column.type) in TEXTS
                and column.ordered
                and pattern_is_complete(pattern)
            )
        case Comparison(op="=") | Membership():
            return column.equality if comparable(column.type, leaf.type) else Agreement.NONE
        case Comparison(op="<>"):
            usable = column.equality is Agreement.EXACT and comparable(column.type, leaf.type)
        case Comparison():
            usable = column.ordered and comparable(column.type, leaf.type)
    return Agreement.EXACT if usable else Agreement.NONE


async def _discovered(
    connection: Connection,
    schemas: Sequence[str],
    tables: Sequence[str],
    deadline: float,
) -> tuple[catalog.Database, catalog.Discovery]:
    async def rows(text: str, *arguments: Any) -> list[dict[str, Any]]:
        """Fetch rows as text, one JSON object each: our codecs leave everything undecoded."""
        wrapped = f"SELECT to_jsonb(r)::text FROM ({text}) AS r"
        fetched = await connection.fetch(wrapped, *arguments, timeout=left(deadline))
        return [json.loads(row[0]) for row in fetched]

    functions = [name.encode() for name in sorted(FUNCTIONS)]
    owner = catalog.database((await rows(catalog.DATABASE, functions))[0])
    if owner.encoding == "SQL_ASCII":
        raise OwnerError(
            OwnerErrorKind.REFUSED,
            "reading its catalogs: encoding SQL_ASCII does not say what its text means",
        )
    published = [schema.encode() for schema in schemas]
    relations = [
        row
        for row in await rows(catalog.RELATIONS, published)
        if catalog.wanted(row["name"], tables)
    ]
    oids = [row["oid"].to_bytes(8, "big") for row in relations]
    columns = await rows(catalog.COLUMNS, oids)
    keys = await rows(catalog.KEYS, oids)
    statistics = await rows(catalog.STATISTICS, oids)
    return owner, catalog.discover(relations, columns, keys, statistics, owner)
