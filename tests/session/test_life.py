"""A session from its startup to its end, where the hub has its own word in it."""

from __future__ import annotations

import contextlib
import functools
import socket
import struct
import threading

import psycopg
import pytest
import structlog
from frames import SYNC, comparable, query, run, with_table
from oar_proxy.wire import messages
from waits import eventually, once

ALL = "SELECT * FROM pub.orders ORDER BY id"


# --- startup --------------------------------------------------------------------------------------

STATUSES = [
    "server_version",
    "server_encoding",
    "client_encoding",
    "application_name",
    "is_superuser",
    "session_authorization",
    "DateStyle",
    "IntervalStyle",
    "TimeZone",
    "integer_datetimes",
    "standard_conforming_strings",
    "in_hot_standby",
    "default_transaction_read_only",
    "search_path",
    "scram_iterations",
]


def test_what_clients_are_told_of_the_server_is_the_hubs(where, directly):
    told = []
    for place in (where, directly):
        with psycopg.connect(**place, application_name="tool") as client:
            statuses = {name: client.info.parameter_status(name) for name in STATUSES}
            told.append((statuses, client.execute("SELECT version()").fetchone()))
    assert told[0] == told[1]
    assert None not in told[0][0].values()
    assert told[0][1][0].startswith("PostgreSQL 1")


SETTINGS = {
    "search_path": ("-c search_path=pub", "pub"),
    "bytea_output": ("-c bytea_output=escape", "escape"),
    "extra_float_digits": ("--extra_float_digits=-2", "-2"),
    "statement_timeout": ("-c statement_timeout=12345", "12345ms"),
    "DateStyle": ("-c DateStyle=German", "German, DMY"),
    "geqo": ("-c geqo=off", "off"),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_of_the_startup_are_the_hubs_to_take(where, name):
    options, value = SETTINGS[name]
    with psycopg.connect(**where, options=options) as client:
        assert client.execute(f"SHOW {name}").fetchone() == (value,)


@pytest.mark.parametrize("options", ["-c nonesuch=1", "-c port=1", "-c work_mem=x", "--x"])
def test_settings_that_cannot_be_are_judged_behind_the_password(where, directly, options):
    """Nothing of what a client says is applied before it is known who it is."""

    def refusal(place, **changed):
        with pytest.raises(psycopg.OperationalError) as caught:
            psycopg.connect(**{**place, **changed}, options=options)
        return str(caught.value).partition("FATAL:")[2]

    assert refusal(where) == refusal(directly) != ""
    assert "password authentication failed" in refusal(where, password="wrong")


def startup_packet(*parameters, minor):
    body = b"".join(part.encode() + b"\0" for part in parameters) + b"\0"
    return struct.pack("!IHH", 8 + len(body), 3, minor) + body


@pytest.mark.parametrize("minor", [1, 2, 3, 9999])
@pytest.mark.parametrize(
    "options", [(), ("_pq_.test_protocol_negotiation", ""), ("_pq_.a", "1", "_pq_.b", "")]
)
def test_versions_and_options_to_come_are_negotiated_as_the_hub_does(
    door, hub, published, minor, options
):
    names = ("user", published["user"], "database", published["dbname"])
    answers = []
    for family, address in (
        (socket.AF_INET, ("127.0.0.1", door.port)),
        (socket.AF_UNIX, f"{hub.host}/.s.PGSQL.{hub.port}"),
    ):
        with socket.socket(family) as client:
            client.settimeout(60)
            client.connect(address)
            client.sendall(startup_packet(*names, *options, minor=minor))
            received = b""
            while b"SCRAM-SHA-256\0\0" not in received:
                received += client.recv(1000)
            answers.append(received)
    assert answers[0] == answers[1]
    assert (answers[0][:1] == b"v") is (minor > 2 or bool(options))


def test_a_client_that_asks_for_replication_is_told(where):
    with pytest.raises(psycopg.OperationalError, match="replication connections are not supported"):
        psycopg.connect(**where, replication="database")


CHECKS = {
    "connects": b"",
    "a byte": b"\0",
    "asks for TLS": struct.pack("!II", 8, 80877103),
    "half a packet": struct.pack("!I", 60) + b"\0\3\0\0user",
    "a whole one": None,
}


@pytest.mark.parametrize("name", CHECKS)
def test_health_checks_are_nobodys_concern(door, published, client, name):
    """Balancers connect and leave, some with a startup packet: only the debug log has a line."""
    sent = CHECKS[name]
    if sent is None:
        names = ("user", published["user"], "database", published["dbname"])
        sent = startup_packet(*names, minor=0)
    with structlog.testing.capture_logs() as lines:
        for _ in range(3):
            with socket.create_connection(("127.0.0.1", door.port)) as check:
                check.sendall(sent)
                if len(sent) > 30:
                    check.recv(1000)
        eventually(lambda: len(door.door._connections) == 1)
    assert {line["log_level"] for line in lines} <= {"debug"}
    assert client.execute("SELECT 1").fetchone() == (1,)


def test_both_connections_are_kept_alive(door, where, hub, door_class, federation):
    outer = door_class(hub, hub_address={"host": "127.0.0.1", "port": door.port})
    try:
        with psycopg.connect(**{**where, "port": outer.port}):
            (session,) = outer.door._sessions
            for transport in (session._client, session._hub):
                connection = transport.get_extra_info("socket")
                assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
                assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
                assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 30
                assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT) == 3
    finally:
        outer.close()


