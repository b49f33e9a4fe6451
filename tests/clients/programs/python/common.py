"""What the programs in Python share: the statements they are given, and how results are told.

Each program runs the tasks that its arguments name, on the server that the environment names as
libpq has it, and prints a line for each: the task, a tab, the result. A result that begins with ``!``
is an error. Programs in other languages do the same.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

COUNT = os.environ["COUNT"]
JOIN = os.environ["JOIN"]
CURSOR = os.environ["CURSOR"]
BIG = os.environ["BIG"]
FAILS = os.environ["FAILS"]
SLOW = os.environ["SLOW"]
CITY, DAYS = os.environ["CITY"], int(os.environ["DAYS"])
SERVER = {
    "host": os.environ["PGHOST"],
    "port": int(os.environ["PGPORT"]),
    "user": os.environ["PGUSER"],
    "password": os.environ["PGPASSWORD"],
}
DATABASE = os.environ["PGDATABASE"]
URL = f"{SERVER['user']}:{SERVER['password']}@{SERVER['host']}:{SERVER['port']}/{DATABASE}"


def told(rows):
    """Write rows as text; what a value looks like is the client's affair."""
    return " / ".join("|".join(map(str, row)) for row in rows)


def summed(rows):
    """Write how many rows there are and the sums of their numbers, in whatever order they come."""
    count, sums = 0, {}
    for row in rows:
        count += 1
        for place, value in enumerate(row):
            if isinstance(value, int):
                sums[place] = sums.get(place, 0) + value
    return f"{count} rows, {sums}"


def sleeps(*server):
    """Tell whether the slow statement is under way there, as psql is told where."""
    running = (
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE datname = current_database() AND wait_event = 'PgSleep'"
    )
    asked = ["psql", "-XAtc", running, *server]
    told = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
    return told.strip() != "0"


def later(cancel, *server):
    """Call something in another thread, once the slow statement is under way there."""

    def wait():
        deadline = time.monotonic() + 60
        while not sleeps(*server) and time.monotonic() < deadline:
            time.sleep(0.1)
        cancel()

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def interrupt(process):
    """Press Ctrl-C in a program once its slow statement is under way."""
    while process.poll() is None:
        if sleeps():
            process.send_signal(signal.SIGINT)
            break
        time.sleep(0.1)


def main(**tasks):
    for name in sys.argv[1:]:
        try:
            result = tasks[name]()
        except Exception as error:
            result = f"!{type(error).__name__}: {error}"
        print(name, str(result).replace("\n", " "), sep="\t", flush=True)
