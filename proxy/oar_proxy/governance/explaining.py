"""``oar policy explain``: what policies make of one statement, and what would change it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import date
from pathlib import Path
from typing import Any

from oar_policies.model import Subject

from oar_proxy import explain as plans
from oar_proxy.decision import Decisions, EdgeVerdict, KeyEdge
from oar_proxy.governance.dryrun import DryRun, Refusal, open_dry_run
from oar_proxy.governance.testing import edges_of
from oar_proxy.plan import Plan
from oar_proxy.settings import load


async def explain(
    config: Path, catalog: Path | None, sql: str, subject: Subject, day: date | None
) -> dict[str, Any]:
    """Explain a statement, as JSON's plain values; ``refused`` is among them where it is.

    Raises ``ConfigurationError``, ``OwnerError`` and ``HubError``.
    """
    async with open_dry_run(load(config), catalog) as dry:
        outcome = await dry.plan(sql, subject, day)
        if isinstance(outcome, Refusal):
            told = {name: getattr(outcome, name) for name in ("message", "detail", "hint")}
            return {"refused": {"sqlstate": outcome.sqlstate, **told}}
        if outcome is None:
            return {"route": None, "reason": "it reads nothing that is published"}
        return _document(outcome, dry, dry.decisions(subject, day))


def _document(plan: Plan, dry: DryRun, decisions: Decisions) -> dict[str, Any]:
    shown = plans.document(plan, dry.owners.adapters)
    return {
        "route": plan.route.kind.value,
        "reason": plan.route.reason,
        "owners": {owner: _limits(decisions, owner) for owner in sorted(plan.owners)},
        "keys": [
            _permitted(column.edge, column.verdict)
            for step in plan.steps
            for used in step.all_edges
            for column in used.columns
        ],
        "denied": [_denied(edge, verdict) for step in plan.steps for edge, verdict in step.denied],
        "rules": list(dict.fromkeys(rule for step in plan.steps for rule in step.rules)),
        "groups_shown": shown.get("Groups Shown", []),
        "not_reduced": list(dict.fromkeys(text for step in plan.steps for text in step.unreduced)),
        "rejected_orders": [o for o in shown.get("Orders", ()) if "Rejected" in o],
        "notes": list(plan.notes),
    }


def _limits(decisions: Decisions, owner: str) -> dict[str, Any]:
    """Return the limits of queries to an owner, each with its rule."""
    limits = {
        "rows": decisions.row_cap(owner),
        "bytes": decisions.byte_cap(owner),
        "queries": decisions.queries(owner),
        "keys": decisions.keys_in(owner),
    }
    return {
        name: {"at_most": limit.number, "rule": limit.rule}
        for name, limit in limits.items()
        if limit is not None
    }


def _edge(edge: KeyEdge) -> dict[str, Any]:
    ends = list(edges_of(edge))
    receiver = ends[0].receiver.name if ends else edge.receiver
    return {"from": [end.sender.name for end in ends] or [edge.receiver], "to": receiver}


def _permitted(edge: KeyEdge, verdict: EdgeVerdict) -> dict[str, Any]:
    told = {
        **_edge(edge),
        "rule": verdict.rule,
        "form": verdict.form,
        "at_most": verdict.max_keys,
        "at_most_rule": verdict.limit_rule,
    }
    if verdict.min_keys:
        told |= {"at_least": verdict.min_keys, "at_least_rule": verdict.least_rule}
    return told


def _denied(edge: KeyEdge, verdict: EdgeVerdict) -> dict[str, Any]:
    return {
        **_edge(edge),
        "rule": verdict.rule,
        "reason": verdict.reason,
        "remedy": verdict.remedy,
    }


def lines(told: Mapping[str, Any]) -> Iterator[str]:
    """Write an explanation for people."""
    refused = told.get("refused")
    if refused is not None:
        yield f"Refused: {refused['message']} [{refused['sqlstate']}]"
        yield from (f"  {refused[name]}" for name in ("detail", "hint") if refused[name])
        return
    yield f"Route: {told['route'] or 'none'}: {told['reason']}"
    for owner, limits in told.get("owners", {}).items():
        listed = ", ".join(f"{n} {it['at_most']} ({it['rule']})" for n, it in limits.items())
        yield f"Owner {owner}: at most {listed}"
    for key in told.get("keys", ()):
        form = "" if key["form"] == "plain" else f" as {key['form']}"
        yield f"Keys{form}: {', '.join(key['from'])} -> {key['to']} (rule {key['rule']})"
        yield f"  at most {key['at_most']} ({key['at_most_rule']})"
        if "at_least" in key:
            yield f"  at least {key['at_least']} ({key['at_least_rule']})"
    for key in told.get("denied", ()):
        yield f"Denied: {', '.join(key['from'])} -> {key['to']} (rule {key['rule']})"
        yield f"  {key['reason']}"
        if key["remedy"]:
            yield f"  {key['remedy']}"
    yield from (f"Rule: {rule}" for rule in told.get("rules", ()))
    yield from (f"Groups shown: {text}" for text in told.get("groups_shown", ()))
    for order in told.get("rejected_orders", ()):
        asked = "; then ".join(", ".join(wave) for wave in order["Asks"])
        yield f"Rejected order: {asked}: {order['Rejected']}"
    yield from (f"Not reduced on {text}" for text in told.get("not_reduced", ()))
    yield from (f"Note: {text}" for text in told.get("notes", ()))
