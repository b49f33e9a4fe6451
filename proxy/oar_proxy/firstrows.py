"""Which rows of a table a statement needs that takes the first few: previews, and TOP-N (R27).

Any ``n`` rows of ``t`` answer ``SELECT … FROM t LIMIT n``, whatever SELECTs stand between them.

``SELECT … FROM t LEFT JOIN … ORDER BY t.x LIMIT n`` keeps every row of ``t``, and rows of the
answer stand where their row of ``t`` does; so the first ``n`` rows of ``t`` are enough, whichever
of those that tie. A condition above the joins, an order by another table's columns, or a function
that may give no row for one would make it wrong.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from oar_adapters.interface import SortKey

from oar_proxy.sql.tree import (
    JSON_AGGREGATES,
    ast,
    calls_an_attribute,
    calls_plainly,
    children,
    enums,
    is_star,
    most_rows,
    skipped_rows,
)

_NOTHING_ELSE: Final = (
    "distinctClause",
    "groupClause",
    "havingClause",
    "windowClause",
    "valuesLists",
    "withClause",
    "intoClause",
    "lockingClause",
    "larg",
)


@dataclass(frozen=True, slots=True)
class FirstRows:
    """The first ``rows`` rows in this order are enough of the relation named at ``position``.

    A condition, if there is one, is on this relation alone.
    """

    position: int
    sort_keys: tuple[SortKey, ...]
    rows: int


def first_rows(statement: Any, columns: Mapping[str, Collection[str]]) -> FirstRows | None:
    """Read the query of a statement; None where it may need any row.

    ``columns`` are those of the relations by what the statement calls them.
    """
    query = (
        statement if isinstance(statement, ast.SelectStmt) else getattr(statement, "query", None)
    )
    while isinstance(query, ast.SelectStmt) and _passes_on(query):
        query = query.fromClause[0].subquery
    if not isinstance(query, ast.SelectStmt) or any(getattr(query, n) for n in _NOTHING_ELSE):
        return None
    limit, offset = most_rows(query), skipped_rows(query)
    if limit is None or offset is None:
        return None
    previewed = _previewed(query)
    if previewed is not None:
        known = columns.get(_reference(previewed), ())
        called = calls_an_attribute(query, known)
        return None if called else FirstRows(previewed.location, (), limit + offset)
    sources: Any = query.fromClause
    relation = _preserved(sources)
    if relation is None:
        return None
    alone = isinstance(sources[0], ast.RangeVar)
    if query.whereClause is not None and not (alone and _is_plain(query.whereClause)):
        return None
    if _may_give_sets(query, columns):
        return None
    if relation.alias is not None and relation.alias.colnames:
        return None
    keys = tuple(_sort_keys(query, _reference(relation), alone))
    if len(keys) < len(query.sortClause or ()):
        return None
    return FirstRows(relation.location, keys, limit + offset)


def _passes_on(query: Any) -> bool:
    """Tell whether it is ``SELECT * FROM (…) AS q`` and nothing else, as a question's draft is."""
    others = (*_NOTHING_ELSE, "whereClause", "sortClause", "limitCount", "limitOffset")
    sources: Any = query.fromClause or ()
    if any(getattr(query, name) for name in others) or len(sources) != 1:
        return False
    targets: Any = query.targetList or ()
    whole = len(targets) == 1 and is_star(targets[0].val) and len(targets[0].val.fields) == 1
    return whole and isinstance(sources[0], ast.RangeSubselect)


def _previewed(query: Any) -> Any | None:
    """The relation whose rows, any of them, a SELECT over SELECTs gives one by one."""
    while _reads_as_is(query):
        source = query.fromClause[0]
        if isinstance(source, ast.RangeVar):
            return source
        query = source.subquery
        if query.limitCount is not None or query.limitOffset is not None:
            return None
    return None


