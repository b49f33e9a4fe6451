"""The client table: one list of tasks, run by each client at a PostgreSQL and through the proxy.

Both sides are one server, one user, the same rows and the same names. Through the proxy, ``shop`` is
a PostgreSQL of the one owner and ``fleet`` an SQLite file of the other. The hub itself cannot answer
for them, so directly is a database of the hub's server that holds both: tables behind views called
as the published ones are, with the hub's search path. What a client sees has to be the same text.

As a program it runs all the clients that are installed and prints the table (``make clients``).
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import pwd
import secrets
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import venv
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

import psycopg
from oar_bench.overhead.processes import free_port, wait_for_port
from oar_proxy.hub.binaries import find_binaries
from oar_proxy.hub.users import add_user
from places import TcpServer, serving

PROGRAMS = Path(__file__).resolve().parent.parent / "clients" / "programs"
JDBC = Path("/usr/share/java/postgresql.jar")
SECONDS = 240
"""How long all tasks of one client may take, one way."""

HUB, PROXY = "hub", "proxy"
WAYS = (HUB, PROXY)
TASKS = ("connect", "introspect", "parameters", "cursor", "big", "errors", "cancel")

JOIN = (
    "SELECT o.order_id, o.customer, o.amount, o.placed, o.paid, o.share, o.note, d.courier, d.delay_days,"
    " d.weight FROM shop.orders AS o JOIN fleet.deliveries AS d ON d.order_id = o.order_id"
    " WHERE o.city = $1 AND d.delay_days > $2 ORDER BY o.order_id, d.delivery_id"
)
STATEMENTS = {
    "COUNT": "SELECT count(*) FROM shop.orders",
    "JOIN": JOIN,
    "CITY": "Тверь",
    "DAYS": "98",
    "CURSOR": "SELECT o.order_id, d.delivery_id, o.customer, d.delay_days FROM shop.orders AS o"
    " JOIN fleet.deliveries AS d ON d.order_id = o.order_id WHERE o.city = 'Тверь'"
    " ORDER BY d.delivery_id",
    "BIG": "SELECT delivery_id, order_id, courier, delay_days, weight FROM fleet.deliveries",
    "FAILS": "SELECT 1 / (d.delay_days - d.delay_days) FROM shop.orders AS o"
    " JOIN fleet.deliveries AS d ON d.order_id = o.order_id",
    "SLOW": "SELECT count(*), pg_sleep(60) FROM shop.orders AS o"
    " JOIN fleet.deliveries AS d ON d.order_id = o.order_id",
}

ORDERS = "order_id bigint, customer text, city text, amount numeric(10, 2), placed timestamptz, paid boolean, share double precision, note varchar(40)"
DELIVERIES = (
    "delivery_id bigint, order_id bigint, courier text, delay_days bigint, weight double precision"
)
FILL_ORDERS = """
INSERT INTO {} SELECT n, 'customer ' || n, (ARRAY['Казань', 'Тверь', 'O''Hare', 'São Paulo', ''])[1 + n % 5],
    n * 1.25 - 100, timestamptz '2026-03-01 12:00+00' + n * interval '1 hour 1 second', n % 3 = 0,
    1.0 / n, CASE WHEN n % 7 > 0 THEN 'note; ' || n END
