"""A statement without WITH: each query that WITH names stands where it is read.

PostgreSQL does so itself where such a query is read once and calls nothing volatile. Here it is
done whatever MATERIALIZED says, so that what is decided about subqueries in FROM is decided about
WITH as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from pglast.parser import Token, scan

from oar_proxy.sql.text import Edit, closing_bracket, quote_identifier, splice
from oar_proxy.sql.tree import ast, children

_LONGEST: Final = 1 << 18
"""Characters past which a text grows no more: what is read twice doubles, with all it reads."""

_Names = frozenset[str]


def inline_one(text: str, node: Any, repeatable: Callable[[Any], bool]) -> str | None:
    """Put one query that WITH names where it is read: the statement's text, ``node`` its tree.

    ``repeatable`` tells of a query whether it gives the same rows each time. None where there is
    none, or where it would not mean the same.
    """
    select = next(_with_a_clause(node), None)
    if select is None or len(text) > _LONGEST:
        return None
    clause = select.withClause
    cte = clause.ctes[0]
    if clause.recursive or not isinstance(cte.ctequery, ast.SelectStmt):
        return None
    used = list(_uses(select, cte.ctename, frozenset(), first=True))
    names = {each.relname for each in _relations(cte.ctequery) if each.schemaname is None}
    if any(bound & names for _, bound in used):
        return None
    if len(used) > 1 and not repeatable(cte.ctequery):
        return None
    edits = list(_moved(text, clause, [each for each, _ in used]))
    return splice(text, edits) if len(edits) > len(used) else None


def _moved(text: str, clause: Any, used: list[Any]) -> Iterator[Edit]:
    """Yield an edit for the first query of a WITH, and for each place where it is read.

    Those of a form that takes no subquery are left out.
    """
    cte = clause.ctes[0]
    tokens = list(scan(text))
    at = _token(tokens, cte.location)
    opening = at + 1
    if cte.aliascolnames:
        opening = closing_bracket(tokens, opening) + 1
    while tokens[opening].name != "ASCII_40":  # AS NOT MATERIALIZED
        opening += 1
    closing = closing_bracket(tokens, opening)
    body = text[tokens[opening].end + 1 : tokens[closing].start]
    if cte.aliascolnames:
        columns = ", ".join(quote_identifier(name.sval) for name in cte.aliascolnames)
        body = f"SELECT * FROM (\n{body}\n) AS {quote_identifier(cte.ctename)} ({columns})"
    first, last = (at, closing + 1) if len(clause.ctes) > 1 else (at - 1, closing)
    yield Edit(tokens[first].start, tokens[last].end + 1, "")
    for each in used:
        here = _token(tokens, each.location)
        around = {tokens[here - 1].name, *(token.name for token in tokens[here + 1 : here + 2])}
        if around & {"TABLE", "ONLY", "ASCII_42"}:
            continue
        name = "" if each.alias is not None else f" AS {quote_identifier(each.relname)}"
        yield Edit(tokens[here].start, tokens[here].end + 1, f"(\n{body}\n){name}")


def _with_a_clause(node: Any) -> Iterator[Any]:
    """Yield queries that have a WITH, outer ones first."""
    if isinstance(node, ast.SelectStmt) and node.withClause is not None:
        yield node
    for child in children(node):
        yield from _with_a_clause(child)


def _uses(
    node: Any, name: str, bound: _Names, *, first: bool = False
) -> Iterator[tuple[Any, _Names]]:
    """Yield where a query of a WITH is read, with the names that other queries of WITH have there.

    ``first``: the node is the query that has the WITH, in which it stands first.
    """
    if isinstance(node, ast.RangeVar):
        if node.schemaname is None and node.relname == name:
            yield node, bound
        return
    clause = getattr(node, "withClause", None)
    if clause is None:
        for child in children(node):
            yield from _uses(child, name, bound)
        return
    rest = clause.ctes[1:] if first else clause.ctes
    named = frozenset(cte.ctename for cte in rest)
    if clause.recursive and name in named:
        return
    for cte in rest:
        yield from _uses(cte.ctequery, name, bound | named)
        if cte.ctename == name:
            return  # what follows reads that one
    for attribute in node:
        if attribute != "withClause":
            yield from _uses(getattr(node, attribute), name, bound | named)


def _relations(node: Any) -> Iterator[Any]:
    if isinstance(node, ast.RangeVar):
        yield node
    for child in children(node):
        yield from _relations(child)


def _token(tokens: list[Token], position: int) -> int:
    return next(index for index, token in enumerate(tokens) if token.start == position)
