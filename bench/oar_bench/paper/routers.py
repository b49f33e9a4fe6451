"""Routers: which of the paper's two protocols a question goes to, decided from what is saved.

A router reads a :class:`Case` and says whether the question goes to relay; None where what it
needs is not there (a call that ended without a reply), and the question is then left out. None of
them calls a model: Self and Ask read the reply that was saved.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from oar_proxy.cover import cover
from oar_proxy.route import RouteKind, route

from oar_bench.drafts import Draft, base_tables
from oar_bench.layout import Question
from oar_bench.paper.frozen import has_join, named_tables
from oar_bench.paper.runs import Run
from oar_bench.routing import gold_kappa

Holders = Mapping[str, tuple[str, ...]]

FAN_OUT: Final = "fan-out"
RELAY: Final = "relay"
DRAFT: Final = "draft"
SELF: Final = "self"
ASK: Final = "ask"


@dataclass(frozen=True, slots=True)
class Case:
    """One question as a router sees it; ``runs`` are its saved runs of one number by protocol."""

    question: Question
    holders: Holders
    draft: Draft | None = None
    runs: Mapping[str, Run] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Router:
    """``relays`` decides; ``call`` is the saved model call it costs, None for one without."""

    relays: Callable[[Case], bool | None]
    call: str | None = None


def covers_two(tables: frozenset[str] | None, holders: Holders) -> bool:
    """Tell whether κ of these tables is 2 or more; not where it is undefined."""
    return tables is not None and route(cover(sorted(tables), holders)).kind is RouteKind.RELAY


def draft_tables(draft: Draft) -> frozenset[str] | None:
    """Return what our parser, which resolves common table expressions, says a draft reads."""
    return base_tables(draft.sql, draft.dialect)


def _of_draft(decide: Callable[[Draft, Holders], bool]) -> Router:
    def relays(case: Case) -> bool | None:
        return None if case.draft is None else decide(case.draft, case.holders)

    return Router(relays, DRAFT)


def _oracle(case: Case) -> bool:
    """Route by the reference cover; unanswerable and unresolved questions go to fan-out."""
    return (gold_kappa(case.question, case.holders) or 0) >= 2


def _self(case: Case) -> bool | None:
    """Route by the protocol that the model chose from their descriptions."""
    reply = case.runs.get(SELF)
    return None if reply is None or reply.choice is None else reply.choice == RELAY


def _ask(case: Case) -> bool | None:
    """Relay where the model named two or more owners."""
    reply = case.runs.get(ASK)
    return None if reply is None or reply.owners is None else len(set(reply.owners)) >= 2


def _difficulty(case: Case) -> bool | None:
    """Relay what BIRD does not label simple."""
    difficulty = case.question.difficulty
    return None if difficulty is None else difficulty != "simple"


KAPPA_FROZEN: Final = "κ, paper's parser"
KAPPA: Final = "κ"

DRAFT_ROUTERS: Final[Mapping[str, Router]] = {
    KAPPA_FROZEN: _of_draft(lambda draft, holders: covers_two(named_tables(draft.sql), holders)),
    KAPPA: _of_draft(lambda draft, holders: covers_two(draft_tables(draft), holders)),
    "tables, paper's parser": _of_draft(lambda draft, _: len(named_tables(draft.sql)) >= 2),
    "tables": _of_draft(lambda draft, _: len(draft_tables(draft) or ()) >= 2),
    "JOIN": _of_draft(lambda draft, _: has_join(draft.sql)),
}
"""Those that need nothing but a draft. The first is the paper's OAR."""

DIFFICULTY: Final = "difficulty"
ORACLE: Final = "oracle"

ROUTERS: Final[Mapping[str, Router]] = {
    **DRAFT_ROUTERS,
    SELF: Router(_self, SELF),
    ASK: Router(_ask, ASK),
    DIFFICULTY: Router(_difficulty),
    ORACLE: Router(_oracle),
}


def protocols(router: Router, case: Case, relay: str = RELAY) -> tuple[str, ...] | None:
    """Return the saved runs a router spends on a question, in order; the last one answers.

    ``relay`` is its relay branch: Relay+ makes OAR+ of OAR. None where the router cannot decide.
    """
    relays = router.relays(case)
    if relays is None:
        return None
    call = () if router.call is None else (router.call,)
    return (*call, relay if relays else FAN_OUT)


def with_retry(spent: tuple[str, ...], case: Case, relay: str = RELAY) -> tuple[str, ...]:
    """Go on to relay where fan-out answered last and abstained or stopped."""
    run = case.runs.get(FAN_OUT)
    if spent[-1] == FAN_OUT and run is not None and run.rows is None:
        return (*spent, relay)
    return spent
