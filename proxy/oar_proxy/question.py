"""A question in plain language, as it travels through the stages."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

_NO_SETTINGS: Final[Mapping[str, str]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Question:
    """What was asked, by whom, under which settings.

    ``text`` is the user's own words and stays out of logs and errors' messages. ``principal`` is
    the hub role that asks. ``settings`` are the session's ``oar.…`` settings in force, without
    the prefix. A principal's and a session's values never enter a draft: two principals who see
    the same catalog may share one.
    """

    text: str = field(repr=False)
    principal: str
    settings: Mapping[str, str] = field(default_factory=lambda: _NO_SETTINGS)

    @property
    def normalised(self) -> str:
        """The text with composed characters and single spaces.

        Case and punctuation stay: both tell a value from a word.
        """
        return normalise(self.text)


def normalise(text: str) -> str:
    """Return a question's text in NFC with single spaces and none around."""
    return " ".join(unicodedata.normalize("NFC", text).split())
