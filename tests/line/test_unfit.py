"""What PostgreSQL has no name for is not published, and keeps nothing else from being published."""

from __future__ import annotations

import asyncio
import importlib
import sqlite3
import sys
from contextlib import closing
from dataclasses import replace

import psycopg
import pytest
import structlog
from oar_adapters.interface import OwnerSchema
from oar_bench.addresses import owner_url
from oar_proxy import refreshing, unreadable
from oar_proxy.check import examine
from oar_proxy.hub.access import open_hub
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

    def settings(scheme="sqlite", schema="shop"):
        reached = {"north": owners.urls["north"], "south": f"{scheme}:///{tmp_path}/south.sqlite"}
        made = {}
        for name, url in reached.items():
            policy = tmp_path / f"{name}.yaml"
            policy.write_text(policies[name])
            published = schema if name == "south" else "shop"
            made[name] = OwnerSettings(url=url, schema=published, policy=policy)
        return Settings(owners=made, hub=HubSettings(dsn=new_hub()), listen=Listen(port=0))

    def opened(chosen=None):
        return running_proxy(chosen or settings())

    opened.settings = settings
    return opened


def unfit_tables(log):
    return {line["table"]: line["reason"] for line in log if line["event"] == "table not published"}


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


# --- what one owner does wrong is no other's affair ---------------------------------------------

ODD = """
from oar_adapters.registry import open_adapter

class Odd:
    def __init__(self, inner):
        self._inner = inner

    def __getattr__(self, name):
        return getattr(self._inner, name)

    async def schema(self):
        return await told(await self._inner.schema())

def adapter(url, options):
    return Odd(open_adapter("sqlite:" + url.partition(":")[2], options))
"""


@pytest.fixture
def odd(tmp_path, monkeypatch):
    """Install an adapter ``odd`` for SQLite files; ``told`` is what it makes of their schemas."""
    site = tmp_path / "site"
    (site / "odd-1.0.dist-info").mkdir(parents=True)
    (site / "odd_adapter.py").write_text(ODD)
    (site / "odd-1.0.dist-info" / "METADATA").write_text("Name: odd\nVersion: 1.0\n")
    (site / "odd-1.0.dist-info" / "entry_points.txt").write_text(
        "[oar.adapters]\nodd = odd_adapter:adapter\n"
    )
    monkeypatch.syspath_prepend(str(site))
    module = importlib.import_module("odd_adapter")
    yield module
    del sys.modules["odd_adapter"]


def of_type(name):
    def change(table):
        return replace(table, columns=(replace(table.columns[0], type=name), *table.columns[1:]))

    return change


ODDITIES = {
    "a type that there is not": (of_type("quaternion"), 'has type "quaternion"'),
    "a type with a modifier that it has not": (of_type("integer(3)"), "syntax error"),
    "a type that is more than a type": (of_type("int); DROP SCHEMA oar --"), "does not know"),
}  # fmt: skip


@pytest.mark.parametrize("name", ODDITIES)
def test_a_table_that_an_adapter_publishes_wrongly_stops_no_other(open_proxy, south, odd, name):
    change, reason = ODDITIES[name]
    south.execute("CREATE TABLE strange (id INTEGER, k INTEGER)")

    async def told(schema):
        tables = (change(t) if t.name == "strange" else t for t in schema.tables)
        return OwnerSchema(tuple(tables))

    odd.told = told
    settings = open_proxy.settings(scheme="odd")
    with (
        structlog.testing.capture_logs() as log,
        open_proxy(settings) as (refresh, dsn),
        psycopg.connect(dsn, autocommit=True) as client,
    ):
        assert list(unfit_tables(log)) == ["strange"]
        assert reason in unfit_tables(log)["strange"]
        join = "SELECT a.id, s.id FROM shop.a JOIN shop.sound s USING (k) ORDER BY 1"
        assert client.execute(join).fetchall() == [(1, 1), (4, 1)]
        with pytest.raises(psycopg.errors.UndefinedTable):
            client.execute("SELECT * FROM shop.strange")
        assert not refresh()
        change = of_type("integer")
        assert refresh()
        assert client.execute("SELECT count(*) FROM shop.strange").fetchone() == (0,)


