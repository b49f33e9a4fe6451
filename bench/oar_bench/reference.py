"""The centralized reference: an organisation's owners merged into one PostgreSQL schema.

Same-named tables of two owners become one table with the rows of both. Types and names are those
the SQLite adapter publishes, values go in by COPY. Nothing else of the proxy is used, so that what
the proxy answers can be compared with it.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import psycopg
import sqlglot
from oar_adapters.sqlite.schema import published_type
from oar_proxy.hub.server import embedded_hub
from oar_proxy.settings import HubSettings
from psycopg import sql
from sqlglot.errors import SqlglotError

from oar_bench.compare import Comparison, Verdict, compare
from oar_bench.layout import BenchmarkError, Organisation, Question, fold
from oar_bench.result import Result, Run, fetch

SHUFFLES: Final = 40
"""Orders tried before an answer is called different: one of five tied rows is then missed once in
7,500 times."""


Masks = Mapping[str, str | None]
"""Constants by the column in whose place they are read, None for NULL."""


@dataclass(frozen=True, slots=True)
class _Part:
    """One owner's table: the names as SQLite has them, types as PostgreSQL's."""

    file: Path
    source: str
    columns: tuple[tuple[str, str], ...]
    key: tuple[str, ...]

    @property
    def shape(self) -> tuple[tuple[str, str], ...]:
        """Folded column names with their types."""
        return tuple((fold(name), type_) for name, type_ in self.columns)


class Reference:
    """Merged organisations, one schema each, on a connection of their own (in autocommit)."""

    def __init__(self, connection: psycopg.AsyncConnection[Any]) -> None:
        self._connection = connection
        self._schema: str | None = None

    async def load(self, organisation: Organisation, *, keys: bool = True) -> None:
        """Create and fill the schema named after the organisation.

        ``keys``: declare the primary keys SQLite declares (a statement may then group by one and
        select what depends on it), except on split tables and where the rows do not keep them.
        Raises :class:`~oar_bench.layout.BenchmarkError` for columns that do not merge, and for
        values that are not of the published type.
        """
        parts: dict[str, list[_Part]] = {}
        for owner in organisation.with_rows:
            if owner.file is None:
                continue
            for part in _parts(owner.file):
                parts.setdefault(fold(part.source), []).append(part)
        # The server may be one that has served before.
        await self.new_schema(organisation.name)
        for name, held in parts.items():
            if any(part.shape != held[0].shape for part in held):
                raise BenchmarkError(f"{organisation.name}: owners of {name} differ in its columns")
            try:
                await self._create(organisation.name, name, held, keys=keys and len(held) == 1)
            except (psycopg.DataError, sqlite3.Error) as error:
                raise BenchmarkError(
                    f"{organisation.name}: the rows of {name} are not of its columns' types"
                ) from error

    async def _create(self, schema: str, name: str, held: list[_Part], *, keys: bool) -> None:
        columns = sql.SQL(", ").join(
            sql.SQL("{} {}").format(sql.Identifier(column), sql.SQL(type_))
            for column, type_ in held[0].shape
        )
        table = sql.Identifier(schema, name)
        await self._connection.execute(sql.SQL("CREATE TABLE {} ({})").format(table, columns))
        async with (
            self._connection.cursor() as cursor,
            cursor.copy(sql.SQL("COPY {} FROM STDIN").format(table)) as copy,
        ):
            for part in held:
                for row in _rows(part):
                    await copy.write_row(row)
        if keys and held[0].key:
            key = sql.SQL(", ").join(sql.Identifier(fold(column)) for column in held[0].key)
            # SQLite lets NULL into a primary key that is not INTEGER.
            with contextlib.suppress(psycopg.IntegrityError):
                await self._connection.execute(
                    sql.SQL("ALTER TABLE {} ADD PRIMARY KEY ({})").format(table, key)
                )
        await self._connection.execute(sql.SQL("ANALYZE {}").format(table))

    async def run(self, organisation: str, statement: str) -> Result:
        """Run a statement with the organisation's schema as the search path.

        Raises ``psycopg.Error`` when PostgreSQL does not accept it.
        """
        await self._enter(organisation)
        return await fetch(self._connection, statement)

    async def origins(self, organisation: str, statement: str) -> list[tuple[str, str]]:
        """Return table and column of each output that is a column as it is, as PostgreSQL says."""
        await self._enter(organisation)
        cursor = await self._connection.execute(statement.encode())
        result = cursor.pgresult
        assert result is not None
        places = [(result.ftable(n), result.ftablecol(n)) for n in range(result.nfields)]
        found = await self._connection.execute(
            "SELECT c.relname, a.attname FROM unnest(%s::oid[], %s::int[]) AS p(relation, number)"
            " JOIN pg_class AS c ON c.oid = p.relation"
            " JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum = p.number",
            ([oid for oid, _ in places], [number for _, number in places]),
        )
        return [(str(table), str(column)) for table, column in await found.fetchall()]

    async def copy(
        self, organisation: str, name: str, table: str, condition: str | None, masks: Masks
    ) -> None:
        """Copy a table into schema ``name``: rows for which a condition holds, some columns masked.

        What is masked in its primary key leaves it without one. Raises ``psycopg.Error``.
        """
        names = {"copy": sql.Identifier(name, table), "table": sql.Identifier(organisation, table)}
        execute = self._connection.execute
        keys = await execute(
            "SELECT array_agg(a.attname::text ORDER BY a.attnum) FROM pg_index AS i"
            " JOIN pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey)"
            " WHERE i.indisprimary AND i.indrelid = %s::regclass",
            (names["table"].as_string(),),
        )
        ((key,),) = await keys.fetchall()
        await execute(sql.SQL("CREATE TABLE {copy} (LIKE {table})").format(**names))
        insert = sql.SQL("INSERT INTO {copy} SELECT * FROM {table}").format(**names)
        where = sql.SQL("") if condition is None else sql.SQL(f" WHERE ({condition})")
        await execute(insert + where)
        for column, value in masks.items():
            names["column"] = sql.Identifier(column)
            drop = "ALTER TABLE {copy} ALTER COLUMN {column} DROP NOT NULL"
            await execute(sql.SQL(drop).format(**names))
            update = sql.SQL("UPDATE {copy} SET {column} = {value}")
            await execute(update.format(**names, value=sql.Literal(value)))
        if key and not set(key) & masks.keys():
            columns = sql.SQL(", ").join(map(sql.Identifier, key))
            await execute(
                sql.SQL("ALTER TABLE {copy} ADD PRIMARY KEY ({columns})").format(
                    copy=names["copy"], columns=columns
                )
            )

    async def new_schema(self, name: str) -> None:
        """Create an empty schema in the place of one that may be there."""
        await self._connection.execute(_with("DROP SCHEMA IF EXISTS {} CASCADE", name))
        await self._connection.execute(_with("CREATE SCHEMA {}", name))

    async def values(self, organisation: str, table: str, column: str, most: int) -> list[str]:
        """Return some values of a column, as text, always the same. Raises ``psycopg.Error``."""
        await self._enter(organisation)
        found = await self._connection.execute(
            sql.SQL(
                "SELECT DISTINCT {column}::text FROM {table} WHERE {column} IS NOT NULL"
                " ORDER BY 1 LIMIT {most}"
            ).format(
                column=sql.Identifier(column),
                table=sql.Identifier(table),
                most=sql.Literal(most),
            )
        )
        return [str(value) for (value,) in await found.fetchall()]

    async def count_rows(self, organisation: str, tables: Iterable[str]) -> int:
        """Return how many rows the organisation's tables of these folded names hold together."""
        total = 0
        for table in tables:
            result = await self.run(
                organisation,
                sql.SQL("SELECT count(*) FROM {}").format(sql.Identifier(table)).as_string(),
            )
            total += int(result.rows[0][0] or 0)
        return total

    @asynccontextmanager
    async def shuffled(self, organisation: str) -> AsyncIterator[Run]:
        """Run statements over the same rows in another physical order, and grouped otherwise.

        Temporary tables hide the organisation's for the length of the block. What a statement
        answers differently here, its SQL leaves open.
        """
        await self._enter(organisation)
        async with self._connection.transaction(force_rollback=True):
            found = await self._connection.execute(
                "SELECT tablename FROM pg_tables WHERE schemaname = %s", (organisation,)
            )
            for (name,) in await found.fetchall():
                names = {"copy": sql.Identifier("pg_temp", name)}
                names["table"] = sql.Identifier(organisation, name)
                await self._connection.execute(
                    sql.SQL("CREATE TABLE {copy} (LIKE {table} INCLUDING INDEXES)").format(**names)
                )
                await self._connection.execute(
                    sql.SQL("INSERT INTO {copy} SELECT * FROM {table} ORDER BY random()").format(
                        **names
                    )
                )
            # A hash table gives its groups in the same order, in whichever the rows went in.
            await self._connection.execute(
                "SELECT set_config('enable_hashagg', (random() < 0.5)::text, true)"
            )
            yield partial(fetch, self._connection)

    async def _enter(self, organisation: str) -> None:
        if self._schema != organisation:
            await self._connection.execute(_with("SET search_path = {}", organisation))
            self._schema = organisation


