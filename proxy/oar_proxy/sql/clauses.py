"""Where the clauses of one SELECT stand in a text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pglast.parser import ParseError, scan

from oar_proxy.sql.text import SyntaxFault

_BEHIND_HAVING: Final = ("WINDOW", "ORDER", "LIMIT", "OFFSET", "FETCH", "FOR")
_OPENING: Final = ("ASCII_40", "ASCII_91")
_CLOSING: Final = ("ASCII_41", "ASCII_93")
_COMMENTS: Final = ("SQL_COMMENT", "C_COMMENT")


@dataclass(frozen=True, slots=True)
class Clauses:
    """Places in the text: of FROM, behind FROM and WHERE, behind GROUP BY, and the end.

    ``having`` is where its condition begins and ends, None where there is none.
    """

    source: int
    source_end: int
    grouped_end: int
    having: tuple[int, int] | None
    end: int


def clauses(text: str, start: int, end: int) -> Clauses:
    """Read the SELECT that stands from ``start`` to ``end``, which no set operation is part of.

    Raises :class:`SyntaxFault` where it is no SELECT with a FROM.
    """
    try:
        tokens = [t for t in scan(text[start:end]) if t.name not in _COMMENTS]
    except ParseError as error:
        raise SyntaxFault(str(error)) from error
    if not tokens or tokens[0].name != "SELECT":
        raise SyntaxFault("not a SELECT")
    begins: dict[str, int] = {}
    depth = 0
    for index, token in enumerate(tokens):
        depth += (token.name in _OPENING) - (token.name in _CLOSING)
        # Behind a dot or AS it is a name; in IS DISTINCT FROM no clause begins.
        before = tokens[index - 1].name if index else ""
        if depth or before in ("ASCII_46", "AS") or (before, token.name) == ("DISTINCT", "FROM"):
            continue
        kind = "REST" if token.name in _BEHIND_HAVING else token.name
        if kind in ("FROM", "GROUP_P", "HAVING", "REST") and (kind == "FROM" or "FROM" in begins):
            begins.setdefault(kind, index)
    if "FROM" not in begins:
        raise SyntaxFault("a SELECT without FROM")
    last = len(tokens)
    rest = begins.get("REST", last)
    having = begins.get("HAVING", rest)
    grouped = begins.get("GROUP_P", having)

    def behind(index: int) -> int:
        return start + int(tokens[index - 1].end) + 1

    return Clauses(
        source=start + tokens[begins["FROM"]].start,
        source_end=behind(grouped),
        grouped_end=behind(having),
        having=(start + tokens[having].end + 1, behind(rest)) if having < rest else None,
        end=behind(last),
    )
