"""ADBC's PostgreSQL driver: reads by COPY in binary."""

from __future__ import annotations

import adbc_driver_postgresql.dbapi as adbc
from common import BIG, CITY, COUNT, CURSOR, DAYS, FAILS, JOIN, SLOW, URL, later, main, told

connection = adbc.connect(f"postgresql://{URL}", autocommit=True)


def ask(statement, parameters=None):
    with connection.cursor() as cursor:
        cursor.execute(statement, parameters)
        return cursor.fetch_arrow_table()


def connect():
    information = connection.adbc_get_info()
    return [information["vendor_name"], information["vendor_version"]]


def introspect():
    found = []
    for schema in ("fleet", "shop"):
        listed = connection.adbc_get_objects(
            depth="columns", catalog_filter=connection.adbc_current_catalog, db_schema_filter=schema
        ).read_all()
        for catalog in listed.to_pylist():
            for one in catalog["catalog_db_schemas"] or ():
                for table in sorted(
                    one["db_schema_tables"] or (), key=lambda each: each["table_name"]
                ):
                    columns = [column["column_name"] for column in table["table_columns"]]
                    found.append((schema, table["table_name"], table["table_type"], columns))
    return found, connection.adbc_get_table_schema("orders", db_schema_filter="shop").to_string()


def parameters():
    return told(tuple(row.values()) for row in ask(JOIN, (CITY, DAYS)).to_pylist())


def cursor():
    with connection.cursor() as batches:
        batches.execute(CURSOR)
        return sum(len(batch) for batch in batches.fetch_record_batch())


def big():
    table = ask(BIG)
    return len(table), table.schema.to_string(), sum(table["delivery_id"].to_pylist())


def fails(statement):
    try:
        ask(statement)
    except adbc.Error as error:
        return error.sqlstate
    return "nothing failed"


def errors():
    return [
        fails(FAILS),
        ask(COUNT).to_pylist(),
        fails("SELECT nonesuch FROM shop.orders"),
        ask(COUNT).to_pylist(),
    ]


def cancel():
    with connection.cursor() as cursor:
        thread = later(cursor.adbc_cancel)
        try:
            cursor.execute(SLOW)
            cursor.fetchall()
            seen = "nothing failed"
        except adbc.Error as error:
            seen = error.sqlstate
        thread.join()
    return [seen, ask(COUNT).to_pylist()]


main(connect=connect, introspect=introspect, parameters=parameters, cursor=cursor, big=big,
     errors=errors, cancel=cancel)  # fmt: skip
