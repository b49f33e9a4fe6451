"""A small market in files: owners, a configuration, and the commands run beside it."""

from __future__ import annotations

import contextlib
import json
import sqlite3

import pytest
from commands import oar

LOGISTICS = "CREATE TABLE deliveries (order_id INTEGER PRIMARY KEY, city TEXT, phone TEXT)"
MARKETING = "CREATE TABLE promos (order_id INTEGER, code TEXT)"


class Market:
    """Two owners in SQLite: ``logistics`` and ``marketing``."""

    def __init__(self, directory):
        self.directory = directory
        for owner, table in (("logistics", LOGISTICS), ("marketing", MARKETING)):
            self.fill(owner, table)
            self.write(owner, "version: 1\n")
        owners = {
            owner: {"url": f"sqlite:///{directory}/{owner}.db", "policy": f"{owner}.yaml"}
            for owner in ("logistics", "marketing")
        }
        # JSON is YAML.
        (directory / "oar.yaml").write_text(json.dumps({"owners": owners}))

    def fill(self, owner, statement):
        with contextlib.closing(sqlite3.connect(self.directory / f"{owner}.db")) as connection:
            connection.execute(statement)
            connection.commit()

    def configure(self, **sections):
        file = self.directory / "oar.yaml"
        file.write_text(json.dumps(json.loads(file.read_text()) | sections))

    def write(self, owner, policy):
        (self.directory / f"{owner}.yaml").write_text(policy)

    def run(self, *arguments, status=0):
        """Run ``oar`` in this process, in the directory; returns what it printed.

        ``status`` None: any will do.
        """
        ended = oar(self.directory, *arguments)
        self.said, self.status = ended.said, ended.status
        assert status in (None, self.status), ended.printed + self.said
        return ended.printed

    def json(self, *arguments, status=0):
        return json.loads(self.run(*arguments, "--format", "json", status=status))


@pytest.fixture
def market(tmp_path):
    return Market(tmp_path)
