"""The drafter that needs no model and no network: rules over the published names.

It sees what a model would see (names, types, keys, comments; no row), reads a closed vocabulary
of English and Russian, and abstains from every question in which a word stays unexplained.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from oar_proxy.catalog import Catalog
from oar_proxy.drafters import Draft, Failure
from oar_proxy.drafters.rules.compose import compose
from oar_proxy.drafters.rules.intent import Unread
from oar_proxy.drafters.rules.joins import Joins
from oar_proxy.drafters.rules.names import Names
from oar_proxy.drafters.rules.reading import read
from oar_proxy.drafters.rules.tagging import tag
from oar_proxy.drafters.rules.words import tokenise
from oar_proxy.prompt import ambiguous_names
from oar_proxy.question import Question

LONGEST_QUESTION: Final = 1000
"""Characters. The rules know no question near it, and reading takes time by the word."""
CATALOGS: Final = 16
"""Indexes kept: principals see different catalogs, and a few kinds of principal are usual."""


class OfflineDrafter:
    """Schema matching, value syntax and join paths."""

    name = "offline"

    def __init__(self) -> None:
        self._indexes: OrderedDict[str, _Index] = OrderedDict()

    async def propose(
        self,
        question: Question,
        catalog: Catalog,
        failures: Sequence[Failure],  # noqa: ARG002 - rules have no second opinion
    ) -> Draft:
        """Draft by rules alone: the same question over the same catalog gives the same draft."""
        text = question.normalised
        if len(text) > LONGEST_QUESTION:
            return self._abstain(f"it is longer than {LONGEST_QUESTION} characters")
        index = await self._index(catalog)
        try:
            # Over hundreds of tables a new word takes a noticeable time; other sessions go on.
            sql = await asyncio.to_thread(index.sql, text)
        except Unread as unread:
            return self._abstain(str(unread))
        return Draft(sql, self.name)

    def _abstain(self, reason: str) -> Draft:
        return Draft(None, self.name, f"the offline drafter cannot read this: {reason}")

    async def _index(self, catalog: Catalog) -> _Index:
        index = self._indexes.pop(catalog.version, None)
        if index is None:
            index = await asyncio.to_thread(_Index.of, catalog)
        self._indexes[catalog.version] = index
        while len(self._indexes) > CATALOGS:
            self._indexes.popitem(last=False)
        return index


@dataclass(frozen=True, slots=True)
class _Index:
    """What one catalog says, in the form the rules ask for it."""

    names: Names
    joins: Joins
    qualified: frozenset[str]

    @classmethod
    def of(cls, catalog: Catalog) -> _Index:
        names = Names(catalog)
        return cls(names, Joins(names.tables), ambiguous_names(catalog))

    def sql(self, text: str) -> str:
        """Read a question, one step after the other. Raises :class:`Unread`."""
        items = tag(tokenise(text), self.names)
        return compose(read(items), self.names, self.joins, self.qualified)
