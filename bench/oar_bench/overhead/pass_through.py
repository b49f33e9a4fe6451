"""Statements that are not ours: the proxy against pgbouncer, in front of the same server.

``pgbench -S -M prepared`` with one and with eight clients, and a COPY of the accounts' table.
pgbouncer pools by session, which is what the proxy does: a client owns its server connection.
"""

from __future__ import annotations

import os
import pwd
import re
import secrets
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import psycopg

from oar_bench.harness import USER
from oar_bench.overhead.processes import (
    HOST,
    OverheadError,
    Proxy,
    free_port,
    interleaved,
    milliseconds,
    program,
    proxy_process,
    run,
    wait_for_port,
)

ROWS_A_SCALE: Final = 100_000
"""Accounts of one unit of pgbench's scale."""

COPIES: Final = 5
"""Copies a round: each takes half a second, and they differ by a tenth."""


@dataclass(frozen=True, slots=True)
class PassThrough:
    """Medians by contestant (``direct``, ``oar``, ``pgbouncer``)."""

    latency_ms: dict[str, float]
    """Of one client's SELECT by primary key."""
    throughput_tps: dict[str, float]
    """Of eight clients' SELECTs by primary key."""
    copy_ms: dict[str, float]
    """Of COPY TO STDOUT of ``copy_rows`` rows."""
    copy_rows: int


def measure(directory: Path, *, scale: int, seconds: int, rounds: int) -> PassThrough:
    """Measure with pgbench's ``scale`` (100,000 rows each), ``seconds`` a pgbench run.

    Raises :class:`~oar_bench.overhead.processes.OverheadError`, also when pgbouncer is missing.
    """
    bouncer = shutil.which("pgbouncer", path="/usr/sbin:/usr/bin:/usr/local/bin")
    if bouncer is None:
        raise OverheadError("pgbouncer is not installed (apt-get install pgbouncer)")
    password = secrets.token_urlsafe(12)
    with proxy_process(directory, password) as proxy:
        _fill(proxy, scale)
        with _pgbouncer(bouncer, directory, proxy) as port:
            places = {
                "direct": (proxy.hub.host, proxy.hub.port),
                "oar": (HOST, proxy.port),
                "pgbouncer": (HOST, port),
            }
            bench = partial(_pgbench, proxy, seconds)
            # One unmeasured round: the server's caches are cold for whoever comes first.
            interleaved({n: partial(bench, place, 1) for n, place in places.items()}, 1)
            latency = {n: partial(bench, place, 1) for n, place in places.items()}
            throughput = {n: partial(bench, place, 8) for n, place in places.items()}
            copying = {n: partial(_copy, proxy, place) for n, place in places.items()}
            tps_of_one = interleaved(latency, rounds)
            return PassThrough(
                latency_ms={name: 1000 / tps for name, tps in tps_of_one.items()},
                throughput_tps=interleaved(throughput, rounds),
                copy_ms=interleaved(copying, COPIES * rounds),
                copy_rows=scale * ROWS_A_SCALE,
            )


def _fill(proxy: Proxy, scale: int) -> None:
    """Make pgbench's tables in the hub's database and let the client read them."""
    details = psycopg.conninfo.conninfo_to_dict(proxy.hub.conninfo)
    admin = ("-h", proxy.hub.host, "-p", str(proxy.hub.port), "-U", str(details["user"]))
    initialise = [program("pgbench"), *admin, "-q", "-i", "-s", str(scale), proxy.hub.database]
    run(initialise, str(details["password"]))
    with psycopg.connect(proxy.hub.conninfo, autocommit=True) as connection:
        connection.execute(f"GRANT SELECT ON pgbench_accounts, pgbench_branches TO {USER}")
        connection.execute("VACUUM ANALYZE pgbench_accounts")


@contextmanager
def _pgbouncer(binary: str, directory: Path, proxy: Proxy) -> Iterator[int]:
    """Run pgbouncer before the hub's socket, with the client's own password."""
    port = free_port()
    home = directory / "pgbouncer"
    home.mkdir(mode=0o700)
    users = home / "users.txt"
    users.write_text(f'"{USER}" "{proxy.password}"\n')
    # The hub's socket lets in its own OS user only; pgbouncer does not run as root either.
    account = Path(proxy.hub.host).stat()
    lines = [
        "[databases]",
        f"{proxy.hub.database} = host={proxy.hub.host} port={proxy.hub.port}",
        "[pgbouncer]",
        f"listen_addr = {HOST}",
        f"listen_port = {port}",
        "unix_socket_dir =",
        "auth_type = scram-sha-256",
        f"auth_file = {users}",
        "pool_mode = session",
        "default_pool_size = 20",
        "ignore_startup_parameters = extra_float_digits",
        f"logfile = {home / 'log'}",
        f"pidfile = {home / 'pid'}",
    ]
    as_user = []
    if os.geteuid() == 0:
        as_user = ["-u", pwd.getpwuid(account.st_uid).pw_name]
        for path in (home, users):
            os.chown(path, account.st_uid, account.st_gid)
    config = home / "pgbouncer.ini"
    config.write_text("\n".join(lines) + "\n")
    config.chmod(0o644)
    with subprocess.Popen([binary, "-q", *as_user, str(config)]) as process:
        try:
            wait_for_port(process, port, "pgbouncer")
            yield port
        finally:
            process.terminate()


def _client(place: tuple[str, int]) -> list[str]:
    host, port = place
    return ["-h", host, "-p", str(port), "-U", USER]


def _pgbench(proxy: Proxy, seconds: int, place: tuple[str, int], clients: int) -> float:
    """Return transactions a second, the time to connect left out."""
    load = ["-n", "-S", "-M", "prepared", "-c", str(clients), "-j", "1", "-T", str(seconds)]
    printed = run([program("pgbench"), *load, *_client(place), proxy.hub.database], proxy.password)
    found = re.search(r"tps = ([0-9.]+) \(without initial connection time\)", printed)
    if found is None:
        raise OverheadError("pgbench printed no tps")
    return float(found[1])


def _copy(proxy: Proxy, place: tuple[str, int]) -> float:
    """Return the milliseconds of a COPY of all accounts to nowhere."""
    copy = r"\copy pgbench_accounts TO '/dev/null'"
    command = [program("psql"), "-X", "-q", *_client(place), "-c", copy, proxy.hub.database]
    return milliseconds(lambda: run(command, proxy.password))
