"""What a text has to have in it to be looked at: every other one passes at the cost of its words.

False alarms are allowed, misses are not: a name may be written in any case, with quotes, or with
escapes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

_WORDS: Final = re.compile(rb"[A-Za-z_\x80-\xff][A-Za-z0-9_$\x80-\xff]*")
_ALWAYS_OURS: Final = frozenset(
    {b"oar_ask", b"oar_ask_json", b"oar_explain", b"execute", b"pg_cancel_backend"}
)

_SETS: Final = re.compile(rb"\bset\s+(?:session\s+|local\s+)?oar\s*\.")
"""How what sets a setting of the proxy's begins: the hub takes any name."""

MAX_SESSION_VIEWS: Final = 10_000
"""Names of views seen, over all sessions. Forgetting one costs an error of the guard, no answer."""


class Suspects:
    """The words by which a text may be ours. One for the proxy."""

    def __init__(self) -> None:
        self._words: frozenset[bytes] = _ALWAYS_OURS
        self._views: set[bytes] = set()
        self._all = False

    def publish(self, names: Iterable[str]) -> None:
        """Put the names of other tables, and of the hub's views, in force."""
        words: set[bytes] = set(_ALWAYS_OURS)
        wordless = False
        for name in names:
            found = _first_word(name)
            words.update(found)
            wordless = wordless or not found
        self._words = frozenset(words)
        # A name without a letter, such as "2024", is no word of the text: then all are suspect.
        self._all = wordless

    def add_view(self, name: str) -> None:
        """Look for a view that a session is about to make, too, as long as there is room."""
        if len(self._views) < MAX_SESSION_VIEWS:
            self._views.update(_first_word(name))

    def suspect(self, text: bytes) -> bool:
        """Tell whether a text has a name, one of our words, or an escape that may hide one."""
        lowered = text.lower()
        if self._all or b"oar:" in lowered or b"u&" in lowered:
            return True
        words = _WORDS.findall(lowered)
        if not (self._words.isdisjoint(words) and self._views.isdisjoint(words)):
            return True
        return b"oar" in words and _SETS.search(lowered) is not None


def _first_word(name: str) -> list[bytes]:
    """Return the first word of a name, as it stands in a lowered text; none, if it has none."""
    return [word.lower() for word in _WORDS.findall(name.encode())[:1]]
