"""Names for what a statement looks like to whoever compiles it, read from its text.

A shape that is drawn rarely, or is rarely reduced, is one about which a run says little: the
table of shapes shows that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from oar_bench.fuzz.world import World

UNREADABLE: Final = "unreadable"
_LOOKS_OTHERWISE: Final = ("icu", "mariadb")
"""Kinds of owners whose text collates otherwise than by code point."""


def shapes(sql: str, world: World) -> frozenset[str]:
    """Return the names of all shapes that are somewhere in a statement over the world's tables."""
    try:
        tree = sqlglot.parse_one(sql, read="postgres")
    except (SqlglotError, RecursionError):
        return frozenset({UNREADABLE})
    return frozenset(_Reader(tree, world).found())


class _Reader:
    def __init__(self, tree: exp.Expr, world: World) -> None:
        self.tree = tree
        self.world = world
        self.ctes = {cte.alias: cte for cte in tree.find_all(exp.CTE)}
        self.owners = self._owners(tree)

    def found(self) -> Iterator[str]:
        yield from self._of_owners()
        yield from self._of_names()
        for join in self.tree.find_all(exp.Join):
            if join.side == "FULL":
                yield "full join"
            elif join.side:
                yield "outer join"
        for query in self.tree.find_all(exp.Query):
            if isinstance(query, exp.Select):
                yield from self._of_select(query)
            if not isinstance(query, (exp.Subquery, exp.Table)):
                yield from self._of_subquery(query)
        for cte in self.ctes.values():
            yield from self._of_cte(cte)
        yield from (f"aggregate of several owners{k}" for k in self._aggregated_over_owners())
        if self.tree.find(exp.Lateral):
            yield "LATERAL"
        if self.tree.args.get("limit"):
            yield "top-N"

    # --- what is read ----------------------------------------------------------------------------

    def _table(self, node: exp.Table) -> str | None:
        """The world's table a name means, None for a CTE's name."""
        cte = self.ctes.get(node.name)
        if cte is not None and not node.db:
            inside = node.find_ancestor(exp.CTE)
            if inside is not cte:
                return None
        return node.name if any(t.name == node.name for t in self.world.tables) else None

    def _tables(self, node: exp.Expr) -> Iterator[str]:
        for part in node.find_all(exp.Table):
            table = self._table(part)
            if table is not None:
                yield table
            elif part.name in self.ctes and part.find_ancestor(exp.CTE) is None:
                yield from self._tables(self.ctes[part.name])

    def _owners(self, node: exp.Expr) -> set[str]:
        return {owner for name in self._tables(node) for owner in self.world.table(name).held}

    def _of_owners(self) -> Iterator[str]:
        yield {1: "one owner", 2: "two owners"}.get(len(self.owners), "three owners")
        tables = [self.world.table(name) for name in self._tables(self.tree)]
        if any(len(table.held) > 1 for table in tables):
            yield "split table"
        if max(Counter(table.name for table in tables).values(), default=0) > 1:
            yield "same table twice"
        for table in tables:
            if any(column.family == "text" for column in table.columns):
                yield from (
                    f"text of {kind}"
                    for kind in {self.world.owners[owner] for owner in table.held}
                    if kind in _LOOKS_OTHERWISE
                )
            if any(column.folds for column in table.columns):
                yield "text without case"
        if self.world.policies:
            yield "policy"

    def _of_names(self) -> Iterator[str]:
        names = {table.name for table in self.world.tables}
        if names & set(self.ctes):
            yield "CTE named like a table"
        aliased = (a for a in self.tree.find_all(exp.Table, exp.Subquery) if a.alias in names)
        if any(not isinstance(a, exp.Table) or a.name != a.alias for a in aliased):
            yield "alias named like a table"

    # --- queries ---------------------------------------------------------------------------------

    def _of_select(self, select: exp.Select) -> Iterator[str]:
        sources = [s for s in _sources(select) if isinstance(s, exp.Table) and self._table(s)]
        held = [frozenset(self.world.table(source.name).held) for source in sources]
        counts = Counter(owners for owners in held if len(owners) == 1)
        if len(held) >= 3 and len(counts) > 1 and max(counts.values()) > 1:
            yield "tables of one owner in a wider join"

    def _of_subquery(self, query: exp.Query) -> Iterator[str]:
        role = _role(query)
        if role is None:
            return
        correlated = _correlated(query)
        yield f"correlated {role}" if correlated else role
        inside = self._owners(query)
        operators = set(_operators(query))
        for operator in operators:
            yield f"{operator} below"
        if len(inside) == 1 and len(self.owners) > 1 and not correlated and operators:
            yield f"one owner's {role} with an operator"

    def _of_cte(self, cte: exp.CTE) -> Iterator[str]:
        uses = sum(
            1
            for table in self.tree.find_all(exp.Table)
            if table.name == cte.alias and not table.db and self._table(table) is None
        )
        if cte.parent is not None and cte.parent.args.get("recursive"):
            yield "recursive CTE"
        elif uses > 1:
            inlined = cte.args.get("materialized") is False
            yield "CTE inlined twice" if inlined else "CTE used twice"
            if inlined:
                yield from (f"{o} in a CTE inlined twice" for o in _operators(cte.this))

    def _aggregated_over_owners(self) -> Iterator[str]:
        for select in self.tree.find_all(exp.Select):
            if len(self._owners_joined(select)) < 2:
                continue
            own = list(_own(select, exp.AggFunc))
            if not own and not select.args.get("group"):
                continue
            columns = Counter(a.this.sql() for a in own if isinstance(a.this, exp.Column))
            kinds = {
                "": True,
                ", outer join": any(join.side for join in select.args.get("joins") or ()),
                ", FILTER": any(isinstance(a.parent, exp.Filter) for a in own),
                ", DISTINCT": any(isinstance(a.this, exp.Distinct) for a in own),
                ", in a window": any(
                    isinstance(a.find_ancestor(exp.Window, exp.Select), exp.Window) for a in own
                ),
                ", HAVING": bool(select.args.get("having")),
                ", grouping sets": _grouping_sets(select),
                ", two of one column": max(columns.values(), default=0) > 1,
            }
            yield from (kind for kind, there in kinds.items() if there)

    def _owners_joined(self, select: exp.Select) -> set[str]:
        return {
            owner
            for source in _sources(select)
            if isinstance(source, exp.Table) and (name := self._table(source)) is not None
            for owner in self.world.table(name).held
        }


