"""The only thing an adapter runs: a query that the gate has let through.

Kept apart from :mod:`oar_adapters.interface` so that an import contract can say who may build one:
in the proxy, the gate alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from oar_adapters.interface import Query


@final
@dataclass(frozen=True, slots=True)
class Authorized:
    """A query with the number of the ledger entry that recorded it before it was sent."""

    query: Query
    ledger_entry: int
