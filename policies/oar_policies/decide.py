"""Decisions under one owner's policy: pure functions from policy and request to decision.

The words are XACML's: a decision permits or denies, names the rule that decided, and may carry an
obligation (the number of keys that must not be passed). Deny wins over permit: a grant never
opens a hidden column. Among the grants of ``key_disclosure`` the first that matches decides.

Rule ids are stable for one text of a policy: ``owner/key_disclosure[1]`` is the second entry.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from oar_policies.model import Mark, Policy
from oar_policies.names import write_name


@dataclass(frozen=True, slots=True)
class Decision:
    """Permit or deny, and the rule that decided."""

    permit: bool
    rule: str


@dataclass(frozen=True, slots=True)
class EdgeDecision:
    """Whether keys of a column may leave for a receiver.

    ``max_keys`` is the obligation of a permit: one query must not carry more (None: the policy
    sets no number).
    """

    permit: bool
    rule: str
    max_keys: int | None


@dataclass(frozen=True, slots=True)
class KeysInDecision:
    """Whether a query may carry so many keys to an owner; ``max_keys`` None: no limit of its."""

    permit: bool
    rule: str
    max_keys: int | None


@dataclass(frozen=True, slots=True)
class Unmatched:
    """A name in a policy that nothing the owner publishes answers to: a likely misspelling."""

    name: str
    mark: Mark


def decide_table(policy: Policy, table: str) -> Decision:
    """Decide whether a table is published at all."""
    rule = policy.tables.get(table)
    if rule is not None and rule.deny:
        return Decision(False, f"{policy.owner}/tables.{write_name(table)}.deny")
    return Decision(True, f"{policy.owner}/default permit")


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


def decide_edge(policy: Policy, *, table: str, column: str, receiver: str) -> EdgeDecision:
    """Decide whether values of ``table.column`` may leave as join keys for owner ``receiver``."""
    visible = decide_column(policy, table, column)
    if not visible.permit:
        return EdgeDecision(False, visible.rule, None)
    for number, grant in enumerate(policy.key_disclosure):
        if grant.matches(table, column, receiver):
            return EdgeDecision(True, f"{policy.owner}/key_disclosure[{number}]", grant.max_keys)
    return EdgeDecision(False, f"{policy.owner}/default deny", None)


def decide_keys_in(policy: Policy, count: int) -> KeysInDecision:
    """Decide whether one query may carry ``count`` join keys to this owner."""
    limit = policy.limits.max_keys_in
    if limit is None:
        return KeysInDecision(True, f"{policy.owner}/default permit", None)
    return KeysInDecision(count <= limit, f"{policy.owner}/limits.max_keys_in", limit)


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
        Unmatched(write_name(*name), mark)
        for name, mark in _named(policy)
        if name[0] not in published or not set(name[1:]) <= set(published[name[0]])
    )


def _named(policy: Policy) -> Iterator[tuple[tuple[str, ...], Mark]]:
    for table, rule in policy.tables.items():
        yield (table,), rule.mark
        for column, mark in rule.deny_columns.items():
            yield (table, column), mark
    for grant in policy.key_disclosure:
        if grant.column.table is not None:
            name = (grant.column.table, grant.column.column)
            yield tuple(part for part in name if part is not None), grant.mark
