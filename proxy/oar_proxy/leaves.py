"""Tables that only filter another one: each row of that one is joined with one of theirs, or none.

Such a *leaf* is named in equalities with columns of one other occurrence, its *target*, beside
which it stands in FROM, or in a subquery after IN or EXISTS, and in conditions of its own; nothing
else of it is used. The target's rows that find a key of the leaf are those that are kept, each once
if the keys are different, or the leaf stands in a subquery. Its owner, who has all of them, can
then leave out the columns that they are compared with, and count the rows without regard to them:
which of the leaf's rows one is joined with does not matter. See :mod:`oar_proxy.run`, which asks so
only if it is what the keys turn out to be.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from oar_proxy.conditions import compares_columns
from oar_proxy.sql.tree import ast, children, column_refs, conjuncts, enums, has_query
from oar_proxy.statement import FederatedStatement, Occurrence
from oar_proxy.uses import Level, Uses, column_path, countable, occurrence_at

ALIKE: Final = frozenset(
    {"smallint", "integer", "bigint", "uuid", "date", "text", "character varying"}
)
"""Types of keys, without modifiers, that are equal where their bytes are."""

_PICKING: Final = (
    *("groupClause", "havingClause", "windowClause", "valuesLists", "limitOffset", "limitCount"),
    *("lockingClause", "withClause"),
)
"""Clauses by which a query gives other rows than those that its conditions keep."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """An occurrence that only filters: its columns, each with the one of the target it equals.

    ``joined``: a row of the target comes as often as it finds one.
    """

    number: int
    pairs: frozenset[tuple[str, str]]
    joined: bool

    @property
    def columns(self) -> list[str]:
        """The target's columns, each as often as it is compared."""
        return [column for _, column in self.pairs]


@dataclass(frozen=True, slots=True)
class Target:
    """An occurrence that leaves filter, and what else the statement does with its columns."""

    leaves: tuple[Leaf, ...]
    uses: Uses


def targets(statement: FederatedStatement) -> dict[int, Target]:
    """Return the occurrences (by number) that can be counted, and have leaves."""
    found: dict[int, Target] = {}
    for select in _selects(statement.parsed.node):
        joined = _Joined(statement.occurrences)
        joined.read(select)
        for number in joined.targets():
            target = _target(statement, joined, number)
            if target is not None:
                found[number] = target
    return found


def _target(statement: FederatedStatement, joined: _Joined, number: int) -> Target | None:
    leaves = joined.leaves_of(number)
    while leaves:
        nodes = [node for leaf in leaves for node in joined.nodes_of(leaf)]
        uses, unused = countable(statement, frozenset(map(id, nodes)))
        if number not in uses:
            return None
        kept = [leaf for leaf in leaves if leaf in unused or leaf in joined.below]
        if len(kept) == len(leaves):
            found = ((leaf, joined.pairs_of(leaf), leaf not in joined.below) for leaf in leaves)
            return Target(tuple(Leaf(*each) for each in found), uses[number])
        leaves = kept
    return None


def _selects(root: Any) -> Iterator[Any]:
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.SelectStmt):
            yield node
        waiting.extend(children(node))


@dataclass(slots=True)
class _Equality:
    """``left.column = right.column`` of two occurrences, for each of some pairs of columns."""

    left: int
    right: int
    pairs: tuple[tuple[str, str], ...]
    node: Any

    def seen_from(self, number: int) -> Iterator[tuple[str, str]]:
        return ((a, b) if number == self.left else (b, a) for a, b in self.pairs)


