"""Who turns a question into SQL: the contract, and one module a drafter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from typing import Protocol

from oar_proxy.catalog import Catalog
from oar_proxy.question import Question


@dataclass(frozen=True, slots=True)
class Review:
    """Who vouches for a verified answer, and since which day. ``name`` is the answer's."""

    name: str
    reviewer: str
    reviewed: date


@dataclass(frozen=True, slots=True)
class Draft:
    """SQL for a question, or the reason why there is none.

    ``sql`` is PostgreSQL over published names; None means that the drafter abstains, which is an
    answer. ``drafter`` names who wrote it: ``offline``, ``litellm:<model>``, ``replay``, or
    ``verified`` for people, of whom ``review`` tells. ``reason`` is safe to show: it has published
    names and the user's own words only. ``repairs`` counts the attempts after the first.
    """

    sql: str | None
    drafter: str
    reason: str | None = None
    cached: bool = False
    repairs: int = 0
    review: Review | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """An earlier attempt of the same question and the hub's message about it."""

    sql: str
    error: str


class Drafter(Protocol):
    """Writes one draft for one question. It sees names, types, keys and comments; never a row."""

    @property
    def name(self) -> str:
        """Who it is, model included: part of the cache's key."""
        ...

    async def propose(
        self, question: Question, catalog: Catalog, failures: Sequence[Failure]
    ) -> Draft:
        """Write a draft, or a better one than those in ``failures`` (oldest first).

        Raises ``DrafterUnavailable`` when whoever writes could not be reached or gave no usable
        reply.
        """
        ...
