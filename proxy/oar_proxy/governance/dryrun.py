"""Planning without a proxy: the real compiler and gate, over a hub started for it.

A statement is recognised, planned and decided about as in a proxy, up to the point where its
queries would be written on the ledger: there is none, so no owner is asked for a row.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import NoReturn

import psycopg
from oar_adapters.interface import Adapter, OwnerError, OwnerErrorKind, OwnerSchema
from oar_adapters.recorded import RecordedAdapter
from oar_policies.model import Policy, Subject
from psycopg.rows import TupleRow

from oar_proxy import gate as gates
from oar_proxy.catalog import Catalog
from oar_proxy.compile import Compiler
from oar_proxy.decision import Decisions
from oar_proxy.errors import FeatureNotSupported, OarError
from oar_proxy.gate import Gate
from oar_proxy.hub.access import admin_pool
from oar_proxy.hub.address import HubAddress
from oar_proxy.hub.bootstrap import CLIENT_ROLE
from oar_proxy.hub.planner import Planner
from oar_proxy.hub.publication import publish, publishing
from oar_proxy.hub.session import HubSession, prepare
from oar_proxy.inspection import TIMEOUT, configured_policies, open_owner, read_catalog
from oar_proxy.ledger import Ask, Ledger, digest
from oar_proxy.plan import Plan, keyless_scan
from oar_proxy.publishing import publication
from oar_proxy.recognition import recognise
from oar_proxy.sessionstate import SessionState
from oar_proxy.settings import ConfigurationError, Settings
from oar_proxy.sql.parse import parse
from oar_proxy.sql.text import SyntaxFault
from oar_proxy.unreadable import scratch_hub


@dataclass(frozen=True, slots=True)
class Refusal:
    """What a client would get instead of an answer."""

    sqlstate: str
    message: str
    detail: str | None = None
    hint: str | None = None


@dataclass(frozen=True, slots=True)
class Owners:
    """The owners of a configuration: how to plan for each, what it has, and where that is seen."""

    adapters: Mapping[str, Adapter]
    catalog: Mapping[str, tuple[str, OwnerSchema]]


@asynccontextmanager
async def open_owners(settings: Settings, catalog: Path | None) -> AsyncIterator[Owners]:
    """Ask the owners what they have, or read it from a catalog file; no row is asked for.

    Raises ``ConfigurationError``, and ``OwnerError`` for an owner that cannot be reached.
    """
    adapters: dict[str, Adapter] = {}
    async with AsyncExitStack() as stack:
        recorded = None if catalog is None else read_catalog(catalog)
        for name, owner in settings.owners.items():
            if recorded is not None:
                if name not in recorded:
                    raise ConfigurationError(f"catalog file {catalog}: it has no owner {name}")
                adapters[name] = RecordedAdapter(recorded[name])
                continue
            adapters[name] = open_owner(name, owner)
            stack.push_async_callback(adapters[name].close)
        contents = await asyncio.gather(*(_content(*each) for each in adapters.items()))
        schemas = (owner.published_schema or name for name, owner in settings.owners.items())
        told = zip(schemas, contents, strict=True)
        yield Owners(adapters, dict(zip(adapters, told, strict=True)))


async def _content(owner: str, adapter: Adapter) -> OwnerSchema:
    try:
        async with asyncio.timeout(TIMEOUT):
            return await adapter.schema()
    except OwnerError as error:
        raise OwnerError(error.kind, f"owner {owner}: {error.what}", error.sqlstate) from error
    except TimeoutError:
        reason = f"owner {owner}: no answer within {TIMEOUT:.0f} seconds"
        raise OwnerError(OwnerErrorKind.TIMEOUT, reason) from None


@asynccontextmanager
async def open_dry_run(settings: Settings, catalog: Path | None) -> AsyncIterator[DryRun]:
    """Start a hub and publish to it what the configured policies leave.

    Raises ``ConfigurationError``, ``OwnerError`` and ``HubError``.
    """
    policies = configured_policies(settings)
    async with AsyncExitStack() as stack:
        owners = await stack.enter_async_context(open_owners(settings, catalog))
        address, planner = await stack.enter_async_context(scratch_hub())
        dry = DryRun(settings, policies, owners, planner)
        await dry.publish(address)
        dry.session = await stack.enter_async_context(await _client(address))
        yield dry


async def _client(address: HubAddress) -> psycopg.AsyncConnection[TupleRow]:
    connection = await psycopg.AsyncConnection.connect(address.conninfo, autocommit=True)
    prepare(connection)
    await connection.execute(f"SET ROLE {CLIENT_ROLE}".encode())
    return connection


class DryRun:
    """What a proxy would decide, for any subject on any day."""

    session: psycopg.AsyncConnection[TupleRow]
    """A client's, opened once everything is published."""

    def __init__(
        self, settings: Settings, policies: Mapping[str, Policy], owners: Owners, planner: Planner
    ) -> None:
        self.policies = policies
        self.owners = owners
        self.catalog = Catalog()
        self._planner = planner
        self._day = gates.utc_today()
        self._gate = Gate(policies, Ledger(""), settings.limits, today=lambda: self._day)
        self._compiler = Compiler(owners.adapters, self._gate, planner)

    async def publish(self, address: HubAddress) -> None:
        """Publish what the policies leave. Raises ``ConfigurationError``, ``HubError``."""
        published = await publication(
            self.owners.catalog, self.owners.adapters, self._gate, self._planner
        )
        for it in published.unpublished:
            source = self.policies[it.owner].source
            place = f"{source}:{it.mark.line}:{it.mark.column}"
            raise ConfigurationError(f"{place}: table {it.table}: {it.reason}")
        self._gate.replace_filters(published.filters)
        async with admin_pool(address, size=1) as pool, publishing(pool) as connection:
            self.catalog = (await publish(connection, published.catalog)).catalog

    def decisions(self, subject: Subject, day: date | None) -> Decisions:
        """Return what the policies say to a subject on a day (None: today)."""
        self._day = day or gates.utc_today()
        return self._gate.decisions(subject)

    async def plan(self, text: str, subject: Subject, day: date | None) -> Plan | Refusal | None:
        """Plan one statement and have the gate review it; None: it reads nothing published."""
        self._day = day or gates.utc_today()
        try:
            return await self._plan(text, subject)
        except OarError as error:
            return Refusal(error.sqlstate, error.message, error.detail, error.hint)
        except psycopg.Error as error:
            told = error.diag
            message = told.message_primary or "the hub was lost"
            return Refusal(
                error.sqlstate or "58000", message, told.message_detail, told.message_hint
            )

    async def _plan(self, text: str, subject: Subject) -> Plan | None:
        link = HubSession(self.session, subject)
        try:
            statements = parse(text)
        except SyntaxFault:
            statements = ()
        if len(statements) > 1:
            raise FeatureNotSupported("a dry run takes one statement at a time")
        recognised = None
        if statements:
            recognised = await recognise(text, link, self.catalog, _drafts_nothing)
            if statements[0].kind != "SelectStmt":
                raise FeatureNotSupported("a dry run takes a SELECT")
        # Names, types and privileges are the hub's to check: also those of what is hidden.
        guard = text if recognised is None else recognised.guard_sql
        await self.session.execute(f"EXPLAIN {guard}".encode())
        if recognised is None or recognised.statement is None:
            return None
        plan = await self._compiler.plan(recognised.statement, {})
        self._gate.review(_ask(plan, subject), list(_steps(plan)))
        return plan


async def _drafts_nothing(_text: str, _state: SessionState) -> NoReturn:
    raise FeatureNotSupported(
        "a dry run drafts no question", hint="give it the SQL that oar_explain shows as the draft"
    )


def _ask(plan: Plan, subject: Subject) -> Ask:
    return Ask(
        id=uuid.uuid4(),
        principal=subject.principal,
        statement=digest(plan.statement.written),
        kind="sql",
        route=plan.route.kind.value,
        kappa=plan.cover.kappa,
        catalog_version=plan.statement.catalog.version,
        roles=subject.roles,
        purpose=subject.purpose,
    )


def _steps(plan: Plan) -> Iterator[gates.Step]:
    """Yield the queries of a plan, each of their edges without a key as yet."""
    if plan.whole is not None and plan.whole_query is not None:
        yield gates.Step(plan.whole.owner, plan.whole_query, "", checked=plan.checked)
    for step in plan.steps:
        edges = (column.edge for used in step.all_edges for column in used.columns)
        bound = (gates.BoundEdge(edge, 0, (0,) * len(edge.origins)) for edge in edges)
        yield gates.Step(step.owner, keyless_scan(step), "", tuple(bound), plan.checked)
