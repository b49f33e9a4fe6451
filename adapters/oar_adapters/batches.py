"""How many rows are one batch: few enough that wide ones do not fill the memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeVar

BATCH_BYTES: Final = 4 * 1024 * 1024
"""What a batch may hold, as far as the one before foretells it."""

_Row = TypeVar("_Row")

_LOOKED_AT: Final = 100
"""Rows of a batch that are looked at, or up to twice as many."""


def sample(rows: Sequence[_Row]) -> Sequence[_Row]:
    """Return some of many, from all over."""
    return rows[:: max(1, len(rows) // _LOOKED_AT)]


def fitting(rows: Sequence[Sequence[bytes | None]], most: int) -> int:
    """Tell how many rows like these are one batch, of at most so many."""
    seen = sample(rows)
    size = sum(len(cell) for row in seen for cell in row if cell is not None)
    return max(1, min(most, BATCH_BYTES * len(seen) // max(1, size)))
