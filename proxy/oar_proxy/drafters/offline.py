"""The drafter that needs no model and no network: rules over the published names.

It sees what a model would see (names, types, keys, comments; no row), reads a closed vocabulary
of English and Russian, and abstains from every question in which a word stays unexplained.
"""

from __future__ import annotations

from collections.abc import Sequence

from oar_proxy.catalog import Catalog
from oar_proxy.drafters import Draft, Failure
from oar_proxy.drafters.rules.compose import compose
from oar_proxy.drafters.rules.intent import Unread
from oar_proxy.drafters.rules.names import Names
from oar_proxy.drafters.rules.reading import read
from oar_proxy.drafters.rules.tagging import tag
from oar_proxy.drafters.rules.words import tokenise
from oar_proxy.prompt import ambiguous_names
from oar_proxy.question import Question


class OfflineDrafter:
    """Schema matching, value syntax and join paths, one catalog's index kept at a time."""

    name = "offline"

    def __init__(self) -> None:
        self._indexed: tuple[str, Names] | None = None

    async def propose(
        self,
        question: Question,
        catalog: Catalog,
        failures: Sequence[Failure],  # noqa: ARG002 - rules have no second opinion
    ) -> Draft:
        """Draft by rules alone: the same question over the same catalog gives the same draft."""
        names = self._names(catalog)
        try:
            items = tag(tokenise(question.normalised), names)
            sql = compose(read(items), names, ambiguous_names(catalog))
        except Unread as unread:
            return Draft(None, self.name, f"the offline drafter cannot read this: {unread}")
        return Draft(sql, self.name)

    def _names(self, catalog: Catalog) -> Names:
        if self._indexed is None or self._indexed[0] != catalog.version:
            self._indexed = (catalog.version, Names(catalog))
        return self._indexed[1]
