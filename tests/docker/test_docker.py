"""What can be known of the image and the services without a container engine."""

from __future__ import annotations

import asyncio
import datetime
import re
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

import psycopg
import psycopg.conninfo
import pytest
import yaml
from oar_adapters.registry import open_adapter
from oar_policies.parse import load_policies
from oar_proxy.settings import load

ROOT = Path(__file__).parent.parent.parent
DOCKER = ROOT / "docker"
COMPOSE = yaml.safe_load((DOCKER / "compose.yaml").read_text(encoding="utf-8"))
SERVICES = COMPOSE["services"]


def test_what_the_services_mount_and_build_is_there():
    for service in SERVICES.values():
        if build := service.get("build"):
            context = DOCKER / build["context"]
            assert (context / build["dockerfile"]).is_file()
        for mount in service.get("volumes", ()):
            source = mount.partition(":")[0]
            if source.startswith("."):
                assert (DOCKER / source).exists(), source
            else:
                assert source in COMPOSE["volumes"]


def test_services_depend_on_services_and_use_declared_networks():
    for service in SERVICES.values():
        assert set(service.get("depends_on", ())) <= SERVICES.keys()
        assert set(service.get("networks", ())) <= COMPOSE["networks"].keys()


def test_owners_share_no_network():
    owners = [set(SERVICES[name]["networks"]) for name in ("logistics", "returns-east", "support")]
    together = set.union(*owners)
    assert len(together) == sum(map(len, owners))
    assert together < set(SERVICES["proxy"]["networks"])


def test_the_configuration_is_whole_with_the_services_environment(monkeypatch, tmp_path):
    for name, value in SERVICES["proxy"]["environment"].items():
        monkeypatch.setenv(name, value.replace("${OWNER_PASSWORD:-demo}", "demo"))
    settings = load(DOCKER / "oar.yaml")
    four = ["logistics", "marketing", "returns_west", "returns_east"]
    assert list(settings.owners) == [*four, "support"]
    mounted = dict(mount.split(":")[:2] for mount in SERVICES["proxy"]["volumes"])
    assert mounted["./oar.yaml"] == "/etc/oar/oar.yaml"
    assert mounted["../examples/marketplace/policies"] == "/etc/oar/policies"
    assert mounted["./support.yaml"] == "/etc/oar/support.yaml"
    assert mounted["hub"] == str(settings.hub.data_dir.parent)
    policies = {
        name: ROOT / "examples" / "marketplace" / settings.owners[name].policy.relative_to(DOCKER)
        for name in four
    } | {"support": settings.owners["support"].policy}
    assert load_policies(policies).keys() == settings.owners.keys()


def dockerfile_sources() -> list[str]:
    text = (DOCKER / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    return [
        source
        for arguments in re.findall(r"^COPY (?!--from)(.+)$", text, flags=re.MULTILINE)
        for source in arguments.split()[:-1]
    ]


@pytest.mark.parametrize("source", dockerfile_sources())
def test_what_the_image_copies_is_there_and_not_ignored(source: str):
    assert (ROOT / source).exists()
    kept = [
        line.removeprefix("!")
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line.startswith("!")
    ]
    assert any(source == entry or source.startswith(f"{entry}/") for entry in kept)


def test_the_image_copies_every_package_of_the_wheel():
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    packages = re.search(r"^packages = \[(.*)\]$", text, flags=re.MULTILINE)
    folders = {package.strip().strip('"').split("/")[0] for package in packages[1].split(",")}
    assert folders <= set(dockerfile_sources())


def test_postgres_seeds_run(hub_server):
    shapes = {}
    with psycopg.connect(hub_server.conninfo, autocommit=True) as admin:
        for name in ("logistics", "returns_east"):
            database = f"seed_{name}"
            admin.execute(f"CREATE DATABASE {database}")
            dsn = psycopg.conninfo.make_conninfo(hub_server.conninfo, dbname=database)
            try:
                with psycopg.connect(dsn) as connection:
                    connection.execute((DOCKER / "seed" / f"{name}.sql").read_bytes())
                    shapes[name] = connection.execute(
                        "SELECT relname, reltuples > 0 FROM pg_class"
                        " WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace"
                    ).fetchall()
            finally:
                admin.execute(f"DROP DATABASE {database}")
    assert shapes == {"logistics": [("deliveries", True)], "returns_east": [("returns", True)]}


def test_sqlite_seeds_run(tmp_path):
    counts = {}
    for name, table in (("marketing", "promos"), ("returns_west", "returns")):
        with closing(sqlite3.connect(tmp_path / f"{name}.db")) as connection:
            connection.executescript((DOCKER / "seed" / f"{name}.sql").read_text("utf-8"))
            counts[name] = connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
    assert counts == {"marketing": 3333, "returns_west": 400}


def test_mariadb_seed_runs(mariadb_server):
    """As the image's entry point runs it: by the client, with its own settings."""
    database, url = mariadb_server.new_database("seed", options="")
    subprocess.run(
        ["mariadb", "--no-defaults", "-uroot", f"--socket={mariadb_server.socket}", database],
        input=(DOCKER / "seed" / "support.sql").read_bytes(),
        check=True,
    )

    async def published():
        adapter = open_adapter(url)
        try:
            return (await adapter.schema()).tables
        finally:
            await adapter.close()

    (tickets,) = asyncio.run(published())
    assert tickets.comment == "Обращения в поддержку. Support requests"
    assert {column.name: column.type for column in tickets.columns} == {
        "id": "bigint",
        "order_id": "bigint",
        "topic": "text",
        "priority": "text",
        "is_open": "boolean",
        "compensation": "numeric(10,2)",
        "opened_at": "timestamp with time zone",
    }
    assert mariadb_server.run(
        "SELECT count(*), min(convert_tz(opened_at, @@time_zone, '+00:00')) FROM tickets",
        database=database,
    ) == ((900, datetime.datetime(2025, 1, 3, 6, 37)),)
