"""One protocol at work on one question: its model calls, its queries to owners, its trace."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeVar

from pydantic import BaseModel

from oar_proxy.catalog import Catalog
from oar_proxy.drafters.model import Model, UnusableReply, unfenced
from oar_proxy.errors import (
    BudgetExceeded,
    HubConnectionLost,
    InternalError,
    LedgerUnavailable,
    OarError,
    OutOfMemory,
)
from oar_proxy.hub.session import Scalar, Size
from oar_proxy.prompt import Message, schema_text
from oar_proxy.protocols import prompts
from oar_proxy.protocols.contacts import Contacts
from oar_proxy.protocols.owners import Sitting
from oar_proxy.question import Question

Role = Literal["draft", "owner", "planner", "receiver"]
Outcome = Literal["answered", "abstained", "stopped"]
Rows = tuple[tuple[Scalar, ...], ...]

ReplyT = TypeVar("ReplyT", bound=BaseModel)


class Stopped(Exception):
    """The run is over without an answer, and counts as incorrect; the text says why."""


@dataclass(frozen=True, slots=True)
class Inquiry:
    """A question, what of the catalog may be seen, who may be asked, how many tokens may come.

    ``budget`` bounds the rows, queries and provenance that reach the receiver.
    """

    question: Question
    catalog: Catalog
    contacts: Contacts
    budget: int = 2048


@dataclass(frozen=True, slots=True)
class Call:
    """One call of the model. ``reply`` is None where no usable one came."""

    role: Role
    chat: tuple[Message, ...] = field(repr=False)
    reply: str | None = field(repr=False)


@dataclass(frozen=True, slots=True)
class OwnerQuery:
    """One query a model wrote, and what became of it.

    ``status`` is ``rows``, or in short why there are none. ``truncated``: there are more rows than
    these. ``keys`` counts the values of each other owner that it carried. ``withheld`` says which
    groups a policy leaves out.
    """

    number: int
    owner: str
    sql: str = field(repr=False)
    status: str
    columns: tuple[str, ...] = ()
    rows: Rows = field(default=(), repr=False)
    truncated: bool = False
    keys: tuple[tuple[str, int], ...] = ()
    withheld: str | None = None

    @property
    def executed(self) -> bool:
        """Whether rows came, none at all being a result too."""
        return self.status == "rows"

    def entry(self, *, sql: bool = False, rows: bool = True) -> dict[str, Any]:
        """Return what a model is told of it."""
        told: dict[str, Any] = {"query": self.number, "owner": self.owner}
        if sql:
            told["sql"] = self.sql
        if not self.executed or not rows:
            return {**told, "status": "executed" if self.executed else self.status}
        told |= {"columns": self.columns, "rows": self.rows}
        if self.withheld is not None:
            told["withheld"] = self.withheld
        return {**told, "truncated": True} if self.truncated else told


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a receiver made of the results: rows, or None where it abstains."""

    rows: Rows | None = field(repr=False)


@dataclass
class Attempt:
    """The state of one run: strategies work through it, and it keeps the trace."""

    inquiry: Inquiry
    model: Model
    owners: Sitting
    calls: list[Call]
    queries: list[OwnerQuery] = field(default_factory=list)
    tokens: int = 0
    """Of the budget, what the results that were charged so far took."""
    progress: Callable[[OwnerQuery], None] = lambda _: None
    """Told of each query when it is over."""

    async def consult(
        self, role: Role, system: str, material: Mapping[str, Any], form: type[ReplyT]
    ) -> ReplyT:
        """Call the model and read its reply. Raises :class:`Stopped`, ``DrafterUnavailable``."""
        chat = prompts.chat(system, {"question": self.inquiry.question.normalised, **material})
        try:
            reply = await self.model.reply(chat)
        except UnusableReply as error:
            self.calls.append(Call(role, chat, None))
            raise Stopped(f"{role}: {error.message}") from None
        self.calls.append(Call(role, chat, reply))
        try:
            return read(reply, form)
        except Stopped as stopped:
            raise Stopped(f"{role}: {stopped}") from None

    async def query(self, owner: str, sql: str, size: Size, *, shown: bool) -> OwnerQuery:
        """Send an owner what a model wrote for it; whatever forbids that becomes the status.

        ``shown``: whoever writes the next query sees the rows. Raises ``OarError`` only for what is
        no owner's and no model's fault.
        """
        number = len(self.queries) + 1
        place = OwnerQuery(number, owner, sql, "not sent")
        self.queries.append(place)
        try:
            result = await self.owners.ask(owner, sql, size, shown=shown)
        except (BudgetExceeded, HubConnectionLost, InternalError, LedgerUnavailable, OutOfMemory):
            raise
        except OarError as error:
            done = OwnerQuery(number, owner, sql, _one_line(error.message))
        else:
            done = OwnerQuery(
                number, owner, sql, "rows",
                result.columns, result.rows, result.truncated, result.keys, result.withheld,
            )  # fmt: skip
        self.queries[number - 1] = done
        self.progress(done)
        return done

    def note(self, owner: str, status: str) -> OwnerQuery:
        """Put a query on the trace that was not sent."""
        noted = OwnerQuery(len(self.queries) + 1, owner, "", status)
        self.queries.append(noted)
        self.progress(noted)
        return noted

    def publishes(self, owner: str) -> bool:
        """Whether an owner has any table; who has none may still refer to others."""
        return bool(self.inquiry.catalog.held_by((owner,)).tables)

    async def fits(self, entries: Sequence[Mapping[str, Any]], budget: int) -> bool:
        """Tell whether a list of results takes no more tokens than that; what it takes is noted."""
        size = await self.model.count_tokens(prompts.written(entries))
        if size > budget:
            return False
        self.tokens = size
        return True

    async def compose(self, material: Mapping[str, Any]) -> Verdict:
        """Have the receiver compose the answer."""
        composed = await self.consult("receiver", prompts.RECEIVER, material, prompts.Composed)
        if composed.unanswerable:
            return Verdict(None)
        return Verdict(tuple(tuple(row) for row in composed.answer_rows))


class Strategy(Protocol):
    """How a protocol gets from a question to a verdict."""

    @property
    def name(self) -> str:
        """What the ledger calls the route."""
        ...

    async def run(self, attempt: Attempt) -> Verdict:
        """Run to the end. Raises :class:`Stopped` and ``OarError``."""
        ...


def schemas(catalog: Catalog, owners: Sequence[str]) -> list[dict[str, str]]:
    """Return what owners publish, as a model reads it; who publishes nothing is left out."""
    texts = ((owner, schema_text(catalog.held_by((owner,)))) for owner in owners)
    return [{"owner": owner, "schema": text} for owner, text in texts if text]


def read(reply: str, form: type[ReplyT]) -> ReplyT:
    """Read a reply that has to be one JSON object of a form. Raises :class:`Stopped`."""
    try:
        return form.model_validate(json.loads(unfenced(reply), parse_constant=_no_json))
    except (ValueError, RecursionError):  # of JSON's as of the form's
        raise Stopped("the reply is not the JSON object it was asked for") from None


def _no_json(constant: str) -> None:
    """Refuse NaN and the infinities, which Python takes and JSON does not have."""
    raise ValueError(f"{constant} is not JSON")


def _one_line(text: str) -> str:
    return " ".join(text.split())[:300]
