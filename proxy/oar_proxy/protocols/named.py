"""The protocols by name, OAR and OAR+ among them, and what runs one of them for one question."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from oar_proxy.catalog import Catalog, TableName
from oar_proxy.cover import Cover, cover
from oar_proxy.drafters.model import ChatModel, UnusableReply, parse_reply
from oar_proxy.errors import NoValidDraft
from oar_proxy.prompt import messages
from oar_proxy.protocols.attempt import (
    Attempt,
    Call,
    Inquiry,
    Outcome,
    OwnerQuery,
    Rows,
    Stopped,
    Strategy,
)
from oar_proxy.protocols.fanout import FanOut
from oar_proxy.protocols.owners import OwnerQueries
from oar_proxy.protocols.relay import Relay
from oar_proxy.route import Route, RouteKind, route
from oar_proxy.sql.parse import parse
from oar_proxy.sql.text import SyntaxFault


@dataclass(frozen=True, slots=True)
class Routed:
    """OAR: one draft over the public catalog decides which of two protocols gets the question."""

    relay: Relay


@dataclass(frozen=True, slots=True)
class Routing:
    """A draft and the route it led to, both made before any owner was asked."""

    draft: str | None
    cover: Cover[TableName]
    route: Route


@dataclass(frozen=True, slots=True)
class Run:
    """What a protocol made of a question, with its trace.

    ``rows`` are None unless it answered. ``reason`` says why it stopped, without a word of a row.
    ``strategy`` is the protocol that asked the owners. ``tokens`` were taken of the budget.
    """

    strategy: str
    outcome: Outcome
    rows: Rows | None = field(repr=False)
    reason: str | None
    calls: tuple[Call, ...]
    queries: tuple[OwnerQuery, ...]
    tokens: int
    routing: Routing | None = None

    @property
    def passed_key(self) -> bool:
        """Whether some query carried a value that another owner had returned."""
        return any(query.keys for query in self.queries)


FAN_OUT: Final = FanOut()
RELAY_PLUS: Final = Relay("relay+", as_produced=True)

PROTOCOLS: Final[Mapping[str, Strategy | Routed]] = MappingProxyType(
    {
        "fan-out": FAN_OUT,
        "relay": Relay(),
        "relay+": RELAY_PLUS,
        "planned": Relay("planned", planned=True),
        "relay+ without keys": Relay("relay+ without keys", as_produced=True, pass_keys=False),
        "relay+ without rows": Relay(
            "relay+ without rows", as_produced=True, pass_keys=False, show_rows=False
        ),
        "oar": Routed(Relay()),
        "oar+": Routed(RELAY_PLUS),
    }
)
"""The last two without ``oar`` are the paper's experiment on what relay's advantage comes from."""


async def answer(protocol: str, inquiry: Inquiry, model: ChatModel, owners: OwnerQueries) -> Run:
    """Run a protocol for a question.

    Raises ``KeyError`` for another name than those of :data:`PROTOCOLS`, and ``OarError`` for what
    says nothing about the protocol: a model or a ledger that cannot be reached.
    """
    chosen = PROTOCOLS[protocol]
    calls: list[Call] = []
    routing: Routing | None = None
    if isinstance(chosen, Routed):
        routing = await _routing(inquiry, model, calls)
        relay = routing.route.kind is RouteKind.RELAY
        strategy: Strategy = chosen.relay if relay else FAN_OUT
    else:
        strategy = chosen
    kappa = None if routing is None else routing.cover.kappa
    reason: str | None = None
    rows: Rows | None = None
    outcome: Outcome
    async with owners.sit(inquiry.question, inquiry.catalog, strategy.name, kappa) as sitting:
        attempt = Attempt(inquiry, model, sitting, calls)
        try:
            rows = (await strategy.run(attempt)).rows
            outcome = "abstained" if rows is None else "answered"
        except Stopped as stopped:
            outcome, reason = "stopped", str(stopped)
        sitting.rows = None if rows is None else len(rows)
    return Run(
        strategy.name,
        outcome,
        rows,
        reason,
        tuple(calls),
        tuple(attempt.queries),
        attempt.tokens,
        routing,
    )


async def _routing(inquiry: Inquiry, model: ChatModel, calls: list[Call]) -> Routing:
    """Draft and decide; a draft that says nothing of use leaves the cover undefined or empty."""
    catalog = inquiry.catalog.held_by(inquiry.contacts.reachable)
    chat = tuple(messages(inquiry.question.normalised, catalog, ()))
    reply: str | None = None
    draft: str | None = None
    try:
        reply = await model.reply(chat)
        draft = parse_reply(reply).sql.strip() or None
    except (UnusableReply, NoValidDraft):
        pass  # malformed: the question goes to fan-out
    calls.append(Call("draft", chat, reply))
    needed = _cover(draft, catalog)
    return Routing(draft, needed, route(needed))


def _cover(draft: str | None, catalog: Catalog) -> Cover[TableName]:
    """The owner cover of the tables in a draft's FROM clauses, those of subqueries included."""
    if draft is None:
        return cover((), {})
    try:
        statements = parse(draft)
    except SyntaxFault:
        return Cover(None, (), ())
    holders = {key: table.owners for key, table in catalog.tables.items()}
    tables: list[TableName] = []
    for statement in statements:
        for relation in statement.relations:
            named = [
                k for k in holders if k[1] == relation.name and relation.schema in (None, k[0])
            ]
            if len(named) != 1:
                return Cover(None, (), ())
            tables.append(named[0])
    return cover(tables, holders)