def test_check_tells_of_a_type_that_no_hub_has(open_proxy, odd):
    async def told(schema):
        tables = (of_type("quaternion")(t) if t.name == "sound" else t for t in schema.tables)
        return OwnerSchema(tuple(tables))

    odd.told = told
    report = asyncio.run(examine(open_proxy.settings(scheme="odd")))
    assert not report.sound
    assert not report.faults
    (fault,) = report.unpublished
    assert 'owner south: table sound is not published: column "id" has type "quaternion"' in fault
    assert ("shop", "a") in report.catalog.tables
    assert ("shop", "sound") not in report.catalog.tables


def test_check_starts_one_hub_for_all_that_it_asks_of_one(open_proxy, odd, tmp_path, monkeypatch):
    async def told(schema):
        tables = (of_type("quaternion")(t) if t.name == "sound" else t for t in schema.tables)
        return OwnerSchema(tuple(tables))

    started = []

    def counted(settings):
        started.append(settings)
        return open_hub(settings)

    odd.told = told
    monkeypatch.setattr(unreadable, "open_hub", counted)
    settings = open_proxy.settings(scheme="odd")
    rule = "version: 1\ntables: {nearly_too_wide: {row_filter: c0 = 'one'}}\n"
    (tmp_path / "south.yaml").write_text(rule)
    report = asyncio.run(examine(settings))
    assert len(started) == 1
    assert [finding.code for finding in report.findings] == ["unreadable-rule"]
    assert len(report.unpublished) == 1
    assert not report.faults


def test_check_tells_of_an_adapter_that_fails(open_proxy, odd):
    odd.told = _fault
    report = asyncio.run(examine(open_proxy.settings(scheme="odd")))
    faults = {owner.name: owner.fault for owner in report.owners}
    assert faults == {"north": None, "south": "its adapter failed: ZeroDivisionError"}
    assert ("shop", "a") in report.catalog.tables


def test_a_row_filter_that_an_adapter_fails_at_stops_no_other(open_proxy, odd, tmp_path):
    async def told(schema):
        return schema

    def fail(_table, _predicate):
        raise ZeroDivisionError

    odd.told = told
    odd.Odd.supports = staticmethod(fail)
    settings = open_proxy.settings(scheme="odd")
    (tmp_path / "south.yaml").write_text("version: 1\ntables: {sound: {row_filter: k = 10}}\n")
    with open_proxy(settings) as (_, dsn), psycopg.connect(dsn, autocommit=True) as client:
        assert client.execute("SELECT count(*) FROM shop.a").fetchone() == (6,)
        with pytest.raises(psycopg.errors.UndefinedTable):
            client.execute("SELECT * FROM shop.sound")


async def _no_schema(_schema):
    return None


async def _fault(_schema):
    raise ZeroDivisionError


async def _silence(_schema):
    await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("tell", "reason"),
    [
        (_no_schema, "AttributeError"),
        (_fault, "ZeroDivisionError"),
        (_silence, "no answer within 3 seconds"),
    ],
)
def test_an_adapter_that_tells_nothing_stops_no_other(
    open_proxy, south, odd, monkeypatch, tell, reason
):
    async def told(schema):
        return schema

    odd.told = told
    with (
        open_proxy(open_proxy.settings(scheme="odd", schema="other")) as (refresh, dsn),
        psycopg.connect(dsn, autocommit=True) as client,
    ):
        south.execute("CREATE TABLE later (id INTEGER)")
        odd.told = tell
        if tell is _silence:
            monkeypatch.setattr(refreshing, "SCHEMA_TIMEOUT", 3.0)
        with structlog.testing.capture_logs() as log:
            refresh()
        (line,) = (line for line in log if line["event"] == "owner not read")
        assert (line["owner"], line["reason"]) == ("south", reason)
        # What is known of it stays.
        assert client.execute("SELECT count(*) FROM other.sound").fetchone() == (1,)
        odd.told = told
        monkeypatch.setattr(refreshing, "SCHEMA_TIMEOUT", 60.0)
        assert refresh()
        assert client.execute("SELECT count(*) FROM other.later").fetchone() == (0,)