def _sources(select: exp.Select) -> Iterator[exp.Expr]:
    """The items of a FROM clause, also in parentheses."""
    waiting = [select.args.get("from_"), *(select.args.get("joins") or ())]
    while waiting:
        item = waiting.pop()
        if item is None:
            continue
        waiting += item.args.get("joins") or () if not isinstance(item, exp.Join) else ()
        inner = item.this if isinstance(item, (exp.From, exp.Join, exp.Paren)) else item
        if isinstance(inner, exp.Subquery) and not isinstance(inner.this, exp.Query):
            waiting.append(inner.this)
        elif isinstance(inner, exp.Subquery) and isinstance(inner.this, exp.Table):
            waiting += [inner.this, *(inner.this.args.get("joins") or ())]
        elif inner is not item:
            waiting.append(inner)
        else:
            yield inner


def _own(select: exp.Select, kind: type[exp.Expr]) -> Iterator[exp.Expr]:
    """Nodes at the query's own level."""
    for node in select.find_all(kind):
        if node.find_ancestor(exp.Select) is select:
            yield node


def _grouping_sets(select: exp.Select) -> bool:
    group = select.args.get("group")
    sets = (exp.Rollup, exp.Cube, exp.GroupingSets)
    return group is not None and any(isinstance(item, sets) for item in group.expressions)


def _operators(query: exp.Expr) -> Iterator[str]:
    """What a query does to its rows before it gives them on, at its own level."""
    while isinstance(query, exp.Subquery) and not query.args.get("limit"):
        query = query.this
    if query.args.get("limit") or query.args.get("offset"):
        yield "LIMIT"
    if isinstance(query, exp.SetOperation):
        yield "set operation"
    if not isinstance(query, exp.Select):
        return
    distinct = query.args.get("distinct")
    if distinct is not None:
        yield "DISTINCT ON" if distinct.args.get("on") else "DISTINCT"
    if _grouping_sets(query):
        yield "grouping sets"
    elif query.args.get("group"):
        yield "GROUP BY"
    elif any(a.find_ancestor(exp.Window, exp.Select) is query for a in _own(query, exp.AggFunc)):
        yield "aggregate"
    if any(_own(query, exp.Window)):
        yield "window"


def _role(query: exp.Query) -> str | None:
    """What a subquery is used as; None for a statement, and for an arm of a set operation."""
    node: exp.Expr = query
    parent = node.parent
    while isinstance(parent, (exp.Subquery, exp.Paren)):
        node, parent = parent, parent.parent
    if parent is None or isinstance(parent, exp.SetOperation):
        return None
    if isinstance(parent, exp.CTE):
        return "CTE"
    if isinstance(parent, (exp.From, exp.Join, exp.Lateral)):
        return "derived table"
    if isinstance(parent, exp.Exists):
        return "NOT EXISTS" if isinstance(parent.parent, exp.Not) else "EXISTS"
    if isinstance(parent, exp.In):
        return "NOT IN" if isinstance(parent.parent, exp.Not) else "IN"
    if isinstance(parent, (exp.Any, exp.All)):
        return "ANY or ALL"
    return "ARRAY subquery" if isinstance(parent, exp.Array) else "scalar subquery"


def _correlated(query: exp.Query) -> bool:
    """Tell whether a qualified column belongs to a table outside."""
    inside = {t.alias_or_name for t in query.find_all(exp.Table)}
    inside |= {s.alias for s in query.find_all(exp.Subquery)} | {
        lateral.alias for lateral in query.find_all(exp.Lateral)
    }
    return any(column.table and column.table not in inside for column in query.find_all(exp.Column))