FROM generate_series(1, 2000) AS n
"""
FILL_DELIVERIES = "INSERT INTO {} VALUES (%s, %s, %s, %s, %s)"


def deliveries():
    """Make the rows of the larger table."""
    return [
        (n, 1 + n * 7 % 2000, f"courier {n % 13}" if n % 11 else None, n % 101, n / 8)
        for n in range(1, 100_001)
    ]


@dataclass(frozen=True)
class Place:
    """Both sides of the comparison: what a client's environment says, by way; the hub's admin."""

    environments: Mapping[str, Mapping[str, str]]
    hub: str


@contextlib.contextmanager
def open_place():
    """Start the server, the owners and the proxy."""
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="oar-clients-")))
        server = stack.enter_context(TcpServer())
        fleet = directory / "fleet.sqlite"
        with contextlib.closing(sqlite3.connect(fleet)) as connection, connection:
            columns = DELIVERIES.replace("bigint", "INTEGER").replace("double precision", "REAL")
            connection.execute(f"CREATE TABLE deliveries ({columns})")
            statement = FILL_DELIVERIES.format("deliveries").replace("%s", "?")
            connection.executemany(statement, deliveries())
        with psycopg.connect(server.dsn(), autocommit=True) as admin:
            for database in ("shop", "reference"):
                admin.execute(f"CREATE DATABASE {database}")
        with psycopg.connect(server.dsn("shop"), autocommit=True) as admin:
            admin.execute(f"CREATE TABLE orders ({ORDERS})")
            admin.execute(FILL_ORDERS.format("orders"))
            admin.execute("ANALYZE")
        policy = directory / "policy.yaml"
        policy.write_text(
            "version: 1\nkey_disclosure:\n  - {column: '*', to: ['*'], max_keys: 100000}\n"
        )
        configuration = {
            "hub": {"dsn": server.dsn("oar")},
            "owners": {
                "shop": {"url": server.url("shop"), "policy": str(policy)},
                "fleet": {"url": f"sqlite:///{fleet}", "policy": str(policy)},
            },
        }
        port = stack.enter_context(serving(configuration, directory))
        password = secrets.token_hex(8)
        asyncio.run(_add_user(server.dsn("oar"), "anna", password))
        with psycopg.connect(server.dsn("oar")) as hub:
            (path,) = hub.execute("SHOW search_path").fetchone()
        with psycopg.connect(server.dsn("reference"), autocommit=True) as admin:
            _fill_reference(admin, path)
        common = {
            "PGHOST": "127.0.0.1", "PGUSER": "anna", "PGPASSWORD": password, "PGSSLMODE": "disable",
            "PGAPPNAME": "clients", "PGTZ": "UTC", "ADMIN": server.dsn(),
        }  # fmt: skip
        yield Place({
            HUB: common | {"PGPORT": str(server.port), "PGDATABASE": "reference"},
            PROXY: common | {"PGPORT": str(port), "PGDATABASE": "oar"},
        }, server.dsn("oar"))  # fmt: skip


async def _add_user(dsn, name, password):
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        await add_user(connection, name, password)


def _fill_reference(admin, path):
    """Make the tables, and views over them that are called as the published ones are."""
    admin.execute("CREATE SCHEMA held; CREATE SCHEMA shop; CREATE SCHEMA fleet")
    admin.execute(
        f"CREATE TABLE held.orders ({ORDERS}); CREATE TABLE held.deliveries ({DELIVERIES})"
    )
    admin.execute(FILL_ORDERS.format("held.orders"))
    with admin.cursor().copy("COPY held.deliveries FROM STDIN") as copy:
        for row in deliveries():
            copy.write_row(row)
    admin.execute("CREATE VIEW shop.orders AS SELECT * FROM held.orders")
    admin.execute("CREATE VIEW fleet.deliveries AS SELECT * FROM held.deliveries")
    admin.execute("GRANT USAGE ON SCHEMA shop, fleet TO oar_client")
    admin.execute("GRANT SELECT ON shop.orders, fleet.deliveries TO oar_client")
    admin.execute(f"ALTER DATABASE reference SET search_path TO {path}; ANALYZE")


# --- the clients ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Client:
    """A client: its program and the tasks it can do.

    ``mark`` is how it writes a parameter. ``needs`` are modules of a language (``python:…``), files
    (``/…``) and programs. ``front``: what stands between it and the server, both ways. ``build``
    makes what its command needs in a directory that the command names ``{built}``.
    """

    name: str
    command: tuple[str, ...]
    tasks: tuple[str, ...] = TASKS
    mark: str = "$"
    needs: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    front: str = ""
    build: str = ""

    def missing(self):
        """Return what this machine does not have of what it needs."""
        return [need for need in self.needs if not _has(need)]


_LOADS = {
    "perl": ("perl", "-M{}", "-e", "1"),
    "php": ("php", "-r", "exit(extension_loaded('{}') ? 0 : 1);"),
    "ruby": ("ruby", "-r{}", "-e", "1"),
}
"""Commands that succeed where a language has a module."""


def _has(need):
    kind, _, name = need.partition(":")
    if kind == "python":
        return find_spec(name) is not None
    if kind == "odbc":
        return (
            find_spec("pyodbc") is not None and name in importlib.import_module("pyodbc").drivers()
        )
    if name:
        command = [part.format(name) for part in _LOADS[kind]]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        return (
            _which(kind) is not None
            and subprocess.run(command, check=False, **quiet).returncode == 0
        )
    return Path(need).exists() if need.startswith("/") else _which(need) is not None


def _which(program):
    return shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin")


def _python(file, *needs, **more):
    program = (sys.executable, str(PROGRAMS / "python" / f"{file}.py"))
    return {"command": program, "needs": tuple(f"python:{need}" for need in needs)} | more


WHEEL = find_binaries().directory
DBT = ("dbt-core>=1.9,<1.11", "dbt-postgres>=1.9,<2")
"""From 1.11 on, installing it downloads from elsewhere than the package index."""
NO_CURSOR = tuple(task for task in TASKS if task != "cursor")
NO_CANCEL = tuple(task for task in TASKS if task != "cancel")
READS = ("connect", "cursor", "big")
ODBC = {"mark": "?", "needs": ("odbc:PostgreSQL Unicode",)}
NODE = {"needs": ("node", "npm"), "build": "npm"}
GO = {"needs": ("go", "/usr/share/gocode/src/github.com/lib/pq"), "build": "go"}
PGX = {"needs": ("go", "/usr/share/gocode/src/github.com/jackc/pgx/v4"), "build": "go"}
PHP = {"needs": ("php:pdo_pgsql",), "tasks": NO_CANCEL, "mark": "?"}

CLIENTS = (
    Client("psql", needs=("psql",), command=_python("psql")["command"]),
    Client("psql, the wheel's", environment={"PATH": f"{WHEEL}:{os.environ['PATH']}"},
           needs=(str(WHEEL / "psql"),), command=_python("psql")["command"]),
    Client("pgbench", environment={"PATH": f"{WHEEL}:{os.environ['PATH']}"}, needs=(str(WHEEL / "pgbench"),),
           tasks=("connect", "parameters"), command=_python("pgbench")["command"]),
    Client("psycopg", mark="%s", **_python("psycopg3", "psycopg")),
    Client("psycopg2", mark="%s", **_python("psycopg2_", "psycopg2")),
    Client("asyncpg", **_python("asyncpg_", "asyncpg")),
    Client("pg8000", mark="%s", tasks=NO_CURSOR, **_python("pg8000_", "pg8000")),
    *(Client(f"SQLAlchemy, {driver}", mark=":", tasks=NO_CANCEL, environment={"DRIVER": driver},
             **_python("sqlalchemy_", "sqlalchemy", driver))
      for driver in ("psycopg", "psycopg2", "asyncpg", "pg8000")),
    Client("ADBC", **_python("adbc", "adbc_driver_postgresql", "pyarrow")),
    Client("connectorx", tasks=(*READS, "errors"), **_python("connectorx_", "connectorx", "pyarrow")),
    Client("polars", tasks=READS, **_python("polars_", "polars", "connectorx", "adbc_driver_postgresql")),
    Client("pyodbc", environment={"DECLARE_FETCH": "0"}, **_python("pyodbc_") | ODBC),
    Client("pyodbc, DECLARE/FETCH", environment={"DECLARE_FETCH": "1"}, **_python("pyodbc_") | ODBC),
    Client("DuckDB", tasks=("connect", "introspect", "parameters", "big", "errors"),
           **_python("duckdb_", "duckdb", "duckdb_extension_postgres_scanner")),
    *(Client(f"postgres_fdw{told}", mark="%s", environment={"ESTIMATE": estimate}, **_python("fdw"))
      for told, estimate in (("", "false"), (", remote estimates", "true"))),
    Client("pgjdbc", mark="?", needs=("java", "javac", str(JDBC)),
           command=("java", "-cp", str(JDBC), str(PROGRAMS / "java" / "Pgjdbc.java"))),
    Client("node pg", command=("node", "{built}/pg.mjs"), **NODE),
    Client("postgres.js", command=("node", "{built}/postgres.mjs"), **NODE),
    Client("Go lib/pq", command=("{built}/libpq",), tasks=NO_CURSOR, **GO),
    Client("Go pgx", command=("{built}/pgx",), tasks=NO_CURSOR, **PGX),
    Client("PHP PDO", command=("php", str(PROGRAMS / "pdo.php")), environment={"EMULATE": "0"}, **PHP),
    Client("PHP PDO, emulated", command=("php", str(PROGRAMS / "pdo.php")), environment={"EMULATE": "1"}, **PHP),
    Client("Ruby pg", command=("ruby", str(PROGRAMS / "pg.rb")), needs=("ruby:pg",)),
    Client("Perl DBD::Pg", command=("perl", str(PROGRAMS / "dbd.pl")), mark="?", tasks=NO_CURSOR, needs=("perl:DBD::Pg",)),
    *(Client(f"pgbouncer, {mode}", mark="%s", front=mode, needs=("pgbouncer",), command=_python("psycopg3")["command"])
      for mode in ("session", "transaction")),
    Client("dbt", tasks=NO_CURSOR, environment={"PATH": f"{WHEEL}:{os.environ['PATH']}"}, build="dbt",
           command=("{built}/bin/python", str(PROGRAMS / "python" / "dbt_.py"))),
    Client("HAProxy", mark="%s", front="haproxy", needs=("haproxy",), command=_python("psycopg3")["command"]),
)  # fmt: skip


def written(statement, mark):
    """Write the statement's parameters as a client does."""
    for number, name in ((1, "city"), (2, "days")):
        own = {"$": f"${number}", ":": f":{name}"}.get(mark, mark)
        statement = statement.replace(f"${number}", own)
    return statement


