"""What a parse tree says: the names in it, its subqueries, and how rows make its answer."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, Final

from pglast import ast as ast  # noqa: PLC0414 - re-exported: no other package imports pglast
from pglast import enums as enums  # noqa: PLC0414
from pglast.stream import RawStream

_ENDINGS: Final = (
    enums.TransactionStmtKind.TRANS_STMT_COMMIT,
    enums.TransactionStmtKind.TRANS_STMT_ROLLBACK,
    enums.TransactionStmtKind.TRANS_STMT_PREPARE,
)


JSON_AGGREGATES: Final = (ast.JsonArrayAgg, ast.JsonObjectAgg)
"""Aggregates that have words of their own in the grammar: no calls on the tree."""


def children(node: Any) -> Sequence[Any]:
    """Return the nodes directly below a node or a tuple of nodes, and tuples of them."""
    if isinstance(node, ast.Node):
        places = _places(node.__class__)
        return [each for name in places if (each := getattr(node, name)) is not None]
    return node if isinstance(node, tuple) else ()


@functools.cache
def _places(kind: type[ast.Node]) -> tuple[str, ...]:
    """Name the attributes of a kind of node that may hold nodes: most of them never do."""
    return tuple(
        name
        for name, slot in dict(kind.__slots__).items()
        if any(
            issubclass(type_, (ast.Node, tuple))
            for type_ in (slot.py_type if isinstance(slot.py_type, tuple) else (slot.py_type,))
        )
    )


def fetched_cursor(node: Any) -> str | None:
    """Return the name of the cursor that a statement fetches rows from."""
    return node.portalname if isinstance(node, ast.FetchStmt) and not node.ismove else None


def is_star(node: Any) -> bool:
    """Tell whether a node is ``*`` or ``t.*``."""
    return isinstance(node, ast.ColumnRef) and isinstance(node.fields[-1], ast.A_Star)


def ends_transaction(node: Any) -> bool:
    """Tell whether a statement ends the transaction that it stands in."""
    return isinstance(node, ast.TransactionStmt) and node.kind in _ENDINGS


def needs_block(node: Any) -> bool:
    """Tell whether a statement is an error outside a transaction: a cursor without hold."""
    return isinstance(node, ast.DeclareCursorStmt) and not node.options & enums.CURSOR_OPT_HOLD


_QUALIFIED: Final = {
    ast.A_Expr: "name",
    ast.SortBy: "useOp",
    ast.SubLink: "operName",
    ast.TypeName: "names",
}
"""Where nodes name an operator or a type, perhaps with a schema."""


def function_names(root: Any) -> tuple[set[str], set[str]]:
    """Return what a query calls as ``f(x)``, and what it may call as ``(x).f`` if not a field.

    Functions are named by their last name; with a schema, by both. So are operators and types with
    a schema: an operator is a function, and a type may call one to check its values.
    """
    called: set[str] = set()
    attributes: set[str] = set()
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FuncCall):
            parts = [part.sval for part in node.funcname]
            called.add(".".join(parts[1:] if parts[0] == "pg_catalog" else parts))
        elif isinstance(node, ast.A_Indirection):
            attributes.update(p.sval for p in node.indirection if isinstance(p, ast.String))
        elif type(node) in _QUALIFIED:
            parts = [part.sval for part in getattr(node, _QUALIFIED[type(node)]) or ()]
            if len(parts) > 1 and parts[0] != "pg_catalog":
                called.add(".".join(parts))
        waiting.extend(children(node))
    return called, attributes


def relation_positions(node: Any) -> Iterator[int]:
    """Yield where each relation below a node is named."""
    if isinstance(node, ast.RangeVar):
        yield node.location
        return
    for child in children(node):
        yield from relation_positions(child)


def column_refs(node: Any) -> Iterator[Any]:
    """Yield the columns below a node, as it names them."""
    if isinstance(node, ast.ColumnRef):
        yield node
    for child in children(node):
        yield from column_refs(child)


def has_query(node: Any) -> bool:
    """Tell whether a node is, or has below it, a query inside an expression."""
    return isinstance(node, ast.SubLink) or any(map(has_query, children(node)))


def direct_relations(items: Iterable[Any] | None) -> Iterator[Any]:
    """Yield the relations that FROM names by themselves or in joins."""
    for item in items or ():
        if isinstance(item, ast.RangeVar):
            yield item
        elif isinstance(item, ast.JoinExpr):
            yield from direct_relations((item.larg, item.rarg))


def locked_relations(select: Any) -> Iterator[int]:
    """Yield where the relations are named of which a SELECT locks rows, also in its subqueries."""
    for clause in select.lockingClause or ():
        named = {relation.relname for relation in clause.lockedRels or ()}
        waiting = list(select.fromClause or ())
        while waiting:
            item = waiting.pop()
            alias = getattr(item, "alias", None)
            name = getattr(item, "relname", None) if alias is None else alias.aliasname
            if not named or name in named:
                yield from relation_positions(item)
            elif isinstance(item, ast.JoinExpr):
                waiting += (item.larg, item.rarg)


def range_names(root: Any) -> Iterator[tuple[str, int | None]]:
    """Yield every name that FROM gives its items, and where a relation that goes by its own is."""
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Alias):
            yield node.aliasname, None
        elif isinstance(node, ast.RangeVar) and node.alias is None:
            yield node.relname, node.location
        waiting.extend(children(node))


def subqueries(root: Any) -> Iterator[tuple[str, Any, tuple[str, ...] | None]]:
    """Yield alias, query and output columns of each subquery in FROM and each use of a CTE.

    The columns are None where the names alone do not tell them (a star, an unnamed expression).
    """
    ctes: dict[str, list[Any]] = {}
    used: list[Any] = []
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.CommonTableExpr):
            ctes.setdefault(node.ctename, []).append(node)
        elif isinstance(node, ast.RangeVar) and node.schemaname is None:
            used.append(node)
        elif isinstance(node, ast.RangeSubselect) and node.alias is not None:
            renamed = tuple(name.sval for name in node.alias.colnames or ())
            yield node.alias.aliasname, node.subquery, _renamed(node.subquery, renamed)
        waiting.extend(children(node))
    for reference in used:
        for cte in ctes.get(reference.relname, ()):
            alias = reference.alias.aliasname if reference.alias else reference.relname
            renamed = tuple(name.sval for name in cte.aliascolnames or ())
            if reference.alias is not None and reference.alias.colnames:
                yield alias, cte.ctequery, None
            else:
                yield alias, cte.ctequery, _renamed(cte.ctequery, renamed)


def _renamed(query: Any, names: tuple[str, ...]) -> tuple[str, ...] | None:
    columns = _output_columns(query)
    return None if columns is None else names + columns[len(names) :]


def _output_columns(query: Any) -> tuple[str, ...] | None:
    while isinstance(query, ast.SelectStmt) and query.larg is not None:
        query = query.larg
    if not isinstance(query, ast.SelectStmt):
        return None
    names: list[str] = []
    for target in query.targetList or ():
        value = target.val
        if target.name is not None:
            names.append(target.name)
        elif isinstance(value, ast.ColumnRef) and isinstance(value.fields[-1], ast.String):
            names.append(value.fields[-1].sval)
        elif isinstance(value, ast.FuncCall):
            names.append(value.funcname[-1].sval)
        else:
            return None
    return tuple(names)


def only_reads(node: Any) -> bool:
    """Tell whether a statement is a SELECT that writes nothing, neither by INTO nor in a WITH."""
    if not isinstance(node, ast.SelectStmt) or first_arm(node).intoClause is not None:
        return False
    # PostgreSQL lets only the WITH at the top write.
    ctes = node.withClause.ctes if node.withClause is not None else ()
    return all(isinstance(cte.ctequery, ast.SelectStmt) for cte in ctes)


def first_arm(select: Any) -> Any:
    """Return the SELECT that a set operation begins with: its INTO is there."""
    while select.larg is not None:
        select = select.larg
    return select


def materializes(node: Any) -> bool:
    """Tell whether a statement makes a materialized view."""
    matview = enums.ObjectType.OBJECT_MATVIEW
    return isinstance(node, ast.CreateTableAsStmt) and node.objtype == matview


def grouped_selects(
    root: Any,
) -> Iterator[tuple[list[tuple[str | None, str, int]], list[int]]]:
    """Yield what each ``GROUP BY a, t.b`` groups by, and where its FROM names relations.

    Grouping columns are (qualifier, name, position). Grouping sets are left out: a key does not
    determine its row in them.
    """
    waiting = [root]
    while waiting:
        node = waiting.pop()
        waiting.extend(children(node))
        if not isinstance(node, ast.SelectStmt) or not node.groupClause:
            continue
        if any(isinstance(item, ast.GroupingSet) for item in node.groupClause):
            continue
        columns: list[tuple[str | None, str, int]] = []
        for item in node.groupClause:
            if isinstance(item, ast.ColumnRef) and isinstance(item.fields[-1], ast.String):
                qualifier = item.fields[-2].sval if len(item.fields) > 1 else None
                columns.append((qualifier, item.fields[-1].sval, item.location))
        yield columns, [r.location for r in direct_relations(node.fromClause)]


_PLACES: Final = ("location", "stmt_location", "stmt_len", "list_start", "list_end",
                  "rexpr_list_start", "rexpr_list_end")  # fmt: skip
"""Attributes of nodes that say where they are written, and nothing of what they mean."""

_SAME_EXPRESSIONS: Final = ("groupClause", "distinctClause", "sortClause")
_EXPRESSIONS: Final = (*_SAME_EXPRESSIONS, "targetList", "havingClause", "windowClause")


def repeated_relations(root: Any) -> dict[int, int]:
    """Map relations in a subquery that is written again to those where it is written first.

    PostgreSQL takes two expressions of one SELECT for the same, as GROUP BY, DISTINCT ON and ORDER
    BY need it, when they are written alike. Positions to positions.
    """
    found: dict[int, int] = {}
    waiting = [root]
    while waiting:
        node = waiting.pop()
        waiting.extend(children(node))
        if not isinstance(node, ast.SelectStmt):
            continue
        if not any(list(_subqueries_in(getattr(node, name))) for name in _SAME_EXPRESSIONS):
            continue
        written = [
            (list(relation_positions(subquery)), subquery)
            for name in _EXPRESSIONS
            for subquery in _subqueries_in(getattr(node, name))
        ]
        first: dict[Any, list[int]] = {}
        for positions, subquery in sorted(written, key=lambda pair: pair[0]):
            known = first.setdefault(_meaning(subquery), positions)
            if known is not positions:
                found.update(zip(positions, known, strict=True))
    # One that is written again inside of one that is, too: the places lead on, each further back.
    for position, place in sorted(found.items()):
        found[position] = found.get(place, place)
    return found


def _subqueries_in(node: Any) -> Iterator[Any]:
    """The outermost subqueries of an expression."""
    if isinstance(node, ast.SubLink):
        yield node
        return
    for child in children(node):
        yield from _subqueries_in(child)


def _meaning(node: Any) -> Any:
    """A node without its places: equal for two that are written alike."""
    if isinstance(node, tuple):
        return tuple(map(_meaning, node))
    if isinstance(node, ast.Node):
        named = ((name, _meaning(getattr(node, name))) for name in node if name not in _PLACES)
        return (type(node).__name__, *named)
    return node


def means_the_same(one: Any, other: Any) -> bool:
    """Tell whether two trees are one but for where each part is written."""
    return bool(_meaning(one) == _meaning(other))


_CLOCK_WORDS: Final = frozenset({"now", "today", "tomorrow", "yesterday"})


def names_a_moment(node: Any) -> bool:
    """Tell whether a constant may be a date that is another one by another clock (R30)."""
    if not isinstance(node, ast.A_Const) or not isinstance(node.val, ast.String):
        return False
    return node.val.sval.strip().lower() in _CLOCK_WORDS


_BYTEWISE: Final = frozenset({"default", "C", "POSIX", "ucs_basic", "pg_c_utf8"})


def collates_otherwise(root: Any) -> bool:
    """Tell whether some COLLATE below a node may compare text other than by its code points."""
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.CollateClause):
            names = [part.sval for part in node.collname]
            if names[:-1] not in ([], ["pg_catalog"]) or names[-1] not in _BYTEWISE:
                return True
        waiting.extend(children(node))
    return False


def calls_plainly(node: Any, functions: Collection[str]) -> bool:
    """Tell whether an expression calls one of some functions, outside of subqueries and OVER."""
    if isinstance(node, ast.SubLink):
        return False
    if isinstance(node, ast.FuncCall) and node.over is None and node.funcname[-1].sval in functions:
        return True
    return any(calls_plainly(child, functions) for child in children(node))


def picks(node: Any) -> bool:
    """Tell whether a query may give other rows when it is asked again: which of several, or how.

    LIMIT and OFFSET, DISTINCT ON and window functions follow an order that rows may tie in.
    """
    if isinstance(node, ast.FuncCall | ast.JsonAggConstructor) and node.over is not None:
        return True
    if isinstance(node, ast.SelectStmt):
        on = any(expression is not None for expression in node.distinctClause or ())
        if node.limitCount is not None or node.limitOffset is not None or on:
            return True
    return any(picks(child) for child in children(node))


def most_rows(query: Any) -> int | None:
    """Return the number a SELECT, or the one in a carrier, ends with as its LIMIT; None: none."""
    query = getattr(query, "query", query)
    counted = enums.LimitOption.LIMIT_OPTION_COUNT
    return _integer(query.limitCount) if query.limitOption == counted else None


def rowless_relations(root: Any) -> Iterator[int]:
    """Yield where a relation is named whose rows cannot matter: below LIMIT 0 none does.

    Nor for a table that is made WITH NO DATA.
    """
    waiting = [root]
    while waiting:
        node = waiting.pop()
        nothing = isinstance(node, ast.SelectStmt) and _gives_no_row(node)
        if nothing or (isinstance(node, ast.CreateTableAsStmt) and node.into.skipData):
            yield from relation_positions(node)
        else:
            waiting.extend(children(node))


def _gives_no_row(select: Any) -> bool:
    # An OFFSET is computed all the same, and may fail; what a WITH writes is written all the same.
    ctes = select.withClause.ctes if select.withClause is not None else ()
    reads = all(isinstance(cte.ctequery, ast.SelectStmt) for cte in ctes)
    return reads and _integer(select.limitCount) == 0 and skipped_rows(select) is not None


def compares_constants(root: Any) -> bool:
    """Tell whether some condition names no column, as that of a probe: ``WHERE 1 = 0``."""
    waiting = [root]
    while waiting:
        node = waiting.pop()
        for name in ("whereClause", "havingClause", "quals"):
            if any(map(_is_constant, conjuncts(getattr(node, name, None)))):
                return True
        waiting.extend(children(node))
    return False


def conjuncts(node: Any) -> Iterator[Any]:
    """Yield the conditions that hold where a condition, or None, does."""
    waiting = [] if node is None else [node]
    while waiting:
        condition = waiting.pop()
        if isinstance(condition, ast.BoolExpr) and condition.boolop == enums.BoolExprType.AND_EXPR:
            waiting.extend(condition.args)
        else:
            yield condition


def _is_constant(condition: Any) -> bool:
    waiting = [condition]
    while waiting:
        node = waiting.pop()
        if isinstance(node, (ast.ColumnRef, ast.SubLink, ast.FuncCall)):
            return False
        waiting.extend(children(node))
    return True


def skipped_rows(query: Any) -> int | None:
    """Return the number of its OFFSET, 0 without one; None when it is not a plain number."""
    return 0 if query.limitOffset is None else _integer(query.limitOffset)


def _integer(node: Any) -> int | None:
    if isinstance(node, ast.A_Const) and isinstance(node.val, ast.Integer):
        return int(node.val.ival)
    return None


_ROW_BY_ROW: Final = frozenset(
    {
        "SelectStmt", "ResTarget", "RangeVar", "RangeSubselect", "Alias", "ColumnRef", "A_Star",
        "String", "A_Const", "Integer", "Float", "Boolean", "BitString", "A_Expr", "BoolExpr",
        "NullTest", "BooleanTest", "CaseExpr", "CaseWhen", "CoalesceExpr", "MinMaxExpr", "TypeCast",
        "TypeName", "CollateClause", "A_ArrayExpr", "RowExpr", "ParamRef",
    }
)  # fmt: skip
"""Nodes whose value depends on one row. A function may be an aggregate, and is not among them; nor
is ``(x).f``, which may be ``f(x)``."""

_MORE_THAN_A_ROW: Final = (
    "distinctClause",
    "groupClause",
    "havingClause",
    "windowClause",
    "valuesLists",
    "sortClause",
    "limitCount",
    "limitOffset",
    "lockingClause",
    "withClause",
    "larg",
)


def row_by_row(node: Any, columns: Collection[str]) -> bool:
    """Tell whether each row of one table gives its own part of a SELECT's answer, or none.

    Then the answer for all rows is the answers for some of them, one after another. ``columns``
    are the table's.
    """
    query = getattr(node, "query", node)
    waiting: list[Any] = [query]
    while waiting:
        node = waiting.pop()
        if isinstance(node, tuple):
            waiting.extend(node)
        elif isinstance(node, ast.Node):
            if type(node).__name__ not in _ROW_BY_ROW:
                return False
            if isinstance(node, ast.SelectStmt) and (
                any(getattr(node, name) for name in _MORE_THAN_A_ROW)
                or len(node.fromClause or ()) != 1
            ):
                return False
            waiting.extend(children(node))
    return not calls_an_attribute(query, columns)


def selects_columns(node: Any) -> bool:
    """Tell whether a SELECT that is :func:`row_by_row` gives columns and computes none."""
    source = getattr(node, "query", node)
    while isinstance(source, ast.SelectStmt):
        targets = source.targetList or ()
        if not targets or not all(isinstance(target.val, ast.ColumnRef) for target in targets):
            return False
        (inner,) = source.fromClause
        source = getattr(inner, "subquery", None)
    return True


def calls_an_attribute(query: Any, columns: Collection[str]) -> bool:
    """Tell whether a SELECT over one table, or over such a SELECT, may call a function as ``t.f``.

    Where ``t`` has no column ``f``, that is ``f(t)``, and may be an aggregate.
    """
    chain = [query]
    while isinstance(chain[-1].fromClause[0], ast.RangeSubselect):
        chain.append(chain[-1].fromClause[0].subquery)
    known = set(columns)
    for select in reversed(chain):
        alias = select.fromClause[0].alias
        if alias is not None and alias.colnames:
            known = {name.sval for name in alias.colnames}
        waiting = [select.targetList, select.whereClause]
        while waiting:
            node = waiting.pop()
            if isinstance(node, ast.A_Indirection):
                return True
            if isinstance(node, ast.ColumnRef) and len(node.fields) > 1:
                last = node.fields[-1]
                if isinstance(last, ast.String) and last.sval not in known:
                    return True
            waiting.extend(children(node))
        known = _output_names(select, known)
    return False


def _output_names(select: Any, known: set[str]) -> set[str]:
    """The columns of a SELECT, as far as its text names them; ``known`` are those it reads."""
    names: set[str] = set()
    for target in select.targetList or ():
        if target.name is not None:
            names.add(target.name)
        elif isinstance(target.val, ast.ColumnRef):
            last = target.val.fields[-1]
            names.update(known if isinstance(last, ast.A_Star) else (last.sval,))
    return names


def option_word(argument: Any) -> str | None:
    """An option's value in lower case; ``ANALYZE 0`` and ``ANALYZE false`` are written too."""
    if isinstance(argument, ast.String):
        return str(argument.sval).lower()
    return str(argument.ival) if isinstance(argument, ast.Integer) else None


def written(node: Any) -> str:
    """Return an expression as SQL, in another spelling than its author's."""
    return str(RawStream()(node))