# --- timers ---------------------------------------------------------------------------------------

TIMERS = {
    "idle in a transaction": (
        [
            query("SET idle_in_transaction_session_timeout TO 100"),
            query("BEGIN"),
            query("SELECT * FROM {t} ORDER BY id"),
        ],
        b"25P03",
    ),
    "idle in a failed transaction": (
        [
            query("SET idle_in_transaction_session_timeout TO 100"),
            query("BEGIN"),
            query("SELECT 1 / (id - 1) FROM {t}"),
        ],
        b"25P03",
    ),
    "idle": (
        [query("SET idle_session_timeout TO 100"), run("SELECT * FROM {t} ORDER BY id") + SYNC],
        b"57P05",
    ),
    "idle behind a query string": (
        [query("SET idle_session_timeout TO 100"), query("SELECT 1; SELECT * FROM {t}")],
        b"57P05",
    ),
    "a transaction that lasts": (
        [
            query("SET transaction_timeout TO 100"),
            query("BEGIN; SELECT * FROM {t} ORDER BY id"),
            query("SELECT pg_sleep(60)"),
        ],
        b"25P04",
    ),
}


@pytest.mark.parametrize("name", TIMERS)
def test_the_hubs_timers_end_a_session_as_they_do_there(
    name, raw, connect_raw, directly, federation
):
    steps, sqlstate = TIMERS[name]
    told = []
    for connection, table in ((connect_raw(directly), b"public.orders"), (raw, b"pub.orders")):
        got = []
        for step in steps:
            got += connection.ask(with_table(step, table))
        got += connection.until("nothing")
        assert got[-1] == (None, None)
        told.append([comparable(*message) for message in got if message[0] is not None])
    assert told[0] == told[1]
    assert told[0][-1][1]["C"] == sqlstate
    assert told[0][-1][1]["V"] == b"FATAL"


@pytest.mark.parametrize(
    ("setting", "statement", "sqlstate"),
    [
        ("statement_timeout", "SELECT pg_sleep(60)", "57014"),
        ("statement_timeout", "SELECT count(pg_sleep(id * 10)) FROM pub.orders", "57014"),
        ("lock_timeout", "LOCK TABLE public.orders IN ACCESS EXCLUSIVE MODE", "55P03"),
    ],
)
@pytest.mark.parametrize("extended", [False, True])
def test_the_hubs_timers_end_a_statement(client, admin, setting, statement, sqlstate, extended):
    admin.execute("GRANT ALL ON public.orders TO PUBLIC")
    client.execute(f"SET {setting} TO 100")
    cursor = client.cursor() if extended else psycopg.ClientCursor(client)
    with admin.transaction() if setting == "lock_timeout" else contextlib.nullcontext():
        if setting == "lock_timeout":
            admin.execute("LOCK TABLE public.orders")
            cursor.execute("BEGIN")
        with pytest.raises(psycopg.Error) as caught:
            cursor.execute(statement, prepare=True) if extended else cursor.execute(statement)
    assert caught.value.sqlstate == sqlstate
    client.execute("ROLLBACK")
    assert len(client.execute(ALL).fetchall()) == 5


# --- cancellation ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "statement", ["COPY mine FROM STDIN", "COPY (SELECT pg_sleep(60) FROM pub.orders) TO STDOUT"]
)
def test_a_copy_can_be_cancelled(client, executes, statement):
    client.execute("CREATE TEMP TABLE mine (id int)")
    cancelled = threading.Event()

    def cancel():
        client.cancel_safe()
        cancelled.set()

    def run():
        with client.cursor().copy(statement) as copy:
            if statement.endswith("STDIN"):
                copy.write(b"1\n")
                assert cancelled.wait(60)
            else:
                list(copy)

    event = "ClientRead" if statement.endswith("STDIN") else "PgSleep"
    under_way = functools.partial(executes, client.info.backend_pid, event)
    with once(under_way, cancel), pytest.raises(psycopg.errors.QueryCanceled):
        run()
    assert len(client.execute(ALL).fetchall()) == 5


def test_the_socket_of_a_cancellation_is_closed_when_it_is_delivered(raw, executes, door):
    """Clients wait for that, and what they ask next must not be hit."""
    _, secret = door.run(_key_of(door, raw.key))
    for _ in range(10):
        raw.send(messages.encode_query(b"SELECT pg_sleep(60)"))
        eventually(lambda: executes(raw.key))
        with socket.create_connection(("127.0.0.1", door.port)) as canceller:
            canceller.settimeout(60)
            request = struct.pack("!IHHI", 12 + len(secret), 1234, 5678, raw.key) + secret
            canceller.sendall(request)
            assert canceller.recv(1) == b""
        got = raw.ask(messages.encode_query(b"SELECT 1"), times=2)
        assert [code for code, _ in got] == ["T", "E", "Z", "T", "D", "C", "Z"]


async def _key_of(door, pid):
    return next(key for key in door.door._keys if key[0] == pid)
