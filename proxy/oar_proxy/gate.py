"""The only door to an owner: decides by the owners' policies, writes the ledger, seals the query.

Planning asks the gate early (`Gate.edge`, `Gate.row_cap`), so that a plan is made of what is
allowed. `Gate.authorize` decides again, right before a wave of queries leaves, about what they
really hold: every column they touch and the keys they carry. It believes no plan, and decides
under the policies in force at that moment, so that a policy tightened while a statement is under
way holds for its next wave.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from types import MappingProxyType
from typing import Final

from oar_adapters.authorized import Authorized
from oar_adapters.interface import (
    OwnerSchema,
    Query,
    Scan,
    Table,
    base_type,
)
from oar_policies.decide import (
    Decision,
    Unmatched,
    column_visible,
    decide_rows_to_model,
    unmatched,
)
from oar_policies.model import MinGroup, Policy, Subject, TableRule
from oar_policies.names import write_name

from oar_proxy.budget import Budget, Budgets
from oar_proxy.decision import (
    OWN_KEYS,
    Checked,
    Decisions,
    KeyEdge,
    SentFilter,
    policy_of,
)
from oar_proxy.errors import InsufficientPrivilege, InternalError, LimitExceeded
from oar_proxy.keys import key_texts
from oar_proxy.ledger import Ask, Disclosure, Leaving, Ledger, StepEntry, StepOutcome, digest
from oar_proxy.settings import Limits
from oar_proxy.touching import key_columns, published_column, require_permitted
from oar_proxy.visible import visible_part

MAX_SUBJECTS: Final = 256
"""Subjects for whom decisions are kept, until policies are others or another day begins."""


@dataclass(frozen=True, slots=True)
class BoundEdge:
    """An edge with its keys: how many travel, and how many of them each origin holds.

    Keys of several columns that are looked up at once are an edge for each column, with as many
    keys as there are rows: to which other values a value belongs is disclosed as well. Owners that
    split a table may hold the same key, so ``from_each`` can add up to more.
    """

    edge: KeyEdge
    keys: int
    from_each: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Step:
    """One query about to leave, with the key edges it carries.

    ``query.limit`` is at most the owner's row cap plus one (see `Gate.row_cap`).
    """

    owner: str
    query: Query
    rendered: str
    edges: tuple[BoundEdge, ...] = ()
    checked: Checked = field(default_factory=dict)
    """What the statement was checked against, by owner and table: see `Decisions.use`."""


def utc_today() -> date:
    """Return the day it is in UTC."""
    return datetime.now(UTC).date()


class Gate:
    """Decides, records and seals. Holds one policy for each owner, replaced as a whole.

    ``version`` is another number for other policies, under which verdicts may be others. ``today``
    tells the day in UTC.
    """

    def __init__(
        self,
        policies: Mapping[str, Policy],
        ledger: Ledger,
        limits: Limits,
        *,
        today: Callable[[], date] = utc_today,
        budgets: Budgets | None = None,
    ) -> None:
        self._policies: Mapping[str, Policy] = MappingProxyType(dict(policies))
        self._ledger = ledger
        self._limits = limits
        self._filters: Mapping[tuple[str, str], SentFilter] = MappingProxyType({})
        self._today = today
        self._budgets = budgets
        self._decisions: dict[Subject, Decisions] = {}
        self.version = 0

    def replace_policies(self, policies: Mapping[str, Policy]) -> None:
        """Put other policies in force, all at once, for everything decided from now on."""
        self._policies = MappingProxyType(dict(policies))
        self._changed()

    def replace_filters(self, filters: Mapping[tuple[str, str], SentFilter]) -> None:
        """Put the row filters in force that were read from the policies, all at once."""
        if self._filters != filters:
            self._filters = MappingProxyType(dict(filters))
            self._changed()

    def _changed(self) -> None:
        self._decisions = {}
        self.version += 1

    def decisions(self, subject: Subject) -> Decisions:
        """Return what the policies in force now say to a subject today."""
        today = self._today()
        decisions = self._decisions.get(subject)
        if decisions is None or decisions.today != today:
            decisions = Decisions(self._policies, self._limits, subject, today, self._filters)
            if len(self._decisions) >= MAX_SUBJECTS:
                self._decisions = {}
            self._decisions[subject] = decisions
        return decisions

    def distinguishes(self, decisions: Decisions) -> object:
        """Return what of subject and day may make decisions others than these, to compare."""
        conditional = any(policy.conditional for policy in decisions.policies.values())
        return (decisions.subject, decisions.today) if conditional else None

    def rows_to_model(self, owner: str) -> Decision:
        """Decide whether rows of an owner may stand in a prompt of a language model."""
        return decide_rows_to_model(self._policy(owner))

    # --- what publication asks ---

    def visible(self, owner: str, schema: OwnerSchema) -> OwnerSchema:
        """Return what is left of an owner's schema when its policy has hidden what it denies."""
        return visible_part(self._policy(owner), schema)

    def hides(self, owner: str, table: str, columns: Collection[str]) -> bool:
        """Tell whether an owner's policy hides a table, or one of some columns, from everybody.

        An owner that is not there any more hides nothing.
        """
        policy = self._policies.get(owner)
        return policy is not None and not all(
            column_visible(policy, table, column) for column in columns
        )

    def rules(self, owner: str, schema: OwnerSchema) -> Iterator[tuple[Table, TableRule]]:
        """Yield the tables whose rows are filtered or of which a constant is read."""
        for table in schema.tables:
            rule = self._policy(owner).tables.get(table.name)
            if rule is not None and (rule.row_filter or rule.masks):
                yield table, rule

    def groups(self) -> dict[tuple[str, str], MinGroup]:
        """Return which groups of tables are shown, by owner and table."""
        return {
            (owner, table): rule.min_group
            for owner, policy in self._policies.items()
            for table, rule in policy.tables.items()
            if rule.min_group is not None
        }

    def unmatched(self, owner: str, schema: OwnerSchema) -> tuple[Unmatched, ...]:
        """List what an owner's policy names and the owner (``schema``: all it has) does not have.

        A misspelt ``deny`` hides nothing, so whoever reads the schema should say so, loudly.
        """
        published = {table.name: [c.name for c in table.columns] for table in schema.tables}
        return unmatched(self._policy(owner), published)

    # --- what running asks ---

    def budget(self, ask: Ask) -> Budget | None:
        """Return the budget of the application that asks; None: it has none."""
        return None if self._budgets is None else self._budgets.of(ask.application)

    async def admit(self, ask: Ask, steps: Sequence[Step]) -> None:
        """Count an ask in its application's budget, before its first queries touch an owner.

        The policies decide first, so that what they deny is not counted. Raises as `authorize`,
        and :class:`BudgetExceeded`.
        """
        budget = self.budget(ask)
        if budget is None or not steps:
            return
        async with ask.admission.lock:
            if not ask.admission.given:
                self.review(ask, steps)
                await budget.admit()
                ask.admission.given = True

    async def authorize(
        self, ask: Ask, steps: Sequence[Step], finished: Sequence[StepOutcome] = ()
    ) -> list[Authorized]:
        """Decide about a wave of queries, write it on the ledger, and return it sealed, in order.

        ``finished`` are outcomes of earlier steps, to be written with it.
        All or none: one refused query refuses the wave. When this returns, the ledger holds every
        query and disclosure. Raises :class:`InsufficientPrivilege`, :class:`LimitExceeded`,
        :class:`BudgetExceeded`, :class:`LedgerUnavailable`, and :class:`InternalError` for a step
        that is not what it says.
        """
        if not steps:
            return []
        await self.admit(ask, steps)
        # No await before the entries are complete: one set of policies decides the whole wave.
        decisions = self.decisions(ask.subject)
        _require_few_enough(decisions, ask, steps)
        entries = [_entry(decisions, step, self._digests(step)) for step in steps]
        ask.sent.update(step.owner for step in steps)
        await self._spend(decisions, ask, steps)
        numbers = await self._ledger.record(ask, entries, finished)
        return [Authorized(step.query, number) for step, number in zip(steps, numbers, strict=True)]

    def review(self, ask: Ask, steps: Sequence[Step]) -> list[StepEntry]:
        """Decide about a wave as `authorize` does, writing nothing: so nothing of it can leave.

        Returns what would be written, without digests. Raises as `authorize`.
        """
        decisions = self.decisions(ask.subject)
        _require_few_enough(decisions, ask, steps)
        return [_entry(decisions, step, {}) for step in steps]

    def _policy(self, owner: str) -> Policy:
        return policy_of(owner, self._policies)

    async def _spend(self, decisions: Decisions, ask: Ask, steps: Sequence[Step]) -> None:
        """Count keys that leave against the day's limits, which all proxies of the hub share.

        What was counted stays counted, also if nothing of it is sent in the end.
        """
        edges = [(step, bound) for step in steps for bound in step.edges]
        owners = {origin.owner for _, bound in edges for origin in bound.edge.origins}
        found = ((owner, decisions.keys_per_day(owner)) for owner in sorted(owners))
        limits = {owner: limit for owner, limit in found if limit is not None}
        leaving = {owner: Leaving() for owner in limits}
        for step, bound in edges:
            _add_leaving(leaving, step, bound)
        for owner, limit in limits.items():
            keys = leaving[owner]
            if not keys:
                continue
            spent = await self._ledger.spend(
                ask.principal, owner, decisions.today, keys, limit.number
            )
            if not spent:
                raise LimitExceeded(
                    f"too many join keys of owner {owner} for one day: with these it were more "
                    f"than {limit.number} for a principal",
                    detail=f"limit {limit.rule} counts the different keys of a day in UTC",
                    hint="try again tomorrow, select fewer rows of what is joined, or have it "
                    "raised",
                )

    def _digests(self, step: Step) -> Digests:
        """Digest the keys that are compared with each column, those of all its edges together."""
        lists: dict[tuple[str, str], list[tuple[bytes, ...]]] = {}
        if step.edges and isinstance(step.query, Scan):
            for scan in step.query.parts():
                for key_filter in key_columns(scan):
                    target = published_column(scan.table, key_filter.column)
                    lists.setdefault(target, []).append(key_filter.keys)
        return {
            # Two lists may share keys, one does not hold one twice (but in a column of several).
            target: self._ledger.keys_digest(set().union(*keys) if len(keys) > 1 else keys[0])
            for target, keys in lists.items()
        }


