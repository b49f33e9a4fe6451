"""Fixtures every area uses."""

from __future__ import annotations

import asyncio
import logging
import secrets
import shutil
import tempfile
from pathlib import Path

import psycopg.conninfo
import pytest
import structlog
from oar_proxy.hub.access import open_hub
from oar_proxy.settings import HubSettings


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
        context = open_hub(HubSettings(data_dir=directory / "hub"))
        address = runner.run(context.__aenter__())
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
