"""The test suites of PostgreSQL drivers, run at a server directly and through the proxy.

A test that passes directly and does not through the proxy is a difference, and fails this command
unless ``driver-suites.toml`` gives a reason for it. Each suite runs three times: at the hub itself;
through the proxy; and through a proxy over a table named ``2024``, whose name is no word that a
statement could be searched for, so that every statement is parsed and looked at.

Everything but the door is the same in the three runs: one server (the programs of the embedded
hub, on a TCP port, with SCRAM), the database made anew and set up as the proxy's hub before each
run, and one role. The suites create databases, types, extensions and roles, so that role is a
superuser of the server, as no client of a proxy is; the proxy passes on what it may not do and
what it may alike, for the hub alone decides that.

The suites come from the source distributions of the drivers, at the versions installed; psycopg's,
which is in no distribution, from a clone of its repository (``--psycopg``). They are installed
into a virtual environment in a directory of this command's own, which is kept for the next run.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import venv
from collections import Counter
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import psycopg
from oar_proxy.hub.binaries import find_binaries
from places import TcpServer, serving

HERE = Path(__file__).resolve().parent.parent / "clients"
ACCEPTED = HERE / "driver-suites.toml"
ROLE = DATABASE = "postgres"  # some suites write these names down
REPEATS = 5
"""How often a difference is tried again each way: many tests depend on how busy the machine is."""
SUITE_SECONDS = 1800
DIRECT = "direct"
WAYS = {DIRECT: "hub", "through": "proxy", "looked at": "proxy, every statement looked at"}
TABLES = {DIRECT: "parcels", "through": "parcels", "looked at": "2024"}


@dataclass(frozen=True)
class Suite:
    """A driver's tests: pytest's arguments in the driver's source tree, and what they need."""

    driver: str
    tests: tuple[str, ...]
    options: tuple[str, ...] = ()
    """``{url}`` in one is how the server is reached."""
    requires: tuple[str, ...] = ()
    binary: str = ""
    """The distribution to install, where it is not the one that has the tests."""
    before: tuple[str, ...] = ()
    """Statements that its authors ask for."""
    shadows: str = ""
    """A folder of the source tree that would be imported in place of what is installed."""

    @property
    def installed(self):
        return self.binary.partition("[")[0] or self.driver


SUITES = (
    Suite("asyncpg", ("tests",), requires=("distro", "uvloop"), shadows="asyncpg"),
    Suite("psycopg", ("tests",), ("-m", "not slow and not timing"), binary="psycopg[binary]",
          requires=("anyio", "dnspython", "numpy", "pproxy", "psycopg-pool")),
    Suite("psycopg2", ("tests",), binary="psycopg2-binary"),
    # Not how it authenticates: those need a server configured for each.
    Suite("pg8000", ("test/native", "test/dbapi", "test/legacy"),
          ("--ignore-glob=*/auth/*", "--ignore-glob=*benchmarks*"),
          requires=("pytest-mock", "pytz"), before=("CREATE EXTENSION hstore",)),
    Suite("sqlalchemy", ("test/dialect/postgresql",), ("--dburi", "{url}"), requires=("psycopg[binary]",),
          before=("CREATE EXTENSION hstore", "CREATE EXTENSION citext", "CREATE SCHEMA test_schema",
                  "CREATE SCHEMA test_schema_2")),
)  # fmt: skip


def renew(server):
    """Make the database anew, and drop what the last suite left beside it."""
    with psycopg.connect(server.dsn("template1"), autocommit=True) as admin:
        for (name,) in admin.execute(
            "SELECT quote_ident(datname) FROM pg_database WHERE datname NOT LIKE 'template_'"
        ).fetchall():
            admin.execute(f"DROP DATABASE {name} WITH (FORCE)")
        for (name,) in admin.execute(
            "SELECT quote_ident(rolname) FROM pg_roles WHERE rolname <> current_user"
            r" AND rolname NOT LIKE 'pg\_%' AND rolname NOT LIKE 'oar\_%'"
        ).fetchall():
            admin.execute(f"DROP ROLE {name}")
        admin.execute(f"CREATE DATABASE {DATABASE}")


