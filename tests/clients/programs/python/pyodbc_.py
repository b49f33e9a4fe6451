"""pyodbc with psqlODBC; DECLARE_FETCH=1 has it read by cursors, as desktop tools do."""

from __future__ import annotations

import os

import pyodbc
from common import (  # fmt: skip
    BIG,
    CITY,
    COUNT,
    CURSOR,
    DATABASE,
    DAYS,
    FAILS,
    JOIN,
    SERVER,
    SLOW,
    later,
    main,
    summed,
    told,
)

connection = pyodbc.connect(
    "DRIVER={PostgreSQL Unicode};SSLmode=disable;"
    f"SERVER={SERVER['host']};PORT={SERVER['port']};DATABASE={DATABASE};"
    f"UID={SERVER['user']};PWD={SERVER['password']};"
    f"UseDeclareFetch={os.environ['DECLARE_FETCH']};Fetch=100"
)


def ask(statement, *parameters):
    with connection.cursor() as cursor:
        return cursor.execute(statement, *parameters).fetchall()


def connect():
    kinds = (pyodbc.SQL_DBMS_NAME, pyodbc.SQL_DBMS_VER, pyodbc.SQL_TXN_ISOLATION_OPTION)
    return [connection.getinfo(kind) for kind in kinds]


def introspect():
    found = []
    with connection.cursor() as cursor:
        for schema in ("shop", "fleet"):
            for table in cursor.tables(schema=schema).fetchall():
                found.append((table.table_schem, table.table_name, table.table_type))
            for column in cursor.columns(schema=schema).fetchall():
                found.append(
                    (column.table_name, column.column_name, column.type_name, column.column_size)
                )
    return found


def parameters():
    return told(ask(JOIN, CITY, DAYS))


def cursor():
    with connection.cursor() as few:
        few.arraysize = 100
        return summed(few.execute(CURSOR))


def big():
    return summed(ask(BIG))


def fails(statement):
    try:
        ask(statement)
    except pyodbc.Error as error:
        return error.args[0]
    return "nothing failed"


def errors():
    connection.rollback()
    connection.autocommit = True
    seen = [fails(FAILS), ask(COUNT)]
    connection.autocommit = False
    seen += [ask(COUNT), fails(FAILS), fails(COUNT)]
    connection.rollback()
    return [*seen, ask(COUNT)]


def cancel():
    connection.rollback()
    connection.autocommit = True
    with connection.cursor() as cursor:
        thread = later(cursor.cancel)
        try:
            cursor.execute(SLOW).fetchall()
            seen = "nothing failed"
        except pyodbc.Error as error:
            seen = error.args[0]
        thread.join()
    return [seen, ask(COUNT)]


main(connect=connect, introspect=introspect, parameters=parameters, cursor=cursor, big=big,
     errors=errors, cancel=cancel)  # fmt: skip
