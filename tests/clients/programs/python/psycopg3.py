"""psycopg 3, with libpq: pipelines, binary results, COPY and savepoints."""

from __future__ import annotations

import psycopg
from common import BIG, CITY, COUNT, DATABASE, DAYS, FAILS, JOIN, SERVER, summed, told
from dbapi import Driver


class Psycopg(Driver):
    Error = psycopg.Error

    def sqlstate(self, error):
        return error.sqlstate

    def stop(self):
        self.connection.cancel_safe()

    def connect(self):
        info = self.connection.info
        names = ("server_version", "client_encoding", "TimeZone")
        status = [info.parameter_status(name) for name in names]
        return f"{status} {info.transaction_status.name}"

    def introspect(self):
        statement = (
            "SELECT table_schema, table_name, column_name, data_type, is_nullable, numeric_scale"
            " FROM information_schema.columns WHERE table_schema IN ('shop', 'fleet')"
            " ORDER BY 1, 2, ordinal_position"
        )
        return told(self.ask(statement))

    def parameters(self):
        execute = self.connection.execute
        rows = execute(JOIN, (CITY, DAYS)).fetchall()
        assert rows == execute(JOIN, (CITY, DAYS), binary=True).fetchall()
        with self.connection.pipeline():
            cursors = [execute(JOIN, (CITY, days)) for days in (DAYS, DAYS + 1)]
        assert cursors[0].fetchall() == rows
        return told(rows)

    def big(self):
        with self.connection.cursor() as cursor:
            with cursor.copy(f"COPY ({BIG}) TO STDOUT") as copy:
                copied = sum(1 for _ in copy.rows())
            return f"{copied}, {summed(self.ask(BIG))}, {summed(cursor.stream(BIG))}"

    def errors(self):
        """Do as drivers do, and then by statements, with a savepoint."""
        seen = super().errors()
        self.connection.rollback()
        self.connection.autocommit = True
        self.connection.execute("BEGIN")
        seen.append(self.ask(COUNT))
        self.connection.execute("SAVEPOINT one")
        seen += [self.fails(FAILS), self.fails(COUNT), self.connection.info.transaction_status.name]
        self.connection.execute("ROLLBACK TO one")
        seen += [self.ask(COUNT), self.fails(FAILS), self.fails("SELECT 1")]
        self.connection.execute("ROLLBACK")
        return [*seen, self.ask(COUNT)]


if __name__ == "__main__":  # postgres_fdw's program is one of this class
    Psycopg(psycopg.connect(**SERVER, dbname=DATABASE, autocommit=True)).run()
