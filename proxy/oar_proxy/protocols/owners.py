"""Queries that a model wrote, sent to the one owner they are for: by the line, through the gate.

The query is compiled like every statement, over what that owner publishes and nothing else: it goes
whole where the owner gives PostgreSQL's answer, and the hub evaluates it over scans where not. The
gate decides about the values it carries as about every key, and about rows a model may see.
"""

from __future__ import annotations

import math
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

import psycopg
import structlog
from oar_policies.model import Subject
from psycopg import AsyncConnection, sql
from psycopg.rows import TupleRow
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from oar_proxy import answer as answers
from oar_proxy.catalog import Catalog
from oar_proxy.compile import Compiler, meaning
from oar_proxy.decision import KeyOrigin
from oar_proxy.drafters import Draft
from oar_proxy.errors import (
    FeatureNotSupported,
    HubConnectionLost,
    InsufficientPrivilege,
    Unanswerable,
    refusal_of,
    sqlstate_of,
)
from oar_proxy.fetch import OpenAsk, OwnerAccess
from oar_proxy.gate import BoundEdge
from oar_proxy.hub.address import HubAddress
from oar_proxy.hub.bootstrap import CLIENT_ROLE
from oar_proxy.hub.planner import Planner
from oar_proxy.hub.session import HubSession, Scalar, Size, prepare
from oar_proxy.ledger import SUCCESS, Ask, Ledger, StepOutcome, digest
from oar_proxy.memory import Account, Memory
from oar_proxy.moment import Moment
from oar_proxy.protocols.literals import Seen
from oar_proxy.question import Question
from oar_proxy.recognition import guard_text, recognise
from oar_proxy.run import Allowance, run
from oar_proxy.sessionstate import SessionState
from oar_proxy.settings import Limits
from oar_proxy.sql.parse import parse, parse_one
from oar_proxy.sql.parsed import Parsed
from oar_proxy.sql.text import SyntaxFault, without_comments
from oar_proxy.sql.tree import most_rows
from oar_proxy.statement import FederatedStatement

log = structlog.get_logger(__name__)

CONNECTIONS: Final = 8
"""Hub connections of all protocols together: a fan-out takes one for each owner it waits for."""


