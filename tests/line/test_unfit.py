"""What PostgreSQL has no name for is not published, and keeps nothing else from being published."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import psycopg
import pytest
import structlog
from oar_proxy.settings import HubSettings, Listen, OwnerSettings, Settings

LONG = "название_пункта_выдачи_заказов_клиента"  # 38 characters, 75 bytes

UNFIT = {
    "long_column": (f'id INTEGER, "{LONG}" TEXT', "longer than 63 bytes"),
    LONG: ("id INTEGER", "longer than 63 bytes"),
    "nameless": ('id INTEGER, "" TEXT', "is empty"),
    "systems": ("id INTEGER, xmin INTEGER", "PostgreSQL's own"),
    "wide": (", ".join(f"c{n} INTEGER" for n in range(1601)), "more than 1600 columns"),
}
WIDE = ", ".join(f"c{n} INTEGER" for n in range(1600))


@pytest.fixture
def south(tmp_path):
    with closing(sqlite3.connect(tmp_path / "south.sqlite", isolation_level=None)) as connection:
        connection.execute("CREATE TABLE sound (id INTEGER, k INTEGER)")
        connection.execute("INSERT INTO sound VALUES (1, 10)")
        connection.execute(f"CREATE TABLE nearly_too_wide ({WIDE})")
        connection.execute("INSERT INTO nearly_too_wide (c0, c1599) VALUES (1, 2)")
        yield connection


@pytest.fixture
def open_proxy(owners, south, tmp_path, new_hub, running_proxy):
    policies = {"north": owners.ALLOW, "south": "version: 1\n"}

    def settings():
        reached = {"north": owners.urls["north"], "south": f"sqlite:///{tmp_path}/south.sqlite"}
        made = {}
        for name, url in reached.items():
            policy = tmp_path / f"{name}.yaml"
            policy.write_text(policies[name])
            made[name] = OwnerSettings(url=url, schema="shop", policy=policy)
        return Settings(owners=made, hub=HubSettings(dsn=new_hub()), listen=Listen(port=0))

    return lambda: running_proxy(settings())


def unfit_tables(log):
    told = "table not published: PostgreSQL has no table like it"
    return {line["table"]: line["reason"] for line in log if line["event"] == told}


def test_other_tables_are_published(south, open_proxy):
    for name, (columns, _) in UNFIT.items():
        south.execute(f'CREATE TABLE "{name}" ({columns})')
    with (
        structlog.testing.capture_logs() as log,
        open_proxy() as (_, dsn),
        psycopg.connect(dsn, autocommit=True) as client,
    ):
        listed = {name for (name,) in client.execute("SELECT name FROM oar.tables")}
        assert {"sound", "nearly_too_wide", "a"} <= listed
        assert not listed & UNFIT.keys()
        join = "SELECT a.id, s.id FROM shop.a JOIN shop.sound s USING (k) ORDER BY 1"
        assert client.execute(join).fetchall() == [(1, 1), (4, 1)]
        wide = "SELECT * FROM shop.nearly_too_wide w, shop.sound WHERE c0 = sound.id"
        row = client.execute(wide).fetchone()
        assert (row[0], row[1], row[1599], row[1601]) == (1, None, 2, 10)
    found = unfit_tables(log)
    assert found.keys() == UNFIT.keys()
    assert all(UNFIT[name][1] in reason for name, reason in found.items())


def test_an_owner_that_renames_something_so_stops_no_other(south, open_proxy, owners):
    with open_proxy() as (refresh, dsn), psycopg.connect(dsn, autocommit=True) as client:
        assert client.execute("SELECT count(*) FROM shop.sound").fetchone() == (1,)
        south.execute(f'ALTER TABLE sound ADD COLUMN "{LONG}" TEXT')
        south.execute("CREATE TABLE later (id INTEGER)")
        with structlog.testing.capture_logs() as log:
            assert refresh()
        assert unfit_tables(log).keys() == {"sound"}
        assert client.execute("SELECT count(*) FROM shop.later").fetchone() == (0,)
        assert client.execute("SELECT count(*) FROM shop.a").fetchone() == (6,)
        with pytest.raises(psycopg.errors.UndefinedTable):
            client.execute("SELECT count(*) FROM shop.sound")


def test_rows_of_a_table_that_one_of_its_owners_cannot_name_are_nobodys(south, open_proxy):
    # north has rows of it as well, under names that are names.
    south.execute("CREATE TABLE split (id INTEGER, k INTEGER, t TEXT, ctid TEXT)")
    with open_proxy() as (_, dsn), psycopg.connect(dsn, autocommit=True) as client:
        with pytest.raises(psycopg.errors.UndefinedTable):
            client.execute("SELECT count(*) FROM shop.split")
        assert client.execute("SELECT count(*) FROM shop.a").fetchone() == (6,)


def test_what_is_hidden_fits(south, open_proxy, tmp_path, owners, new_hub, running_proxy):
    south.execute(f'CREATE TABLE long_column (id INTEGER, "{LONG}" TEXT)')
    policy = tmp_path / "hiding.yaml"
    policy.write_text(f"version: 1\ntables: {{long_column: {{deny_columns: [{LONG}]}}}}\n")
    owner = OwnerSettings(url=f"sqlite:///{tmp_path}/south.sqlite", schema="shop", policy=policy)
    settings = Settings(
        owners={"south": owner}, hub=HubSettings(dsn=new_hub()), listen=Listen(port=0)
    )
    with running_proxy(settings) as (_, dsn), psycopg.connect(dsn, autocommit=True) as client:
        assert client.execute("SELECT * FROM shop.long_column").description[0].name == "id"
