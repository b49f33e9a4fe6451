"""The keys that rows hold: distinct, without NULL, in the type they are compared in. Pure.

Keys of one or several columns are a tuple of cells for each column; those at one place are of one
row.
"""

from __future__ import annotations

import hmac
import itertools
import struct
import uuid
from collections.abc import Iterable, Sequence
from typing import Final

from oar_adapters.interface import Cell

Keys = Sequence[tuple[bytes, ...]]

_INTEGERS: Final = {
    "smallint": struct.Struct("!h"),
    "integer": struct.Struct("!i"),
    "bigint": struct.Struct("!q"),
}


def distinct_keys(columns: Sequence[Iterable[Iterable[Cell]]]) -> Keys:
    """Return the distinct keys of some columns, each in chunks that are of the same rows.

    Keys with a NULL in any column match nothing (R1); an empty string is a key.
    """
    if len(columns) == 1:
        cells = dict.fromkeys(itertools.chain.from_iterable(columns[0]))
        return (tuple(cell for cell in cells if cell is not None),)
    rows: dict[tuple[Cell, ...], None] = {}
    for chunks in zip(*columns, strict=True):
        rows.update(dict.fromkeys(zip(*chunks, strict=True)))
    held = ([cell for cell in row if cell is not None] for row in rows)
    return _by_column((row for row in held if len(row) == len(columns)), len(columns))


def widened_keys(cells: tuple[bytes, ...], source: str, target: str) -> tuple[bytes, ...]:
    """Turn integers of one base type into those of another, which holds them all (R41)."""
    if source == target or source not in _INTEGERS or target not in _INTEGERS:
        return cells
    unpack, pack = _INTEGERS[source].unpack, _INTEGERS[target].pack
    return tuple(pack(*unpack(cell)) for cell in cells)


def digested_keys(cells: tuple[bytes, ...], type_: str, secret: bytes) -> tuple[bytes, ...]:
    """Return the HMAC-SHA-256 of each key's text (:attr:`KeyFilter.hmac`)."""
    return tuple(hmac.digest(secret, text, "sha256") for text in key_texts(cells, type_))


def key_texts(cells: Iterable[bytes], type_: str) -> Iterable[bytes]:
    """Return what each key reads as; other types than integers and ``uuid`` as they travel."""
    if type_ in _INTEGERS:
        unpack = _INTEGERS[type_].unpack
        return (str(*unpack(cell)).encode() for cell in cells)
    if type_ == "uuid":
        return (str(uuid.UUID(bytes=cell)).encode() for cell in cells)
    return cells


def all_keys(found: Sequence[Keys]) -> Keys:
    """Return the keys that several sources hold together, each once."""
    first, *others = found
    if not others:
        return first
    if len(first) == 1:
        cells = itertools.chain.from_iterable(keys[0] for keys in found)
        return (tuple(dict.fromkeys(cells)),)
    rows = itertools.chain.from_iterable(zip(*keys, strict=True) for keys in found)
    return _by_column(dict.fromkeys(rows), len(first))


def _by_column(rows: Iterable[Sequence[bytes]], width: int) -> Keys:
    return tuple(zip(*rows, strict=True)) or ((),) * width
