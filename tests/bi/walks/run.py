"""Start real BI tools against a real proxy, and walk through them in a browser.

    python tests/bi/walks/run.py [superset] [pgadmin] [--dir DIRECTORY] [--keep-pictures]

Each tool gets a virtual environment of its own below the directory, made once for each version of
its requirements file; data, ports and passwords are made anew for every run. The owners are those
of ``oar demo``: PostgreSQL and SQLite. What pages have to show is computed from the demo's rows in
plain Python, by nothing that the proxy uses.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import fmean
from typing import Any

from oar_bench.overhead.processes import free_port
from oar_proxy import log
from oar_proxy.app import open_application
from oar_proxy.demo.command import configure, prepare
from oar_proxy.demo.orders import Marketplace
from oar_proxy.hub.server import embedded_hub
from oar_proxy.hub.users import add_user
from oar_proxy.settings import ApplicationSettings, HubSettings

HERE = Path(__file__).parent
TOOLS = ("superset", "pgadmin")
STARTS_WITHIN = 180.0
"""Seconds a tool has for its first answer."""
LOGISTICS_ROWS = 60_000
"""Rows that logistics lets out: fewer than it has."""
PROMO = "ВЕСНА25"
BUDGETED = "a machine"
"""The application_name of which there may be one statement in an hour."""


def environment(directory: Path, name: str) -> Path:
    """Make a virtual environment with what a requirements file says; return its programs."""
    requirements = HERE / f"requirements-{name}.txt"
    digest = hashlib.sha256(requirements.read_bytes()).hexdigest()[:12]
    place = directory / f"{name}-{digest}"
    if not (place / "made").exists():
        print(f"installing {name}, once", flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", place], check=True)
        subprocess.run(
            [place / "bin/python", "-m", "pip", "install", "--disable-pip-version-check", "-qq",
             "-r", requirements],
            check=True,
        )  # fmt: skip
        (place / "made").touch()
    return place / "bin"


@contextmanager
def started(name: str, command: list[str | Path], **words: Any) -> Iterator[subprocess.Popen]:
    """Run a server until the block ends; what it prints goes into a file of its directory."""
    with Path(words["cwd"], f"{name}.log").open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, **words)
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def answers(process: subprocess.Popen, url: str) -> str:
    """Wait for the first answer of a server."""
    deadline = time.monotonic() + STARTS_WITHIN
    while True:
        try:
            with urllib.request.urlopen(url, timeout=10):
                return url
        except (urllib.error.URLError, ConnectionError, TimeoutError) as error:
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"{url} does not answer: {error}") from error
        time.sleep(0.5)


@contextmanager
def superset(programs: Path, directory: Path) -> Iterator[str]:
    """Run Apache Superset with an administrator ``admin`` / ``admin``; yields its address."""
    (directory / "superset_config.py").write_text(
        f"SECRET_KEY = {secrets.token_hex(32)!r}\n"
        f"SQLALCHEMY_DATABASE_URI = 'sqlite:///{directory}/superset.db'\n"
        "TALISMAN_ENABLED = False\n"
    )
    application = "superset.app:create_app()"
    words: dict[str, Any] = {
        "cwd": directory,
        "env": os.environ
        | {
            "SUPERSET_CONFIG_PATH": str(directory / "superset_config.py"),
            "FLASK_APP": application,
            "HOME": str(directory),
        },
    }
    person = ["--username", "admin", "--password", "admin", "--firstname", "A", "--lastname", "B"]
    with (directory / "setup.log").open("wb") as output:
        for arguments in (
            ["db", "upgrade"],
            ["fab", "create-admin", *person, "--email", "admin@example.org"],
            ["init"],
        ):
            subprocess.run(
                [programs / "superset", *arguments],
                check=True, stdout=output, stderr=output, **words,
            )  # fmt: skip
    port = free_port()
    command: list[str | Path] = [
        programs / "gunicorn", "--worker-class=gthread", "--threads=8", "--timeout=120",
        f"--bind=127.0.0.1:{port}", application,
    ]  # fmt: skip
    with started("superset", command, **words) as process:
        at = f"http://127.0.0.1:{port}"
        answers(process, f"{at}/login/")
        yield at


@contextmanager
def pgadmin(programs: Path, directory: Path) -> Iterator[str]:
    """Run pgAdmin for one person, who need not log in; yields its address."""
    port = free_port()
    (directory / "config_local.py").write_text(
        f"DATA_DIR = {str(directory / 'data')!r}\n"
        f"LOG_FILE = {str(directory / 'pgadmin.own.log')!r}\n"
        f"DEFAULT_SERVER_PORT = {port}\n"
        "SERVER_MODE = False\n"
        "MASTER_PASSWORD_REQUIRED = False\n"
        "USE_OS_SECRET_STORAGE = False\n"
        "UPGRADE_CHECK_ENABLED = False\n"
    )
    words: dict[str, Any] = {
        "cwd": directory,
        "env": os.environ | {"PYTHONPATH": str(directory), "HOME": str(directory)},
    }
    with started("pgadmin", [programs / "pgadmin4"], **words) as process:
        yield answers(process, f"http://127.0.0.1:{port}/")


def right_answers(rows: Marketplace) -> dict[str, Any]:
    """What to ask, and what pages have to show."""
    delays = {d.order_id: (d.pvz_city, d.delay_days) for d in rows.deliveries}
    by_city: dict[str, list[int]] = defaultdict(list)
    for promo in rows.promos:
        if promo.promo_code == PROMO:
            city, delay = delays[promo.order_id]
            by_city[city].append(delay)
    every = [delay for each in by_city.values() for delay in each]
    return {
        "join": "SELECT d.pvz_city, count(*) AS orders, round(avg(d.delay_days), 3) AS delay"
        " FROM logistics.deliveries d JOIN marketing.promos p USING (order_id)"
        f" WHERE p.promo_code = '{PROMO}' GROUP BY 1 ORDER BY 1",
        "by city": [
            [city, str(len(each)), round(fmean(each), 3)] for city, each in sorted(by_city.items())
        ],
        "question": "SELECT * FROM oar_ask("
        f"'What is the average delay of orders with promo code {PROMO}?')",
        "answer": round(fmean(every), 9),
        "unanswerable": "SELECT * FROM oar_ask('How warm is the sea?')",
        "refused": "SELECT count(p.promo_code), count(*) FROM logistics.deliveries d"
        " LEFT JOIN marketing.promos p ON p.order_id > d.order_id",
        "refusal": f"owner logistics would send more than {LOGISTICS_ROWS} rows",
        "long": "SELECT count(*) FROM marketing.promos a"
        " JOIN returns.returns b ON a.order_id > b.order_id"
        " JOIN marketing.promos c ON c.order_id > b.order_id",
        "deliveries": len(rows.deliveries),
        "as a machine": f"SET application_name = '{BUDGETED}'; "
        "SELECT max(order_id) FROM logistics.deliveries",
        "highest": max(d.order_id for d in rows.deliveries),
        "used up": f'application "{BUDGETED}" has used up its statements of this hour: 1',
        "columns": [
            ["order_id", "bigint"], ["pvz_city", "text"], ["courier", "text"],
            ["delay_days", "bigint"], ["delivered_on", "date"],
            ["distance_km", "double precision"],
        ],
        "hidden": "customer_phone",
        "comment": "Город пункта выдачи. City of the pick-up point",
        "table comment": "Доставки заказов в пункты выдачи. Deliveries of orders to pick-up points",
    }  # fmt: skip


async def walk_all(tools: list[str], directory: Path, keep_all: bool) -> list[str]:
    """Walk through each tool; return those in which a step failed."""
    programs = {name: environment(directory, name) for name in (*tools, "browser")}
    failed: list[str] = []
    with tempfile.TemporaryDirectory(prefix="oar-bi-") as made:
        place = Path(made)
        await asyncio.to_thread(place.chmod, 0o711)  # under root, PostgreSQL runs as another user
        owners = HubSettings(data_dir=place / "owners", database="postgres")
        async with embedded_hub(owners) as server:
            rows = await asyncio.to_thread(prepare, place, server)
            budget = ApplicationSettings(application_name=BUDGETED, max_statements=1)
            settings = configure(place, server, 0).model_copy(
                update={"applications": {"tool": budget}}
            )
            policy = place / "policies/logistics.yaml"
            limited = policy.read_text().replace("200000", str(LOGISTICS_ROWS))
            policy.write_text(limited)
            log.configure("warning", "console")
            async with open_application(settings) as application:
                password = secrets.token_hex(8)
                async with application.hub.admin.connection() as connection:
                    await add_user(connection, "person", password)
                given = {
                    "right": right_answers(rows),
                    "server": {
                        "host": application.host, "port": application.port,
                        "db": application.hub.database, "username": "person",
                        "password": password,
                    },
                    "url": f"postgresql+psycopg2://person:{password}@{application.host}"
                    f":{application.port}/{application.hub.database}?application_name=Superset",
                    "pictures": str(directory / "pictures"),
                    "keep all": keep_all,
                }  # fmt: skip
                for tool in tools:
                    walked = await asyncio.to_thread(walk_one, tool, programs, place, given)
                    if not walked:
                        failed.append(tool)
    return failed


def walk_one(tool: str, programs: dict[str, Path], place: Path, given: dict[str, Any]) -> bool:
    home = place / tool
    home.mkdir(mode=0o700)
    start = {"superset": superset, "pgadmin": pgadmin}[tool]
    with ExitStack() as stack:
        at = stack.enter_context(start(programs[tool], home))
        told = home / "given.json"
        told.write_text(json.dumps(given | {"at": at}), encoding="utf-8")
        command = [programs["browser"] / "python", HERE / f"{tool}_walk.py", told]
        return subprocess.run(command, check=False).returncode == 0


def main() -> int:
    """Walk, and say how it went."""
    parser = argparse.ArgumentParser(description="Walk through BI tools in a browser")
    parser.add_argument("tools", nargs="*", choices=[*TOOLS, []], help="default: all")
    parser.add_argument("--dir", type=Path, default=Path(".bi"), help="default: .bi")
    parser.add_argument("--keep-pictures", action="store_true", help="also of steps that pass")
    options = parser.parse_args()
    for variable, program in (("CHROMIUM", "chromium"), ("CHROMEDRIVER", "chromedriver")):
        if not Path(os.environ.get(variable, f"/usr/bin/{program}")).exists():
            parser.error(
                f"{program} is not there: apt-get install chromium chromium-driver, or set {variable}"
            )
    directory = options.dir.resolve()
    directory.mkdir(parents=True, exist_ok=True)
    failed = asyncio.run(walk_all(options.tools or list(TOOLS), directory, options.keep_pictures))
    for tool in failed:
        print(f"failed: {tool}; pictures are in {directory / 'pictures'}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