@dataclass(slots=True)
class _Joined:
    """What is joined in the FROM of one SELECT so that every condition there has to hold."""

    occurrences: Sequence[Occurrence]
    level: Level = field(default_factory=Level)
    inner: set[int] = field(default_factory=set)
    equalities: list[_Equality] = field(default_factory=list)
    own: dict[int, list[Any]] = field(default_factory=dict)
    """The conditions on an occurrence alone."""
    below: set[int] = field(default_factory=set)
    """Of ``inner``, those that stand alone in a subquery of a condition, and nowhere else."""

    def read(self, select: Any) -> None:
        for item in select.fromClause or ():
            self.level.enter(item, self.occurrences)
        for item in select.fromClause or ():
            self._enter(item)
        self._hold(select.whereClause)

    def targets(self) -> set[int]:
        partners = (self._partners(number) for number in self.inner)
        return {found for each in partners if len(each) == 1 for found in each & self.inner}

    def leaves_of(self, target: int) -> list[int]:
        return sorted(n for n in self.inner if self._partners(n) == {target})

    def nodes_of(self, leaf: int) -> list[Any]:
        """Everything that may name a leaf."""
        return [each.node for each in self._equalities_of(leaf)] + self.own.get(leaf, [])

    def pairs_of(self, leaf: int) -> frozenset[tuple[str, str]]:
        return frozenset(p for each in self._equalities_of(leaf) for p in each.seen_from(leaf))

    def _equalities_of(self, number: int) -> Iterator[_Equality]:
        return (each for each in self.equalities if number in (each.left, each.right))

    def _partners(self, number: int) -> set[int]:
        found = {n for each in self._equalities_of(number) for n in (each.left, each.right)}
        return found - {number}

    def _enter(self, item: Any) -> None:
        """Take in an item of FROM whose rows all conditions have to let pass."""
        if isinstance(item, ast.RangeVar):
            occurrence = occurrence_at(item, self.occurrences)
            if occurrence is not None:
                self.inner.add(occurrence.number)
            return
        if not isinstance(item, ast.JoinExpr) or item.alias is not None or item.isNatural:
            return
        kinds, kind = enums.JoinType, item.jointype
        if kind in (kinds.JOIN_INNER, kinds.JOIN_LEFT):
            self._enter(item.larg)
        if kind in (kinds.JOIN_INNER, kinds.JOIN_RIGHT):
            self._enter(item.rarg)
        if kind == kinds.JOIN_INNER:
            self._hold(item.quals)
            self._merge(item)

    def _hold(self, condition: Any) -> None:
        for node in conjuncts(condition):
            if isinstance(node, ast.SubLink):
                self._filter(node)
                continue
            columns = [self._column(each) for each in column_refs(node)]
            known = [each for each in columns if each is not None]
            if len(known) < len(columns) or has_query(node):
                continue
            named = {number for number, _ in known}
            if len(named) == 1:
                self.own.setdefault(known[0][0], []).append(node)
            elif _equates_columns(node):
                (left, a), (right, b) = known
                self.equalities.append(_Equality(left, right, ((a, b),), node))

    def _merge(self, join: Any) -> None:
        """Take ``JOIN … USING`` of two tables for the equalities that it is."""
        names = [name.sval for name in join.usingClause or ()]
        sides = [
            occurrence_at(side, self.occurrences) if isinstance(side, ast.RangeVar) else None
            for side in (join.larg, join.rarg)
        ]
        if not names or None in sides or join.join_using_alias is not None:
            return
        left, right = (side.number for side in sides if side is not None)
        pairs = tuple((name, name) for name in names)
        self.equalities.append(_Equality(left, right, pairs, join))

    def _filter(self, node: Any) -> None:
        """Take ``IN`` or ``EXISTS`` with a query of one table for the equalities that it is."""
        query, kinds = node.subselect, enums.SubLinkType
        inside = _Joined(self.occurrences)
        if not _reads_one_table(query):
            return
        inside.read(query)
        compared: list[tuple[Any, Any]] = []
        if node.subLinkType == kinds.ANY_SUBLINK and node.operName is None:
            compared.append((node.testexpr, query.targetList[0].val))
        elif node.subLinkType != kinds.EXISTS_SUBLINK:
            return
        for condition in conjuncts(query.whereClause):
            columns = list(column_refs(condition))
            outer = [each for each in columns if inside._column(each) is None]
            if has_query(condition) or (outer and not _equates_columns(condition)):
                return
            if outer:
                one, other = columns
                compared.append((one, other) if one is outer[0] else (other, one))
        known = [(self._column(here), inside._column(there)) for here, there in compared]
        pairs = [(here, there) for here, there in known if here is not None and there is not None]
        if not pairs or len(pairs) < len(known):
            return
        targets, leaves = ({number for number, _ in side} for side in zip(*pairs, strict=True))
        if not len(targets) == len(leaves) == 1:
            return
        (target,), (leaf,) = targets, leaves
        if sum(occurrence.number == leaf for occurrence in self.occurrences) > 1:
            return  # the same query stands elsewhere, too
        self.inner.add(leaf)
        self.below.add(leaf)
        matched = tuple((here[1], there[1]) for here, there in pairs)
        self.equalities.append(_Equality(target, leaf, matched, node))

    def _column(self, reference: Any) -> tuple[int, str] | None:
        """The occurrence beside, and its column, that a reference can only mean."""
        path = column_path(reference) if isinstance(reference, ast.ColumnRef) else None
        owners = self.level.owners_of(path) if path is not None and len(path) <= 2 else []
        if path is None or len(owners) != 1:
            return None
        named = self.level.named.get(path[0], []) if len(path) == 2 else owners
        return (owners[0].number, path[-1]) if len(named) == 1 else None


def _equates_columns(condition: Any) -> bool:
    return compares_columns(condition) and condition.kind == enums.A_Expr_Kind.AEXPR_OP


def _reads_one_table(query: Any) -> bool:
    """Tell whether a query gives plain columns, or constants, of the rows of a table it keeps."""
    return (
        all(getattr(query, name) is None for name in _PICKING)
        and query.distinctClause in (None, (None,))  # DISTINCT ON picks rows
        and query.op == enums.SetOperation.SETOP_NONE
        and [type(item) for item in query.fromClause or ()] == [ast.RangeVar]
        and all(
            isinstance(target.val, (ast.ColumnRef, ast.A_Const))
            for target in query.targetList or ()
        )
    )
