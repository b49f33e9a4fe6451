"""pg8000: all of the protocol in Python."""

from __future__ import annotations

import pg8000.dbapi
import pg8000.native
from common import CITY, DATABASE, DAYS, JOIN, SERVER, told
from dbapi import Driver


class Pg8000(Driver):
    Error = pg8000.dbapi.DatabaseError

    def __init__(self, connection):
        super().__init__(connection)
        ((self.pid,),) = self.ask("SELECT pg_backend_pid()")

    def sqlstate(self, error):
        return error.args[0]["C"]

    def stop(self):
        with pg8000.native.Connection(**SERVER, database=DATABASE) as other:
            other.run("SELECT pg_cancel_backend(:pid)", pid=self.pid)

    def connect(self):
        return sorted(
            (name, value)
            for name, value in self.connection.parameter_statuses.items()
            if name in ("server_version", "client_encoding", "is_superuser")
        )

    def introspect(self):
        statement = (
            "SELECT table_name, column_name, udt_name FROM information_schema.columns"
            " WHERE table_schema IN (%s, %s) ORDER BY table_name, ordinal_position"
        )
        return told(self.ask(statement, "shop", "fleet"))

    def parameters(self):
        with pg8000.native.Connection(**SERVER, database=DATABASE) as other:
            prepared = other.prepare(JOIN.replace("%s", ":city", 1).replace("%s", ":days"))
            rows = prepared.run(city=CITY, days=DAYS)
            prepared.close()
        assert [list(row) for row in self.ask(JOIN, CITY, DAYS)] == rows
        return told(rows)


Pg8000(pg8000.dbapi.connect(**SERVER, database=DATABASE)).run()
