"""Retention: deleting old entries so that what is left can still be verified."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, LiteralString

import psycopg
from psycopg.rows import TupleRow

from oar_proxy.chain import Head
from oar_proxy.hub.address import HubAddress
from oar_proxy.writer import Writer, one_entry

Connection = psycopg.AsyncConnection[TupleRow]

# The last entry of a writer that has not closed its chain stays: the chain may go on behind it.
_OLD: Final[LiteralString] = """
SELECT e.writer, least(
  coalesce(min(e.number) FILTER (WHERE e.at >= %(before)s) - 1, max(e.number)),
  CASE WHEN count(*) FILTER (WHERE e.kind = 'close') > 0 THEN max(e.number)
       ELSE max(e.number) - 1 END)
FROM oar_internal.entries AS e
GROUP BY e.writer
"""

# An ask is deleted as a whole or not at all.
_UNDER_WAY: Final[LiteralString] = """
SELECT min(a.number)
FROM oar_internal.entries AS a
JOIN oar_internal.entries AS r ON r.ask = a.ask AND r.writer = a.writer AND r.number > %(cut)s
WHERE a.writer = %(writer)s AND a.number <= %(cut)s
"""

_FIRST: Final[LiteralString] = (
    "SELECT writer, min(number) FROM oar_internal.entries GROUP BY writer"
)

_HASH: Final[LiteralString] = """
SELECT writer, number, hash FROM oar_internal.entries
WHERE (writer, number) IN (SELECT * FROM unnest(%s::uuid[], %s::int8[]))
"""

_NAMED: Final[LiteralString] = """
SELECT e.kind, e.writer, e.number, n.writer, n.number, n.hash
FROM oar_internal.entries AS e, json_to_record(e.body::json) AS b(heads json, pruned json),
     json_to_recordset(coalesce(b.pruned, b.heads)) AS n(writer uuid, number int8, hash text)
WHERE e.kind IN ('open', 'link', 'checkpoint')
"""


@dataclass(frozen=True)
class Pruned:
    """What was deleted, or would be: entries, of how many writers."""

    entries: int
    writers: int


async def prune(address: HubAddress, before: datetime, *, dry_run: bool) -> Pruned:
    """Delete the entries of before a time.

    First an entry of kind ``checkpoint`` is written, with the hash of the last entry that each
    writer loses: what is left is verified from there. Asks that have an entry that stays keep all.
    Raises ``LedgerUnavailable`` and ``psycopg.Error``.
    """
    async with await psycopg.AsyncConnection.connect(
        address.session, autocommit=True
    ) as connection:
        cuts = await _cuts(connection, before)
        first: dict[uuid.UUID, int] = dict(await _rows(connection, _FIRST))
        cuts = {writer: cut for writer, cut in cuts.items() if cut >= first[writer]}
        pruned = Pruned(sum(cut - first[writer] + 1 for writer, cut in cuts.items()), len(cuts))
        if dry_run or not cuts:
            return pruned
        heads = await _checkpoint(connection, cuts)
        async with Writer(address.session) as writer:
            content = {
                "before": before.isoformat(),
                "deleted": pruned.entries,
                "pruned": [head.named() for head in heads],
            }
            await writer.write(one_entry("checkpoint", content))
        for name, cut in cuts.items():
            await connection.execute(
                "DELETE FROM oar_internal.entries WHERE writer = %s AND number <= %s", (name, cut)
            )
    return pruned


async def _cuts(connection: Connection, before: datetime) -> dict[uuid.UUID, int]:
    """Return the last entry that each writer loses; 0 or less where it loses none."""
    cuts: dict[uuid.UUID, int] = {}
    for writer, old in await _rows(connection, _OLD, {"before": before}):
        cut: int | None = old
        while cut is not None:
            cuts[writer] = cut
            ((under_way,),) = await _rows(connection, _UNDER_WAY, {"writer": writer, "cut": cut})
            cut = None if under_way is None else under_way - 1
    return cuts


async def _checkpoint(connection: Connection, cuts: Mapping[uuid.UUID, int]) -> list[Head]:
    """Return the heads of what goes, and of what went earlier as far as anything still needs it."""
    heads = {
        writer: Head(writer, number, hash_)
        for writer, number, hash_ in await _rows(
            connection, _HASH, (list(cuts), list(cuts.values()))
        )
    }
    needed = {writer for writer, _ in await _rows(connection, _FIRST)}
    earlier: dict[uuid.UUID, Head] = {}
    for kind, by, place, writer, number, hash_ in await _rows(connection, _NAMED):
        if kind == "checkpoint":
            if writer not in earlier or earlier[writer].number < number:
                earlier[writer] = Head(writer, number, bytes.fromhex(hash_))
        elif place > cuts.get(by, 0):
            needed.add(writer)
    for writer, head in earlier.items():
        if writer in needed:
            heads.setdefault(writer, head)
    return list(heads.values())


async def _rows(
    connection: Connection,
    statement: LiteralString,
    parameters: Sequence[object] | Mapping[str, object] | None = None,
) -> list[TupleRow]:
    cursor = await connection.execute(statement, parameters)
    return await cursor.fetchall()