def _reads_as_is(query: Any) -> bool:
    others = (*_NOTHING_ELSE, "whereClause", "sortClause")
    sources: Any = query.fromClause or ()
    if any(getattr(query, name) for name in others) or len(sources) != 1:
        return False
    if not isinstance(sources[0], (ast.RangeVar, ast.RangeSubselect)):
        return False
    waiting = list(query.targetList or ())
    while waiting:
        node = waiting.pop()
        if isinstance(node, (ast.FuncCall, ast.SubLink, *JSON_AGGREGATES)):
            return False
        waiting.extend(children(node))
    return True


def _reference(relation: Any) -> str:
    """What the statement calls it."""
    return str(relation.alias.aliasname if relation.alias else relation.relname)


def _preserved(items: Any) -> Any | None:
    """The relation of which LEFT JOINs alone keep every row."""
    if not items or len(items) != 1:
        return None
    item = items[0]
    while isinstance(item, ast.JoinExpr):
        if item.jointype != enums.JoinType.JOIN_LEFT or item.alias is not None:
            return None
        item = item.larg
    return item if isinstance(item, ast.RangeVar) else None


def _may_give_sets(query: Any, columns: Mapping[str, Collection[str]]) -> bool:
    """Tell whether a function stands in the outputs: any may return a set, or be an aggregate.

    An aggregate in a subquery belongs to the query whose columns it takes, so that counts too;
    ``count(*)`` takes none. ``(x).f`` may be ``f(x)``, and so may ``t.f`` without such a column.
    """
    waiting = [*(query.targetList or ()), *(query.sortClause or ())]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FuncCall) and (node.over is not None or not node.agg_star):
            return True
        if isinstance(node, (ast.A_Indirection, *JSON_AGGREGATES)):
            return True
        if isinstance(node, ast.ColumnRef) and len(node.fields) > 1:
            relation, name = node.fields[-2:]
            known = isinstance(name, ast.A_Star) or name.sval in columns.get(relation.sval, ())
            if not known:
                return True
        waiting.extend(children(node))
    return _counts(query)


def _is_plain(condition: Any) -> bool:
    """Tell whether a condition has no subquery: that may become a join, which the scan is below."""
    if isinstance(condition, ast.SubLink):
        return False
    return all(map(_is_plain, children(condition)))


def _counts(query: Any) -> bool:
    """Tell whether ``count(*)`` stands in the outputs themselves."""
    return any(
        calls_plainly(item, ("count",))
        for item in (*(query.targetList or ()), *(query.sortClause or ()))
    )


def _sort_keys(query: Any, reference: str, alone: bool) -> Iterator[SortKey]:
    for item in query.sortClause or ():
        column = _own_column(_sorted_by(item.node, query.targetList or ()), reference, alone)
        if column is None or item.useOp is not None:
            return
        descending = item.sortby_dir == enums.SortByDir.SORTBY_DESC
        nulls_first = descending
        if item.sortby_nulls != enums.SortByNulls.SORTBY_NULLS_DEFAULT:
            nulls_first = item.sortby_nulls == enums.SortByNulls.SORTBY_NULLS_FIRST
        yield SortKey(column, descending, nulls_first)


def _sorted_by(node: Any, targets: Any) -> Any:
    """What an item of ORDER BY means: an output by number or name, or an expression of its own."""
    if isinstance(node, ast.A_Const):
        number = node.val.ival if isinstance(node.val, ast.Integer) else 0
        outputs = [target.val for target in targets[:number]]
        known = 0 < number == len(outputs) and not any(map(is_star, outputs))
        return outputs[-1] if known else None
    if isinstance(node, ast.ColumnRef) and len(node.fields) == 1:
        if any(is_star(target.val) for target in targets):
            return node
        named = [target.val for target in targets if _output_name(target) == node.fields[0].sval]
        return named[0] if named else node
    return node


def _output_name(target: Any) -> str | None:
    if target.name is not None:
        return str(target.name)
    value = target.val
    return value.fields[-1].sval if isinstance(value, ast.ColumnRef) else None


def _own_column(node: Any, reference: str, alone: bool) -> str | None:
    if not isinstance(node, ast.ColumnRef) or isinstance(node.fields[-1], ast.A_Star):
        return None
    names = [part.sval for part in node.fields]
    if len(names) == 1:
        return names[0] if alone else None
    return names[-1] if names[-2] == reference and len(names) == 2 else None