class NotBuilt(Exception):
    """What a client's program needs could not be had."""


def build(client, directory):
    """Make what the client's command needs; returns its directory, one for each kind.

    Raises :class:`NotBuilt`.
    """
    try:
        return _build(client, directory)
    except subprocess.CalledProcessError as error:
        raise NotBuilt(f"{' '.join(map(str, error.cmd[:2]))} fails here") from error


def _build(client, directory):
    built = directory / client.build
    if client.build == "npm" and not (built / "node_modules").exists():
        shutil.copytree(PROGRAMS / "node", built, dirs_exist_ok=True)
        command = ["npm", "ci", "--no-audit", "--no-fund", "--omit=optional", "--loglevel=error"]
        subprocess.run(command, cwd=built, check=True, stdout=subprocess.DEVNULL)
    if client.build == "dbt" and not built.exists():
        venv.create(built, with_pip=True)
        subprocess.run([built / "bin" / "pip", "install", "--quiet", *DBT], check=True)
    if client.build == "go":
        program = Path(client.command[0]).name
        environment = {
            "GO111MODULE": "off",
            "GOPATH": "/usr/share/gocode",
            "GOFLAGS": "-buildvcs=false",
        }
        environment["GOCACHE"] = str(directory / "gocache")
        command = ["go", "build", "-o", built / program, PROGRAMS / "go" / program / "main.go"]
        subprocess.run(command, check=True, env=os.environ | environment)
    return built


