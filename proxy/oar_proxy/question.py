"""A question in plain language, as it travels through the stages."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from oar_policies.model import Subject

QUOTES: Final = MappingProxyType({"'": "'", '"': '"', "«": "»", "“": "”"})
"""What may stand around a value, opening and closing."""

_WORD: Final = re.compile(r"\S+")
_NO_SETTINGS: Final[Mapping[str, str]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Question:
    """What was asked, by whom, under which settings.

    ``text`` is the user's own words and stays out of logs and errors' messages. ``principal`` is
    the hub role that asks, ``roles`` are what it is a member of, ``settings`` those of its session.
    Nothing of them enters a draft: two principals who see the same catalog may share one.
    """

    text: str = field(repr=False)
    principal: str
    settings: Mapping[str, str] = field(default_factory=lambda: _NO_SETTINGS)
    roles: frozenset[str] = frozenset()

    @property
    def subject(self) -> Subject:
        """Who asks and what for, as policies see it."""
        return Subject(self.principal, self.roles, self.settings.get("oar.purpose") or None)

    @property
    def normalised(self) -> str:
        """The text with composed characters and single spaces, but for those in quotes.

        Case and punctuation stay: both tell a value from a word.
        """
        return normalise(self.text)


def normalise(text: str) -> str:
    """Return a text in NFC, trimmed and with single spaces, except in quotes."""
    return " ".join(words(text))


def words(text: str) -> list[str]:
    """Split a text, in NFC, at its spaces; what is between quotes is one word as it stands."""
    text = unicodedata.normalize("NFC", text)
    found: list[str] = []
    closings: dict[str, int] = {}
    end = 0
    while (match := _WORD.search(text, end)) is not None:
        start, end = match.span()
        mark = QUOTES.get(text[start])
        if mark is not None:
            if closings.get(mark, 0) <= start:  # else it is still the next one
                at = text.find(mark, start + 1)
                closings[mark] = at if at >= 0 else len(text)
            closing = closings[mark]
            if closing < len(text) and not text[closing + 1 : closing + 2].strip():
                end = closing + 1
        found.append(text[start:end])
    return found