@asynccontextmanager
async def open_reference(data_dir: Path) -> AsyncIterator[Reference]:
    """Start an embedded PostgreSQL of the reference's own in ``data_dir``, and stop it after.

    Raises ``oar_proxy.hub.address.HubError`` when it cannot be started.
    """
    async with (
        embedded_hub(HubSettings(data_dir=data_dir)) as server,
        await psycopg.AsyncConnection.connect(
            server.conninfo, dbname="postgres", autocommit=True
        ) as connection,
    ):
        yield Reference(connection)


def gold_statement(question: Question) -> str | None:
    """Return the gold SQL in PostgreSQL's dialect; None where there is none or it does not parse.

    That is the one the benchmark gives, else the transpiled SQLite statement.
    """
    if question.gold_sql_postgres:
        return question.gold_sql_postgres
    return None if not question.gold_sql else to_postgres(question.gold_sql)


def to_postgres(statement: str) -> str | None:
    """Transpile one SQLite statement; None where it is not exactly one that parses."""
    try:
        statements = sqlglot.transpile(statement, read="sqlite", write="postgres")
    except (SqlglotError, RecursionError):
        return None
    return statements[0] if len(statements) == 1 else None


def _with(template: Any, name: str) -> sql.Composed:
    return sql.SQL(template).format(sql.Identifier(name))


