"""Fan-out: every contacted owner answers alone and at once; a receiver puts the parts together."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import Any, Final

from oar_proxy.hub.session import Size
from oar_proxy.protocols import prompts
from oar_proxy.protocols.attempt import Attempt, OwnerQuery, Verdict, schemas

SIZE: Final = Size(rows=100, size=8_000)

NO_TABLE: Final = "none of its tables is needed"


@dataclass(frozen=True, slots=True)
class FanOut:
    """See the module."""

    name: str = "fan-out"

    async def run(self, attempt: Attempt) -> Verdict:
        """See :class:`~oar_proxy.protocols.attempt.Strategy`."""
        contacts = attempt.inquiry.contacts
        try:
            async with asyncio.TaskGroup() as group:
                asked = [group.create_task(_part(attempt, owner)) for owner in contacts.initial]
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None
        parts = [replace(task.result(), number=n) for n, task in enumerate(asked, start=1)]
        attempt.queries[:] = parts  # in contact order, whichever came first
        peers: list[dict[str, Any]] = []
        local: list[dict[str, Any]] = []
        for part in parts:
            if part.owner == contacts.asker:
                local.append(part.entry())
            elif await attempt.fits([*peers, part.entry()], attempt.inquiry.budget):
                peers.append(part.entry())
        if not any("rows" in entry for entry in (*local, *peers)):
            return Verdict(None)
        material: dict[str, Any] = {"results": peers}
        if local:
            material["your_own_result"] = local[0]
        return await attempt.compose(material)


async def _part(attempt: Attempt, owner: str) -> OwnerQuery:
    if not attempt.publishes(owner):
        return attempt.note(owner, NO_TABLE)
    refusal = attempt.owners.refusal(owner)
    if refusal is not None:
        return attempt.note(owner, refusal)
    material = {"schema": schemas(attempt.inquiry.catalog, (owner,))[0]["schema"]}
    written = await attempt.consult("owner", prompts.OWNER, material, prompts.LocalQuery)
    if not written.sql.strip():
        return attempt.note(owner, NO_TABLE)
    return await attempt.query(owner, written.sql, SIZE, shown=False)
