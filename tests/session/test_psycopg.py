from __future__ import annotations

import psycopg

ROWS = [(number, f"name {number}") for number in range(1, 6)]


def test_passes_through(client):
    assert client.execute("SELECT 1, %s::text", ("x",)).fetchone() == (1, "x")


def test_federated_in_the_extended_protocol(client):
    assert client.execute("SELECT * FROM pub.orders WHERE id > %s", (3,)).fetchall() == ROWS[3:]


def test_federated_in_the_simple_protocol(client):
    cursor = psycopg.ClientCursor(client)
    assert cursor.execute("SELECT * FROM pub.orders WHERE id > 3").fetchall() == ROWS[3:]