def test_owners_that_do_not_agree_about_a_table_stop_no_other(open_proxy, south):
    # north has rows of it as well, in other columns.
    south.execute("CREATE TABLE split (id INTEGER, k TEXT, t TEXT)")
    with (
        structlog.testing.capture_logs() as log,
        open_proxy() as (refresh, dsn),
        psycopg.connect(dsn, autocommit=True) as client,
    ):
        (line,) = (line for line in log if line["event"] == "table not published")
        assert (line["owner"], line["table"]) == ("south", "split")
        assert line["reason"] == "in schema shop, owner north has it with other columns"
        with pytest.raises(psycopg.errors.UndefinedTable):
            client.execute("SELECT count(*) FROM shop.split")
        join = "SELECT a.id, s.id FROM shop.a JOIN shop.sound s USING (k) ORDER BY 1"
        assert client.execute(join).fetchall() == [(1, 1), (4, 1)]
        (fault,) = asyncio.run(examine(open_proxy.settings())).unpublished
        assert "owner south: table split is not published: in schema shop, owner north" in fault
        south.execute("DROP TABLE split")
        assert refresh()
        assert client.execute("SELECT count(*) FROM shop.split").fetchone() == (2,)


def test_two_tables_of_one_name_at_an_owner_stop_no_other(new_database, new_hub, running_proxy):
    dsn = new_database("twins")
    with psycopg.connect(dsn, autocommit=True) as owner:
        owner.execute(
            "CREATE TABLE t AS SELECT 1 AS id; CREATE TABLE sole AS SELECT 2 AS id;"
            "CREATE SCHEMA old; CREATE TABLE old.t AS SELECT 3 AS id"
        )
        twins = OwnerSettings(url=owner_url(dsn), schema="shop", options={"schemas": "public,old"})
        hub = HubSettings(dsn=new_hub())
        settings = Settings(owners={"twins": twins}, hub=hub, listen=Listen(port=0))
        with (
            structlog.testing.capture_logs() as log,
            running_proxy(settings) as (refresh, reached),
            psycopg.connect(reached, autocommit=True) as client,
        ):
            assert unfit_tables(log) == {"t": "the owner has two tables of this name"}
            assert client.execute("SELECT id FROM shop.sole").fetchall() == [(2,)]
            with pytest.raises(psycopg.errors.UndefinedTable):
                client.execute("SELECT * FROM shop.t")
            owner.execute("DROP TABLE old.t")
            assert refresh()
            assert client.execute("SELECT id FROM shop.t").fetchall() == [(1,)]


def test_what_stands_on_a_table_that_changes_holds_nothing_else_up(open_proxy, south):
    settings = open_proxy.settings()
    with (
        open_proxy(settings) as (refresh, dsn),
        psycopg.connect(dsn, autocommit=True) as client,
        psycopg.connect(settings.hub.dsn.get_secret_value(), autocommit=True) as hub,
    ):
        hub.execute("CREATE VIEW public.standing AS SELECT id FROM shop.sound")
        south.execute("CREATE TABLE later (id INTEGER)")
        south.execute("ALTER TABLE sound ADD COLUMN more TEXT")
        assert refresh()
        # What stands on it needs none of that.
        row = client.execute("SELECT * FROM shop.sound WHERE k = 10").fetchone()
        assert row == (1, 10, None)
        south.execute("ALTER TABLE sound ADD COLUMN before TEXT")
        south.execute("ALTER TABLE sound DROP COLUMN more")
        with structlog.testing.capture_logs() as log:
            assert not refresh()
        assert "view public.standing stands on its old form" in unfit_tables(log)["sound"]
        assert client.execute("SELECT count(*) FROM shop.later").fetchone() == (0,)
        # It is still what it was, as far as its owner has it.
        join = "SELECT a.id, s.id FROM shop.a JOIN shop.sound s USING (k) ORDER BY 1"
        assert client.execute(join).fetchall() == [(1, 1), (4, 1)]
        hub.execute("DROP VIEW public.standing")
        assert refresh()
        row = client.execute("SELECT * FROM shop.sound WHERE k = 10").fetchone()
        assert row == (1, 10, None)
        assert client.execute("SELECT before FROM shop.sound").fetchone() == (None,)
