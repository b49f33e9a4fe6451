"""Which tables of an owner that folds no case as PostgreSQL does are published, and as what."""

from __future__ import annotations

import string
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

_LOWER: Final = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)
"""Folds ASCII only, as PostgreSQL does."""


@dataclass(frozen=True, slots=True)
class Names:
    """The options ``case`` and ``tables``: names and shell patterns, all of them where empty."""

    lower: bool = True
    tables: tuple[str, ...] = ()

    def published(self, name: str) -> str:
        """Return the published spelling."""
        return name.translate(_LOWER) if self.lower else name

    def wanted(self, name: str) -> bool:
        """Tell whether a table is published."""
        folded = name.translate(_LOWER)
        return not self.tables or any(
            fnmatchcase(folded, pattern.translate(_LOWER)) for pattern in self.tables
        )
