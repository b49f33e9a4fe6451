"""Answers for a client's statement: a protocol run over all owners of what the client may read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from oar_proxy.asking import Answer, Asked
from oar_proxy.drafters.model import Model
from oar_proxy.errors import DrafterUnavailable, InsufficientPrivilege, RunStopped, Unanswerable
from oar_proxy.protocols.attempt import Inquiry, OwnerQuery
from oar_proxy.protocols.contacts import everyone
from oar_proxy.protocols.named import PROTOCOLS, Routed, Run, answer
from oar_proxy.protocols.owners import OwnerQueries
from oar_proxy.protocols.routing import Drafted, draft


class ProtocolAnswers:
    """Answers by protocol. See :class:`oar_proxy.asking.Answering`."""

    def __init__(self, owners: OwnerQueries, model: Model | None) -> None:
        """``model`` None: none is configured, and every question is refused."""
        self._owners = owners
        self._model = model

    async def answer(self, asked: Asked, progress: Callable[[str], None]) -> Answer:
        """Run the protocol.

        Raises ``InsufficientPrivilege`` where no owner lets a model read, ``Unanswerable``,
        ``RunStopped``, and whatever else ends a run.
        """
        model = self._required(asked)
        inquiry = self._inquiry(asked)
        await self._require_a_readable_owner(asked, inquiry)
        run = await answer(
            asked.protocol,
            inquiry,
            model,
            self._owners,
            progress=lambda query: progress(_told(query)),
        )
        if run.rows is None:
            raise self._failure(asked, run)
        return Answer(run.rows, _account(asked, run), tuple(map(_told, run.queries)))

    async def explain(self, asked: Asked, *, analyze: bool) -> dict[str, Any]:
        """Describe what a protocol would do, and with ``analyze`` what it did."""
        model = self._required(asked)
        inquiry = self._inquiry(asked)
        described: dict[str, Any] = {
            "Protocol": asked.protocol,
            "Model": model.name,
            "Budget": asked.budget,
            "Contacts": ", ".join(inquiry.contacts.initial) or "none",
        }
        refusals = [r for o in inquiry.contacts.initial if (r := self._owners.refusal(o))]
        if refusals:
            described["Not Readable"] = refusals
        if not analyze:
            if isinstance(PROTOCOLS[asked.protocol], Routed):
                described |= _routing(await draft(inquiry, model))
            return {**described, "Hub": "evaluates the statement over the rows of the answer"}
        await self._require_a_readable_owner(asked, inquiry)
        run = await answer(asked.protocol, inquiry, model, self._owners)
        if run.routing is not None:
            described |= _routing(run.routing)
        described["Queries"] = [_described(query) for query in run.queries]
        described["Actual Calls"] = len(run.calls)
        described["Actual Tokens"] = run.tokens
        described["Outcome"] = run.outcome if run.reason is None else f"stopped: {run.reason}"
        if run.rows is not None:
            described["Actual Rows"] = len(run.rows)
        return described

    def _required(self, asked: Asked) -> Model:
        if self._model is None:
            raise DrafterUnavailable(
                f"{asked.protocol} needs a language model, and none is configured",
                hint="SET oar.protocol = 'compiled', or have drafter.kind set to litellm",
            )
        return self._model

    def _inquiry(self, asked: Asked) -> Inquiry:
        catalog = self._owners.open_to(asked.question, asked.catalog)
        holders = {owner for table in catalog.tables.values() for owner in table.owners}
        if not holders:
            raise Unanswerable(
                "the question cannot be answered from the published tables: none may be read",
                hint="SELECT * FROM oar.tables lists what is published",
            )
        contacts = everyone([owner for owner in self._owners.access.adapters if owner in holders])
        return Inquiry(asked.question, catalog, contacts, asked.budget)

    async def _require_a_readable_owner(self, asked: Asked, inquiry: Inquiry) -> None:
        """Refuse a question that no owner's rows may be shown for; the ledger has the refusal."""
        owners = inquiry.contacts.initial
        refusals = [r for owner in owners if (r := self._owners.refusal(owner)) is not None]
        if len(refusals) < len(owners):
            return
        question, name = asked.question, asked.protocol
        async with self._owners.sit(question, asked.catalog, name, name, None):
            raise InsufficientPrivilege(
                f"no owner lets a model read its rows, which {name} has it do",
                detail="; ".join(refusals),
                hint=f"{_allow(owners)}; or SET oar.protocol = 'compiled', which shows no row",
            )

    def _failure(self, asked: Asked, run: Run) -> RunStopped | Unanswerable:
        """Say why there is no answer, and what could be changed where a policy was in the way."""
        detail = "; ".join(_told(q) for q in run.queries if not q.executed or q.truncated) or None
        refused = {q.owner for q in run.queries if not q.executed and self._refuses(q.owner)}
        hint = "ask in other words, or SET oar.protocol = 'compiled'"
        if refused:
            hint = _allow(sorted(refused))
        if run.reason is not None:
            message = f"{asked.protocol} ended without an answer: {run.reason}"
            return RunStopped(message, detail=detail, hint=hint)
        message = f"the question cannot be answered: {asked.protocol} abstained"
        return Unanswerable(message, detail=detail, hint=hint)

    def _refuses(self, owner: str) -> bool:
        return owner in self._owners.access.adapters and self._owners.refusal(owner) is not None


def _account(asked: Asked, run: Run) -> str:
    by = asked.protocol if run.routing is None else f"{asked.protocol}, which chose {run.strategy}"
    results = sum(query.executed for query in run.queries)
    return (
        f"answered by {by}, composed by a model: "
        f"rows={len(run.rows or ())} results={results} calls={len(run.calls)}"
    )


def _told(query: OwnerQuery) -> str:
    """What became of a query, without its text and its rows."""
    became = f"rows={len(query.rows)}" if query.executed else query.status
    truncated = " and more, which were not taken" if query.truncated else ""
    withheld = "" if query.withheld is None else f"; {query.withheld}"
    return f"query {query.number}, owner {query.owner}: {became}{truncated}{withheld}"


def _described(query: OwnerQuery) -> dict[str, Any]:
    described: dict[str, Any] = {f"Query {query.number}:": f"owner {query.owner}", "SQL": query.sql}
    if query.keys:
        described["Keys"] = ", ".join(f"{count} of owner {owner}" for owner, count in query.keys)
    if query.executed:
        described["Actual Rows"] = len(query.rows)
        if query.truncated:
            described["Truncated"] = True
    else:
        described["Status"] = query.status
    return described


def _routing(routing: Drafted) -> dict[str, Any]:
    return {
        "Draft": routing.draft or "none that can be used",
        "Owner Cover": routing.cover.kappa,
        "Route": routing.route.kind.value,
        "Reason": routing.route.reason,
    }


def _allow(owners: Sequence[str]) -> str:
    named = ", ".join(owners)
    return f"owner {named} can allow it with model: {{rows: allow}}"