def proxy(server, directory, table):
    """Run a proxy whose hub is the server, over one owner with one table."""
    owner = directory / f"{table}.sqlite"
    with contextlib.closing(sqlite3.connect(owner)) as connection:
        connection.execute(f'CREATE TABLE IF NOT EXISTS "{table}" (id integer, city text)')
    owners = {"depot": {"url": f"sqlite:///{owner}"}}
    return serving({"hub": {"dsn": server.dsn()}, "owners": owners}, directory)


# --- what runs --------------------------------------------------------------------------------


def unpack(suite, directory, version, clone):
    """Return the driver's source tree at that version, and the Python that has the driver."""
    tree = directory / f"{suite.driver}-{version}"
    python = directory / f"{suite.driver}-{version}-venv" / "bin" / "python"
    if not tree.exists():
        archive = tree.with_suffix(".tar")
        if clone is not None:
            command = ["git", "-C", clone, "archive", "--output", archive, version]
            subprocess.run(command, check=True)
        else:
            # A distribution is asked for its metadata, and psycopg2's asks pg_config.
            programs = f"{find_binaries().directory}:{os.environ['PATH']}"
            subprocess.run(
                [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:",
                 "--dest", directory / "sdists", f"{suite.driver}=={version}"],
                check=True, env=os.environ | {"PATH": programs},
            )  # fmt: skip
            (archive,) = (directory / "sdists").glob(f"{suite.driver}-{version}.tar.gz")
        unpacked = tree.with_suffix(".new")
        shutil.rmtree(unpacked, ignore_errors=True)
        with tarfile.open(archive) as files:
            files.extractall(unpacked, filter="data")
        inner = unpacked if clone is not None else unpacked / f"{suite.driver}-{version}"
        if suite.shadows:
            shutil.rmtree(inner / suite.shadows)
        inner.rename(tree)
    if not python.exists():
        venv.create(python.parent.parent, with_pip=True)
    subprocess.run(
        [python, "-m", "pip", "install", "--quiet", "pytest>=8.3", "pytest-timeout",
         f"{suite.binary or suite.driver}=={version}", *suite.requires],
        check=True,
    )  # fmt: skip
    return tree, python


class Runs:
    """Runs of one suite: its source tree, the Python that has its driver, where logs go."""

    def __init__(self, suite, tree, python, server, directory):
        self.suite, self.tree, self.python = suite, tree, python
        self.server, self.directory = server, directory

    def run(self, way, tests, name):
        """Run tests one way on a database made anew; returns test → outcome."""
        renew(self.server)
        # The proxy sets up its hub whether or not the suite goes through it.
        with proxy(self.server, self.directory, TABLES[way]) as port:
            with psycopg.connect(self.server.dsn(), autocommit=True) as admin:
                for statement in self.suite.before:
                    admin.execute(statement)
            return self._pytest(self.server.port if way == DIRECT else port, tests, name)

    def _pytest(self, port, tests, name):
        url = f"postgresql://{ROLE}:{self.server.password}@127.0.0.1:{port}/{DATABASE}"
        log = self.directory / f"{self.suite.driver}-{name}.log"
        outcomes = log.with_suffix(".json")
        outcomes.unlink(missing_ok=True)
        environment = {
            "OUTCOMES": str(outcomes), "PYTHONPATH": str(HERE / "plugins"),
            "PGHOST": "127.0.0.1", "PGPORT": str(port), "PGUSER": ROLE, "PGDATABASE": DATABASE,
            "PGPASSWORD": self.server.password, "PSYCOPG2_TESTDB": DATABASE, "PSYCOPG_TEST_DSN": url,
        }  # fmt: skip
        options = [option.format(url=url) for option in self.suite.options]
        with log.open("wb") as output:
            subprocess.run(
                [self.python, "-P", "-m", "pytest", *tests, *options, "-q", "-p", "outcomes",
                 "--cache-clear", "--timeout=120"],
                check=False, cwd=self.tree, stdout=output, stderr=output, timeout=SUITE_SECONDS,
                env=os.environ | environment,
            )  # fmt: skip
        if not outcomes.exists():
            raise SystemExit(f"the suite of {self.suite.driver} did not run: see {log}")
        return json.loads(outcomes.read_text())

    def repeat(self, tests):
        """Run tests again and again; returns way → those that failed at least once."""
        failed = {way: set() for way in WAYS}
        for number, way in itertools.product(range(REPEATS if tests else 0), WAYS):
            outcomes = self.run(way, sorted(tests), f"again-{number}")
            failed[way] |= {test for test in tests if outcomes.get(test) != "passed"}
        return failed


