"""Ask with asyncpg: prepared statements, a cursor, and a question as a parameter.

Run `make demo` first, or set OAR_DSN to another proxy.
"""

import asyncio
import json
import os

import asyncpg

DSN = os.environ.get("OAR_DSN", "postgresql://demo:demo@127.0.0.1:6432/oar")


async def main() -> None:
    connection = await asyncpg.connect(DSN)
    try:
        late = await connection.prepare(
            "SELECT count(*) FROM logistics.deliveries WHERE pvz_city = $1 AND delay_days >= $2"
        )
        for city in ("Москва", "Владивосток"):
            print(f"{city}: {await late.fetchval(city, 3)} orders late by 3 days or more")

        # A driver that binds the question as a parameter gets rows as JSON: their columns are not
        # known when the statement is prepared.
        question = "What is the total refund for each reason?"
        rows = await connection.fetch("SELECT * FROM oar_ask_json($1)", question)
        for row in sorted((json.loads(row[0]) for row in rows), key=str):
            print(row)

        async with connection.transaction(readonly=True):
            cursor = connection.cursor(
                "SELECT r.order_id, r.reason FROM returns.returns AS r ORDER BY r.order_id"
            )
            total = 0
            async for _ in cursor:
                total += 1
            print(f"{total} returns read through a cursor")
    finally:
        await connection.close()


asyncio.run(main())
