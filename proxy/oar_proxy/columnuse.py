"""Whether a statement uses columns as their owners' policies allow, decided on its parse tree.

Views are expanded by then. What is allowed is a list of places; a column anywhere else is refused:

- ``output: false``: in ``WHERE`` and ``ON``, compared as it is with constants, or by ``=`` or
  ``IN`` with another column; in ``USING``; and as what a subquery gives, to be used in these places
  further out. No column that it is made equal to may leave.
- ``output: aggregate_only``: there, and as the bare argument of the aggregates that are named.
- ``filter: false``: in what is selected, aggregated and grouped by.

Each output is traced to the columns it is made of, without regard to rows: more may be refused than
would have to be.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from oar_proxy.columnnames import (
    NONE,
    Base,
    Bases,
    Item,
    Output,
    Outputs,
    Reference,
    Scope,
    all_of,
    renamed,
    unknown,
)
from oar_proxy.conditions import compared_with_constants, compares_columns
from oar_proxy.decision import Checked, Decisions, Restriction
from oar_proxy.errors import InsufficientPrivilege
from oar_proxy.sessionstate import BUILT_INS_ONLY
from oar_proxy.sql.tree import ast, children, enums
from oar_proxy.statement import FederatedStatement

Place = str
"""Where a column stands. ``bare``: selected as it is; ``target``: in another selected expression;
``compared``: in a condition that may be allowed; ``condition``: in another. Else it is SQL's word.
"""


def check(statement: FederatedStatement, decisions: Decisions) -> Checked:
    """Check the use of every column that an owner restricts.

    Raises :class:`InsufficientPrivilege`, with the rule and what to write instead.
    """
    checked = {
        (holder.owner, holder.table.name): decisions.use(holder.owner, holder.table.name)
        for table in statement.tables
        for holder in table.holders
    }
    restricted: dict[Base, Restriction] = {}
    for occurrence in statement.occurrences:
        for holder in occurrence.table.holders:
            for each in decisions.restrictions(holder.owner, holder.table.name):
                base = Base(occurrence.relation.start, each.column)
                known = restricted.get(base)
                restricted[base] = each if known is None else known.and_also(each)
    if restricted:
        checker = _Checker(statement, restricted)
        foreign = statement.state.foreign_names
        if foreign is not None:
            raise checker.unclear(foreign, hint=BUILT_INS_ONLY)
        try:
            checker.statement(statement.parsed.node)
        except RecursionError:
            raise checker.unclear("it is nested too deeply") from None
    return checked


class _Checker:
    def __init__(
        self, statement: FederatedStatement, restricted: Mapping[Base, Restriction]
    ) -> None:
        self._restricted = restricted
        self._relations: list[tuple[int, int, tuple[Output, ...]]] = []
        for relation, names in (
            *((o.relation, [c.name for c in o.table.columns]) for o in statement.occurrences),
            *((o.relation, [name for name, _ in o.columns]) for o in statement.others),
        ):
            outputs = tuple(
                Output(name, frozenset({Base(relation.start, name)})) for name in names
            ) or (unknown(relation.start),)
            self._relations.append((relation.start, relation.end, outputs))
        self._equal: dict[Base, Base] = {}
        self._shown: list[Bases] = []

    # --- statements -------------------------------------------------------------------------------

    def statement(self, node: Any) -> None:
        """Check a statement, and what leaves with its answer."""
        self._shown.append(all_of(self._answer(node)))
        for bases in self._shown:
            for base in _in_order(bases):
                for other in self._restricted:
                    if self._root(other) == self._root(base) and not base.aggregated:
                        self._require_output(other, base)

    def _answer(self, node: Any) -> Outputs:
        if isinstance(node, ast.SelectStmt):
            return self._select(node, None)
        if isinstance(node, ast.InsertStmt):
            scope = self._with(node.withClause, Scope())
            target = replace(scope, items=(Item(None, (Output(None, NONE, True),)),))
            rest = [getattr(node, n) for n in node if n not in ("withClause", "selectStmt")]
            returned = self._expression(tuple(rest), target, "ON CONFLICT or RETURNING")
            source = self._select(node.selectStmt, scope) if node.selectStmt is not None else []
            return [*source, Output(None, returned, True)]
        carried = (ast.CopyStmt, ast.DeclareCursorStmt, ast.CreateTableAsStmt, ast.ExplainStmt)
        if isinstance(node, carried):
            return self._answer(node.query)
        raise self.unclear(f"{type(node).__name__.removesuffix('Stmt').upper()} reads it")

    def _select(self, node: Any, parent: Scope | None, *, is_open: bool = False) -> Outputs:
        if not isinstance(node, ast.SelectStmt):
            raise self.unclear("a statement that writes reads it")
        scope = self._with(node.withClause, Scope(parent=parent, open=is_open))
        if node.op != enums.SetOperation.SETOP_NONE:
            outputs = self._set_operation(node, scope)
            sorted_by = replace(scope, items=(Item(None, tuple(outputs)),))
        elif node.valuesLists:
            outputs, sorted_by = self._values(node, scope), scope
        else:
            outputs, sorted_by = self._plain(node, scope)
        self._by_name(node.sortClause, sorted_by, outputs, "ORDER BY")
        self._expression((node.limitCount, node.limitOffset), scope, "LIMIT")
        return outputs

    def _with(self, clause: Any, scope: Scope) -> Scope:
        ctes: Any = clause.ctes if clause is not None else ()
        if clause is not None and clause.recursive:
            # Any of them may be read by itself, and by those before it.
            itself = {cte.ctename: (unknown(-id(cte)),) for cte in ctes}
            scope = replace(scope, ctes={**scope.ctes, **itself})
        for cte in ctes:
            outputs = self._select(cte.ctequery, scope)
            if clause.recursive:
                if any(True for base in all_of(outputs) for _ in self._restrictions(base)):
                    raise self.unclear("WITH RECURSIVE gives it")
                self._equate(all_of(outputs) | all_of(scope.ctes[cte.ctename]))
            given = renamed(outputs, cte.aliascolnames)
            scope = replace(scope, ctes={**scope.ctes, cte.ctename: given})
        return scope

    def _set_operation(self, node: Any, scope: Scope) -> Outputs:
        left, right = self._select(node.larg, scope), self._select(node.rarg, scope)
        alike = len(left) == len(right) and not any(o.several for o in (*left, *right))
        pairs = list(zip(left, right, strict=True)) if alike else []
        outputs = [Output(one.name, one.bases | other.bases) for one, other in pairs]
        if not alike:
            outputs = [Output(None, all_of(left) | all_of(right), True)]
        if node.op != enums.SetOperation.SETOP_UNION:
            for output in outputs:
                self._use(output.bases, "compared")
                self._equate(output.bases)
        return outputs

    def _values(self, node: Any, scope: Scope) -> Outputs:
        rows = [[self._expression(cell, scope, "VALUES") for cell in row]
                for row in node.valuesLists]  # fmt: skip
        new = [frozenset({Base(-id(node), str(n))}) for n in range(len(rows[0]))]
        return [
            Output(f"column{n + 1}", new[n].union(*(row[n] for row in rows if n < len(row))))
            for n in range(len(new))
        ]

    def _plain(self, node: Any, scope: Scope) -> tuple[Outputs, Scope]:
        star: Outputs = []
        for item in node.fromClause or ():
            items, columns = self._from(item, scope)
            scope = replace(scope, items=(*scope.items, *items))
            star += columns
        self._condition(node.whereClause, scope)
        outputs = [o for target in node.targetList or () for o in self._target(target, scope, star)]
        self._by_name(node.groupClause, scope, outputs, "GROUP BY")
        self._by_name(node.distinctClause, scope, outputs, "DISTINCT ON")
        self._expression(node.havingClause, scope, "HAVING")
        self._expression(node.windowClause, scope, "a window")
        return outputs, scope

    def _target(self, target: Any, scope: Scope, star: Outputs) -> Outputs:
        value = target.val
        if isinstance(value, ast.ColumnRef) and isinstance(value.fields[-1], ast.A_Star):
            if len(value.fields) == 1:
                return star
            found = scope.named(value.fields[-2].sval)
            if found is None:
                raise self.unclear("a star may bring it")
            item, far = found
            self._use(item.bases, "bare", far=far)
            return list(item.outputs)
        if isinstance(value, ast.ColumnRef):
            meant = self._resolve(value, scope)
            self._use(meant.bases, "bare" if meant.bare else "target", far=meant.far)
            return [Output(target.name or value.fields[-1].sval, meant.bases)]
        # The name that PostgreSQL gives it is not worth knowing.
        return [Output(target.name, self._expression(value, scope, "target"))]

    def _by_name(self, nodes: Any, scope: Scope, outputs: Outputs, place: Place) -> None:
        """Check clauses whose names and numbers may mean outputs as well as columns."""
        for node in nodes or ():
            key = node.node if isinstance(node, ast.SortBy) else node
            bases = NONE
            if isinstance(key, ast.GroupingSet):
                self._by_name(key.content, scope, outputs, place)
            elif isinstance(key, ast.RowExpr) and place == "GROUP BY":
                # Parentheses around several, which name outputs as they do without.
                self._by_name(key.args, scope, outputs, place)
            elif isinstance(key, ast.A_Const) and isinstance(key.val, ast.Integer):
                number = int(key.val.ival or 0)
                counted = not any(output.several for output in outputs)
                exact = counted and 0 < number <= len(outputs)
                bases = outputs[number - 1].bases if exact else all_of(outputs)
                self._use(bases, place)
            elif isinstance(key, ast.ColumnRef) and len(key.fields) == 1:
                name = getattr(key.fields[0], "sval", None)
                named = Item(None, tuple(outputs)).find(name) if name is not None else None
                inside = scope.find(name) if name is not None else None
                if named is None and inside is None:
                    raise self.unclear(f"{place} names something else")
                bases = (named or NONE) | (inside.bases if inside is not None else NONE)
                self._use(bases, place, far=inside is not None and inside.far)
            else:
                bases = self._expression(key, scope, place)
            self._shown.append(bases)

    # --- FROM -------------------------------------------------------------------------------------

    def _from(self, node: Any, scope: Scope) -> tuple[tuple[Item, ...], Outputs]:
        """Return the names that an item of FROM brings, and the columns of its star.

        ``scope`` has what stands before it.
        """
        if isinstance(node, ast.RangeVar):
            outputs = self._relation(node, scope)
        elif isinstance(node, ast.RangeSubselect):
            # Without LATERAL, it sees nothing of what stands beside it.
            around = scope if node.lateral else replace(scope, items=())
            outputs = tuple(self._select(node.subquery, around))
        elif isinstance(node, ast.JoinExpr):
            return self._join(node, scope)
        elif isinstance(node, ast.RangeTableSample):
            self._expression((node.args, node.repeatable), scope, "TABLESAMPLE")
            return self._from(node.relation, scope)
        else:
            # A function's columns are its own: more of it is not known.
            made_of = self._expression(node, scope, "a function in FROM")
            outputs = (Output(None, unknown(-id(node)).bases | made_of, True),)
        alias = getattr(node, "alias", None)
        name = alias.aliasname if alias is not None else getattr(node, "relname", None)
        if alias is not None:
            outputs = renamed(outputs, alias.colnames)
        return (Item(name, outputs),), list(outputs)

    def _relation(self, node: Any, scope: Scope) -> tuple[Output, ...]:
        for start, end, outputs in self._relations:
            if start <= node.location < end:
                return outputs
        found = scope.cte(node.relname) if node.schemaname is None else None
        return (unknown(node.location),) if found is None else found

    def _join(self, node: Any, scope: Scope) -> tuple[tuple[Item, ...], Outputs]:
        left, left_star = self._from(node.larg, scope)
        beside = replace(scope, items=(*scope.items, *left))
        right, right_star = self._from(node.rarg, beside)
        names = [name.sval for name in node.usingClause or ()]
        if node.isNatural:
            if None in {output.name for output in (*left_star, *right_star)}:
                raise self.unclear("NATURAL JOIN may join by it")
            names = [o.name for o in left_star if o.name in {r.name for r in right_star} and o.name]
        merged: list[Output] = []
        for name in names:
            sides = [Item(None, tuple(star)).find(name) for star in (left_star, right_star)]
            bases = NONE.union(*(side for side in sides if side is not None))
            self._use(bases, "compared")
            self._equate(bases)
            merged.append(Output(name, bases))
        rest = [o for o in (*left_star, *right_star) if o.name is None or o.name not in names]
        star = [*merged, *rest]
        items = (*left, *right)
        inner = node.jointype == enums.JoinType.JOIN_INNER
        self._condition(node.quals, replace(scope, items=items), filters=inner)
        if node.join_using_alias is not None:
            items = (*items, Item(node.join_using_alias.aliasname, tuple(merged)))
        if node.alias is not None:
            star = list(renamed(star, node.alias.colnames))
            items = (Item(node.alias.aliasname, tuple(star)),)
        return items, star

    # --- conditions -------------------------------------------------------------------------------

    def _condition(self, node: Any, scope: Scope, *, filters: bool = True) -> None:
        """Check a condition on rows. ``filters``: rows for which it does not hold are not there.

        In an outer join it tells what it is by NULLs in the answer.
        """
        if node is None:
            return
        if isinstance(node, ast.BoolExpr):
            for argument in node.args:
                self._condition(argument, scope, filters=filters)
        elif isinstance(node, ast.SubLink) and filters and self._semi_join(node, scope):
            return
        elif compares_columns(node):
            left, right = self._resolve(node.lexpr, scope), self._resolve(node.rexpr, scope)
            for side in (left, right):
                self._use(side.bases, "compared" if side.bare else "condition", far=side.far)
            self._equate(left.bases | right.bases)
        else:
            column = compared_with_constants(node)
            if column is not None and filters:
                found = self._resolve(column, scope)
                self._use(found.bases, "compared" if found.bare else "condition", far=found.far)
            else:
                self._equate(self._expression(node, scope, "condition"))

    def _semi_join(self, node: Any, scope: Scope) -> bool:
        kinds = enums.SubLinkType
        if node.subLinkType == kinds.EXISTS_SUBLINK:
            self._select(node.subselect, scope, is_open=True)
            return True
        equals = node.operName is None or [part.sval for part in node.operName] == ["="]
        plain = equals and isinstance(node.testexpr, ast.ColumnRef)
        if node.subLinkType != kinds.ANY_SUBLINK or not plain:
            return False
        outer = self._resolve(node.testexpr, scope)
        self._use(outer.bases, "compared" if outer.bare else "condition", far=outer.far)
        inner = all_of(self._select(node.subselect, scope, is_open=True))
        self._use(inner, "compared")
        self._equate(outer.bases | inner)
        return True

    # --- expressions ------------------------------------------------------------------------------

    def _expression(self, node: Any, scope: Scope, place: Place) -> Bases:
        """Check an expression; return what it is made of.

        All of that is shown, wherever the expression stands: an error quotes it, a function of the
        session's own tells it, and the number of rows can count it out.
        """
        if isinstance(node, ast.ColumnRef):
            found = self._resolve(node, scope)
            self._use(found.bases, place, far=found.far)
            self._shown.append(found.bases)
            return found.bases
        if isinstance(node, ast.SubLink):
            given = all_of(self._select(node.subselect, scope))
            self._use(given, place)
            self._shown.append(given)
            return given | self._expression(node.testexpr, scope, place)
        if isinstance(node, ast.SelectStmt):
            raise self.unclear(f"a query in {place} reads it")
        if isinstance(node, ast.FuncCall):
            return self._call(node, scope, place)
        if isinstance(node, ast.JsonAggConstructor):
            return self._beside_arguments(node, scope)
        made_of = (self._expression(child, scope, place) for child in children(node))
        return NONE.union(*made_of)

    def _call(self, node: Any, scope: Scope, place: Place) -> Bases:
        made_of = self._beside_arguments(node, scope)
        function = _plain_aggregate(node)
        if function is None:
            return made_of.union(*(self._expression(a, scope, place) for a in node.args or ()))
        found = self._resolve(node.args[0], scope)
        result: set[Base] = set()
        for base in found.bases:
            allowed = any(function in each.functions for each in self._restrictions(base))
            aggregated = allowed and found.bare and not found.far
            result.add(replace(base, aggregated=base.aggregated or aggregated))
        self._use(frozenset(result), place, far=found.far)
        self._shown.append(frozenset(result))
        return frozenset(result)

    def _beside_arguments(self, call: Any, scope: Scope) -> Bases:
        self._expression(call.agg_filter, scope, "FILTER")
        window = "a window" if call.over is not None else "an aggregate's ORDER BY"
        return self._expression((call.over, call.agg_order), scope, window)

    # --- names and decisions ----------------------------------------------------------------------

    def _resolve(self, node: Any, scope: Scope) -> Reference:
        found = scope.resolve(node)
        if found is None:
            raise self.unclear("a name in it may mean it")
        return found

    def _restrictions(self, base: Base) -> Iterator[Restriction]:
        restriction = self._restricted.get(replace(base, aggregated=False))
        if restriction is not None:
            yield restriction

    def _use(self, bases: Bases, place: Place, *, far: bool = False) -> None:
        """Refuse columns that may not stand in a place, or not there from so far outside."""
        for base in _in_order(bases):
            for each in self._restrictions(base):
                shown = place not in ("bare", "compared") or far
                if each.output_rule is not None and shown and not base.aggregated:
                    raise _refused_output(each, place)
                if each.filter_rule is not None and (
                    far or place not in ("bare", "target", "GROUP BY")
                ):
                    raise _refused_filter(each, place)

    def _require_output(self, restricted: Base, shown: Base) -> None:
        for each in self._restrictions(restricted):
            if each.output_rule is not None:
                raise _refused_output(each, "answer" if restricted == shown else "equal")

    def _equate(self, bases: Iterable[Base]) -> None:
        """Note that columns may have the same values, by a join or a condition."""
        roots = {self._root(base) for base in bases}
        for root in roots:
            self._equal[root] = next(iter(roots))

    def _root(self, base: Base) -> Base:
        while self._equal.get(base, base) != base:
            base = self._equal[base]
        return base

    def unclear(
        self, why: str, hint: str = "write a plain SELECT, with the column named by its table"
    ) -> InsufficientPrivilege:
        """Return the error of a statement of which it cannot be told what it does."""
        restriction = min(self._restricted.values(), key=lambda each: each.rules)
        return InsufficientPrivilege(
            f"it is not clear whether {restriction.name} is used as its owner allows: {why}",
            detail=f"rule {restriction.rules[0]}",
            hint=hint,
        )


def _in_order(bases: Bases) -> list[Base]:
    """Return bases in the same order each time, so that the same rule is named."""
    return sorted(bases, key=lambda each: (each.place, each.name, each.aggregated))


def _refused_output(restriction: Restriction, place: Place) -> InsufficientPrivilege:
    where = {
        "target": "be made something of in what is selected",
        "bare": "be selected by a query inside, of a table outside of it",
        "answer": "stand in the answer",
        "equal": "stand in the answer, also not as another column that is equal to it",
        "condition": "be compared so",
        "compared": "be compared from inside of such a query",
    }.get(place, f"stand in {place}")
    hint = (
        "leave it out of what is selected; in WHERE and ON it may be compared with constants, and "
        "by = or IN with another column"
    )
    if restriction.functions:
        aggregates = ", ".join(f"{f}({restriction.column})" for f in sorted(restriction.functions))
        hint = f"select {aggregates}, without DISTINCT or OVER; {hint.partition('; ')[2]}"
    return InsufficientPrivilege(
        f"{restriction.name} may not {where}",
        detail=f"rule {restriction.output_rule}",
        hint=hint,
    )


def _refused_filter(restriction: Restriction, place: Place) -> InsufficientPrivilege:
    compared = place in ("condition", "compared", "target", "bare")
    return InsufficientPrivilege(
        f"{restriction.name} may not "
        + ("select rows or join them" if compared else f"stand in {place}"),
        detail=f"rule {restriction.filter_rule}",
        hint="select it, and sort or filter what comes back",
    )


def _plain_aggregate(node: Any) -> str | None:
    """Return the name of a function that is called as ``f(column)`` and no more."""
    parts = [part.sval for part in node.funcname]
    more = (
        node.agg_order,
        node.agg_within_group,
        node.agg_distinct,
        node.over,
        node.func_variadic,
    )
    one = len(node.args or ()) == 1 and isinstance(node.args[0], ast.ColumnRef)
    if any(more) or not one or parts[:-1] not in ([], ["pg_catalog"]):
        return None
    return str(parts[-1])
