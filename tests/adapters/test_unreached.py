"""What an adapter says of an owner that it does not get into: why, and nothing secret."""

from __future__ import annotations

import asyncio
import socket
import threading
from pathlib import Path

import psycopg.conninfo
import pytest
from oar_adapters.interface import OwnerError, OwnerErrorKind
from oar_adapters.registry import open_adapter

SECRET = "s3cret-that-must-not-show"
LOGIN = "does not accept the user or the password of its URL"
DATABASE = "has no such database"


def refusal(url):
    async def read():
        adapter = open_adapter(url, {"connect_timeout": "5"})
        try:
            await adapter.schema()
        finally:
            await adapter.close()

    with pytest.raises(OwnerError) as caught:
        asyncio.run(read())
    assert SECRET not in str(caught.value)
    return caught.value


@pytest.fixture(scope="module")
def missing(tmp_path_factory):
    """A directory without a socket."""
    return tmp_path_factory.mktemp("missing")


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("postgresql://{user}:{secret}@/{database}?{at}", LOGIN),
        ("postgresql://{secret}:{password}@/{database}?{at}", LOGIN),
        ("postgresql://{user}:{password}@/{secret}?{at}", DATABASE),
    ],
)
def test_a_postgresql_that_lets_nobody_in(hub_server, url, why):
    at = f"host={hub_server.host}&port={hub_server.port}"
    words = psycopg.conninfo.conninfo_to_dict(hub_server.conninfo)
    error = refusal(
        url.format(
            secret=SECRET,
            at=at,
            database="postgres",
            user=words["user"],
            password=words["password"],
        )
    )
    assert error.kind is OwnerErrorKind.UNREACHABLE
    assert why in error.what


@pytest.mark.parametrize(
    ("user", "database", "why"), [(SECRET, "", LOGIN), ("", SECRET, "may not use its database")]
)
def test_a_mariadb_that_lets_nobody_in(mariadb_server, user, database, why):
    name, url = mariadb_server.new_database("closed")
    password = url.split("@")[0].rpartition(":")[2]
    error = refusal(mariadb_server.url(user or name, password, database or name))
    assert error.kind is OwnerErrorKind.UNREACHABLE
    assert why in error.what


def test_a_postgresql_that_has_no_tls():
    """A server that answers with no, as one does whose ``ssl`` is off."""

    def serve(listener):
        client, _ = listener.accept()
        with client:
            client.recv(8)
            client.sendall(b"N")
            client.recv(1)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        serving = threading.Thread(target=serve, args=(listener,))
        serving.start()
        port = listener.getsockname()[1]
        error = refusal(f"postgresql://user:{SECRET}@127.0.0.1:{port}/x?sslmode=require")
        serving.join()
    assert error.kind is OwnerErrorKind.UNREACHABLE
    assert error.what.endswith("database (the server does not offer TLS)")


@pytest.mark.parametrize("scheme", ["postgresql", "mariadb"])
@pytest.mark.parametrize(
    ("place", "why"),
    [
        ("127.0.0.1:1/x", "(Connection refused)"),
        ("nowhere.invalid/x", "(Name or service not known)"),
        ("/x?{socket}", "(No such file or directory)"),
    ],
)
def test_nobody_there(missing: Path, scheme, place, why):
    socket = f"host={missing}" if scheme == "postgresql" else f"socket={missing / 's'}"
    error = refusal(f"{scheme}://user:{SECRET}@{place.format(socket=socket)}")
    assert error.kind is OwnerErrorKind.UNREACHABLE
    if "Name" in why and why not in error.what:
        why = "(Temporary failure in name resolution)"  # of a machine without any name server
    assert error.what.endswith(f"no connection to the owner's database {why}")
