"""polars, which reads by ADBC and by connectorx."""

from __future__ import annotations

import polars
from common import BIG, CURSOR, URL, main

url = f"postgresql://{URL}"


def connect():
    return polars.read_database_uri(
        "SELECT version(), current_user::text", url, engine="adbc"
    ).rows()


def cursor():
    return [
        polars.read_database_uri(CURSOR, url, engine=engine)
        .select("order_id", "delivery_id")
        .sum()
        .rows()
        for engine in ("adbc", "connectorx")
    ]


def big():
    frame = polars.read_database_uri(BIG, url, engine="adbc")
    return len(frame), frame.schema, frame.group_by("courier").len().sort("courier").rows()


main(connect=connect, cursor=cursor, big=big)
