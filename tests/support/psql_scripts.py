"""PostgreSQL's own regression scripts, sent by psql directly and through the proxy.

What psql prints has to be the same: every row, tag, notice, error, position and context. As the
suites of drivers, the scripts run three times, on a database made anew each time, as a superuser of
the server: see :mod:`driver_suites`. They are in a source tree of PostgreSQL's (``src/test/
regress``), and run one after another, in the order of its schedule. What its build would make
(functions in C) is not there: what needs it fails alike each way.

Object identifiers, numbers of transactions and ports differ from run to run, and so does the line
of the script at which psql meets a notice that comes while it sends rows: lines that differ are
compared again without those, and without regard to the width of columns.
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import psycopg
from driver_suites import DATABASE, DIRECT, ROLE, TABLES, WAYS, proxy, renew
from oar_proxy.hub.binaries import find_binaries
from places import TcpServer

FIRST = "test_setup"
SCRIPT_SECONDS = 300
SETTINGS = {
    "PGDATESTYLE": "Postgres, MDY",
    "PGOPTIONS": "-c intervalstyle=postgres_verbose -c statement_timeout=120s",
    "PGTZ": "America/Los_Angeles",
}
"""As PostgreSQL's own runner has them."""

VARIES = re.compile(r"\d{4,}|pg_(?:toast_)?temp_\d+|\b\d+\.\d{3} ms|port \d+|\.sql:\d+(?=: NOTICE)")
WIDTH = re.compile(r"[ -]{2,}|\S*\.\.\.$")
"""What is as long as it is because of what stands in it, or before it."""


def scheduled(tree):
    """Return the names of the scripts, in the order of the schedule."""
    lines = (tree / "parallel_schedule").read_text(encoding="utf-8").splitlines()
    return [name for line in lines if line.startswith("test:") for name in line.split()[1:]]


def printed(tree, script, port, password):
    """Run a script; what psql prints of it, errors where they happen."""
    environment = SETTINGS | {
        "PGHOST": "127.0.0.1", "PGPORT": str(port), "PGUSER": ROLE, "PGPASSWORD": password,
        "PGDATABASE": DATABASE, "PG_ABS_SRCDIR": str(tree), "PG_ABS_BUILDDIR": tempfile.gettempdir(),
        "PG_LIBDIR": "/nowhere", "PG_DLSUFFIX": ".so",
    }  # fmt: skip
    ran = subprocess.run(
        [find_binaries().directory / "psql", "-X", "-a", "-q", "-v", "HIDE_TABLEAM=on",
         "-v", "HIDE_TOAST_COMPRESSION=on", "-f", tree / "sql" / f"{script}.sql"],
        check=False, env=os.environ | environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        timeout=SCRIPT_SECONDS,
    )  # fmt: skip
    return ran.stdout.decode(errors="replace").splitlines()


def difference(direct, other):
    """Return the lines that differ, as of ``diff``; what varies from run to run does not count."""
    if direct == other:
        return []
    masked = [
        [WIDTH.sub(" ", VARIES.sub("#", line)) for line in lines] for lines in (direct, other)
    ]
    return list(difflib.unified_diff(*masked, "direct", "other", lineterm="", n=2))


def run(tree, scripts, way, server, directory):
    """Run the scripts one way; returns script → what was printed."""
    renew(server)
    with psycopg.connect(server.dsn(), autocommit=True) as admin:
        for (name,) in admin.execute(
            r"SELECT quote_ident(spcname) FROM pg_tablespace WHERE spcname NOT LIKE 'pg\_%'"
        ).fetchall():
            admin.execute(f"DROP TABLESPACE {name}")
    with proxy(server, directory, TABLES[way]) as port:
        door = server.port if way == DIRECT else port
        return {script: printed(tree, script, door, server.password) for script in scripts}


def main():
    """Run the scripts; returns the exit status: 1 where one prints something else."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("sources", type=Path, help="PostgreSQL's source tree, of the hub's version")
    parser.add_argument("scripts", nargs="*", help="some of them; all without")
    options = parser.parse_args()
    tree = (options.sources / "src/test/regress").resolve()
    if not (tree / "sql" / f"{FIRST}.sql").is_file():
        parser.error(f"no regression scripts in {tree}")
    scripts = scheduled(tree)
    if unknown := set(options.scripts) - set(scripts):
        parser.error(f"not in the schedule: {', '.join(sorted(unknown))}")
    if options.scripts:
        scripts = [name for name in scripts if name in {FIRST, *options.scripts}]
    with TcpServer(ROLE) as server, tempfile.TemporaryDirectory() as directory:
        found = {way: run(tree, scripts, way, server, Path(directory)) for way in WAYS}
    unlike = {
        (script, way): lines
        for way in list(WAYS)[1:]
        for script in scripts
        if (lines := difference(found[DIRECT][script], found[way][script]))
    }
    for (script, way), lines in unlike.items():
        print(f"--- {script}: {WAYS[way]}", *lines, sep="\n")
    for way in list(WAYS)[1:]:
        lines = sum(map(len, found[way].values()))
        differing = sum(way == each for _, each in unlike)
        print(f"{WAYS[way]:34} {len(scripts)} scripts, {lines:,} lines, {differing} scripts differ")
    return 1 if unlike else 0


if __name__ == "__main__":
    sys.exit(main())
