"""Policies are replaced under a running proxy, all or none, and it is seen which are in force."""

import hashlib
import json
import time

import psycopg
import pytest
import structlog
from oar_proxy.hub.inforce import proxy_name
from oar_proxy.settings import load

WITHOUT_PHONE = "version: 1\ntables: {deliveries: {deny_columns: [phone]}}\n"
VIEW = "SELECT owner, policy, since, read_at, failed_at, failure FROM oar.policies ORDER BY owner"


def digest(text):
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def until(connection, condition):
    """Look at the view until it is so; returns its rows by owner."""
    deadline = time.monotonic() + 20
    while True:
        rows = {row[0]: row[1:] for row in connection.execute(VIEW).fetchall()}
        if condition(rows):
            return rows
        assert time.monotonic() < deadline, rows
        time.sleep(0.05)


@pytest.fixture
def proxy(market, new_database, running_proxy):
    """A proxy that looks at its files all the time, and an auditor and a client of it."""
    hub = new_database("hub")
    config = json.loads((market.directory / "oar.yaml").read_text())
    config |= {"hub": {"dsn": hub}, "listen": {"port": 0}, "catalog_refresh": 0.1}
    (market.directory / "oar.yaml").write_text(json.dumps(config))
    settings = load(market.directory / "oar.yaml")
    with (
        structlog.testing.capture_logs() as log,
        running_proxy(settings) as (_, dsn),
        psycopg.connect(dsn, autocommit=True) as client,
        psycopg.connect(hub, autocommit=True) as admin,
    ):
        yield settings, log, client, admin


def test_a_new_version_is_in_force_and_a_broken_one_is_not(market, proxy):
    settings, log, client, admin = proxy
    assert client.execute(VIEW).fetchall() == []  # it is no auditor
    (name,) = client.execute("SELECT current_user").fetchone()
    admin.execute(f"GRANT oar_auditor TO {name}")
    first = until(client, lambda rows: len(rows) == 2)
    assert [row[0] for row in first.values()] == [digest("version: 1\n")] * 2
    assert [row[3:] for row in first.values()] == [(None, None)] * 2

    market.write("logistics", WITHOUT_PHONE)
    second = until(client, lambda rows: rows["logistics"][0] == digest(WITHOUT_PHONE))
    assert second["logistics"][1] > first["logistics"][1]
    assert second["marketing"][:2] == first["marketing"][:2]

    market.write("logistics", "version: 1\ntables: [")
    third = until(client, lambda rows: rows["logistics"][3] is not None)
    # What can be read is not put in force without the rest.
    market.write("marketing", "version: 1\ndefault: deny\n")
    seen = third["logistics"][3]
    third = until(client, lambda rows: (rows["logistics"][3] - seen).total_seconds() > 0.5)
    assert third["marketing"][:2] == first["marketing"][:2]
    assert third["logistics"][:2] == second["logistics"][:2]
    place = f"{market.directory}/logistics.yaml:2:10: not YAML: "
    assert third["logistics"][4].startswith(place)
    assert third["logistics"][3] > third["logistics"][2]
    with pytest.raises(psycopg.errors.UndefinedColumn):
        client.execute("SELECT phone FROM deliveries")
    said = [entry for entry in log if entry["event"].startswith("policies not read")]
    assert said[0]["log_level"] == "error"
    assert said[0]["reason"].startswith(place)
    told = market.run("check", "--config", "oar.yaml", status=1)
    assert f"proxy {proxy_name(settings.listen)} could not read its policies at " in told

    market.write("logistics", WITHOUT_PHONE)
    fourth = until(client, lambda rows: rows["marketing"][0] != first["marketing"][0])
    assert fourth["logistics"][:2] == second["logistics"][:2]
    assert fourth["logistics"][2] > fourth["logistics"][3]
    market.run("check", "--config", "oar.yaml")
