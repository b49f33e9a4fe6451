"""Stepping over the rows of a large answer, which are passed on and never looked into."""

from __future__ import annotations

from typing import Final

from oar_proxy.wire.messages import HEADER

_FEWEST: Final = 32
"""Rows of one length that it pays to look for: comparing a few takes as long as comparing many."""


def after_rows(chunk: bytes, at: int) -> int:
    """Return where the rows end that begin at ``at``, where a header stands: the next message.

    It is beyond ``chunk`` where the last row is, or its header not all there. Most tables have
    long stretches of rows of one length. The headers of such rows are compared together, which
    takes a fifth of the time; where there are none it is tried ever more rarely.
    """
    last_header = len(chunk) - HEADER.size
    unpack = HEADER.unpack_from
    singly, together = _FEWEST // 4, 8 * _FEWEST
    code, length = unpack(chunk, at)
    row = code
    while code == row:
        before = length
        stop = min(last_header, at + singly * (1 + length))
        while code == row and (at := at + 1 + length) <= stop:
            code, length = unpack(chunk, at)
        if at > last_header:
            break
        code, length = unpack(chunk, at)
        fit = (last_header - at) // (1 + length) + 1
        alike = 0
        if code == row and length == before and fit >= _FEWEST:
            alike = _alike(chunk, at, 1 + length, min(fit, together))
            if (at := at + alike * (1 + length)) > last_header:
                break
            code, length = unpack(chunk, at)
        if alike < _FEWEST:
            singly, together = 2 * singly, 8 * _FEWEST
        else:
            singly, together = _FEWEST // 4, 4 * together
    return at


def _alike(chunk: bytes, at: int, size: int, most: int) -> int:
    """Return how many messages of ``size`` bytes have the header of the first; ``most`` fit.

    Each byte of a header is compared in all of them at once. If that of each message up to one is
    the first's, that one stands where it is looked for.
    """
    for byte in reversed(range(HEADER.size)):  # lengths differ in their last byte, if anywhere
        same = chunk[at + byte : at + most * size : size]
        most = len(same) - len(same.lstrip(same[:1]))
    return most
