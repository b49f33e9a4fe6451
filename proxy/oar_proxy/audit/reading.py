"""Reading the ledger: its last entries, those of one ask, all of a time."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncGenerator
from datetime import datetime
from typing import Any, Final

import psycopg
from psycopg.rows import TupleRow

from oar_proxy.chain import Body, Entry
from oar_proxy.writer import heads_of_all

Connection = psycopg.AsyncConnection[TupleRow]

FOLLOW_SECONDS: Final = 0.5
"""Seconds between two looks for new entries."""

_FETCHED: Final = 500


async def last(connection: Connection, count: int) -> list[Entry]:
    """Return the last entries that the hub took, oldest first."""
    cursor = await connection.execute(
        "SELECT writer, number, body, hash FROM oar_internal.entries ORDER BY entry DESC LIMIT %s",
        (count,),
    )
    return [Entry(*row) for row in reversed(await cursor.fetchall())]


async def follow(connection: Connection, count: int) -> AsyncGenerator[Entry]:
    """Yield the last entries and then, for ever, those that are written."""
    # By writer, whose entries become visible in order: the hub's own numbers do not.
    seen = {head.writer: head.number for head in await heads_of_all(connection)}
    for entry in await last(connection, count):
        if entry.number <= seen.get(entry.writer, 0):
            yield entry
    while True:
        for head in await heads_of_all(connection):
            writer, number = head.writer, head.number
            if number > seen.get(writer, 0):
                cursor = await connection.execute(
                    "SELECT writer, number, body, hash FROM oar_internal.entries"
                    " WHERE writer = %s AND number > %s AND number <= %s ORDER BY number",
                    (writer, seen.get(writer, 0), number),
                )
                seen[writer] = number
                for row in await cursor.fetchall():
                    yield Entry(*row)
        await asyncio.sleep(FOLLOW_SECONDS)


async def of_ask(connection: Connection, ask: uuid.UUID) -> list[Entry]:
    """Return what is on the ledger of one ask, in order."""
    cursor = await connection.execute(
        "SELECT writer, number, body, hash FROM oar_internal.entries WHERE ask = %s"
        " ORDER BY writer, number",
        (ask,),
    )
    return [Entry(*row) for row in await cursor.fetchall()]


async def everything(
    connection: Connection, since: datetime | None, until: datetime | None
) -> AsyncGenerator[Entry]:
    """Yield the entries of a time, writer by writer."""
    async with connection.transaction(), connection.cursor(name="oar_audit") as cursor:
        await cursor.execute(
            "SELECT writer, number, body, hash FROM oar_internal.entries"
            " WHERE at >= %s AND at < %s ORDER BY writer, number",
            (since or datetime.min, until or datetime.max),
        )
        while rows := await cursor.fetchmany(_FETCHED):
            for row in rows:
                yield Entry(*row)


async def asks(
    connection: Connection, since: datetime | None, until: datetime | None
) -> AsyncGenerator[list[Body]]:
    """Yield the asks of a time, each as the bodies of all its entries."""
    async with connection.transaction(), connection.cursor(name="oar_audit") as cursor:
        await cursor.execute(
            "SELECT (SELECT json_agg(e.body::json ORDER BY e.number)"
            " FROM oar_internal.entries AS e WHERE e.ask = a.ask)"
            " FROM oar_internal.entries AS a"
            " WHERE a.kind = 'ask' AND a.at >= %s AND a.at < %s ORDER BY a.at, a.ask",
            (since or datetime.min, until or datetime.max),
        )
        while rows := await cursor.fetchmany(_FETCHED):
            for (bodies,) in rows:
                yield bodies


def describe(body: Body) -> str:
    """Return what an entry says in one line for people."""
    kind = body["kind"]
    text = f"{body['at'][:23]}  {kind:<12}  "
    match kind:
        case "ask":
            asked = " ".join((body["asked"], *body.get("verified", ())))
            text += f"{body['ask']}  {body['principal']}: {asked}, {body['route']}"
        case "step":
            keys = f" with {body['keys']} keys" if body["keys"] else ""
            text += f"{body['ask']}  to {body['owner']}{keys}"
            for told in body["disclosures"]:
                text += (
                    f"\n{'':39}{told['keys']} keys of {told['from_column']} for"
                    f" {told['to_owner']}'s {told['to_column']} by {told['rule']}"
                )
        case "step_outcome" | "ask_outcome":
            step = f" of step {body['step']}" if kind == "step_outcome" else ""
            rows = "" if body["rows"] is None else f", {body['rows']} rows"
            text += f"{body['ask']}  SQLSTATE {body['sqlstate']}{step}{rows}"
        case _:
            named = len(body.get("heads", ())) + len(body.get("pruned", ()))
            text += f"writer {body['writer']}" + (f" names {named} others" if named else "")
    return text


def read(entry: Entry) -> dict[str, Any]:
    """Return an entry's body."""
    body: dict[str, Any] = json.loads(entry.body)
    return body
