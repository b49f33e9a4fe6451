"""Parsing a query string, an expression, and the comment that is a question."""

from __future__ import annotations

import functools
import re
from typing import Any, Final

import pglast
from pglast.parser import ParseError

from oar_proxy.errors import InternalError
from oar_proxy.sql.parsed import Parsed
from oar_proxy.sql.references import describe
from oar_proxy.sql.text import SyntaxFault
from oar_proxy.sql.tree import ast

_COMMENT_QUESTION: Final = re.compile(
    r"/\*\s*oar:\s*(?P<block>.*?)\s*\*/|--\s*oar:\s*(?P<line>[^\n]*?)\s*(?:\n|$)",
    re.DOTALL | re.IGNORECASE,
)


MAX_REMEMBERED: Final = 16_384
"""Characters of a text whose tree is kept: 512 of them are a few megabytes."""


def parse(text: str) -> tuple[Parsed, ...]:
    """Parse a query string. Raises :class:`SyntaxFault`.

    Each statement has its own text, without the semicolon. The stages parse one text several
    times over, and clients send the same ones again: short texts are remembered.
    """
    return _parse_again(text) if len(text) <= MAX_REMEMBERED else _parse(text)


def parse_one(text: str) -> Parsed:
    """Parse one statement. Raises as `parse`, and :class:`InternalError` for more or fewer."""
    statements = parse(text)
    if len(statements) != 1:
        raise InternalError("a piece of a query string holds another number of statements than one")
    return statements[0]


def _parse(text: str) -> tuple[Parsed, ...]:
    if "\0" in text:
        raise SyntaxFault("a NUL character ends a text of PostgreSQL's")
    try:
        return _read(text)
    except ParseError as error:
        raise SyntaxFault(str(error)) from error
    except RecursionError as error:
        # Thousands of nested operators: the hub may take them, and its guards stand behind it.
        raise SyntaxFault("nested too deeply") from error


def _read(text: str) -> tuple[Parsed, ...]:
    parsed = []
    for raw in pglast.parse_sql(text):
        start = raw.stmt_location
        piece = text[start : start + raw.stmt_len] if raw.stmt_len else text[start:]
        # Places in a tree count from where its text began.
        node = pglast.parse_sql(piece)[0].stmt if start else raw.stmt
        parsed.append(describe(piece, node, start))
    return tuple(parsed)


_parse_again = functools.lru_cache(maxsize=512)(_parse)


def parse_expression(text: str) -> Any | None:
    """Parse one expression as EXPLAIN prints it; None where that is not SQL (``(SubPlan 1)``).

    Statements over the same tables are joined alike: short ones are remembered, too.
    """
    return _expression_again(text) if len(text) <= MAX_REMEMBERED else _expression(text)


def _expression(text: str) -> Any | None:
    try:
        statement = pglast.parse_sql(f"SELECT {text}")[0].stmt
    except (ParseError, RecursionError):
        return None
    if len(statement.targetList or ()) != 1 or statement.fromClause:
        return None
    return statement.targetList[0].val


_expression_again = functools.lru_cache(maxsize=512)(_expression)


def comment_question(text: str) -> str | None:
    """Return the question of a string that says nothing but ``/* oar: question */``.

    An empty target list (``SELECT /* oar: … */``) says nothing either.
    """
    match = _COMMENT_QUESTION.search(text)
    if match is None:
        return None
    try:
        statements = pglast.parse_sql(text)
    except (ParseError, RecursionError):
        return None
    if len(statements) > 1:
        return None
    if statements:
        node = statements[0].stmt
        if not isinstance(node, ast.SelectStmt) or _selects_anything(node):
            return None
    question = match["block"] if match["block"] is not None else match["line"]
    return str(question)


def _selects_anything(node: Any) -> bool:
    return any(
        getattr(node, name)
        for name in ("targetList", "fromClause", "whereClause", "valuesLists", "larg", "withClause")
    )