def run_both(client, place, directory):
    """Run all tasks of a client both ways; returns way → task → result.

    A result that begins with ``!`` says why the task failed. Raises :class:`NotBuilt`.
    """
    built = build(client, directory)
    with ThreadPoolExecutor() as threads:
        runs = {way: threads.submit(_run, client, way, place, built, directory) for way in WAYS}
        return {way: run.result() for way, run in runs.items()}


def _run(client, way, place, built, directory):
    environment = dict(place.environments[way])
    with contextlib.ExitStack() as stack:
        if client.front:
            environment["PGPORT"] = str(
                stack.enter_context(standing(client.front, environment, directory))
            )
        statements = {name: written(text, client.mark) for name, text in STATEMENTS.items()}
        process = subprocess.run(
            ["timeout", str(SECONDS), *(part.format(built=built) for part in client.command), *client.tasks],
            env=os.environ | {"LANG": "C.UTF-8", "LC_ALL": "C.UTF-8"} | environment | statements | client.environment,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    told = [line.partition("\t") for line in process.stdout.split("\n") if line]
    results = {task: result for task, _, result in told}
    if results.keys() <= set(client.tasks):
        why = f"!ended with {process.returncode}: {process.stderr[-2000:]}"
    else:  # a result of several lines would be compared in part
        why, results = f"!prints more than results: {process.stdout[:2000]}", {}
    return {task: results.get(task, why) for task in client.tasks}


# --- what may stand in front ----------------------------------------------------------------------


@contextlib.contextmanager
def standing(front, environment, directory):
    """Put a pooler or a balancer before a server; its port."""
    port = free_port()
    place = Path(tempfile.mkdtemp(prefix="oar-front-"))
    place.chmod(0o711)
    files = {"userlist": f'"{environment["PGUSER"]}" "{environment["PGPASSWORD"]}"\n'}
    if front == "haproxy":
        files["ini"] = (
            "global\n maxconn 100\ndefaults\n mode tcp\n timeout connect 5s\n timeout client 60s\n"
            f" timeout server 60s\nlisten pg\n bind 127.0.0.1:{port}\n option pgsql-check user {environment['PGUSER']}\n"
            f" server one 127.0.0.1:{environment['PGPORT']} check inter 500ms\n"
        )
        command = [_which("haproxy"), "-db", "-f", place / "ini"]
    else:
        files["ini"] = (
            f"[databases]\n* = host=127.0.0.1 port={environment['PGPORT']}\n[pgbouncer]\n"
            f"listen_addr=127.0.0.1\nlisten_port={port}\nunix_socket_dir=\nauth_type=scram-sha-256\n"
            f"auth_file={place}/userlist\npool_mode={front}\nignore_startup_parameters=extra_float_digits\n"
            f"logfile={place}/log\npidfile={place}/pid\n"
        )
        command = [_which("pgbouncer"), place / "ini"]
    account = {}
    if os.geteuid() == 0:
        nobody = pwd.getpwnam("nobody")
        os.chown(place, nobody.pw_uid, nobody.pw_gid)
        account = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
    for name, content in files.items():
        (place / name).write_text(content)
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/", **account
    )
    try:
        wait_for_port(process, port, front)
        yield port
    finally:
        process.terminate()
        process.wait(30)
        shutil.rmtree(place)