def _open(file: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True)


def _parts(file: Path) -> Iterator[_Part]:
    with closing(_open(file)) as database:
        tables = database.execute(
            "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite\\_%' "
            "ESCAPE '\\' ORDER BY rowid"
        ).fetchall()
        for (table,) in tables:
            described = database.execute(
                "SELECT name, type, pk FROM pragma_table_info(?)", (table,)
            ).fetchall()
            key = sorted((pk, name) for name, _, pk in described if pk)
            yield _Part(
                file,
                table,
                tuple((name, published_type(declared)) for name, declared, _ in described),
                tuple(name for _, name in key),
            )


def _rows(part: _Part) -> Iterator[tuple[Any, ...]]:
    names = ", ".join('"' + name.replace('"', '""') + '"' for name, _ in part.columns)
    table = '"' + part.source.replace('"', '""') + '"'
    with closing(_open(part.file)) as database:
        yield from database.execute(f"SELECT {names} FROM {table}")


async def judge(
    reference: Reference, organisation: str, statement: str, got: Result, want: Result
) -> Comparison:
    """Compare an answer with the reference's; where they differ, see whether SQL leaves it open.

    A LIMIT inside a statement may pick any of the tied rows, and the whole answer follows from
    the pick. The answer passes when the reference itself gives it over its own rows in another
    order; a statement whose answer is determined gives no other, however often that is tried.
    """
    verdict = await compare(statement, got, want, partial(reference.run, organisation))
    for _ in range(SHUFFLES if verdict.verdict is Verdict.DIFFERENT else 0):
        # Another pick can also make the statement fail; that is not the answer either.
        with contextlib.suppress(psycopg.Error):
            async with reference.shuffled(organisation) as run:
                again = await compare(statement, got, await run(statement), run)
            if again.verdict is not Verdict.DIFFERENT:
                return Comparison(Verdict.EQUAL_WITH_TIES)
    return verdict
