"""pyodbc with psqlODBC; DECLARE_FETCH=1 has it read by cursors, as desktop tools do."""

from __future__ import annotations

import os

import pyodbc
from common import DATABASE, SERVER
from dbapi import Driver


class Pyodbc(Driver):
    Error = pyodbc.Error

    def sqlstate(self, error):
        return error.args[0]

    def ask(self, statement, *parameters):
        with self.connection.cursor() as self.asking:
            return self.asking.execute(statement, *parameters).fetchall()

    def stop(self):
        self.asking.cancel()

    def in_parts(self):
        cursor = self.connection.cursor()
        cursor.arraysize = 100
        return cursor

    def connect(self):
        kinds = (pyodbc.SQL_DBMS_NAME, pyodbc.SQL_DBMS_VER, pyodbc.SQL_TXN_ISOLATION_OPTION)
        return [self.connection.getinfo(kind) for kind in kinds]

    def introspect(self):
        found = []
        with self.connection.cursor() as cursor:
            for schema in ("shop", "fleet"):
                for table in cursor.tables(schema=schema).fetchall():
                    found.append((table.table_schem, table.table_name, table.table_type))
                for column in cursor.columns(schema=schema).fetchall():
                    name, kind = column.column_name, column.type_name
                    found.append((column.table_name, name, kind, column.column_size))
        return found


Pyodbc(
    pyodbc.connect(
        "DRIVER={PostgreSQL Unicode};SSLmode=disable;"
        f"SERVER={SERVER['host']};PORT={SERVER['port']};DATABASE={DATABASE};"
        f"UID={SERVER['user']};PWD={SERVER['password']};"
        f"UseDeclareFetch={os.environ['DECLARE_FETCH']};Fetch=100"
    )
).run()
