"""How an owner counts an occurrence instead of sending its rows: by which columns, and if it can.

Rows that agree on the plain columns (see :mod:`oar_proxy.uses`) take part in the same joins, pass
the same conditions and fall into the same groups, equally often. So each aggregate of the others is
what it is when they are replaced by as many rows with the same plain values whose aggregated
columns have the same count, sum, minimum and maximum: the statement is evaluated as it stands, over
rows that are made up (see :mod:`oar_proxy.answer`). Without an aggregated column the rows are the
owner's own, said once with their number (R36).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Final

from oar_adapters.interface import Adapter, Partial, PartialFunction, Scan, Table

from oar_proxy.statement import Occurrence
from oar_proxy.uses import Uses


@dataclass(frozen=True, slots=True)
class Counted:
    """How an occurrence is counted: by which columns, and what its owners tell of others."""

    columns: frozenset[str]
    told: Mapping[str, frozenset[PartialFunction]]

    def scan(self, scan: Scan) -> Scan:
        """Turn a scan of a holder's rows into the counted one."""
        columns = scan.table.columns
        partials = (Partial(c, self.told[c.name]) for c in columns if c.name in self.told)
        return replace(
            scan,
            columns=tuple(c for c in columns if c.name in self.columns),
            counted=True,
            partials=tuple(partials),
        )


def counted(
    occurrence: Occurrence,
    uses: Uses,
    keys: Collection[str],
    adapters: Mapping[str, Adapter],
) -> Counted | None:
    """Decide how an occurrence is counted; None where its owners cannot, or little is gained.

    ``keys`` are columns whose values go to other owners. A column that some owner does not tell of
    is one to count by.
    """
    holders = occurrence.table.holders

    def can(how: Counted) -> bool:
        return all(adapters[h.owner].counts(how.scan(Scan(h.table, ()))) for h in holders)

    told = {
        name: functions
        for name, functions in uses.aggregated.items()
        if name not in keys and can(Counted(frozenset(), {name: functions}))
    }
    how = Counted(frozenset({*uses.plain, *keys, *uses.aggregated} - told.keys()), told)
    # A subquery that its owner answers gives groups, or the first rows, already.
    worth = all(h.table.derived is None and _fewer_groups(h.table, how.columns) for h in holders)
    return how if worth and can(how) else None


WORTH: Final = 2.0
"""Rows a group at least: a group is a wider row, and takes the owner longer to make."""


UNKNOWN_UP_TO: Final = 20_000
"""Rows of a table that is grouped on trust. Measured on 1,000,000 rows without statistics, each a
group of its own: 38 s, and 2.8 s as rows."""


def _fewer_groups(table: Table, columns: frozenset[str]) -> bool:
    """Tell whether there may be fewer groups than rows, by what is known of a holder's table.

    Conditions leave as few of the values of their columns, which are counted by, as of the rows.
    """
    if any(key and columns.issuperset(key) for key in (table.primary_key, *table.unique_keys)):
        return False
    counts = [c.distinct for c in table.columns if c.name in columns]
    if None in counts and table.row_estimate > UNKNOWN_UP_TO:
        return False
    # Of a column without statistics there may be one value only.
    groups = math.prod(max(1.0, count or 1.0) for count in counts)
    return groups * WORTH <= max(table.row_estimate, WORTH)
