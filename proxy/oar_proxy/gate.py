"""The only door to an owner: decides by the owners' policies, writes the ledger, seals the query.

Planning asks the gate early (`Gate.edge`, `Gate.row_cap`), so that a plan is made of what is
allowed. `Gate.authorize` decides again, right before a wave of queries leaves, about what they
really hold: every column they touch and the keys they carry. It believes no plan, and decides
under the policies in force at that moment, so that a policy tightened while a statement is under
way holds for its next wave.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from oar_adapters.authorized import Authorized
from oar_adapters.interface import (
    And,
    KeyFilter,
    Not,
    Or,
    OwnerSchema,
    Predicate,
    Query,
    Scan,
    Table,
)
from oar_policies.decide import (
    Decision,
    Unmatched,
    column_visible,
    decide_edge,
    decide_keys_in,
    decide_rows_to_model,
    table_visible,
    unmatched,
)
from oar_policies.model import Policy
from oar_policies.names import write_name

from oar_proxy.errors import InsufficientPrivilege, InternalError, LimitExceeded
from oar_proxy.ledger import Ask, Disclosure, Ledger, StepEntry, StepOutcome, digest
from oar_proxy.settings import Limits

OWN_KEYS: Final = "own keys"
"""The rule of keys that go back to the owner they came from: no disclosure."""


@dataclass(frozen=True, slots=True)
class KeyOrigin:
    """Where relayed keys come from: a published column of one owner."""

    owner: str
    schema: str
    table: str
    column: str


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
    (0 when denied) and ``limit_rule`` says whose it is.
    """

    permitted: bool
    rule: str
    reason: str
    max_keys: int
    limit_rule: str


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


@dataclass(frozen=True, slots=True)
class _Limit:
    number: int
    rule: str


@dataclass(frozen=True, slots=True)
class _OriginVerdict:
    """One origin's part of a verdict; ``permitted`` with rule `OWN_KEYS` discloses nothing."""

    origin: KeyOrigin
    permitted: bool
    rule: str
    max_keys: int | None


