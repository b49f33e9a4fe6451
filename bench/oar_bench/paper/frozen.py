"""The draft parser of the paper "Fan Out or Relay?" (arXiv 2610.18157), Appendix A.

Tables are the names that follow FROM and JOIN, found with a regular expression in the text, those
of subqueries included. It is frozen: what it gets wrong is part of the paper's figures. A name it
finds that no owner holds, of a common table expression above all, leaves κ undefined, and so does
the column of ``EXTRACT(YEAR FROM day)``; of ``FROM a, b`` it sees the first. The paper does not
print its expression; this one is written from its description.
"""

from __future__ import annotations

import re
from typing import Final

from oar_bench.layout import fold

_NAME: Final = r'(?:"[^"]+"|`[^`]+`|\[[^\]]+\]|\w+)'
_TABLE: Final = re.compile(rf"\b(?:FROM|JOIN)\s+(?:{_NAME}\s*\.\s*)*({_NAME})", re.IGNORECASE)
_JOIN: Final = re.compile(r"\bJOIN\b", re.IGNORECASE)


def named_tables(sql: str) -> frozenset[str]:
    """Return the folded names, without schema and quotes, that follow FROM or JOIN."""
    return frozenset(fold(name.strip('"`[]')) for name in _TABLE.findall(sql))


def has_join(sql: str) -> bool:
    """Tell whether the word JOIN stands in the text."""
    return _JOIN.search(sql) is not None