@dataclass(frozen=True, slots=True)
class Result:
    """Rows of one owner. ``truncated``: it has more. ``keys``: values carried, by their owner.

    ``withheld`` says which groups are not among them, where its policy shows large ones only.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[Scalar, ...], ...] = field(repr=False)
    truncated: bool
    keys: tuple[tuple[str, int], ...]
    withheld: str | None = None


class OwnerQueries:
    """What protocols ask owners through. One for the proxy; an asynchronous context manager."""

    def __init__(
        self,
        address: HubAddress,
        *,
        access: OwnerAccess,
        ledger: Ledger,
        planner: Planner,
        compiler: Compiler,
        memory: Memory,
        limits: Limits,
    ) -> None:
        self.access = access
        self.ledger = ledger
        self.planner = planner
        self.compiler = compiler
        self.memory = memory
        self.limits = limits
        self._pool: AsyncConnectionPool[AsyncConnection[TupleRow]] = AsyncConnectionPool(
            address.session,
            kwargs={"application_name": "oar protocols"},
            configure=self._configure,
            min_size=0,
            max_size=CONNECTIONS,
            timeout=limits.statement_timeout,
            open=False,
            name="oar protocols",
        )

    async def __aenter__(self) -> OwnerQueries:
        await self._pool.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._pool.close()

    async def _configure(self, connection: AsyncConnection[TupleRow]) -> None:
        prepare(connection)
        await connection.set_read_only(True)
        await connection.set_autocommit(True)
        await connection.execute(
            sql.SQL("SET statement_timeout = {}").format(
                sql.Literal(f"{math.ceil(self.limits.statement_timeout * 1000)}ms")
            )
        )
        await connection.execute(sql.SQL("SET ROLE {}").format(sql.Identifier(CLIENT_ROLE)))
        await connection.set_autocommit(False)

    def open_to(self, question: Question, catalog: Catalog) -> Catalog:
        """Return the tables of owners that whoever asks may ask."""
        decisions = self.access.gate.decisions(question.subject)
        return catalog.without([o for o in self.access.adapters if not decisions.asks(o).permit])

    def refusal(self, owner: str) -> str | None:
        """Return why a model may not see rows of an owner, None where it may."""
        decision = self.access.gate.rows_to_model(owner)
        if decision.permit:
            return None
        return f"owner {owner} does not let a model read its rows: rule {decision.rule}"

    @asynccontextmanager
    async def session(self, subject: Subject) -> AsyncIterator[HubSession]:
        """Hold a hub session in a read-only transaction, undone at the end of the block."""
        try:
            async with (
                self._pool.connection() as connection,
                connection.transaction(force_rollback=True),
            ):
                yield HubSession(connection, subject)
        except PoolTimeout as error:
            raise HubConnectionLost("the hub gave no connection in time") from error

    @asynccontextmanager
    async def sit(
        self, question: Question, catalog: Catalog, protocol: str, route: str, kappa: int | None
    ) -> AsyncIterator[Sitting]:
        """Open an ask on the ledger for the length of the block; its outcome is written then."""
        ask = await self.ledger.open_ask(
            question.subject,
            digest(question.text),
            kind="question",
            route=route,
            kappa=kappa,
            catalog_version=catalog.version,
            protocol=protocol,
            application=question.settings.get("application_name", ""),
        )
        sitting = Sitting(self, ask, catalog, Seen(question.normalised))
        refusal = None
        started = time.monotonic()
        try:
            yield sitting
            sqlstate = SUCCESS if sitting.rows is not None else sitting.unanswered
        except BaseException as error:
            sqlstate, refusal = sqlstate_of(error), refusal_of(error)
            raise
        finally:
            await self.ledger.finish_ask(
                ask,
                sqlstate=sqlstate,
                rows=sitting.rows,
                finished=sitting.finished,
                refusal=refusal,
            )
            log.info(
                "protocol",
                ask=str(ask.id),
                principal=ask.principal,
                route=route,
                kappa=kappa,
                sqlstate=sqlstate,
                milliseconds=round((time.monotonic() - started) * 1000, 1),
            )


@dataclass
class Sitting:
    """One question's queries to owners.

    ``rows`` is how many the answer has, None for no answer; ``unanswered`` is the SQLSTATE then.
    """

    queries: OwnerQueries
    ask_entry: Ask
    catalog: Catalog
    seen: Seen
    rows: int | None = None
    unanswered: str = Unanswerable.sqlstate
    finished: list[StepOutcome] = field(default_factory=list)

    def refusal(self, owner: str) -> str | None:
        """See :meth:`OwnerQueries.refusal`."""
        return self.queries.refusal(owner)

    async def ask(self, owner: str, text: str, size: Size, *, shown: bool) -> Result:
        """Ask an owner what a model wrote.

        ``shown``: a model that writes further queries will see the rows. Raises ``OarError`` for
        whatever forbids it, with a message that a model may read.
        """
        self._require_readable(owner)
        catalog = self.catalog.held_by((owner,))
        parsed = _bounded(_own_query(text, catalog, owner), size.rows)
        tables = tuple(t.holders[0].table for t in catalog.tables.values())
        # Of the text as it was written: a mask's constant is its owner's.
        edges = self.seen.edges(parsed, owner, tables, size.rows + 1)
        try:
            async with self.queries.session(self.ask_entry.subject) as session:
                statement = await self._understood(parsed, catalog, session)
                result = await self._run(statement, edges, size, session)
                if shown:
                    await self._note(owner, statement, result)
        except psycopg.Error as error:
            if error.sqlstate is None:
                raise HubConnectionLost("the hub's connection was lost") from error
            # Not the hub's own words: beyond the analysis of names they can quote a row.
            raise FeatureNotSupported(
                f"the query failed: {type(error).__name__} {error.sqlstate}"
            ) from None
        self._require_readable(owner)
        return result

    def _require_readable(self, owner: str) -> None:
        refusal = self.refusal(owner)
        if refusal is not None:
            raise InsufficientPrivilege(
                refusal, hint=f"owner {owner} can allow it with model: {{rows: allow}}"
            )

    async def _understood(
        self, parsed: Parsed, catalog: Catalog, session: HubSession
    ) -> FederatedStatement:
        await session.enter(catalog.schemas)
        unsafe = await session.unsafe_functions(parsed)
        if unsafe:
            raise FeatureNotSupported(f"functions that may do more than compute: {unsafe}")
        # Looked up by name, they would be PostgreSQL's own; here they may be others.
        foreign = (await session.state()).foreign_names
        if foreign is not None:
            raise FeatureNotSupported(foreign)
        guarded = await guard_text(parsed.text, session, catalog)
        error = await self.queries.planner.check(guarded, meaning(await session.state()))
        if error is not None:
            raise FeatureNotSupported(error)
        recognised = await recognise(parsed.text, session, catalog, _no_question)
        statement = None if recognised is None else recognised.statement
        if statement is None or statement.others or statement.calls:
            raise FeatureNotSupported("the query reads something else than the owner's tables")
        return statement

    async def _run(
        self,
        statement: FederatedStatement,
        edges: Sequence[BoundEdge],
        size: Size,
        session: HubSession,
    ) -> Result:
        """Ask the owner a query that carries the keys of ``edges``, and the hub what is left."""
        seconds = self.queries.limits.statement_timeout
        ask = OpenAsk(self.ask_entry)
        account = Account(self.queries.memory)
        try:
            async with AsyncExitStack() as held:
                held.callback(account.close)
                plan = await self.queries.compiler.plan(statement, {})
                allowance = Allowance(seconds, account, Moment(held, seconds))
                gathered = await run(plan, ask, self.queries.access, allowance, written=edges)
                withheld = None
                if plan.withheld is not None:
                    withheld = await answers.told_of_withheld(plan.withheld, gathered, session)
                one = answers.one_owners_answer(plan, 0, account)
                if one is not None:
                    execution = one.of(gathered.of(one.number))
                else:
                    execution = answers.answer(plan.statement, gathered, 0, account)
                columns, kept, truncated = await session.rows(execution, size)
        finally:
            self.finished.extend(ask.finished)
        carried: dict[str, int] = {}
        for edge in edges:
            for source in dict.fromkeys(origin.owner for origin in edge.edge.origins):
                carried[source] = carried.get(source, 0) + edge.keys
        return Result(columns, kept, truncated, tuple(carried.items()), withheld)

    async def _note(self, owner: str, statement: FederatedStatement, result: Result) -> None:
        """Note where values come from: any column that is used, where they are computed."""
        used = tuple(
            KeyOrigin(owner, o.table.schema, o.table.name, column)
            for o in statement.occurrences
            # A number of rows is of the whole table.
            for column in o.columns or [c.name for c in o.table.columns]
        )
        found = await self.queries.compiler.origins(statement)
        origins = [used if origin is None else (KeyOrigin(owner, *origin),) for origin in found]
        for row in result.rows:
            for value, sources in zip(row, origins, strict=True):
                self.seen.add(value, sources)


async def _no_question(_text: str, _state: SessionState) -> Draft:
    raise FeatureNotSupported("an owner's query asks no question")


# --- what a model may send --------------------------------------------------------------------


def _own_query(text: str, catalog: Catalog, owner: str) -> Parsed:
    """Read one query over the owner's tables. Raises ``FeatureNotSupported``."""
    if 'u&"' in text.lower():
        raise FeatureNotSupported("names are written without Unicode escapes")
    try:
        statements = parse(without_comments(text))
    except SyntaxFault as fault:
        raise FeatureNotSupported(str(fault)) from None
    if len(statements) != 1:
        raise FeatureNotSupported("a query is exactly one statement")
    (parsed,) = statements
    written = parsed.targets or parsed.query_extent is None or parsed.locked
    if parsed.kind != "SelectStmt" or written:
        raise FeatureNotSupported("a query is a SELECT that only reads")
    if parsed.parameters or parsed.calls:
        raise FeatureNotSupported("a query has no parameters and asks no questions")
    if not parsed.relations:
        raise FeatureNotSupported(f"the query reads no table of owner {owner}")
    for relation in parsed.relations:
        named = [k for k in catalog.tables if k[1] == relation.name]
        if not any(relation.schema in (None, schema) for schema, _ in named):
            raise FeatureNotSupported(f'owner {owner} has no table "{relation.name}"')
    return parsed


def _bounded(parsed: Parsed, rows: int) -> Parsed:
    """Have the query end one row past those that are taken."""
    most = most_rows(parsed.node)
    if most is not None and most <= rows:
        return parsed
    if parsed.node.limitCount is None:
        text = f"{parsed.text}\nLIMIT {rows + 1}"
    else:
        text = f"SELECT * FROM (\n{parsed.text}\n) AS limited LIMIT {rows + 1}"
    return parse_one(text)
