"""psycopg2: the simple protocol, and cursors by SQL."""

from __future__ import annotations

import psycopg2
from common import DATABASE, SERVER, told
from dbapi import Driver


class Psycopg2(Driver):
    Error = psycopg2.Error

    def sqlstate(self, error):
        return error.pgcode

    def stop(self):
        self.connection.cancel()

    def connect(self):
        connection = self.connection
        return [connection.server_version, connection.encoding, connection.get_transaction_status()]

    def introspect(self):
        statement = (
            "SELECT c.oid::regclass, a.attname, format_type(a.atttypid, a.atttypmod) FROM pg_class c"
            " JOIN pg_attribute a ON a.attrelid = c.oid WHERE a.attnum > 0"
            " AND c.relnamespace IN ('shop'::regnamespace, 'fleet'::regnamespace)"
            " ORDER BY c.relname, attnum"
        )
        return told(self.ask(statement))


Psycopg2(psycopg2.connect(**SERVER, dbname=DATABASE)).run()