class Gate:
    """Decides, records and seals. Holds one policy for each owner, replaced as a whole.

    ``version`` is another number for other policies, under which verdicts may be others.
    """

    def __init__(self, policies: Mapping[str, Policy], ledger: Ledger, limits: Limits) -> None:
        self._policies: Mapping[str, Policy] = MappingProxyType(dict(policies))
        self._ledger = ledger
        self._limits = limits
        self.version = 0

    def replace_policies(self, policies: Mapping[str, Policy]) -> None:
        """Put other policies in force, all at once, for everything decided from now on."""
        self._policies = MappingProxyType(dict(policies))
        self.version += 1

    # --- what planning asks ---

    def visible(self, owner: str, schema: OwnerSchema) -> OwnerSchema:
        """Return what is left of an owner's schema when its policy has hidden what it denies.

        A key that mentions a hidden column goes with it, and so does a table with no column left.
        """
        policy = self._policy(owner)
        tables = (
            _visible_part(policy, table)
            for table in schema.tables
            if table_visible(policy, table.name)
        )
        return OwnerSchema(tuple(table for table in tables if table.columns))

    def unmatched(self, owner: str, schema: OwnerSchema) -> tuple[Unmatched, ...]:
        """List what an owner's policy names and the owner (``schema``: all it has) does not have.

        A misspelt ``deny`` hides nothing, so whoever reads the schema should say so, loudly.
        """
        published = {table.name: [c.name for c in table.columns] for table in schema.tables}
        return unmatched(self._policy(owner), published)

    def edge(self, edge: KeyEdge) -> EdgeVerdict:
        """Decide about a possible semi-join before any key is known."""
        return self._verdict(edge, self._decide(edge))

    def row_cap(self, owner: str) -> tuple[int, str]:
        """Return how many rows one query may bring from an owner, and by which rule."""
        own = self._policy(owner).limits.max_rows
        cap = _lowest(
            _Limit(self._limits.max_rows, "proxy/limits.max_rows"),
            _limit(own, f"{owner}/limits.max_rows"),
        )
        return cap.number, cap.rule

    def keys_in(self, receiver: str) -> int:
        """Return how many keys one query may carry to an owner, all its edges together."""
        return self._keys_in(receiver).number

    def timeout(self, owner: str) -> float:
        """Return how many seconds a query may run at an owner."""
        own = self._policy(owner).limits.timeout
        return min(self._limits.statement_timeout, own or self._limits.statement_timeout)

    def rows_to_model(self, owner: str) -> Decision:
        """Decide whether rows of an owner may stand in a prompt of a language model."""
        return decide_rows_to_model(self._policy(owner))

    # --- what running asks ---

    async def authorize(
        self, ask: Ask, steps: Sequence[Step], finished: Sequence[StepOutcome] = ()
    ) -> list[Authorized]:
        """Decide about a wave of queries, write it on the ledger, and return it sealed, in order.

        ``finished`` are outcomes of earlier steps, to be written with it.
        All or none: one refused query refuses the wave. When this returns, the ledger holds every
        query and disclosure. Raises :class:`InsufficientPrivilege`, :class:`LimitExceeded`,
        :class:`LedgerUnavailable`, and :class:`InternalError` for a step that is not what it says.
        """
        if not steps:
            return []
        # No await before the entries are complete: one set of policies decides the whole wave.
        entries = [self._entry(step) for step in steps]
        numbers = await self._ledger.record(ask, entries, finished)
        return [Authorized(step.query, number) for step, number in zip(steps, numbers, strict=True)]

    # --- deciding ---

    def _policy(self, owner: str) -> Policy:
        # Never a default here: an owner whose policy was lost on the way would lie open.
        try:
            return self._policies[owner]
        except KeyError:
            raise InternalError(f"no policy is loaded for owner {owner}") from None

    def _decide(self, edge: KeyEdge) -> list[_OriginVerdict]:
        if not edge.origins:
            raise InternalError("a key edge without an origin")
        return [self._decide_origin(origin, edge.receiver) for origin in edge.origins]

    def _decide_origin(self, origin: KeyOrigin, receiver: str) -> _OriginVerdict:
        if origin.owner == receiver:
            return _OriginVerdict(origin, True, OWN_KEYS, None)
        policy = self._policy(origin.owner)
        if not column_visible(policy, origin.table, origin.column):
            # The policy's own rule would name what it hides.
            return _OriginVerdict(origin, False, f"{origin.owner}/tables", None)
        decision = decide_edge(policy, table=origin.table, column=origin.column, receiver=receiver)
        return _OriginVerdict(origin, decision.permit, decision.rule, decision.max_keys)

    def _verdict(self, edge: KeyEdge, parts: Sequence[_OriginVerdict]) -> EdgeVerdict:
        denied = next((part for part in parts if not part.permitted), None)
        if denied is not None:
            return EdgeVerdict(
                permitted=False,
                rule=denied.rule,
                reason=f"owner {denied.origin.owner} does not disclose keys of "
                f"{_column(denied.origin)} to owner {edge.receiver}",
                max_keys=0,
                limit_rule=denied.rule,
            )
        limit = _lowest(
            self._keys_in(edge.receiver),
            *(_limit(part.max_keys, f"{part.rule}.max_keys") for part in parts),
        )
        rule = next((part.rule for part in parts if part.rule != OWN_KEYS), OWN_KEYS)
        return EdgeVerdict(
            permitted=True,
            rule=rule,
            reason=f"permitted by {rule}, at most {limit.number} keys by {limit.rule}",
            max_keys=limit.number,
            limit_rule=limit.rule,
        )

    def _keys_in(self, receiver: str) -> _Limit:
        decision = decide_keys_in(self._policy(receiver), 0)
        return _lowest(
            _Limit(self._limits.max_keys, "proxy/limits.max_keys"),
            _limit(decision.max_keys, decision.rule),
        )

    def _entry(self, step: Step) -> StepEntry:
        policy = self._policy(step.owner)
        cap, cap_rule = self.row_cap(step.owner)
        _require_consistent(step)
        _require_visible(policy, step.query)
        if step.query.limit is None or step.query.limit > cap + 1:
            raise InternalError(
                f"a query to owner {step.owner} is not bounded by its row cap",
                detail=f"limit {cap_rule}: {cap} rows",
                hint="retry: the owner's limit may have been lowered since it was planned",
            )
        disclosures = [
            disclosure for bound in step.edges for disclosure in self._disclosures(bound)
        ]
        total = sum(bound.keys for bound in step.edges)
        limit = self._keys_in(step.owner)
        if total > limit.number:
            raise LimitExceeded(
                f"too many join keys for owner {step.owner}: {total}, at most {limit.number}",
                detail=f"limit {limit.rule} counts the keys of one query",
                hint=f"select fewer rows of what is joined, or have {limit.rule} raised to {total}",
            )
        return StepEntry(
            owner=step.owner,
            sql_digest=digest(step.rendered),
            row_cap=cap,
            row_cap_rule=cap_rule,
            keys=total,
            policy=policy.digest,
            disclosures=tuple(disclosures),
        )

    def _disclosures(self, bound: BoundEdge) -> Iterator[Disclosure]:
        """Decide about one edge and its keys; yield what it discloses, an entry an origin."""
        edge = bound.edge
        parts = self._decide(edge)
        verdict = self._verdict(edge, parts)
        if not verdict.permitted:
            raise self._refusal(
                edge, bound.keys, next(part for part in parts if not part.permitted)
            )
        for part, count in zip(parts, bound.from_each, strict=True):
            if part.max_keys is not None and count > part.max_keys:
                raise LimitExceeded(
                    f"too many join keys of {_column(part.origin)} for owner {edge.receiver}: "
                    f"{count}, at most {part.max_keys}",
                    detail=f"limit {part.rule}.max_keys counts the keys of one query",
                    hint="select fewer rows of what is joined, or have owner "
                    f"{part.origin.owner} raise {part.rule}.max_keys to {count}",
                )
            if part.rule != OWN_KEYS:
                yield Disclosure(
                    from_owner=part.origin.owner,
                    from_column=_column(part.origin),
                    to_owner=edge.receiver,
                    to_column=write_name(edge.receiver_table, edge.receiver_column),
                    keys=count,
                    rule=part.rule,
                    policy=self._policy(part.origin.owner).digest,
                )

    def _refusal(self, edge: KeyEdge, count: int, part: _OriginVerdict) -> InsufficientPrivilege:
        origin = part.origin
        if not column_visible(self._policy(origin.owner), origin.table, origin.column):
            return _no_longer_published(origin.owner)
        column = write_name(origin.table, origin.column)
        return InsufficientPrivilege(
            f"join keys of {_column(origin)} may not leave for owner {edge.receiver}: "
            f"the policy of owner {origin.owner} denies it",
            detail=f"rule {part.rule}; {count} keys would be compared with "
            f"{write_name(edge.receiver_table, edge.receiver_column)}",
            hint=f"owner {origin.owner} can allow it with the key_disclosure entry "
            f"{{column: {column}, to: [{edge.receiver}], max_keys: {max(count, 1)}}}",
        )


