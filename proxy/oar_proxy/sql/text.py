"""The text of statements: quoting, splicing, tokens, and where in it a query stands."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pglast import ast
from pglast.parser import ParseError, Token, scan

from oar_proxy.sql.tree import first_arm


class SyntaxFault(ValueError):
    """The text is not PostgreSQL's SQL, or too deep to read; the hub's own error is shown."""


@dataclass(frozen=True, slots=True)
class Edit:
    """Replace ``text[start:end]``."""

    start: int
    end: int
    replacement: str


def splice(text: str, edits: Iterable[Edit]) -> str:
    """Apply edits that do not overlap."""
    parts: list[str] = []
    position = 0
    for edit in sorted(edits, key=lambda e: e.start):
        if edit.start < position:
            raise ValueError("edits overlap")
        parts.append(text[position : edit.start])
        parts.append(edit.replacement)
        position = edit.end
    parts.append(text[position:])
    return "".join(parts)


def quote_identifier(name: str) -> str:
    """Quote a name, always."""
    return '"' + name.replace('"', '""') + '"'


def quote_literal(value: str) -> str:
    """Quote a string, whatever ``standard_conforming_strings`` says."""
    quoted = "'" + value.replace("'", "''") + "'"
    return quoted if "\\" not in value else " E" + quoted.replace("\\", "\\\\")


_GRAMMARS_OWN: Final = frozenset(
    {
        "bigint",
        "bit",
        "boolean",
        "character",
        "double",
        "integer",
        "interval",
        "numeric",
        "real",
        "smallint",
        "time",
        "timestamp",
    }
)
"""First words of types that are part of SQL's grammar, and so mean the same in every session."""


def built_in_type(name: str) -> str:
    """Write a built-in type, as ``format_type`` names it, so that it means that in every session.

    A session may have a temporary type ``text`` or ``date``, which PostgreSQL finds first: a domain
    of which the check calls a function with each value.
    """
    if re.split(r"[\s(\[]", name, maxsplit=1)[0] in _GRAMMARS_OWN:
        return name
    return f"pg_catalog.{name}"


_COMMENTS: Final = frozenset({"SQL_COMMENT", "C_COMMENT"})


def without_comments(text: str) -> str:
    """Return a query string with spaces for its comments. Raises :class:`SyntaxFault`.

    What is left keeps its place. Tools write into comments what differs each time: who asks, a
    number of the request.
    """
    if "--" not in text and "/*" not in text:
        return text
    comments = [t for t in _tokens(text) if t.name in _COMMENTS]
    edits = [Edit(t.start, t.end + 1, " " * (t.end + 1 - t.start)) for t in comments]
    return splice(text, edits).rstrip()


def identifiers(text: str) -> Iterator[str]:
    """Yield the names in a text that are no keywords, as PostgreSQL reads them."""
    for token in _tokens(text):
        if token.name == "IDENT":
            written = text[token.start : token.end + 1]
            quoted = written.startswith('"')
            yield written[1:-1].replace('""', '"') if quoted else written.lower()


def _tokens(text: str) -> Sequence[Token]:
    try:
        return list(scan(text))
    except ParseError as error:
        raise SyntaxFault(str(error)) from error


def conjuncts(expression: str) -> list[str]:
    """Split the text of a condition, as EXPLAIN prints it, at its top-level ANDs."""
    tokens = list(scan(expression))
    first, last = 0, len(tokens) - 1
    while first < last and _wraps(tokens, first, last):
        first, last = first + 1, last - 1
    parts: list[str] = []
    depth = 0
    start = tokens[first].start
    for token in tokens[first : last + 1]:
        if token.name == "ASCII_40":
            depth += 1
        elif token.name == "ASCII_41":
            depth -= 1
        elif token.name == "AND" and depth == 0:
            parts.append(expression[start : token.start].strip())
            start = token.end + 1
    parts.append(expression[start : tokens[last].end + 1].strip())
    return parts


def _wraps(tokens: Sequence[Token], first: int, last: int) -> bool:
    if tokens[first].name != "ASCII_40" or tokens[last].name != "ASCII_41":
        return False
    depth = 0
    for index in range(first, last + 1):
        if tokens[index].name == "ASCII_40":
            depth += 1
        elif tokens[index].name == "ASCII_41":
            depth -= 1
            if depth == 0:
                return index == last
    return False


_SET_OPERATIONS: Final = frozenset({"UNION", "INTERSECT", "EXCEPT"})
_BEHIND_AN_ARM: Final = ("ORDER", "LIMIT", "OFFSET", "FETCH", "FOR")


