"""Decisions under one owner's policy: pure functions from policy and request to decision.

The words are XACML's: a decision permits or denies, names the rule that decided, and may carry an
obligation (the number of keys that must not be passed). Deny wins over permit: a grant never
opens a hidden column. Among the grants of ``key_disclosure`` the first that matches decides.

Rule ids are stable for one text of a policy: ``owner/key_disclosure[1]`` is the second entry.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import TypeVar

from oar_policies.model import Form, Grant, Mark, Policy, Subject
from oar_policies.names import write_name


@dataclass(frozen=True, slots=True)
class Decision:
    """Permit or deny, and the rule that decided."""

    permit: bool
    rule: str


@dataclass(frozen=True, slots=True)
class EdgeDecision:
    """Whether keys of a column may leave for a receiver, or reach it.

    ``max_keys`` and ``min_keys`` are the obligations of a permit: one query must not carry more, or
    fewer unless it carries none (None: the policy sets no number); ``form`` is how they travel.
    ``condition``, of a denial, is what the grant whose rule it names lacks: under another one it
    would permit the same.
    """

    permit: bool
    rule: str
    max_keys: int | None = None
    min_keys: int | None = None
    condition: str | None = None
    form: Form = "plain"


@dataclass(frozen=True, slots=True)
class Unmatched:
    """A name in a policy that nothing the owner publishes answers to: a likely misspelling."""

    name: str
    mark: Mark
    table: str


def decide_table(policy: Policy, table: str) -> Decision:
    """Decide whether a table is published at all."""
    rule = policy.tables.get(table)
    if rule is None and policy.default_deny:
        return Decision(False, f"{policy.owner}/default")
    if rule is not None and rule.deny:
        return Decision(False, f"{policy.owner}/tables.{write_name(table)}.deny")
    return Decision(True, f"{policy.owner}/default permit")


def decide_subject(policy: Policy, subject: Subject, today: date) -> Decision:
    """Decide whether a subject may ask this owner for anything. ``today`` is the day in UTC."""
    if policy.expires is not None and today > policy.expires.day:
        return Decision(False, f"{policy.owner}/expires")
    if policy.subjects is None:
        return Decision(True, f"{policy.owner}/default permit")
    known = subject.roles | {subject.principal}
    return Decision(not policy.subjects.isdisjoint(known), f"{policy.owner}/subjects")


def decide_column(policy: Policy, table: str, column: str) -> Decision:
    """Decide whether a column is published."""
    decision = decide_table(policy, table)
    if not decision.permit:
        return decision
    rule = policy.tables.get(table)
    if rule is not None and column in rule.deny_columns:
        return Decision(False, f"{policy.owner}/tables.{write_name(table)}.deny_columns")
    return decision


def table_visible(policy: Policy, table: str) -> bool:
    """Tell whether a table is published."""
    return decide_table(policy, table).permit


def column_visible(policy: Policy, table: str, column: str) -> bool:
    """Tell whether a column is published."""
    return decide_column(policy, table, column).permit


def decide_edge(
    policy: Policy, *, table: str, column: str, receiver: str, subject: Subject, today: date
) -> EdgeDecision:
    """Decide whether values of ``table.column`` may leave as join keys for owner ``receiver``.

    ``today`` is the day in UTC.
    """
    visible = decide_column(policy, table, column)
    if not visible.permit:
        return EdgeDecision(False, visible.rule)
    section = f"{policy.owner}/key_disclosure"
    matching = [
        g for g in enumerate(policy.key_disclosure) if g[1].matches(table, column, receiver)
    ]
    number, grant, condition = _first(matching, subject, today)
    if grant is None:
        return EdgeDecision(False, f"{policy.owner}/default deny")
    if condition is not None:
        return EdgeDecision(False, f"{section}[{number}].{condition}", condition=condition)
    return EdgeDecision(
        True, f"{section}[{number}]", grant.max_keys, grant.min_keys, form=grant.form
    )


def decide_acceptance(
    policy: Policy, *, table: str, column: str, sender: str, subject: Subject, today: date
) -> EdgeDecision:
    """Decide whether join keys of owner ``sender`` may be compared with ``table.column`` here."""
    if policy.accept_keys is None:
        return EdgeDecision(True, f"{policy.owner}/default permit")
    section = f"{policy.owner}/accept_keys"
    number, grant, condition = _first(
        [g for g in enumerate(policy.accept_keys) if g[1].matches(table, column, sender)],
        subject,
        today,
    )
    if grant is None:
        return EdgeDecision(False, section)
    if condition is not None:
        return EdgeDecision(False, f"{section}[{number}].{condition}", condition=condition)
    return EdgeDecision(True, f"{section}[{number}]", grant.max_keys)


_G = TypeVar("_G", bound=Grant)


def _first(
    matching: Sequence[tuple[int, _G]], subject: Subject, today: date
) -> tuple[int, _G | None, str | None]:
    """The first grant that holds; else the first, with the condition that it does not meet."""
    lacking = [(number, grant, _lacks(grant, subject, today)) for number, grant in matching]
    holding = (each for each in lacking if each[2] is None)
    return next(holding, lacking[0] if lacking else (0, None, None))


def _lacks(grant: Grant, subject: Subject, today: date) -> str | None:
    if grant.expires is not None and today > grant.expires:
        return "expires"
    if grant.purposes is not None and subject.purpose not in grant.purposes:
        return "purpose"
    return None


def decide_rows_to_model(policy: Policy) -> Decision:
    """Decide whether rows of this owner may stand in a prompt of a language model."""
    if policy.rows_to_model:
        return Decision(True, f"{policy.owner}/model.rows")
    return Decision(False, f"{policy.owner}/default deny")


def unmatched(policy: Policy, published: Mapping[str, Collection[str]]) -> tuple[Unmatched, ...]:
    """List the policy's table and column names that are not in ``published`` (table → columns).

    ``published`` is everything the owner has, before this policy hides any of it.
    """
    return tuple(
        Unmatched(write_name(*name), mark, name[0])
        for name, mark in _named(policy)
        if name[0] not in published or not set(name[1:]) <= set(published[name[0]])
    )


def _named(policy: Policy) -> Iterator[tuple[tuple[str, ...], Mark]]:
    for table, rule in policy.tables.items():
        yield (table,), rule.mark
        ruled = ((name, each.mark) for name, each in rule.columns.items())
        grouped = () if rule.min_group is None else ((rule.min_group.entity, rule.min_group.mark),)
        named = (*rule.deny_columns.items(), *rule.require_filter.items(), *ruled, *grouped)
        for column, mark in named:
            yield (table, column), mark
    for grant in (*policy.key_disclosure, *(policy.accept_keys or ())):
        if grant.column.table is not None:
            name = (grant.column.table, grant.column.column)
            yield tuple(part for part in name if part is not None), grant.mark
