"""Two PostgreSQL owners that log every query they receive, behind a proxy with strict policies.

Values are marked by what they are: ``SSN-5001`` is of a hidden column wherever it turns up.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

import psycopg
import psycopg.conninfo
import pytest
from oar_bench.overhead.owners import Owners
from oar_bench.work import work_directory
from oar_proxy.hub.server import EmbeddedServer
from oar_proxy.settings import HubSettings, Listen, OwnerSettings, Settings

HR = """
CREATE TABLE employees (
    id bigint PRIMARY KEY, name text NOT NULL, email text NOT NULL, ssn text NOT NULL UNIQUE,
    salary integer NOT NULL, region text NOT NULL
);
COMMENT ON COLUMN employees.ssn IS 'hidden comment';
INSERT INTO employees
SELECT i, CASE WHEN i <= 5030 THEN 'EMP-' ELSE 'OUTSIDE-' END || i, 'MAIL-' || i || '@hr', 'SSN-' || i,
       900000 + i, CASE WHEN i <= 5030 THEN 'EU' ELSE 'US' END
FROM generate_series(5001, 5040) AS i;
CREATE TABLE payroll (id bigint PRIMARY KEY, employee_id bigint, amount integer, note text);
COMMENT ON TABLE payroll IS 'hidden comment';
INSERT INTO payroll SELECT i, i, 1, 'PAY-' || i FROM generate_series(5001, 5040) AS i;
CREATE TABLE badges (badge text PRIMARY KEY, employee_id bigint NOT NULL);
INSERT INTO badges SELECT 'BADGE-' || i, i FROM generate_series(5001, 5040) AS i;
CREATE TABLE visits (
    id bigint PRIMARY KEY, employee_id bigint NOT NULL, ward text NOT NULL, illness text NOT NULL,
    at timestamp NOT NULL, cost bigint NOT NULL
);
INSERT INTO visits
SELECT i, 5001 + i % 30, CASE WHEN i % 10 = 3 THEN 'SOLO-' || i WHEN i % 2 = 0 THEN 'EAST' ELSE 'WEST' END,
       'ILL-' || i, timestamp '2026-01-01' + i * interval '1 day', i
FROM generate_series(1, 90) AS i;
CREATE TABLE accounts (id bigint PRIMARY KEY, holder text, iban text, balance bigint, grade bigint);
INSERT INTO accounts
SELECT i, 'HOLD-' || i, 'IBAN-' || i, 990000 + i, i % 7 FROM generate_series(1, 20) AS i;
"""
SHOP = """
CREATE TABLE orders (order_id bigint PRIMARY KEY, employee_id bigint NOT NULL, note text NOT NULL);
INSERT INTO orders SELECT i, 5001 + (i - 1) % 40, 'NOTE-' || i FROM generate_series(1, 80) AS i;
CREATE TABLE customers (customer_id text PRIMARY KEY, name text NOT NULL, email text NOT NULL);
INSERT INTO customers
SELECT 'CUST-' || to_char(i, 'FM0000'), CASE WHEN i = 7 THEN 'EMP-5003' ELSE 'BUYER-' || i END,
       'BUY-' || i || '@shop'
FROM generate_series(1, 20) AS i;
CREATE TABLE members (handle text PRIMARY KEY, iban text NOT NULL);
INSERT INTO members SELECT 'HOLD-' || i, CASE WHEN i < 15 THEN 'IBAN-' ELSE 'NONE-' END || i
FROM generate_series(10, 30) AS i;
"""
POLICIES = {
    "hr": """
version: 1
limits: {max_rows: 100, max_queries: 20}
tables:
  payroll: {deny: true}
  employees:
    deny_columns: [ssn]
    row_filter: region = 'EU'
    columns:
      email: {mask: null}
  badges: {require_filter: [employee_id]}
  visits: {min_group: {entity: employee_id, size: 5}}
  accounts:
    columns:
      iban: {output: false}
      balance: {output: aggregate_only, functions: [sum, avg, count]}
      grade: {filter: false}
