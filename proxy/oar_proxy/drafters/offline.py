"""The drafter that needs no model and no network: rules over the published names."""

from __future__ import annotations

from collections.abc import Sequence

from oar_proxy.catalog import Catalog
from oar_proxy.drafters import Draft, Failure
from oar_proxy.question import Question


class OfflineDrafter:
    """Schema matching by rules. It abstains whenever a word of the question stays unexplained."""

    name = "offline"

    async def propose(
        self, question: Question, catalog: Catalog, failures: Sequence[Failure]
    ) -> Draft:
        """Draft by rules alone; the same question over the same catalog gives the same draft."""
        return Draft(None, self.name, "the offline drafter knows no rule for this question")
