"""Waiting for what another thread or process does: until it is so, and never for a time.

A time is too short on a machine that is busy enough, and a test then fails, or passes having seen
nothing.
"""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import contextmanager

import psycopg

SECONDS = 60
"""After which what is waited for will not happen."""


def eventually(condition):
    """Wait until a condition gives something that is true, and return that."""
    deadline = time.monotonic() + SECONDS
    while not (found := condition()):
        assert time.monotonic() < deadline, "did not happen"
        time.sleep(0.01)
    return found


async def until(condition):
    """Wait as :func:`eventually` does, while others of the event loop go on."""
    return await asyncio.to_thread(eventually, condition)


def executes(watcher, pid, event="PgSleep"):
    """Tell whether a server is in the ``pg_sleep`` of a pid's session, or waits otherwise for it."""
    query = (
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE pid = %s AND state = 'active' AND wait_event = %s"
    )
    return watcher.execute(query, (pid, event)).fetchone() == (1,)


@contextmanager
def once(condition, act):
    """While the block runs, do something in another thread as soon as a condition holds."""

    def wait():
        eventually(condition)
        act()

    waiting = threading.Thread(target=wait)
    waiting.start()
    try:
        yield
    finally:
        waiting.join()


def blocked(dsn):
    """How many statements wait for a lock in a database."""
    with psycopg.connect(dsn, autocommit=True) as watcher:
        query = (
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
            "AND wait_event_type = 'Lock'"
        )
        return watcher.execute(query).fetchone()[0]
