"""Fixtures every area uses."""

from __future__ import annotations

import asyncio
import logging
import os
import pwd
import secrets
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import asyncmy
import psycopg
import psycopg.conninfo
import pytest
import structlog
from oar_proxy.app import open_application
from oar_proxy.hub.access import open_hub
from oar_proxy.hub.users import add_user
from oar_proxy.settings import HubSettings
from places import installed_programs

CANNOT_RUN = {
    "no Docker engine answers here: the suite runs without its container": "CI starts no engine",
    "about what root does": "CI need not be root",
}
"""Reasons of skips that are none to fail for, and why."""


def pytest_addoption(parser):
    parser.addoption(
        "--no-skips",
        action="store_true",
        help="fail for every test that is skipped, deselected or expected to fail,"
        " but for the reasons listed in tests/conftest.py",
    )


def pytest_deselected(items):
    if items and items[0].config.getoption("--no-skips"):
        raise pytest.UsageError(f"--no-skips: {len(items)} tests are deselected")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item):
    return without_skip(item.config, (yield))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_make_collect_report(collector):
    return without_skip(collector.config, (yield))


def without_skip(config, report):
    """Make a report of a test that did not run, or may fail, one of a failure."""
    if config.getoption("--no-skips"):
        why = None
        if hasattr(report, "wasxfail"):
            why = f"expected to fail: {report.wasxfail}"
            del report.wasxfail
        elif report.skipped:
            reason = report.longrepr[2].removeprefix("Skipped: ")
            why = None if reason in CANNOT_RUN else f"skipped: {reason}"
        if why is not None:
            report.outcome = "failed"
            report.longrepr = f"--no-skips: {why}"
    return report


@pytest.fixture(autouse=True)
def unconfigured_log():
    """Commands that run in this process configure logging: undo it."""
    yield
    structlog.reset_defaults()
    logging.getLogger().handlers = [
        handler
        for handler in logging.getLogger().handlers
        if not isinstance(handler.formatter, structlog.stdlib.ProcessorFormatter)
    ]


@pytest.fixture(scope="session")
def hub_server():
    """The address of a running embedded hub, set up, with nothing published in it."""
    directory = Path(tempfile.mkdtemp(prefix="oar-tests-"))
    # Under root the server's OS user has to get to its own directory below.
    directory.chmod(0o711)
    with asyncio.Runner() as runner:
        # Proxies, of which some last as long as the tests, their owners and what is compared with.
        context = open_hub(HubSettings(data_dir=directory / "hub", max_connections=600))
        address = runner.run(context.__aenter__())
        with psycopg.connect(address.conninfo, autocommit=True) as connection:
            # Nothing of it outlives the tests; databases are made and dropped by the hundred.
            connection.execute("ALTER SYSTEM SET fsync = off")
            connection.execute("SELECT pg_reload_conf()")
        try:
            yield address
        finally:
            runner.run(context.__aexit__(None, None, None))
            shutil.rmtree(directory)