def differences(outcomes):
    """Return the tests that pass directly and not so another way: test → way → outcome."""
    found = {}
    for test in sorted(test for test, outcome in outcomes[DIRECT].items() if outcome == "passed"):
        ways = {way: each.get(test, "missing") for way, each in outcomes.items()}
        if set(ways.values()) != {"passed"}:
            found[test] = ways
    return found


def report(driver, version, outcomes):
    """Print a line for each way."""
    for way, each in outcomes.items():
        counts = Counter(each.values())
        print(f"{driver:11} {version:8} {WAYS[way]:34} {counts['passed']:6} passed"
              f" {counts['failed']:4} failed {counts['skipped']:4} skipped", flush=True)  # fmt: skip


def judge(runs, outcomes, accepted):
    """Print every difference; returns how many of them nobody accounts for."""
    found = differences(outcomes)
    again = runs.repeat(set(found) - set(accepted))
    through = set().union(*(failed for way, failed in again.items() if way != DIRECT))
    unexplained = 0
    for test, ways in found.items():
        how = ", ".join(f"{WAYS[way]}: {ways[way]}" for way in WAYS if ways[way] != "passed")
        if test in accepted:
            why = f"accepted: {accepted[test]}"
        elif test in again[DIRECT]:
            why = "fails directly too, now and then"
        elif test not in through:
            why = f"did not happen again in {REPEATS} repetitions"
        else:
            why = "UNEXPLAINED"
            unexplained += 1
        print(f"  {test}\n    {how}; {why}")
    for test in sorted(set(accepted) - set(found)):
        print(f"  {test}\n    no difference this time, accepted: {accepted[test]}")
    return unexplained


def main():
    """Run the suites named, or all; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    known = [suite.driver for suite in SUITES]
    parser.add_argument("suites", nargs="*", metavar="driver", help=f"of {', '.join(known)}")
    parser.add_argument("--psycopg", type=Path, metavar="CLONE", help="its repository, with tags")
    parser.add_argument("--psycopg-tag", metavar="VERSION", help="when the installed one has none")
    parser.add_argument("--directory", type=Path, help="where sources, environments and logs are kept",
                        default=Path(tempfile.gettempdir()) / "oar-driver-suites")  # fmt: skip
    options = parser.parse_args()
    if set(options.suites) - set(known):
        parser.error(f"there are {', '.join(known)}")
    options.directory.mkdir(exist_ok=True)
    accepted = tomllib.loads(ACCEPTED.read_text(encoding="utf-8"))
    unexplained = 0
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(TcpServer(ROLE))
        for suite in SUITES:
            if options.suites and suite.driver not in options.suites:
                continue
            version, clone = metadata.version(suite.installed), None
            if suite.driver == "psycopg":
                if options.psycopg is None:
                    print(
                        "psycopg     not run: its tests are in its repository only (--psycopg CLONE)"
                    )
                    continue
                version, clone = options.psycopg_tag or version, options.psycopg
            tree, python = unpack(suite, options.directory, version, clone)
            runs = Runs(suite, tree, python, server, options.directory)
            outcomes = {way: runs.run(way, suite.tests, way.replace(" ", "-")) for way in WAYS}
            report(suite.driver, version, outcomes)
            unexplained += judge(runs, outcomes, accepted.get(suite.driver, {}))
    return 1 if unexplained else 0


if __name__ == "__main__":
    sys.exit(main())
