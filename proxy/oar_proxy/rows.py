"""Rows that owners sent, column by column, and what EXPLAIN ANALYZE tells of how they came."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from oar_adapters.interface import Batch, Packed, Partial

from oar_proxy.memory import Account
from oar_proxy.plan import Step

WHOLE: Final = 0
"""The number of a whole statement's rows, where occurrences count from 1."""

_ONE: Final = struct.pack("!iq", 8, 1)
"""The element of an array of ``bigint`` that is 1."""


@dataclass(slots=True)
class Rows:
    """Rows of one owner (or several), column by column, each column in the chunks that came.

    Of a counted scan they are groups: behind the columns that have ``names`` come the others of
    ``Scan.outputs``, and ``partials`` are the scan's (None: they are rows).
    """

    names: tuple[str, ...]
    columns: list[list[Packed]] = field(repr=False)
    count: int = 0
    size: int = 0
    """Bytes of all cells."""
    partials: tuple[Partial, ...] | None = None

    @property
    def once(self) -> bool:
        """Tell whether each is one row: none is a group of several."""
        if self.partials is None:
            return True
        sizes = self.columns[len(self.names)]
        return all(chunk.elements == _ONE * len(chunk) for chunk in sizes)

    def add(self, batch: Batch, account: Account) -> int:
        """Put a batch behind the others; return its size. Raises what :meth:`Account.hold` does."""
        packed = [Packed.of(cells) for cells in batch.columns]
        size = sum(len(cells.elements) for cells in packed)
        account.hold(size)
        for column, cells in zip(self.columns, packed, strict=True):
            column.append(cells)
        self.count += batch.rows
        self.size += size
        return size

    def first_with(self, names: Sequence[str]) -> int | None:
        """Return the place of the first row in which no column of those names is NULL."""
        cells = (self.columns[self.names.index(name)] for name in names)
        rows = zip(*map(itertools.chain.from_iterable, cells), strict=True)
        return next((place for place, row in enumerate(rows) if None not in row), None)

    def keep_only(self, place: int | None, account: Account) -> None:
        """Let go of all rows but the one at a place, or of all of them."""
        kept: list[list[Packed]] = []
        for column in self.columns:
            cells = itertools.chain.from_iterable(column)
            one = () if place is None else itertools.islice(cells, place, place + 1)
            kept.append([Packed.of(list(one))])
        size = sum(len(cells.elements) for (cells,) in kept)
        account.free(self.size - size)
        self.columns, self.count, self.size = kept, int(place is not None), size

    def insert(self, name: str, cell: Sequence[Packed], account: Account) -> None:
        """Give all rows one more column, of the same value. Raises what :meth:`Account.hold`."""
        elements = b"".join(packed.elements for packed in cell) * self.count
        account.hold(len(elements))
        self.columns.insert(len(self.names), [Packed(elements, self.count, nulls=False)])
        self.names = (*self.names, name)
        self.size += len(elements)

    def take(self) -> Rows:
        """Give away what was collected so far, and begin anew."""
        taken = replace(self)
        self.columns, self.count, self.size = [[] for _ in self.names], 0, 0
        return taken


@dataclass(frozen=True, slots=True)
class StepReport:
    """What one step did, for EXPLAIN ANALYZE.

    ``keys`` went along each of the step's edges; None: it was left out. ``size`` is that of the
    cells it brought, in bytes.
    """

    step: Step | None
    owner: str
    sql: str
    keys: tuple[int | None, ...]
    rows: int
    seconds: float
    notes: tuple[str, ...] = ()
    skipped: bool = False
    size: int = 0


@dataclass(slots=True)
class Gathered:
    """All rows that came back, by occurrence, each owner's apart."""

    rows: dict[int, list[Rows]] = field(default_factory=dict)
    reports: list[StepReport] = field(default_factory=list)

    def of(self, occurrence: int) -> Rows:
        """The rows of all holders of an occurrence together; none for one that was not read."""
        parts = self.rows.get(occurrence, [])
        if not parts:
            return Rows((), [])
        columns = [
            [c for part in parts for c in part.columns[i]] for i in range(len(parts[0].columns))
        ]
        count = sum(part.count for part in parts)
        return Rows(parts[0].names, columns, count, partials=parts[0].partials)
