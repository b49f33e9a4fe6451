"""The same over real connections: a proxy that goes on serving others whatever one client sends."""

from __future__ import annotations

import os
import random
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psycopg

from oar_bench.harness import USER
from oar_bench.overhead.processes import HOST, Proxy
from oar_bench.wire.mutation import cut, draw, mutated
from oar_bench.wire.recording import CLIENT, Recordings

PATIENCE: Final = 0.02
"""Seconds that an answer is waited for, now and then."""

_REST: Final = 30.0
"""Seconds in which everything of connections that are gone has to be gone too."""

_OPEN: Final = 100
"""Files that the proxy may have open for clients that have left, two for each, when the next one
comes: a busy machine takes its time to end them, and the proxy lets in as many clients as that."""

_ABORT: Final = struct.pack("ii", 1, 0)


@dataclass
class Siege:
    """What was tried and found. ``faults`` are lines for people; none means that all held."""

    connections: Counter[str] = field(default_factory=Counter)
    """``before`` authentication and ``after`` it."""
    bystander: int = 0
    """Statements of a client beside them that were answered right."""
    files_before: int = 0
    files_after: int = 0
    faults: list[str] = field(default_factory=list)


def besiege(proxy: Proxy, recordings: Recordings, *, seed: int, count: int, log: Path) -> Siege:
    """Open ``count`` connections that break the protocol. ``log`` is the proxy's."""
    siege = Siege()
    with _bystander(proxy, siege):
        siege.files_before = _open_files(proxy.pid)
        for number in range(count):
            chance = random.Random(f"{seed}:socket:{number}")  # noqa: S311 - no secret
            when = "before" if chance.random() < 0.5 else "after"
            siege.connections[when] += 1
            _await_room(proxy, siege)
            try:
                if when == "before":
                    _before(proxy, recordings, chance)
                else:
                    _after(proxy, recordings, chance, seed, number)
            except psycopg.OperationalError as error:
                siege.faults.append(f"connection {number}: {error}")
                break
        _come_to_rest(proxy, siege)
    written = log.read_text(encoding="utf-8", errors="replace").strip()
    if written:
        siege.faults.append(f"the proxy's log has errors: {written[:2000]}")
    return siege


def _await_room(proxy: Proxy, siege: Siege) -> None:
    deadline = time.monotonic() + _REST
    while _open_files(proxy.pid) > siege.files_before + _OPEN and time.monotonic() < deadline:
        time.sleep(0.05)


def _before(proxy: Proxy, recordings: Recordings, chance: random.Random) -> None:
    """Send a startup packet that is none, or a good one and then what no client sends."""
    startup = chance.choice(recordings.startups)
    sent = [mutated(startup[0][1], chance)]
    if chance.random() < 0.5:
        sent = [startup[0][1], mutated(startup[min(2, len(startup) - 1)][1], chance)]
    with socket.create_connection((HOST, proxy.port)) as client:
        _talk(client, b"".join(sent), chance)


def _after(
    proxy: Proxy, recordings: Recordings, chance: random.Random, seed: int, number: int
) -> None:
    given = draw(recordings, seed, number)
    sent = b"".join(data for side, data in given.steps if side == CLIENT)
    with proxy.connect() as connection:
        duplicate = os.dup(connection.fileno())
        with socket.socket(fileno=duplicate) as client:
            client.setblocking(True)
            _talk(client, sent, chance)


def _talk(client: socket.socket, sent: bytes, chance: random.Random) -> None:
    """Send it in pieces, read now and then, and leave in one way or another."""
    client.settimeout(5)
    with suppress(OSError):
        for piece in cut(sent, chance) if sent else ():
            client.sendall(piece)
            if chance.random() < 0.2:
                client.settimeout(PATIENCE)
                with suppress(TimeoutError):
                    client.recv(65536)
                client.settimeout(5)
        leaving = chance.random()
        if leaving < 0.3:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ABORT)
        elif leaving < 0.6:
            client.shutdown(socket.SHUT_WR)
            client.settimeout(PATIENCE)
            while client.recv(65536):
                pass
        else:
            client.shutdown(socket.SHUT_RDWR)


@contextmanager
def _bystander(proxy: Proxy, siege: Siege) -> Iterator[None]:
    """Ask the proxy something all the while, and compare the answers."""
    over = threading.Event()

    def ask() -> None:
        try:
            with proxy.connect() as connection:
                while not over.is_set():
                    number = siege.bystander
                    found = connection.execute("SELECT %s::int + 1", (number,)).fetchone()
                    if found != (number + 1,):
                        siege.faults.append(f"a client beside them was answered {found}")
                    siege.bystander += 1
                    time.sleep(0.005)
        except psycopg.Error as error:
            siege.faults.append(f"a client beside them was disturbed: {error}")

    asking = threading.Thread(target=ask)
    asking.start()
    while not siege.bystander and asking.is_alive():
        time.sleep(0.01)
    try:
        yield
    finally:
        over.set()
        asking.join()


def _come_to_rest(proxy: Proxy, siege: Siege) -> None:
    """Wait until nothing is left of the connections, at the proxy and at the hub."""
    deadline = time.monotonic() + _REST
    sessions = -1
    with psycopg.connect(proxy.hub.conninfo, autocommit=True) as hub:
        while time.monotonic() < deadline:
            siege.files_after = _open_files(proxy.pid)
            found = hub.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE usename = %s", (USER,)
            ).fetchone()
            assert found is not None
            (sessions,) = found
            if siege.files_after <= siege.files_before and sessions == 1:
                return
            time.sleep(0.1)
    siege.faults.append(
        f"{_REST:.0f} s after the last one the proxy has {siege.files_after} files open, before the"
        f" first one {siege.files_before}; the hub has {sessions} sessions of one client"
    )


def _open_files(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))
