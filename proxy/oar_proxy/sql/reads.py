"""What a statement that writes reads: the SELECT whose rows it writes, or goes by.

Owners are asked for what that SELECT needs. It is only planned: its outputs are whatever the
statement computes, in no particular form.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import pglast
from pglast.parser import ParseError
from pglast.stream import RawStream

from oar_proxy.sql.text import quote_identifier
from oar_proxy.sql.tree import ast, enums, first_arm, means_the_same

_READ: Final = "read"

Columns = Sequence[tuple[str, str]]
"""Name and type of each column."""


def reading_select(text: str, target: Columns, source: Callable[[Columns], str]) -> str | None:
    """Return the SELECT that INSERT, UPDATE, DELETE, MERGE or SELECT INTO reads by, if it is known.

    ``target`` are the columns of the table that is written, ``source`` gives a query for rows of
    some columns. What stands elsewhere in the statement (``ON CONFLICT``) is not in it.
    """
    node = pglast.parse_sql(text)[0].stmt
    while isinstance(node, ast.ExplainStmt | ast.CreateTableAsStmt):
        node = node.query
    if isinstance(node, ast.SelectStmt):
        first = first_arm(node)
        if first.intoClause is None:
            return None
        first.intoClause = None
        return _written(node)
    if isinstance(node, ast.InsertStmt):
        if node.selectStmt is None:
            return None
        return _written(_select([_star()], [_derived(node.selectStmt, _READ)], node))
    if isinstance(node, ast.UpdateStmt | ast.DeleteStmt | ast.MergeStmt) and target:
        name = node.relation.alias.aliasname if node.relation.alias else node.relation.relname
        written = pglast.parse_sql(f"SELECT FROM ({source(target)}) AS {quote_identifier(name)}")
        return _written(_of_rows(node, written[0].stmt.fromClause[0]))
    return None


def _of_rows(node: Any, written: Any) -> Any:
    """Return the SELECT of an UPDATE, DELETE or MERGE; ``written`` is what it writes."""
    if isinstance(node, ast.MergeStmt):
        kinds = {when.matchKind for when in node.mergeWhenClauses}
        unmatched = enums.MergeMatchKind.MERGE_WHEN_NOT_MATCHED_BY_SOURCE in kinds
        join = ast.JoinExpr(
            jointype=enums.JoinType.JOIN_FULL if unmatched else enums.JoinType.JOIN_LEFT,
            isNatural=False,
            larg=node.sourceRelation,
            rarg=written,
            quals=node.joinCondition,
            rtindex=0,
        )
        whens = [
            value
            for when in node.mergeWhenClauses
            for value in (when.condition, *_assigned(when.targetList), *(when.values or ()))
            if value is not None
        ]
        return _select([*whens, *_returned(node)], [join], node)
    more = node.fromClause if isinstance(node, ast.UpdateStmt) else node.usingClause
    set_to = _assigned(node.targetList) if isinstance(node, ast.UpdateStmt) else ()
    return _select([*set_to, *_returned(node)], [written, *(more or ())], node, node.whereClause)


def _assigned(targets: Any) -> Iterator[Any]:
    """Yield what columns are set to."""
    for target in targets or ():
        values = [target.val]
        if isinstance(target.val, ast.MultiAssignRef):
            # It is there once for each column.
            values = list(_of_several(target.val.source)) if target.val.colno == 1 else []
        for value in values:
            if value is not None and not isinstance(value, ast.SetToDefault):
                yield value


def _of_several(source: Any) -> Iterator[Any]:
    if isinstance(source, ast.RowExpr):
        yield from source.args or ()
    elif isinstance(source, ast.SubLink):
        row = ast.ColumnRef(fields=(ast.String(sval=_READ),))
        given = _select([row], [_derived(source.subselect, _READ)])
        yield ast.SubLink(subLinkType=source.subLinkType, subLinkId=0, subselect=given)
    else:
        yield source


def _returned(node: Any) -> Iterator[Any]:
    for target in node.returningClause.exprs if node.returningClause is not None else ():
        yield target.val


def _select(
    values: Sequence[Any], sources: Sequence[Any], node: Any = None, where: Any = None
) -> Any:
    return ast.SelectStmt(
        targetList=tuple(ast.ResTarget(val=value) for value in values) or None,
        fromClause=tuple(sources),
        whereClause=where,
        withClause=None if node is None else node.withClause,
        limitOption=enums.LimitOption.LIMIT_OPTION_DEFAULT,
        op=enums.SetOperation.SETOP_NONE,
        groupDistinct=False,
        all=False,
    )


def _star() -> Any:
    return ast.ColumnRef(fields=(ast.A_Star(),))


def _derived(query: Any, name: str) -> Any:
    return ast.RangeSubselect(lateral=False, subquery=query, alias=ast.Alias(aliasname=name))


def _written(select: Any) -> str | None:
    """Print a SELECT; None where PostgreSQL would read something else in what is printed.

    Tables are read whole then, which is right as well.
    """
    try:
        text: str = RawStream()(select)
        again = pglast.parse_sql(text)
        same = len(again) == 1 and means_the_same(again[0].stmt, select)
    except (ParseError, NotImplementedError, RecursionError):
        # Printed as what cannot be read, not printed by pglast at all, or too deep to walk: EXPLAIN
        # shows that the tables are read whole.
        return None
    return text if same else None
