"""The locks at which sessions wait, where the connection that has them gets stuck."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import replace

import psycopg.conninfo
import pytest
from oar_proxy.hub import sentinel
from oar_proxy.hub.sentinel import Sentinels


@pytest.fixture
def backend(admin):
    """Says which process has a lock."""

    def pid(key):
        ((number,),) = admin.execute(
            "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted"
            " AND (classid::bigint << 32) | objid::bigint = %s",
            (key,),
        ).fetchall()
        return number

    return pid


def test_a_lock_is_held_until_it_is_let_go_of(hub, admin):
    async def use():
        async with Sentinels(hub) as sentinels:
            key = await sentinels.lock()
            taken = "SELECT pg_try_advisory_lock(%s), pg_advisory_unlock_all() IS NULL"
            assert admin.execute(taken, (key,)).fetchone()[0] is False
            await sentinels.unlock(key)
            assert admin.execute(taken, (key,)).fetchone()[0] is True

    asyncio.run(use())


def test_a_connection_is_closed_by_nobody_while_another_one_waits_at_it(hub, backend, monkeypatch):
    """Under uvloop the process ends where a descriptor is closed that was just asked for."""
    monkeypatch.setattr(sentinel, "_SECONDS", 0.3)

    async def use():
        async with Sentinels(hub) as sentinels:
            key = await sentinels.lock()
            stuck = backend(key)
            os.kill(stuck, signal.SIGSTOP)
            try:
                first = asyncio.create_task(sentinels.lock())
                await asyncio.sleep(0.1)
                await sentinels.unlock(key)
                assert first.done()
                assert first.result() is None
            finally:
                os.kill(stuck, signal.SIGCONT)
            again = await sentinels.lock()
            assert again is not None
            await sentinels.unlock(again)

    asyncio.run(use())


def test_what_cannot_be_locked_holds_nobody_up(hub, admin, monkeypatch):
    monkeypatch.setattr(sentinel, "_SECONDS", 0.3)
    monkeypatch.setattr(sentinel.secrets, "randbits", lambda _: 4711)

    async def use():
        async with Sentinels(hub) as sentinels:
            admin.execute("SELECT pg_advisory_lock(4711)")
            try:
                assert await sentinels.lock() is None
            finally:
                admin.execute("SELECT pg_advisory_unlock(4711)")
            key = await sentinels.lock()
            assert key == 4711
            await sentinels.unlock(key)

    asyncio.run(use())


def test_without_a_hub_there_is_no_lock(hub):
    async def use():
        conninfo = psycopg.conninfo.make_conninfo(hub.conninfo, port=1)
        async with Sentinels(replace(hub, conninfo=conninfo)) as sentinels:
            assert await sentinels.lock() is None

    asyncio.run(use())
