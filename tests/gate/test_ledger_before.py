"""A hub with the ledger's former tables: their rows become entries of a chain, once."""

import asyncio
import uuid

import psycopg
import pytest
from oar_proxy import ledger
from oar_proxy.chain import Entry, Named, Verification
from oar_proxy.hub.bootstrap import bootstrap

FORMER = """
DROP VIEW oar.asks, oar.steps, oar.disclosures;
UPDATE oar_internal.version SET digest = NULL, release = NULL, version = 1;
CREATE TABLE oar_internal.asks (ask uuid PRIMARY KEY, at timestamptz NOT NULL DEFAULT now(),
  principal text NOT NULL, statement text NOT NULL, kind text NOT NULL, route text NOT NULL,
  kappa integer, catalog_version text NOT NULL);
CREATE TABLE oar_internal.steps (step bigserial PRIMARY KEY, ask uuid NOT NULL,
  at timestamptz NOT NULL DEFAULT now(), owner text NOT NULL, sql_digest text NOT NULL,
  row_cap bigint NOT NULL, row_cap_rule text NOT NULL, keys bigint NOT NULL, policy text NOT NULL);
CREATE TABLE oar_internal.disclosures (disclosure bigserial PRIMARY KEY, step bigint NOT NULL,
  from_owner text NOT NULL, from_column text NOT NULL, to_owner text NOT NULL,
  to_column text NOT NULL, keys bigint NOT NULL, rule text NOT NULL, policy text NOT NULL);
CREATE TABLE oar_internal.step_outcomes (step bigint PRIMARY KEY,
  at timestamptz NOT NULL DEFAULT now(), sqlstate text NOT NULL, rows bigint);
CREATE TABLE oar_internal.ask_outcomes (ask uuid PRIMARY KEY,
  at timestamptz NOT NULL DEFAULT now(), sqlstate text NOT NULL, rows bigint);
CREATE VIEW oar.asks AS SELECT * FROM oar_internal.asks;
CREATE VIEW oar.steps AS SELECT * FROM oar_internal.steps;
CREATE VIEW oar.disclosures AS SELECT * FROM oar_internal.disclosures;
"""
ASKS = (uuid.uuid4(), uuid.uuid4())


@pytest.fixture(scope="module")
def former(hub):
    """A hub with two asks of before, one of them refused."""
    with hub.database() as conninfo:
        _fill(conninfo)
        yield conninfo


def _fill(conninfo):
    with psycopg.connect(conninfo) as connection:
        connection.execute(FORMER)
        connection.cursor().executemany(
            "INSERT INTO oar_internal.asks VALUES (%s, %s, 'анна', %s, 'sql', 'relay', 2, 'v')",
            [
                (ask, f"2025-01-0{day} 10:00+02", "0" * 64)
                for day, ask in zip((2, 1), ASKS, strict=True)
            ],
        )
        for owner, keys in (("b", 0), ("a", 3)):
            connection.execute(
                "INSERT INTO oar_internal.steps (ask, owner, sql_digest, row_cap, row_cap_rule,"
                " keys, policy) VALUES (%s, %s, %s, 10, 'rule', %s, 'none')",
                (ASKS[0], owner, "1" * 64, keys),
            )
        connection.execute(
            "INSERT INTO oar_internal.disclosures (step, from_owner, from_column, to_owner,"
            " to_column, keys, rule, policy) VALUES (2, 'b', 'b.t.k', 'a', 't.k', 3, 'r', 'none')"
        )
        connection.execute("INSERT INTO oar_internal.step_outcomes VALUES (1, now(), '00000', 7)")
        connection.execute(
            "INSERT INTO oar_internal.ask_outcomes VALUES (%s, now(), '42501', NULL)", (ASKS[1],)
        )


def test_what_was_on_the_ledger_is_on_it_once(former):
    async def install():
        async with await psycopg.AsyncConnection.connect(former, autocommit=True) as connection:
            for _ in range(2):
                await bootstrap(connection, embedded=True)
                await ledger.install(connection)
        async with ledger.Ledger(former):
            pass

    asyncio.run(install())
    with psycopg.connect(former) as connection:
        asked = "SELECT ask, at, principal, statement, kind, route, kappa, sqlstate FROM oar.asks"
        rows = connection.execute(f"{asked} ORDER BY at").fetchall()
        assert [(row[0], row[7]) for row in rows] == [(ASKS[1], "42501"), (ASKS[0], None)]
        assert rows[0][2:7] == ("анна", "0" * 64, "sql", "relay", 2)
        assert rows[0][1].isoformat().startswith("2025-01-01")
        steps = "SELECT ask, owner, row_cap, keys, sqlstate, rows FROM oar.steps ORDER BY step"
        assert connection.execute(steps).fetchall() == [
            (ASKS[0], "b", 10, 0, "00000", 7),
            (ASKS[0], "a", 10, 3, None, None),
        ]
        told = "SELECT ask, from_column, to_column, keys, key_digest FROM oar.disclosures"
        assert connection.execute(told).fetchall() == [(ASKS[0], "b.t.k", "t.k", 3, None)]
        entries = [
            Entry(*row)
            for row in connection.execute(
                "SELECT writer, number, body, hash FROM oar_internal.entries ORDER BY writer, number"
            )
        ]
    named = Named()
    for entry in entries:
        named.read(entry)
    verification = Verification(named)
    for entry in entries:
        verification.take(entry)
    report = verification.report()
    assert (report.faults, len(report.heads), report.entries) == ([], 2, 9)
    # The chain that follows holds the one of before.
    assert [number for _, number in named.hashes] == [7]
