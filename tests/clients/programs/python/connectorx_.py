"""connectorx: tokio-postgres, with several connections that read parts of one result."""

from __future__ import annotations

import connectorx
from common import BIG, COUNT, CURSOR, FAILS, URL, main

url = f"postgresql://{URL}"


def read(statement, **options):
    return connectorx.read_sql(url, statement, return_type="arrow", **options)


def connect():
    return read("SELECT version(), current_user::text").to_pylist()


def cursor():
    table = read(f"SELECT q.order_id, q.delivery_id FROM ({CURSOR}) AS q", protocol="cursor")
    return len(table), sum(table["delivery_id"].to_pylist())


def big():
    parts = read(BIG, partition_on="delivery_id", partition_num=4)
    whole = read(BIG, protocol="csv")
    assert len(whole) == len(parts)
    return len(parts), parts.schema.to_string(), sum(parts["delivery_id"].to_pylist())


def errors():
    try:
        read(FAILS)
    except RuntimeError as error:
        return f"{error}", read(COUNT).to_pylist()
    return "nothing failed"


main(connect=connect, cursor=cursor, big=big, errors=errors)