key_disclosure:
  - {column: accounts.holder, to: [shop], form: hmac}
  - {column: employees.id, to: [shop], purpose: [payroll], min_keys: 2, max_keys: 10}
""",
    "shop": """
version: 1
limits: {max_rows: 100}
key_disclosure:
  - {column: orders.employee_id, to: [hr], max_keys: 5}
accept_keys:
  - {column: orders.employee_id, from: [hr]}
  - {column: members.handle, from: [hr]}
""",
}

# One file of its own, whatever its size, each line an object.
LOGGED = """
ALTER SYSTEM SET log_statement = 'all';
ALTER SYSTEM SET log_destination = 'jsonlog';
ALTER SYSTEM SET log_filename = 'queries';
ALTER SYSTEM SET log_rotation_age = 0;
ALTER SYSTEM SET log_rotation_size = 0;
"""


@dataclass(frozen=True)
class Received:
    """One query an owner received: its text, and the values of its parameters as text."""

    owner: str
    text: str
    parameters: str


@dataclass(frozen=True)
class World:
    dsn: str
    hub: str
    owners: Owners
    log: Path
    before: dict[str, list]

    def received(self) -> list[Received]:
        """Read what the owners' own server logged of the proxy's queries, schema and all."""
        found = []
        for line in self.log.read_text(encoding="utf-8").splitlines():
            entry = json.loads(line)
            how, _, text = entry.get("message", "").partition(": ")
            sent = how.split(" ")[0] in ("execute", "statement")
            if sent and entry.get("dbname") in POLICIES and entry["application_name"] != "test":
                found.append(Received(entry["dbname"], text, entry.get("detail", "")))
        return found

    def held(self) -> dict[str, list]:
        """Return all that the owners hold."""
        tables = {
            "hr": ("employees", "payroll", "badges", "visits", "accounts"),
            "shop": ("orders", "customers", "members"),
        }
        found = {}
        for owner, names in tables.items():
            dsn = psycopg.conninfo.make_conninfo(
                self.owners.conninfo(owner), application_name="test"
            )
            with psycopg.connect(dsn, autocommit=True) as connection:
                for name in names:
                    found[name] = connection.execute(
                        psycopg.sql.SQL("TABLE {} ORDER BY 1").format(psycopg.sql.Identifier(name))
                    ).fetchall()
        return found


@pytest.fixture(scope="session")
def world(new_database, running_proxy):
    # Not pytest's own directories: the servers' user may not enter them.
    with work_directory() as directory:
        yield from _world(directory, new_database, running_proxy)


def _world(directory, new_database, running_proxy):
    server = EmbeddedServer(HubSettings(data_dir=directory / "owners"))
    address = server.start()
    try:
        with Owners(address.conninfo).connect("postgres") as connection:
            for setting in LOGGED.strip().splitlines():
                connection.execute(setting.encode())
        server.stop()
        owners = Owners(server.start().conninfo)
        for name, script in (("hr", HR), ("shop", SHOP)):
            owners.create(name)
            dsn = psycopg.conninfo.make_conninfo(owners.conninfo(name), application_name="test")
            with psycopg.connect(dsn, autocommit=True) as connection:
                connection.execute(script.encode())
                connection.execute("ANALYZE")
        configured = {}
        for name, text in POLICIES.items():
            (directory / f"{name}.yaml").write_text(text)
            configured[name] = OwnerSettings(
                url=owners.url(name), schema=name, policy=directory / f"{name}.yaml"
            )
        hub = new_database("hub")
        settings = Settings(owners=configured, hub=HubSettings(dsn=hub), listen=Listen(port=0))
        log = directory / "owners" / "log" / "queries.json"
        with running_proxy(settings) as (_, dsn):
            world = World(dsn, hub, owners, log, {})
            yield replace(world, before=world.held())
    finally:
        server.stop()