Digests = Mapping[tuple[str, str], str | None]
"""Digests of keys by the table and column that they are compared with."""


def _entry(decisions: Decisions, step: Step, digests: Digests) -> StepEntry:
    policy = decisions.policy(step.owner)
    cap = decisions.row_cap(step.owner)
    _require_consistent(step)
    decisions.require_asks((step.owner,))
    tables = require_permitted(decisions, step.owner, step.query)
    _require_checked(decisions, step, tables)
    if step.query.limit is None or step.query.limit > cap.number + 1:
        raise InternalError(
            f"a query to owner {step.owner} is not bounded by its row cap",
            detail=f"limit {cap.rule}: {cap.number} rows",
            hint="retry: the owner's limit may have been lowered since it was planned",
        )
    _require_form(decisions, step)
    disclosures = [
        replace(each, key_digest=digests.get(_target(bound.edge)))
        for bound in step.edges
        for each in _disclosures(decisions, bound)
    ]
    total = sum(bound.keys for bound in step.edges)
    limit = decisions.keys_in(step.owner)
    if total > limit.number:
        raise LimitExceeded(
            f"too many join keys for owner {step.owner}: {total}, at most {limit.number}",
            detail=f"limit {limit.rule} counts the keys of one query",
            hint=f"select fewer rows of what is joined, or have {limit.rule} raised to {total}",
        )
    return StepEntry(
        owner=step.owner,
        sql_digest=digest(step.rendered),
        row_cap=cap.number,
        row_cap_rule=cap.rule,
        keys=total,
        policy=policy.digest,
        disclosures=tuple(disclosures),
        rules=tuple(dict.fromkeys((cap.rule, limit.rule, *_rules(decisions, step, tables)))),
        tables=tables,
    )


