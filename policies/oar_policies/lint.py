"""What is wrong with owner files, or does nothing: pure, from policies and what owners publish.

Each finding has a place and a stable code. An error is a rule that does not mean what its author
thinks: it hides nothing, or permits nothing. A warning is a rule that has no effect as things are.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Final, Literal

from oar_policies.decide import column_visible, table_visible, unmatched
from oar_policies.model import (
    ColumnPattern,
    Form,
    Grant,
    KeyAcceptance,
    KeyDisclosure,
    Mark,
    MinGroup,
    Policy,
)
from oar_policies.names import split_name, write_name

Severity = Literal["error", "warning"]

CODES: Final[Mapping[str, Severity]] = {
    "invalid": "error",
    "unknown-table": "error",
    "unknown-column": "error",
    "unknown-owner": "error",
    "min-keys-above-limit": "error",
    "unreadable-rule": "error",
    "unreachable-grant": "warning",
    "expired-grant": "warning",
    "expired-policy": "warning",
    "hidden-column": "warning",
    "one-sided-grant": "warning",
    "unusable-grant": "warning",
    "ungrouped-rows": "error",
    "smaller-group": "warning",
}
"""Every code, with its severity. ``invalid`` is a file that cannot be read as a policy,
``unreadable-rule`` SQL in one: those are found by who reads them."""

Tables = Mapping[str, Mapping[str, str]]
"""All tables an owner has: for each its columns, with their types."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong, and where."""

    code: str
    owner: str
    source: str
    mark: Mark
    message: str

    @property
    def severity(self) -> Severity:
        """Whether it is an error or a warning."""
        return CODES[self.code]

    def __str__(self) -> str:
        place = f"{self.source}:{self.mark.line}:{self.mark.column}"
        return f"{place}: {self.severity}: {self.message} [{self.code}]"


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What files are looked at with.

    ``owners`` are all there are (None: not known). ``published`` has the tables of those owners
    whose schema is known, ``max_keys`` the proxy's own limit. ``looks_up`` tells whether an owner
    looks up keys of one type in a column of another, the second, in a form. ``schemas``: into which
    an owner publishes, where that is known; tables of one name there are one.
    """

    today: date
    owners: Collection[str] | None
    published: Mapping[str, Tables]
    looks_up: Callable[[str, str, str, Form], bool]
    max_keys: int | None = None
    schemas: Mapping[str, str] = field(default_factory=dict)


def lint(policies: Mapping[str, Policy], around: Surroundings) -> list[Finding]:
    """Find what is wrong, in the order of the files. Grants are held against all ``policies``."""
    return [
        finding
        for policy in policies.values()
        for finding in sorted(
            _Linting(policy, policies, around).findings(),
            key=lambda it: (it.mark.line, it.mark.column),
        )
    ]


@dataclass(frozen=True, slots=True)
class _Owners:
    sender: str
    receiver: str


@dataclass(frozen=True, slots=True)
class _Sent:
    """One side of edges: what an owner discloses."""

    policy: Policy
    grants: Sequence[KeyDisclosure]


@dataclass(frozen=True, slots=True)
class _Received:
    """The other side: with which of its columns an owner compares keys."""

    policy: Policy
    columns: Sequence[ColumnPattern]


@dataclass(frozen=True, slots=True)
class _Linting:
    policy: Policy
    policies: Mapping[str, Policy]
    around: Surroundings

    def findings(self) -> Iterator[Finding]:
        yield from self._unknown_names()
        ends = self.policy.expires
        if ends is not None and self.around.today > ends.day:
            yield self._found("expired-policy", ends.mark, f"nobody may ask since {ends.day}")
        for table, rule in self.policy.tables.items():
            if rule.min_group is not None and table_visible(self.policy, table):
                yield from self._groups(table, rule.min_group)
        grants: tuple[Sequence[Grant], ...] = (
            self.policy.key_disclosure,
            self.policy.accept_keys or (),
        )
        for section in grants:
            for number, grant in enumerate(section):
                yield from self._grant(grant, section[:number])

    def _found(self, code: str, mark: Mark, message: str) -> Finding:
        return Finding(code, self.policy.owner, self.policy.source, mark, message)

    def _unknown_names(self) -> Iterator[Finding]:
        tables = self.around.published.get(self.policy.owner)
        if tables is None:
            return
        for miss in unmatched(self.policy, tables):
            what = "column" if miss.table in tables else "table"
            there = tables.get(miss.table, tables)
            close = difflib.get_close_matches(split_name(miss.name)[-1], there, n=1)
            meant = f" (is {write_name(close[0])} meant?)" if close else ""
            yield self._found(
                f"unknown-{what}", miss.mark, f"{miss.name} is not published by this owner{meant}"
            )

    def _groups(self, table: str, group: MinGroup) -> Iterator[Finding]:
        """Hold which groups of a table are shown against what other owners of its rows show."""
        for other in self._beside(table):
            rule = other.tables.get(table)
            theirs = None if rule is None else rule.min_group
            if theirs is None or theirs.entity != group.entity:
                what = "of the same entity" if theirs else "only"
                yield self._found(
                    "ungrouped-rows",
                    group.mark,
                    f"owner {other.owner} has rows of {write_name(table)} as well and does not "
                    f"show groups {what}: every statement over it is refused",
                )
            elif theirs.size > group.size:
                yield self._found(
                    "smaller-group",
                    group.mark,
                    f"owner {other.owner} has rows of {write_name(table)} as well, and its "
                    f"min_group.size {theirs.size} is what holds",
                )

    def _beside(self, table: str) -> Iterator[Policy]:
        """Yield the other owners of a table's rows, as far as they are known."""
        schema = self.around.schemas.get(self.policy.owner)
        if schema is None or table not in self.around.published.get(self.policy.owner, ()):
            return
        for name, other in self.policies.items():
            if (
                name != self.policy.owner
                and self.around.schemas.get(name) == schema
                and table in self.around.published.get(name, ())
                and table_visible(other, table)
            ):
                yield other

    # --- one grant ------------------------------------------------------------------------------

    def _grant(self, grant: Grant, earlier: Sequence[Grant]) -> Iterator[Finding]:
        owners = self.around.owners
        unknown = () if owners is None else sorted((grant.owners or frozenset()) - set(owners))
        for other in unknown:
            yield self._found("unknown-owner", grant.mark, f"no owner {other} is configured")
        expires = grant.expires
        if expires is not None and self.around.today > expires:
            yield self._found("expired-grant", grant.mark, f"it expired on {expires}")
            return
        shadow = next((n for n, first in enumerate(earlier) if _covers(first, grant)), None)
        if shadow is not None:
            yield self._found(
                "unreachable-grant",
                grant.mark,
                f"entry [{shadow}] above decides wherever this one would",
            )
            return
        columns = self._columns(grant)
        if columns is not None and not columns[1]:
            if columns[0]:
                yield self._found(
                    "hidden-column",
                    grant.mark,
                    "this file hides what it is about: it has no effect",
                )
            return
        yield from self._other_sides(grant)

    def _columns(self, grant: Grant) -> tuple[list[str], list[str]] | None:
        """Types of the columns it is about, all of them and those that are visible."""
        tables = self.around.published.get(self.policy.owner)
        return None if tables is None else _types(self.policy, tables, grant.column)

    def _other_sides(self, grant: Grant) -> Iterator[Finding]:
        """Find what is wrong with each of the owners it names; of a star, with all of them."""
        if self.policy.owner in (grant.owners or ()):
            yield self._found(
                "unusable-grant", grant.mark, "keys of an owner's own go back to it without a grant"
            )
        others = [
            other
            for name, other in self.policies.items()
            if name != self.policy.owner and (grant.owners is None or name in grant.owners)
        ]
        found = [self._other_side(grant, other) for other in others]
        if grant.owners is not None:
            yield from filter(None, found)
        elif found and all(found) and len(others) + 1 >= len(self.around.owners or self.policies):
            # Each of them has its own reason: the first stands for all.
            yield from filter(None, found[:1])

    def _other_side(self, grant: Grant, other: Policy) -> Finding | None:
        if isinstance(grant, KeyDisclosure):
            return self._receiver(grant, other)
        assert isinstance(grant, KeyAcceptance)
        return self._sender(grant, other)

    def _receiver(self, grant: KeyDisclosure, receiver: Policy) -> Finding | None:
        """Hold a disclosure against what the receiver accepts."""
        accepted: Sequence[KeyAcceptance | None] = (None,)
        if receiver.limits.max_keys_in == 0:
            accepted = ()
        elif receiver.accept_keys is not None:
            edge = _Owners(self.policy.owner, receiver.owner)
            accepted = [a for a in receiver.accept_keys if self._meet(grant, a, edge)]
        if not accepted:
            return self._found(
                "one-sided-grant",
                grant.mark,
                f"owner {receiver.owner} accepts no such keys of owner {self.policy.owner}",
            )
        columns = [ColumnPattern(None, None) if a is None else a.column for a in accepted]
        if not self._meet_in_type(_Sent(self.policy, [grant]), _Received(receiver, columns)):
            return self._found(
                "unusable-grant",
                grant.mark,
                f"owner {receiver.owner} publishes no column that takes such keys",
            )
        return self._too_few(grant, receiver, accepted)

    def _too_few(
        self,
        grant: KeyDisclosure,
        receiver: Policy,
        accepted: Sequence[KeyAcceptance | None],
    ) -> Finding | None:
        if grant.min_keys is None:
            return None
        limits = {
            f"{receiver.owner}/limits.max_keys_in": receiver.limits.max_keys_in,
            "proxy/limits.max_keys": self.around.max_keys,
        }
        numbers = [None if a is None else a.max_keys for a in accepted]
        if None not in numbers:
            most = max(number for number in numbers if number is not None)
            limits[f"{receiver.owner}/accept_keys"] = most
        for rule, limit in limits.items():
            if limit is not None and limit < grant.min_keys:
                return self._found(
                    "min-keys-above-limit",
                    grant.mark,
                    f"min_keys is {grant.min_keys}, and {rule} lets {limit} pass at most",
                )
        return None

    def _sender(self, grant: KeyAcceptance, sender: Policy) -> Finding | None:
        """Hold an acceptance against what the sender discloses."""
        edge = _Owners(sender.owner, self.policy.owner)
        disclosed = [d for d in sender.key_disclosure if self._meet(d, grant, edge)]
        if not disclosed:
            return self._found(
                "one-sided-grant",
                grant.mark,
                f"owner {sender.owner} discloses no such keys to owner {self.policy.owner}",
            )
        received = _Received(self.policy, [grant.column])
        if not self._meet_in_type(_Sent(sender, disclosed), received):
            return self._found(
                "unusable-grant",
                grant.mark,
                f"owner {sender.owner} discloses no keys that this column takes",
            )
        return None

    def _meet(self, disclosed: KeyDisclosure, accepted: KeyAcceptance, edge: _Owners) -> bool:
        """Tell whether both sides of an edge can hold at once."""
        return (
            _includes(disclosed.owners, frozenset({edge.receiver}))
            and _includes(accepted.owners, frozenset({edge.sender}))
            and (
                disclosed.purposes is None
                or accepted.purposes is None
                or not disclosed.purposes.isdisjoint(accepted.purposes)
            )
            and all(
                g.expires is None or g.expires >= self.around.today for g in (disclosed, accepted)
            )
        )

    def _meet_in_type(self, sent: _Sent, received: _Received) -> bool:
        """Tell whether the receiver looks up some of the keys; True where that is not known."""
        theirs = self.around.published.get(sent.policy.owner)
        ours = self.around.published.get(received.policy.owner)
        if theirs is None or ours is None:
            return True
        columns = {kind for p in received.columns for kind in _types(received.policy, ours, p)[1]}
        return any(
            self.around.looks_up(received.policy.owner, kind, column, grant.form)
            for grant in sent.grants
            for kind in set(_types(sent.policy, theirs, grant.column)[1])
            for column in columns
        )


def _types(policy: Policy, tables: Tables, pattern: ColumnPattern) -> tuple[list[str], list[str]]:
    """Types of an owner's columns of a pattern: all of them, and those that it publishes."""
    matching = [
        (kind, column_visible(policy, table, column))
        for table, columns in tables.items()
        for column, kind in columns.items()
        if pattern.matches(table, column)
    ]
    return [kind for kind, _ in matching], [kind for kind, visible in matching if visible]


def _covers(first: Grant, later: Grant) -> bool:
    """Tell whether the first decides wherever the later one would permit."""
    return (
        first.column.table in (None, later.column.table)
        and first.column.column in (None, later.column.column)
        and _includes(first.owners, later.owners)
        and _includes(first.purposes, later.purposes)
        and (
            first.expires is None or (later.expires is not None and first.expires >= later.expires)
        )
    )


def _includes(first: frozenset[str] | None, later: frozenset[str] | None) -> bool:
    return first is None or (later is not None and later <= first)
