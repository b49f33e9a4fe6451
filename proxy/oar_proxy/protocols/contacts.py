"""Who is asked: owners whose public descriptions fit the question, and whom they refer to. Pure."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

K1: Final = 1.2
B: Final = 0.75
"""BM25's parameters, as in the paper."""

TOP: Final = 3
"""Owners that are contacted besides the one who asks."""

REFERRALS: Final = 2
"""Owners that referral messages may add."""

_STOP_WORDS: Final = (
    "a about all also am an and any are as at be been being both but by can could did do does each "
    "for from give had has have he her him his how i if in into is it its list many me more most "
    "much my no not of on or other our out over own please same she should show so some such tell "
    "than that the their them then there these they this those to under up us was we were what "
    "when where which while who whom whose why will with would you your"
)
STOP_WORDS: Final = frozenset(_STOP_WORDS.split())
_WORD: Final = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class Referral:
    """A message among an owner's documents that names another owner to ask."""

    text: str
    to: str


@dataclass(frozen=True, slots=True)
class Contacts:
    """Owners of one question: ``initial`` ones in contact order, and those they refer to.

    ``asker`` is the owner who asks, where it is one: its rows are its own already.
    """

    initial: tuple[str, ...]
    referred: tuple[str, ...] = ()
    messages: tuple[str, ...] = ()
    asker: str | None = None

    @property
    def reachable(self) -> tuple[str, ...]:
        """All owners that relay can ask, and that a draft is made over."""
        return (*self.initial, *self.referred)


def everyone(owners: Sequence[str]) -> Contacts:
    """Contact every owner."""
    return Contacts(tuple(owners))


def best_matching(
    question: str,
    descriptions: Mapping[str, str],
    *,
    asker: str | None = None,
    referrals: Mapping[str, Sequence[Referral]] | None = None,
    top: int = TOP,
) -> Contacts:
    """Contact the asker and the ``top`` other owners whose descriptions match the question best.

    Of two that match alike, the first in ``descriptions`` comes first. Referrals are taken in
    contact order, to at most :data:`REFERRALS` owners that are not contacted yet.
    """
    others = {owner: text for owner, text in descriptions.items() if owner != asker}
    scores = bm25(question, others)
    ranked = sorted(others, key=lambda owner: -scores[owner])[:top]
    initial = (*(() if asker is None else (asker,)), *ranked)
    found: dict[str, str] = {}
    for owner in initial:
        for referral in (referrals or {}).get(owner, ()):
            known = referral.to in initial or referral.to in found
            if referral.to in descriptions and not known and len(found) < REFERRALS:
                found[referral.to] = referral.text
    return Contacts(initial, tuple(found), tuple(found.values()), asker)


def bm25(question: str, documents: Mapping[str, str]) -> dict[str, float]:
    """Score documents against a question; each word of the question counts once."""
    words = {name: _words(text) for name, text in documents.items()}
    average = sum(map(len, words.values())) / len(words) if words else 0.0
    holding = Counter(word for found in words.values() for word in set(found))
    scores = dict.fromkeys(documents, 0.0)
    for name, found in words.items():
        counts = Counter(found)
        for word in dict.fromkeys(_words(question)):
            if not counts[word]:
                continue
            rarity = math.log(1 + (len(words) - holding[word] + 0.5) / (holding[word] + 0.5))
            length = K1 * (1 - B + B * len(found) / average)
            scores[name] += rarity * counts[word] * (K1 + 1) / (counts[word] + length)
    return scores


def _words(text: str) -> list[str]:
    return [word for word in _WORD.findall(text.casefold()) if word not in STOP_WORDS]
