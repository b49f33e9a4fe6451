"""Calls of a model that choose a protocol from what is published, before any owner is asked."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from oar_proxy.catalog import Catalog, TableName
from oar_proxy.cover import Cover, cover
from oar_proxy.drafters.model import Model, UnusableReply, parse_reply
from oar_proxy.errors import NoValidDraft
from oar_proxy.prompt import messages
from oar_proxy.protocols import prompts
from oar_proxy.protocols.attempt import Call, Inquiry, ReplyT, Stopped, read, schemas
from oar_proxy.route import Route, route
from oar_proxy.sql.parse import parse
from oar_proxy.sql.text import SyntaxFault

Choice = Literal["fan-out", "relay"]


@dataclass(frozen=True, slots=True)
class Drafted:
    """A draft, its owner cover, the route it leads to; ``draft`` is None without a usable one."""

    draft: str | None = field(repr=False)
    cover: Cover[TableName]
    route: Route
    call: Call


async def draft(inquiry: Inquiry, model: Model) -> Drafted:
    """Draft over the public catalog of the owners that can be reached: what OAR routes by.

    A reply of no use leaves the cover empty, a draft that cannot be read leaves it undefined.
    Raises ``DrafterUnavailable``.
    """
    catalog = inquiry.catalog.held_by(inquiry.contacts.reachable)
    chat = tuple(messages(inquiry.question.normalised, catalog, ()))
    reply: str | None = None
    sql: str | None = None
    try:
        reply = await model.reply(chat)
        sql = parse_reply(reply).sql.strip() or None
    except (UnusableReply, NoValidDraft):
        pass  # malformed: the question goes to fan-out
    needed = _cover(sql, catalog)
    return Drafted(sql, needed, route(needed), Call("draft", chat, reply))


async def choose(inquiry: Inquiry, model: Model) -> Choice | None:
    """Have the model choose between fan-out and relay; None for a reply that does not say.

    Raises ``DrafterUnavailable``.
    """
    chosen = await _consult(inquiry, model, prompts.SELF, prompts.Chosen)
    return None if chosen is None else chosen.protocol


async def name_owners(inquiry: Inquiry, model: Model) -> tuple[str, ...] | None:
    """Have the model name the owners that are needed; None for a reply that does not say.

    Raises ``DrafterUnavailable``.
    """
    needed = await _consult(inquiry, model, prompts.ASK, prompts.Needed)
    return None if needed is None else tuple(needed.owners)


async def _consult(
    inquiry: Inquiry, model: Model, system: str, form: type[ReplyT]
) -> ReplyT | None:
    material = {
        "question": inquiry.question.normalised,
        "owners": schemas(inquiry.catalog, inquiry.contacts.reachable),
    }
    try:
        return read(await model.reply(prompts.chat(system, material)), form)
    except (UnusableReply, Stopped):
        return None


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
