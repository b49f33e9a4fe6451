"""What the owners' policies and the proxy's limits say to one subject: planning and the gate ask.

Pure: nothing is written or sent here. The most restrictive of all that hold decides, and every
verdict names the rule that made it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import date
from typing import Final, TypeVar

from oar_adapters.interface import Predicate
from oar_policies.decide import (
    Decision,
    EdgeDecision,
    column_visible,
    decide_acceptance,
    decide_edge,
    decide_subject,
)
from oar_policies.model import Form, Policy, Subject, TableRule
from oar_policies.names import write_name

from oar_proxy.errors import InsufficientPrivilege, InternalError
from oar_proxy.settings import Limits

_T = TypeVar("_T")

OWN_KEYS: Final = "own keys"
"""The rule of keys that go back to the owner they came from: no disclosure."""


@dataclass(frozen=True, slots=True)
class KeyOrigin:
    """Where relayed keys come from: a published column of one owner."""

    owner: str
    schema: str
    table: str
    column: str

    @property
    def name(self) -> str:
        """Schema, table and column, spelt as a policy spells names."""
        return write_name(self.schema, self.table, self.column)


@dataclass(frozen=True, slots=True)
class KeyEdge:
    """One possible semi-join. A row-split source table has an origin for each of its holders."""

    origins: tuple[KeyOrigin, ...]
    receiver: str
    receiver_table: str
    receiver_column: str


@dataclass(frozen=True, slots=True)
class EdgeVerdict:
    """Whether an edge may be used, and how many keys one query may carry along it.

    ``rule`` decided; ``reason`` is one line. ``max_keys`` is the lowest limit of all that hold
    (0 when denied) and ``limit_rule`` says whose it is; of a single key or more, ``min_keys`` have
    to travel, by ``least_rule``. ``form`` is how. ``remedy`` is the smallest change that would
    permit it.
    """

    permitted: bool
    rule: str
    reason: str
    max_keys: int
    limit_rule: str
    min_keys: int = 0
    least_rule: str = ""
    remedy: str = ""
    form: Form = "plain"


@dataclass(frozen=True, slots=True)
class Limit:
    """A number, and the rule it comes from."""

    number: int
    rule: str


@dataclass(frozen=True, slots=True)
class Part:
    """One side's part of a verdict about the keys of one origin.

    ``decision`` permits by `OWN_KEYS` where nothing is disclosed. ``accepting``: it is the
    receiver's side.
    """

    origin: KeyOrigin
    decision: EdgeDecision
    accepting: bool = False


@dataclass(frozen=True, slots=True)
class SentFilter:
    """A table's row filter as its owner evaluates it; None where it cannot do so faithfully.

    ``condition`` is the policy's own text, which it was read from.
    """

    condition: str
    predicate: Predicate | None


@dataclass(frozen=True, slots=True)
class Restriction:
    """How a column of an owner may not be used, with the rules that say so.

    ``functions`` are aggregates of it that may be put out where it may not. ``name`` is for errors.
    """

    name: str
    column: str
    output_rule: str | None = None
    functions: frozenset[str] = frozenset()
    filter_rule: str | None = None

    @property
    def rules(self) -> tuple[str, ...]:
        """The rules, at least one."""
        return tuple(rule for rule in (self.output_rule, self.filter_rule) if rule is not None)

    def and_also(self, other: Restriction) -> Restriction:
        """Return what is left where both hold: those of two holders of one table's rows."""
        silent = [each.functions for each in (self, other) if each.output_rule is not None]
        return replace(
            self,
            output_rule=self.output_rule or other.output_rule,
            functions=silent[0].intersection(*silent) if silent else frozenset(),
            filter_rule=self.filter_rule or other.filter_rule,
        )


@dataclass(frozen=True, slots=True)
class Grouped:
    """A table of which groups are shown, each of ``size`` different ``entity`` or more.

    ``name`` is for errors.
    """

    name: str
    entity: str
    size: int
    rule: str

    @property
    def rules(self) -> tuple[str, ...]:
        """The rule."""
        return (self.rule,)


MAX_REMEMBERED: Final = 1024
"""Edges whose verdicts are kept: a statement has a few, and is often like the one before."""

Checked = Mapping[tuple[str, str], tuple[Restriction | Grouped, ...]]
"""By owner and table, the rules about its use that a statement was checked against."""


def policy_of(owner: str, policies: Mapping[str, Policy]) -> Policy:
    """Return an owner's policy. Raises :class:`InternalError` where none was loaded."""
    # Never a default here: an owner whose policy was lost on the way would lie open.
    try:
        return policies[owner]
    except KeyError:
        raise InternalError(f"no policy is loaded for owner {owner}") from None


