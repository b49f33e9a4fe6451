"""Which rows find a key, told from columns of integers or dates as owners sent them. Pure.

Where keys do not travel, the hub would sort or hash both columns to join the rows with a table that
only filters them. It is a set that they are looked up in, which numpy does in a tenth of the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from oar_adapters.interface import Packed

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

WIDTHS = {"smallint": 2, "integer": 4, "bigint": 8, "date": 4}
"""Bytes of a cell of the types that are looked up: numbers all, of which 0 and 1 are values."""

WORTHWHILE = 20_000
"""Rows and keys together from which on it pays: of fewer the hub takes no time to speak of."""

WORKSPACE = 64
"""Bytes of memory that a row or a key may take while they are looked up."""


def marked(
    column: Sequence[Packed], keys: Sequence[Packed], width: int, *, once: bool
) -> Packed | None:
    """Return a column in which all cells that are among ``keys`` are the first of those.

    The others are another value. None where that is not to be told: some cell is NULL, or there is
    no key, or, with ``once``, one is there twice.
    """
    values, held = _values(column, width), _values(keys, width)
    if values is None or held is None or not held.size:
        return None
    import numpy as np  # here, since most sessions never need it

    if once:
        ordered = np.sort(held)
        if (ordered[1:] == ordered[:-1]).any():
            return None
    first = held[0]
    found = np.where(np.isin(values, held), first, held.dtype.type(first == 0))
    cells = np.empty(found.size, _cell(width))
    cells["size"], cells["value"] = width, found
    return Packed(cells.tobytes(), found.size, nulls=False)


def _cell(width: int) -> np.dtype[Any]:
    import numpy as np

    return np.dtype([("size", ">i4"), ("value", f">i{width}")])


def _values(column: Sequence[Packed], width: int) -> NDArray[np.signedinteger[Any]] | None:
    """Return the numbers of a column, None where there is a NULL among them."""
    import numpy as np

    type_ = _cell(width)
    parts = []
    for packed in column:
        if len(packed.elements) != len(packed) * type_.itemsize:
            return None
        cells = np.frombuffer(packed.elements, type_)
        if (cells["size"] != width).any():
            return None
        parts.append(cells["value"].astype(f"i{width}"))
    return np.concatenate(parts) if parts else np.empty(0, f"i{width}")