def _rules(decisions: Decisions, step: Step, tables: Sequence[str]) -> Iterator[str]:
    for table in tables:
        yield from decisions.view_rules(step.owner, table)
    for bound in step.edges:
        yield from (part.decision.rule for part in decisions.parts(bound.edge))


def _disclosures(decisions: Decisions, bound: BoundEdge) -> Iterator[Disclosure]:
    """Decide about one edge and its keys; yield what it discloses, an entry an origin."""
    edge = bound.edge
    counts = dict(zip(edge.origins, bound.from_each, strict=True))
    parts = decisions.parts(edge)
    for part in parts:
        if not part.decision.permit:
            raise decisions.refusal(edge, part, bound.keys)
    for part in parts:
        count, rule = counts[part.origin], part.decision.rule
        most, least = part.decision.max_keys, part.decision.min_keys
        whose = edge.receiver if part.accepting else part.origin.owner
        if most is not None and count > most:
            raise LimitExceeded(
                f"too many join keys of {part.origin.name} for owner {edge.receiver}: "
                f"{count}, at most {most}",
                detail=f"limit {rule}.max_keys counts the keys of one query",
                hint="select fewer rows of what is joined, or have owner "
                f"{whose} raise {rule}.max_keys to {count}",
            )
        if least is not None and 0 < count < least:
            raise InsufficientPrivilege(
                f"too few join keys of {part.origin.name} for owner {edge.receiver}: "
                f"{count}, at least {least}",
                detail=f"limit {rule}.min_keys: nobody is to be looked up alone",
                hint="select more rows of what is joined",
            )
        if rule != OWN_KEYS and not part.accepting:
            yield Disclosure(
                from_owner=part.origin.owner,
                from_column=part.origin.name,
                to_owner=edge.receiver,
                to_column=write_name(edge.receiver_table, edge.receiver_column),
                keys=count,
                rule=rule,
                policy=decisions.policy(part.origin.owner).digest,
            )


