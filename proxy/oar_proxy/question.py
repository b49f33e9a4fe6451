"""A question in plain language, as it travels through the stages."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from oar_policies.model import Subject

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
        """The text with composed characters and single spaces.

        Case and punctuation stay: both tell a value from a word.
        """
        return normalise(self.text)


def normalise(text: str) -> str:
    """Return a question's text in NFC with single spaces and none around."""
    return " ".join(unicodedata.normalize("NFC", text).split())