@dataclass(frozen=True, slots=True)
class Decisions:
    """The policies in force, as they apply to one subject on one day (UTC).

    ``filters`` are the row filters that were read, by owner and table. Nothing in it changes, so
    that a verdict is found once and kept.
    """

    policies: Mapping[str, Policy]
    limits: Limits
    subject: Subject
    today: date
    filters: Mapping[tuple[str, str], SentFilter] = field(default_factory=dict)
    _known: dict[KeyEdge, EdgeVerdict] = field(
        default_factory=dict, init=False, compare=False, repr=False
    )
    _known_parts: dict[KeyEdge, tuple[Part, ...]] = field(
        default_factory=dict, init=False, compare=False, repr=False
    )

    def policy(self, owner: str) -> Policy:
        """Return an owner's policy. Raises :class:`InternalError` where none was loaded."""
        return policy_of(owner, self.policies)

    def asks(self, owner: str) -> Decision:
        """Decide whether the subject may ask an owner at all."""
        return decide_subject(self.policy(owner), self.subject, self.today)

    def require_asks(self, owners: Iterable[str]) -> None:
        """Raise :class:`InsufficientPrivilege` for an owner that the subject may not ask."""
        for owner in owners:
            decision, ends = self.asks(owner), self.policy(owner).expires
            if decision.permit:
                continue
            if ends is not None and self.today > ends.day:
                raise InsufficientPrivilege(
                    f"permission denied for the tables of owner {owner}: its policy has ended",
                    detail=f"rule {decision.rule}: the last day was {ends.day}, in UTC",
                    hint=f"owner {owner} can extend it",
                )
            raise InsufficientPrivilege(
                f"permission denied for the tables of owner {owner}",
                detail=f"rule {decision.rule} names the roles that may ask",
                hint=f"ask owner {owner}, or those who run the proxy, for one of them",
            )

    def edge(self, edge: KeyEdge) -> EdgeVerdict:
        """Decide about a possible semi-join before any key is known."""
        verdict = self._known.get(edge)
        if verdict is None:
            verdict = _keep(self._known, edge, self._verdict(edge))
        return verdict

    def _verdict(self, edge: KeyEdge) -> EdgeVerdict:
        parts = self.parts(edge)
        denied = next((part for part in parts if not part.decision.permit), None)
        if denied is not None:
            rule = denied.decision.rule
            return EdgeVerdict(
                permitted=False,
                rule=rule,
                reason=self._denial(edge, denied),
                max_keys=0,
                limit_rule=rule,
                remedy=self.remedy(edge, denied, None),
            )
        limit = lowest(
            self.keys_in(edge.receiver),
            *(limit_of(p.decision.max_keys, f"{p.decision.rule}.max_keys") for p in parts),
        )
        least = max(parts, key=lambda part: part.decision.min_keys or 0).decision
        rules = [part.decision.rule for part in parts if not part.accepting]
        rule = next((rule for rule in rules if rule != OWN_KEYS), OWN_KEYS)
        return EdgeVerdict(
            permitted=True,
            rule=rule,
            reason=f"permitted by {rule}, at most {limit.number} keys by {limit.rule}",
            max_keys=limit.number,
            limit_rule=limit.rule,
            min_keys=least.min_keys or 0,
            least_rule=f"{least.rule}.min_keys" if least.min_keys else "",
            form="hmac" if any(p.decision.form == "hmac" for p in parts) else "plain",
        )

    def row_cap(self, owner: str) -> Limit:
        """Return how many rows one query may bring from an owner."""
        own = self.policy(owner).limits.max_rows
        return lowest(
            Limit(self.limits.max_rows, "proxy/limits.max_rows"),
            limit_of(own, f"{owner}/limits.max_rows"),
        )

    def byte_cap(self, owner: str) -> Limit | None:
        """Return how many bytes of cells one query may bring from an owner, by the owner's rule."""
        return limit_of(self.policy(owner).limits.max_bytes, f"{owner}/limits.max_bytes")

    def queries(self, owner: str) -> Limit | None:
        """Return how many queries one statement or question may send to an owner."""
        return limit_of(self.policy(owner).limits.max_queries, f"{owner}/limits.max_queries")

    def keys_per_day(self, owner: str) -> Limit | None:
        """Return how many keys of an owner may leave for one principal on one day."""
        own = self.policy(owner).limits.max_keys_per_day
        return limit_of(own, f"{owner}/limits.max_keys_per_day")

    def keys_in(self, receiver: str) -> Limit:
        """Return how many keys one query may carry to an owner, all its edges together."""
        own = self.policy(receiver).limits.max_keys_in
        return lowest(
            Limit(self.limits.max_keys, "proxy/limits.max_keys"),
            limit_of(own, f"{receiver}/limits.max_keys_in"),
        )

    def timeout(self, owner: str) -> float:
        """Return how many seconds a query may run at an owner."""
        own = self.policy(owner).limits.timeout
        return min(self.limits.statement_timeout, own or self.limits.statement_timeout)

    def scans_only(self, owner: str, tables: Iterable[str]) -> str | None:
        """Return the rule for which an owner gets scans and no statement; None: there is none.

        Of a scan the gate can tell what it is restricted by, and which columns it touches.
        """
        for table in tables:
            rule = self.policy(owner).tables.get(table)
            if rule is not None and rule.require_filter:
                return f"{owner}/tables.{write_name(table)}.require_filter"
            for view in self.view_rules(owner, table):
                return view
        return None

    def view_rules(self, owner: str, table: str) -> tuple[str, ...]:
        """Return the rules by which less of a table's rows and columns is there for everybody."""
        rule = self.policy(owner).tables.get(table)
        if rule is None:
            return ()
        name = f"{owner}/tables.{write_name(table)}"
        filtered = (f"{name}.row_filter",) if rule.row_filter else ()
        grouped = (f"{name}.min_group",) if rule.min_group else ()
        masks = (f"{name}.columns.{write_name(c)}.mask" for c in rule.masks)
        return (*filtered, *grouped, *masks)

    def masked(self, owner: str, table: str) -> frozenset[str]:
        """Return the columns of an owner's table that no query may touch: a constant is read."""
        rule = self.policy(owner).tables.get(table)
        return frozenset() if rule is None else frozenset(rule.masks)

    def restrictions(self, owner: str, table: str) -> tuple[Restriction, ...]:
        """Return the columns of an owner's table that may not be used for everything."""
        rule = self.policy(owner).tables.get(table)
        return () if rule is None else tuple(_restrictions(owner, table, rule))

    def grouped(self, owner: str, table: str) -> Grouped | None:
        """Return which groups of an owner's table may be shown; None: rows may be."""
        rule = self.policy(owner).tables.get(table)
        if rule is None or rule.min_group is None:
            return None
        name = write_name(table)
        return Grouped(
            f"table {name} of owner {owner}",
            rule.min_group.entity,
            rule.min_group.size,
            f"{owner}/tables.{name}.min_group",
        )

    def use(self, owner: str, table: str) -> tuple[Restriction | Grouped, ...]:
        """Return the rules about the use of an owner's table that a statement is checked by."""
        grouped = self.grouped(owner, table)
        return (*self.restrictions(owner, table), *(() if grouped is None else (grouped,)))

    def row_filter(self, owner: str, table: str) -> tuple[Predicate, ...]:
        """Return what every scan of an owner's table has to carry.

        Raises :class:`InsufficientPrivilege` where the owner cannot evaluate it.
        """
        rule = self.policy(owner).tables.get(table)
        if rule is None or rule.row_filter is None:
            return ()
        sent = self.filters.get((owner, table))
        # Another text was read while this policy was put in force: the next refresh reads it.
        if sent is not None and sent.condition == rule.row_filter.condition:
            if sent.predicate is not None:
                return (sent.predicate,)
            hint = f"owner {owner} can write it with comparisons that its database makes as is"
        else:
            hint = "retry: the policy was replaced a moment ago"
        raise InsufficientPrivilege(
            f"table {write_name(table)} of owner {owner} cannot be read: "
            "its rows cannot be filtered there",
            detail=f"rule {owner}/tables.{write_name(table)}.row_filter",
            hint=hint,
        )

    def not_as_ruled(
        self, owner: str, table: str, column: str | None = None, *, what: str = "row_filter"
    ) -> InsufficientPrivilege:
        """Return the error of a query that reads more than a rule, or a column's mask, leaves."""
        what = what if column is None else f"columns.{write_name(column)}.mask"
        return InsufficientPrivilege(
            f"the query reads more of table {write_name(table)} than owner {owner} shows",
            detail=f"rule {owner}/tables.{write_name(table)}.{what}",
            hint="retry: the policy may have been replaced since the statement was planned",
        )

    # --- both sides of an edge --------------------------------------------------------------------

    def parts(self, edge: KeyEdge) -> tuple[Part, ...]:
        """Decide for each origin, and for the receiver, in a fixed order."""
        if not edge.origins:
            raise InternalError("a key edge without an origin")
        parts = self._known_parts.get(edge)
        if parts is None:
            made = (part for origin in edge.origins for part in self._parts(origin, edge))
            parts = _keep(self._known_parts, edge, tuple(made))
        return parts

    def _parts(self, origin: KeyOrigin, edge: KeyEdge) -> Iterator[Part]:
        if origin.owner == edge.receiver:
            yield Part(origin, EdgeDecision(True, OWN_KEYS))
            return
        policy = self.policy(origin.owner)
        if column_visible(policy, origin.table, origin.column):
            yield Part(
                origin,
                decide_edge(
                    policy,
                    table=origin.table,
                    column=origin.column,
                    receiver=edge.receiver,
                    subject=self.subject,
                    today=self.today,
                ),
            )
        else:
            # The policy's own rule would name what it hides.
            yield Part(origin, EdgeDecision(False, f"{origin.owner}/tables"))
        accepted = decide_acceptance(
            self.policy(edge.receiver),
            table=edge.receiver_table,
            column=edge.receiver_column,
            sender=origin.owner,
            subject=self.subject,
            today=self.today,
        )
        yield Part(origin, accepted, accepting=True)

    def _denial(self, edge: KeyEdge, part: Part) -> str:
        if part.accepting:
            return (
                f"owner {edge.receiver} takes no keys of owner {part.origin.owner} for "
                f"{write_name(edge.receiver_table, edge.receiver_column)}"
            )
        return (
            f"owner {part.origin.owner} does not disclose keys of {part.origin.name} "
            f"to owner {edge.receiver}"
        )

    def remedy(self, edge: KeyEdge, part: Part, keys: int | None) -> str:
        """Return the smallest change that would permit a part that denies."""
        receiver = write_name(edge.receiver_table, edge.receiver_column)
        owner, entry = (
            (edge.receiver, f"accept_keys entry {{column: {receiver}, from: [{part.origin.owner}]")
            if part.accepting
            else (
                part.origin.owner,
                f"key_disclosure entry {{column: "
                f"{write_name(part.origin.table, part.origin.column)}, to: [{edge.receiver}]",
            )
        )
        rule, condition = part.decision.rule, part.decision.condition
        if condition == "purpose":
            return f"SET oar.purpose to one of those that {rule} names, if it is yours"
        if condition == "expires":
            return f"owner {owner} can extend {rule}"
        number = "N" if keys is None else str(max(keys, 1))
        return f"owner {owner} can allow it with the {entry}, max_keys: {number}}}"

    def refusal(self, edge: KeyEdge, part: Part, keys: int) -> InsufficientPrivilege:
        """Return the error of an edge that one side denies, for so many keys."""
        origin = part.origin
        if not column_visible(self.policy(origin.owner), origin.table, origin.column):
            return no_longer_published(origin.owner)
        receiver = write_name(edge.receiver_table, edge.receiver_column)
        denies = edge.receiver if part.accepting else origin.owner
        return InsufficientPrivilege(
            f"join keys of {origin.name} may not leave for owner {edge.receiver}: "
            f"the policy of owner {denies} denies it",
            detail=f"rule {part.decision.rule}; {keys} keys would be compared with {receiver}",
            hint=self.remedy(edge, part, keys),
        )