# --- the table ------------------------------------------------------------------------------------


def verdict(results, task):
    """Say how one task went both ways: two marks, or that the answers differ."""
    marks = ["failed" if results[way][task].startswith("!") else "ok" for way in WAYS]
    if marks == ["ok", "ok"] and results[HUB][task] != results[PROXY][task]:
        return "differ"
    return " ".join(marks)


def main(names):
    """Print the table of all clients, or of those named; returns the exit status."""
    known = [client.name for client in CLIENTS]
    if unknown := sorted(set(names) - set(known)):
        print(f"no client {'; '.join(unknown)}, but {'; '.join(known)}", file=sys.stderr)
        return 2
    print(f"{'hub proxy':24}" + "".join(f"{task:>15}" for task in TASKS))
    bad = 0
    with open_place() as place, tempfile.TemporaryDirectory(prefix="oar-built-") as directory:
        for client in CLIENTS:
            if names and client.name not in names:
                continue
            if missing := client.missing():
                print(f"{client.name:24} not run: this machine has no {', '.join(missing)}")
                continue
            try:
                results = run_both(client, place, Path(directory))
            except NotBuilt as error:
                print(f"{client.name:24} not run: {error}")
                continue
            shown = {task: verdict(results, task) for task in client.tasks}
            print(
                f"{client.name:24}" + "".join(f"{shown.get(task, '—'):>15}" for task in TASKS),
                flush=True,
            )
            for task, mark in shown.items():
                if mark != "ok ok":
                    bad += 1
                    for way in WAYS:
                        print(f"    {task}, {way}: {results[way][task][:1000]}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
