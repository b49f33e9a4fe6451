"""The protocols by name, OAR and OAR+ among them, and what runs one of them for one question."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from oar_proxy.drafters.model import Model
from oar_proxy.errors import RunStopped
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
from oar_proxy.protocols.routing import Drafted, draft
from oar_proxy.route import RouteKind


@dataclass(frozen=True, slots=True)
class Routed:
    """OAR: one draft over the public catalog decides which of two protocols gets the question."""

    relay: Relay


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
    routing: Drafted | None = None

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


async def answer(
    protocol: str,
    inquiry: Inquiry,
    model: Model,
    owners: OwnerQueries,
    *,
    progress: Callable[[OwnerQuery], None] = lambda _: None,
) -> Run:
    """Run a protocol for a question; ``progress`` is told of each query when it is over.

    Raises ``KeyError`` for another name than those of :data:`PROTOCOLS`, and ``OarError`` for what
    says nothing about the protocol: a model or a ledger that cannot be reached.
    """
    chosen = PROTOCOLS[protocol]
    calls: list[Call] = []
    routing: Drafted | None = None
    if isinstance(chosen, Routed):
        routing = await draft(inquiry, model)
        calls.append(routing.call)
        relay = routing.route.kind is RouteKind.RELAY
        strategy: Strategy = chosen.relay if relay else FAN_OUT
    else:
        strategy = chosen
    kappa = None if routing is None else routing.cover.kappa
    reason: str | None = None
    rows: Rows | None = None
    outcome: Outcome
    async with owners.sit(
        inquiry.question, inquiry.catalog, protocol, strategy.name, kappa
    ) as sitting:
        attempt = Attempt(inquiry, model, sitting, calls, progress=progress)
        try:
            rows = (await strategy.run(attempt)).rows
            outcome = "abstained" if rows is None else "answered"
        except Stopped as stopped:
            outcome, reason = "stopped", str(stopped)
            sitting.unanswered = RunStopped.sqlstate
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