def bracketed_queries(text: str) -> Iterator[tuple[int, int]]:
    """Yield where subqueries stand, from behind their ``(`` up to their ``)``, outer ones first.

    Arms of set operations are left out: the other arms have a say in the types of theirs.
    """
    tokens = list(scan(text))
    for index in range(1, len(tokens) - 1):
        if tokens[index].name != "ASCII_40" or tokens[index + 1].name not in ("SELECT", "WITH"):
            continue
        closing = closing_bracket(tokens, index)
        before = {tokens[index - 1].name}
        if before <= {"ALL", "DISTINCT"} and index > 1:
            before.add(tokens[index - 2].name)
        after = tokens[closing + 1].name if closing + 1 < len(tokens) else ""
        if not before & _SET_OPERATIONS and after not in (*_SET_OPERATIONS, *_BEHIND_AN_ARM):
            yield tokens[index].end + 1, tokens[closing].start


def query_extent(node: Any, text: str) -> tuple[int, int] | None:
    """Where the SELECT of the statement stands, None when it has no single one to point at."""
    tokens = list(scan(text))
    if not tokens:
        return None
    end = tokens[-1].end + 1
    if isinstance(node, ast.SelectStmt):
        return None if first_arm(node).intoClause else (tokens[0].start, end)
    if isinstance(node, ast.ExplainStmt):
        start = tokens[_after_explain_options(tokens)].start
        inside = query_extent(node.query, text[start:])
        return None if inside is None else (start + inside[0], start + inside[1])
    if isinstance(node, ast.DeclareCursorStmt):
        index = next(i for i, token in enumerate(tokens) if token.name == "FOR")
        return tokens[index + 1].start, end
    if isinstance(node, ast.CopyStmt):
        first = next(i for i, token in enumerate(tokens) if token.name == "ASCII_40")
        last = closing_bracket(tokens, first)
        return tokens[first + 1].start, tokens[last].start
    if isinstance(node, ast.CreateTableAsStmt) and isinstance(node.query, ast.SelectStmt):
        return _create_as_extent(tokens, end)
    return None


def _after_explain_options(tokens: Sequence[Token]) -> int:
    index = 1
    if tokens[index].name == "ASCII_40" and tokens[index + 1].name not in (
        "SELECT",
        "WITH",
        "VALUES",
        "TABLE",
        "ASCII_40",
    ):
        return closing_bracket(tokens, index) + 1
    while tokens[index].name in ("ANALYZE", "VERBOSE"):
        index += 1
    return index


def _create_as_extent(tokens: Sequence[Token], end: int) -> tuple[int, int] | None:
    index = _outer_as(tokens)
    if index is None:
        return None
    words = [t.name for t in tokens[-3:]]
    if words[-1] == "DATA_P":
        back = 3 if words[-2] == "NO" else 2
        end = tokens[-back].start
    return tokens[index + 1].start, end


def _outer_as(tokens: Sequence[Token]) -> int | None:
    """Find the first AS that stands in no brackets."""
    depth = 0
    for index, token in enumerate(tokens):
        if token.name == "ASCII_40":
            depth += 1
        elif token.name == "ASCII_41":
            depth -= 1
        elif token.name == "AS" and depth == 0:
            return index
    return None


def execute_extent(text: str) -> tuple[int, int]:
    """Where ``EXECUTE name (…)`` stands."""
    tokens = list(scan(text))
    first = next(i for i, token in enumerate(tokens) if token.name == "EXECUTE")
    last = first + 1
    if last + 1 < len(tokens) and tokens[last + 1].name == "ASCII_40":
        last = closing_bracket(tokens, last + 1)
    return tokens[first].start, tokens[last].end + 1


def argument_list(text: str) -> list[str]:
    """The texts of the arguments of ``EXECUTE name (…)``, wherever it stands in a statement."""
    tokens = list(scan(text))
    name = next(i for i, token in enumerate(tokens) if token.name == "EXECUTE") + 1
    opening = name + 1
    closing = closing_bracket(tokens, opening)
    arguments: list[str] = []
    depth = 0
    start = tokens[opening].end + 1
    for token in tokens[opening : closing + 1]:
        if token.name in ("ASCII_40", "ASCII_91"):
            depth += 1
        elif token.name in ("ASCII_41", "ASCII_93"):
            depth -= 1
        if (token.name == "ASCII_44" and depth == 1) or (token.name == "ASCII_41" and depth == 0):
            arguments.append(text[start : token.start].strip())
            start = token.end + 1
    return arguments


def prepared_query(text: str) -> str:
    """The query of ``PREPARE name (types) AS query``."""
    tokens = list(scan(text))
    index = _outer_as(tokens)
    if index is None:
        raise SyntaxFault("PREPARE without AS")
    return text[tokens[index + 1].start : tokens[-1].end + 1].rstrip(";")


def closing_bracket(tokens: Sequence[Token], opening: int) -> int:
    """Return where the bracket is closed that a token opens. Raises :class:`SyntaxFault`."""
    depth = 0
    for index in range(opening, len(tokens)):
        if tokens[index].name == "ASCII_40":
            depth += 1
        elif tokens[index].name == "ASCII_41":
            depth -= 1
            if depth == 0:
                return index
    raise SyntaxFault("unbalanced parentheses")
