"""The client of `oar ask`: what it says where it gets no connection, or loses it."""

from __future__ import annotations

import os
import socket

import psycopg.conninfo
import pytest
from oar_proxy.client import NotConnected, connect, query


@pytest.fixture
def dial(where, monkeypatch):
    """Connect as `oar ask` does, with some of the address changed."""
    monkeypatch.delenv("PGPASSWORD", raising=False)
    monkeypatch.setenv("PGPASSFILE", "/nowhere")
    return lambda **changed: connect(psycopg.conninfo.make_conninfo(**{**where, **changed}))


@pytest.mark.parametrize(
    ("changed", "said", "hint"),
    [
        ({"port": 1}, "port 1 failed", "is oar serve running there?"),
        ({"password": None}, "no password supplied", "give your password in PGPASSWORD"),
        ({"password": "wrong"}, "password authentication failed", "are user, password"),
        ({"dbname": "other"}, "does not exist", "are user, password and database right?"),
    ],
    ids=["no server", "no password", "another password", "another database"],
)
def test_why_there_is_no_connection(dial, changed, said, hint):
    with pytest.raises(NotConnected) as refused:
        dial(**changed)
    assert said in refused.value.message
    assert refused.value.hint.startswith(hint)


def test_the_proxys_own_hint_is_passed_on(open_door, dial):
    door = open_door(max_clients=1)
    with dial(port=door.port), pytest.raises(NotConnected) as refused:
        dial(port=door.port)
    assert "sorry, too many clients already" in refused.value.message
    assert "HINT" not in refused.value.message
    assert refused.value.hint == "try again when others have left, or raise listen.max_clients"


def test_a_connection_that_is_lost(dial):
    with dial() as client:
        query(client, "SELECT %s", ("x",))
        with socket.socket(fileno=os.dup(client.fileno())) as underneath:
            underneath.shutdown(socket.SHUT_RDWR)
        with pytest.raises(NotConnected) as lost:
            query(client, "SELECT %s", ("x",))
        assert "[None]" not in lost.value.message
        assert lost.value.hint.startswith("is oar serve running there?")