def _visible_part(policy: Policy, table: Table) -> Table:
    columns = tuple(c for c in table.columns if column_visible(policy, table.name, c.name))
    names = {column.name for column in columns}
    return replace(
        table,
        columns=columns,
        primary_key=table.primary_key if names.issuperset(table.primary_key) else (),
        unique_keys=tuple(key for key in table.unique_keys if names.issuperset(key)),
    )


def _require_visible(policy: Policy, query: Query) -> None:
    for table, column in _touched(query):
        permitted = (
            table_visible(policy, table)
            if column is None
            else column_visible(policy, table, column)
        )
        if not permitted:
            raise _no_longer_published(policy.owner)


def _no_longer_published(owner: str) -> InsufficientPrivilege:
    # Reached only when a policy was tightened after the catalog was read; names nothing, because
    # what is hidden now has to look as if it were not there.
    return InsufficientPrivilege(
        f"the statement uses a table or column that owner {owner} does not publish any more",
        detail=f"the policy of owner {owner} hides it",
        hint="look at the published tables again; the catalog follows shortly",
    )


def _touched(query: Query) -> Iterator[tuple[str, str | None]]:
    """Yield every table (with None) and every column a query touches, as published."""
    if not isinstance(query, Scan):
        yield from _all_of(query.tables)
        return
    for scan in query.parts():
        name = scan.table.name
        if scan.table.derived is not None:
            # Whatever is asked of its outputs, it is made of these.
            yield from _all_of(scan.table.derived.tables)
        else:
            yield name, None
            yield from ((name, column.name) for column in scan.columns)
            yield from ((name, partial.column.name) for partial in scan.partials)
            yield from ((name, key_filter.column) for key_filter in _key_columns(scan))
            yield from ((name, column) for column in _predicate_columns(scan.predicates))
        for semi_join in scan.semi_joins:
            for column, source_column in semi_join.pairs:
                yield _origin(scan.table, column)
                yield _origin(semi_join.source.table, source_column)


def _key_columns(scan: Scan) -> Iterator[KeyFilter]:
    """Yield each column of each key list: what is looked up together is disclosed in each."""
    for key_filter in scan.key_filters:
        yield from key_filter.columns


def _all_of(tables: Sequence[Table]) -> Iterator[tuple[str, str | None]]:
    for table in tables:
        yield table.name, None
        yield from ((table.name, column.name) for column in table.columns)


def _predicate_columns(predicates: Sequence[Predicate]) -> Iterator[str]:
    # A stack, since a statement may nest conditions deeper than Python recurses.
    waiting = list(predicates)
    while waiting:
        predicate = waiting.pop()
        if isinstance(predicate, And | Or):
            waiting.extend(predicate.arguments)
        elif isinstance(predicate, Not):
            waiting.append(predicate.argument)
        else:
            yield predicate.column


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
        for key_filter in _key_columns(scan):
            carried[_origin(scan.table, key_filter.column)] += len(key_filter.keys)
    for bound in step.edges:
        carried[bound.edge.receiver_table, bound.edge.receiver_column] -= bound.keys
    if any(undeclared > 0 for undeclared in carried.values()):
        raise InternalError(f"a query to owner {step.owner} carries keys no edge declares")


def _origin(table: Table, column: str) -> tuple[str, str]:
    """The published table and column whose values a column of a scan has."""
    derived = table.derived
    if derived is None:
        return table.name, column
    for output, source, name in derived.origins:
        if output == column:
            return source, name
    raise InternalError("keys are compared with a column that no table has")


def _column(origin: KeyOrigin) -> str:
    return write_name(origin.schema, origin.table, origin.column)


def _limit(number: int | None, rule: str) -> _Limit | None:
    return None if number is None else _Limit(number, rule)


def _lowest(first: _Limit, *others: _Limit | None) -> _Limit:
    return min((first, *filter(None, others)), key=lambda limit: limit.number)