def _add_leaving(leaving: dict[str, Leaving], step: Step, bound: BoundEdge) -> None:
    """Add the keys of an edge to those of owners, of some only, apart where each is known.

    They are not where they stand in the SQL or are digests, and whose is which is not where
    several owners hold rows of their table.
    """
    edge = bound.edge
    target = edge.receiver_table, edge.receiver_column
    lists = [
        key_filter
        for scan in (step.query.parts() if isinstance(step.query, Scan) else ())
        for key_filter in key_columns(scan)
        if published_column(scan.table, key_filter.column) == target
    ]
    others = [_target(other.edge) for other in step.edges]
    alone = len(edge.origins) == 1 and others.count(target) == 1
    for origin, count in zip(edge.origins, bound.from_each, strict=True):
        held = leaving.get(origin.owner)
        if held is None or origin.owner == edge.receiver:
            continue
        if alone and len(lists) == 1 and lists[0].hmac is None:
            kind = base_type(lists[0].type)
            named = f"{origin.name}\0{edge.receiver}\0".encode()
            held.known.update(named + text for text in key_texts(lists[0].keys, kind))
        else:
            held.more += count


def _require_form(decisions: Decisions, step: Step) -> None:
    """Refuse values in clear of which the policy lets digests leave only."""
    filters = step.query.parts() if isinstance(step.query, Scan) else ()
    digested: dict[tuple[str, str], bool] = {}
    for scan in filters:
        for key_filter in key_columns(scan):
            column = published_column(scan.table, key_filter.column)
            digested[column] = digested.get(column, True) and key_filter.hmac is not None
    for bound in step.edges:
        edge = bound.edge
        verdict = decisions.edge(edge)
        if not verdict.permitted or verdict.form == "plain" or not bound.keys:
            continue
        if not digested.get((edge.receiver_table, edge.receiver_column), False):
            raise InsufficientPrivilege(
                f"join keys of {edge.origins[0].name} may leave for owner {edge.receiver} as "
                "digests only",
                detail=f"rule {verdict.rule}.form: hmac",
                hint="write a join, whose keys the proxy digests",
            )


def _require_few_enough(decisions: Decisions, ask: Ask, steps: Sequence[Step]) -> None:
    for owner, count in Counter(step.owner for step in steps).items():
        limit = decisions.queries(owner)
        if limit is not None and ask.sent[owner] + count > limit.number:
            raise LimitExceeded(
                f"too many queries for owner {owner}: at most {limit.number} a statement",
                detail=f"limit {limit.rule} counts the queries of one statement or question",
                hint="name fewer of its tables, or have it raised",
            )


def _require_checked(decisions: Decisions, step: Step, tables: Sequence[str]) -> None:
    """Check that the statement was planned under the rules about its use that are in force."""
    for name in tables:
        rules = decisions.use(step.owner, name)
        if rules and step.checked.get((step.owner, name)) != rules:
            raise InsufficientPrivilege(
                f"the use of {rules[0].name} was not checked",
                detail=f"rule {rules[0].rules[0]}",
                hint="retry: the policy may have been replaced since the statement was planned",
            )


def _require_consistent(step: Step) -> None:
    """Check that a step declares the keys its query carries: none may leave uncounted."""
    for bound in step.edges:
        each = bound.from_each
        if not bound.edge.origins:
            raise InternalError("a key edge without an origin")
        if len(each) != len(bound.edge.origins) or min(bound.keys, *each, 0) < 0:
            raise InternalError("a step counts its keys for other edges than it has")
        if sum(each) < bound.keys:
            raise InternalError("a step carries keys that no origin holds")
    if any(bound.edge.receiver != step.owner for bound in step.edges):
        raise InternalError("a step has a key edge to another owner than it goes to")
    if not isinstance(step.query, Scan):
        return
    carried: Counter[tuple[str, str]] = Counter()
    for scan in step.query.parts():
        for key_filter in key_columns(scan):
            carried[published_column(scan.table, key_filter.column)] += len(key_filter.keys)
    for bound in step.edges:
        carried[bound.edge.receiver_table, bound.edge.receiver_column] -= bound.keys
    if any(undeclared > 0 for undeclared in carried.values()):
        raise InternalError(f"a query to owner {step.owner} carries keys no edge declares")


def _target(edge: KeyEdge) -> tuple[str, str]:
    return edge.receiver_table, edge.receiver_column