def _keep(known: dict[KeyEdge, _T], edge: KeyEdge, verdict: _T) -> _T:
    if len(known) >= MAX_REMEMBERED:
        known.clear()
    known[edge] = verdict
    return verdict


def _restrictions(owner: str, table: str, rule: TableRule) -> Iterator[Restriction]:
    for column, each in rule.columns.items():
        where = f"{owner}/tables.{write_name(table)}.columns.{write_name(column)}"
        if each.output != "allowed" or not each.filter:
            yield Restriction(
                f"column {write_name(table, column)} of owner {owner}",
                column,
                None if each.output == "allowed" else f"{where}.output",
                each.functions,
                None if each.filter else f"{where}.filter",
            )


def no_longer_published(owner: str) -> InsufficientPrivilege:
    """Return the error about something that a policy hides."""
    # Reached only when a policy was tightened after the catalog was read; names nothing, because
    # what is hidden now has to look as if it were not there.
    return InsufficientPrivilege(
        f"the statement uses a table or column that owner {owner} does not publish any more",
        detail=f"the policy of owner {owner} hides it",
        hint="look at the published tables again; the catalog follows shortly",
    )


def limit_of(number: int | None, rule: str) -> Limit | None:
    """Return a limit that may not be set."""
    return None if number is None else Limit(number, rule)


def lowest(first: Limit, *others: Limit | None) -> Limit:
    """Return the lowest of the limits that are set."""
    return min((first, *filter(None, others)), key=lambda limit: limit.number)