@pytest.fixture(scope="module")
def hub(hub_server):
    """A hub of the module's own: a fresh database, set up, on the shared server."""
    name = f"oar_{secrets.token_hex(4)}"
    dsn = psycopg.conninfo.make_conninfo(hub_server.conninfo, dbname=name)
    with asyncio.Runner() as runner:
        context = open_hub(HubSettings(dsn=dsn))
        address = runner.run(context.__aenter__())
        yield address
        runner.run(context.__aexit__(None, None, None))
    with psycopg.connect(hub_server.conninfo, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(scope="session")
def new_database(hub_server):
    """Make an empty database on the shared server and return how to reach it."""

    def make(name):
        database = f"{name}_{secrets.token_hex(4)}"
        with psycopg.connect(hub_server.conninfo, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {database}")
        return psycopg.conninfo.make_conninfo(hub_server.conninfo, dbname=database)

    return make


@pytest.fixture(scope="session")
def icu_server(tmp_path_factory):
    """Another PostgreSQL, whose databases order text as en-US does; its admin's conninfo."""
    programs = installed_programs()
    directory = Path(tempfile.mkdtemp(prefix="oar-icu-"))
    account = {}
    if os.geteuid() == 0:
        nobody = pwd.getpwnam("nobody")
        os.chown(directory, nobody.pw_uid, nobody.pw_gid)
        account = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}

    def run(program, *arguments):
        command = [programs / program, "-D", directory / "data", *arguments]
        subprocess.run(command, check=True, cwd="/", stdout=subprocess.DEVNULL, **account)

    run("initdb", "-U", "admin", "--auth=trust", "--encoding=UTF8", "--no-sync",
        "--locale-provider=icu", "--icu-locale=en-US", "--locale=C.UTF-8")  # fmt: skip
    run("pg_ctl", "-w", "-l", directory / "log",
        "-o", f"-c listen_addresses='' -c fsync=off -k {directory}", "start")  # fmt: skip
    yield psycopg.conninfo.make_conninfo(host=str(directory), user="admin", dbname="postgres")
    run("pg_ctl", "-w", "-m", "immediate", "stop")
    shutil.rmtree(directory)


class MariadbServer:
    """A MariaDB server and its administrator; each call is a connection of its own.

    ``certificate`` is the file of its own authority, for ``127.0.0.1`` and ``port``.
    """

    def __init__(self, socket, port, certificate):
        self.socket = str(socket)
        self.port = port
        self.certificate = certificate

    def url(self, user, password, database):
        return f"mariadb://{user}:{password}@/{database}?socket={self.socket}"

    def run(self, *statements, database=None, rows=None):
        """Run statements, the last one once for each of ``rows``; returns its answer."""

        async def talk():
            async with asyncmy.connect(
                unix_socket=self.socket, user="root", database=database, charset="utf8mb4",
                autocommit=True,
            ) as connection, connection.cursor() as cursor:  # fmt: skip
                for statement in statements[:-1]:
                    await cursor.execute(statement)
                if rows is None:
                    await cursor.execute(statements[-1])
                else:
                    await cursor.executemany(statements[-1], rows)
                return await cursor.fetchall()

        return asyncio.run(talk())

    def new_database(self, name, *, options="CHARACTER SET utf8mb4"):
        """Make a database and a login that may read it, and write; returns its name and URL."""
        database, password = f"{name}_{secrets.token_hex(4)}", secrets.token_hex(8)
        self.run(
            f"CREATE DATABASE {database} {options}",
            f"CREATE USER {database}@localhost IDENTIFIED BY '{password}'",
            # What a careless owner might allow: the adapter has to stay read-only by itself.
            f"GRANT SELECT, INSERT, UPDATE, DELETE, CREATE, SHOW VIEW ON {database}.*"
            f" TO {database}@localhost",
        )
        return database, self.url(database, password, database)


@pytest.fixture(scope="session")
def mariadb_server():
    """A MariaDB server that listens on a socket in a directory of its own, and by TLS as well."""
    path = f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin"
    names = ("mariadbd", "mariadb-install-db", "openssl")
    daemon, install, openssl = (shutil.which(name, path=path) for name in names)
    if not (daemon and install and openssl):
        pytest.skip("no MariaDB server is installed, or no openssl")
    directory = Path(tempfile.mkdtemp(prefix="oar-mariadb-"))
    (directory / "tmp").mkdir()
    account = {}
    if os.geteuid() == 0:
        nobody = pwd.getpwnam("nobody")
        for owned in (directory, directory / "tmp"):
            os.chown(owned, nobody.pw_uid, nobody.pw_gid)
        account = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
    common = ["--no-defaults", f"--datadir={directory}/data", f"--tmpdir={directory}/tmp"]
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with (directory / "log").open("wb") as log:
        subprocess.run(
            [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=owner",
             "-addext", "subjectAltName=IP:127.0.0.1",
             "-keyout", directory / "key.pem", "-out", directory / "certificate.pem"],
            check=True, cwd="/", stdout=log, stderr=log, **account,
        )  # fmt: skip
        subprocess.run(
            [install, *common, "--auth-root-authentication-method=normal", "--skip-test-db"],
            check=True, cwd="/", stdout=log, stderr=log, **account,
        )  # fmt: skip
        server = subprocess.Popen(
            # Settings an owner may have, and whose meaning must not reach the adapter.
            [daemon, *common, f"--socket={directory}/s", f"--pid-file={directory}/pid",
             "--bind-address=127.0.0.1", f"--port={port}",
             f"--ssl-cert={directory}/certificate.pem", f"--ssl-key={directory}/key.pem",
             "--innodb-flush-log-at-trx-commit=0",
             "--default-time-zone=+05:00", "--sql-mode=PAD_CHAR_TO_FULL_LENGTH",
             "--character-set-server=latin1", "--net-write-timeout=2"],
            cwd="/", stdout=log, stderr=log, **account,
        )  # fmt: skip
    try:
        deadline = time.monotonic() + 60
        while not (directory / "s").exists():
            assert server.poll() is None, (directory / "log").read_text()
            assert time.monotonic() < deadline, "MariaDB does not start"
            time.sleep(0.05)
        yield MariadbServer(directory / "s", port, directory / "certificate.pem")
    finally:
        server.terminate()
        server.wait(30)
        shutil.rmtree(directory)


@contextmanager
def running(settings):
    """Run an application in a thread of its own, as a process of its own would."""
    ready: list = []
    started, stop = threading.Event(), None

    async def serve():
        nonlocal stop
        stop = asyncio.Event()
        async with open_application(settings) as application:
            async with application.hub.admin.connection() as connection:
                name = f"client_{secrets.token_hex(4)}"
                await add_user(connection, name, "secret")
            ready.append((application, name, asyncio.get_running_loop()))
            started.set()
            await stop.wait()

    failure: list = []

    def run():
        try:
            asyncio.run(serve())
        except BaseException as error:
            failure.append(error)
        finally:
            started.set()

    thread = threading.Thread(target=run)
    thread.start()
    started.wait(60)
    if failure:
        thread.join()
        raise failure[0]
    application, name, loop = ready[0]

    def refresh():
        return asyncio.run_coroutine_threadsafe(application.refresh(), loop).result(60)

    try:
        yield (
            refresh,
            f"host=127.0.0.1 port={application.port} user={name} password=secret "
            f"dbname={application.hub.database}",
        )
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(60)
        if failure:
            raise failure[0]


@pytest.fixture(scope="session")
def running_proxy():
    """Run a proxy: a context that gives how to refresh it and how to connect."""
    return running
