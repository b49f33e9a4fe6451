"""The front door itself: startup, TLS, limits, the pace of slow clients, and the way out."""

from __future__ import annotations

import asyncio
import os
import select
import shutil
import socket
import ssl
import struct
import subprocess
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import psycopg
import pytest
from oar_proxy import server
from oar_proxy.hub.binaries import find_binaries
from oar_proxy.wire import messages
from waits import eventually, once

ROWS = [(number, f"name {number}") for number in range(1, 6)]
ALL = "SELECT * FROM pub.orders ORDER BY id"

SSL_REQUEST = struct.pack("!II", 8, 80877103)
GSSENC_REQUEST = struct.pack("!II", 8, 80877104)


def startup(*parameters, code=196608):
    body = b"".join(part.encode() + b"\0" for part in parameters) + b"\0"
    return struct.pack("!II", 8 + len(body), code) + body


def read_all(connection):
    connection.settimeout(60)
    received = b""
    try:
        while part := connection.recv(65536):
            received += part
    except ConnectionResetError:
        pass
    return received


def readable(connection):
    return bool(select.select([connection], [], [], 0)[0])


def without_request(received):
    """Leave out what asks for the password."""
    while received[:1] == b"R":
        received = received[1 + int.from_bytes(received[1:5], "big") :]
    return received


def fatal(received):
    """Return SQLSTATE and message of the one fatal error received."""
    assert received[:1] == b"E", received
    fields = messages.decode_fields(received)
    assert fields["S"] == fields["V"] == b"FATAL"
    return fields["C"].decode(), fields["M"].decode()


@contextmanager
def sleeping_cancelled(client, executes):
    """Cancel the ``pg_sleep`` that the block executes."""
    under_way = partial(executes, client.info.backend_pid)
    with once(under_way, client.cancel_safe), pytest.raises(psycopg.errors.QueryCanceled):
        yield


@pytest.fixture
def dial(door):
    """Open a bare connection to the front door."""
    opened = []

    def make(port=None):
        connection = socket.create_connection(("127.0.0.1", port or door.port))
        connection.settimeout(60)
        opened.append(connection)
        return connection

    def encrypted(connection, protocols=()):
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        if protocols:
            context.set_alpn_protocols(protocols)
        opened.append(context.wrap_socket(connection))
        return opened[-1]

    make.encrypted = encrypted
    yield make
    for connection in opened:
        connection.close()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """A self-signed certificate and its key."""
    program = shutil.which("openssl")
    if program is None:
        pytest.skip("no openssl program to make a certificate with")
    directory = tmp_path_factory.mktemp("tls")
    files = directory / "server.crt", directory / "server.key"
    request = (
        "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=oar"
        " -addext subjectAltName=IP:127.0.0.1"
    )
    subprocess.run(
        [program, *request.split(), "-out", files[0], "-keyout", files[1]],
        check=True,
        capture_output=True,
    )
    return files


@pytest.fixture(scope="module")
def tls_door(open_door, published, certificate):
    return open_door(tls_certificate=certificate[0], tls_key=certificate[1])


class TestStartup:
    @pytest.mark.parametrize(
        ("sent", "sqlstate"),
        [
            (startup("user", "a", "replication", "true"), "0A000"),
            (startup("user", "a", code=131072), "0A000"),
            (startup("database", "oar"), "08P01"),
            (struct.pack("!II", 10_001, 196608), "08P01"),
            (struct.pack("!II", 7, 196608), "08P01"),
            (struct.pack("!II", 0xFFFFFFFF, 196608), "08P01"),
            (b"GET / HTTP/1.1\r\n\r\n", "08P01"),
            (startup("user", "a")[:-1] + b"x", "08P01"),
        ],
    )
    def test_refused(self, dial, sent, sqlstate):
        connection = dial()
        connection.sendall(sent)
        assert fatal(read_all(connection))[0] == sqlstate

    def test_encryption_that_is_not_there(self, dial):
        connection = dial()
        for request in (GSSENC_REQUEST, SSL_REQUEST):
            connection.sendall(request)
            assert connection.recv(10) == b"N"
        connection.sendall(SSL_REQUEST)
        assert fatal(read_all(connection)) == ("08P01", "encryption requested twice")

    def test_the_hub_says_who_may_enter(self, where):
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            psycopg.connect(**{**where, "password": "wrong"})
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            psycopg.connect(**{**where, "user": "nobody"})
        with pytest.raises(psycopg.OperationalError, match="does not exist"):
            psycopg.connect(**{**where, "dbname": "nonesuch"})

    @pytest.mark.parametrize("message", [b"Q", b"P", b"X", b"\0"])
    def test_nothing_is_taken_before_the_password(self, dial, published, message):
        connection = dial()
        connection.sendall(startup("user", published["user"], "database", published["dbname"]))
        assert connection.recv(1) == b"R"
        connection.sendall(message + struct.pack("!I", 13) + b"SELECT 1\0")
        assert b"expected password response" in read_all(connection)

    def test_a_long_password_message_is_not_read(self, dial, published):
        connection = dial()
        connection.sendall(startup("user", published["user"], "database", published["dbname"]))
        assert connection.recv(1) == b"R"
        connection.sendall(b"p" + struct.pack("!I", 64 * 1024 + 1))
        assert b"invalid message length" in read_all(connection)

    def test_startup_parameters_reach_the_hub(self, where):
        with psycopg.connect(
            **where,
            application_name="tool",
            options="-c search_path=pub -c extra_float_digits=2",
        ) as client:
            assert client.execute(
                "SELECT current_setting('application_name'), current_setting('search_path')"
            ).fetchone() == ("tool", "pub")
            assert client.info.parameter_status("application_name") == "tool"

    @pytest.mark.parametrize("version", ["3.0", "3.2", "latest"])
    def test_protocol_versions_and_their_keys(self, where, federation, version):
        with psycopg.connect(**where, autocommit=True, max_protocol_version=version) as client:
            slow = lambda: ("begun", "slow") in federation.events  # noqa: E731
            with once(slow, client.cancel_safe), pytest.raises(psycopg.errors.QueryCanceled):
                client.execute("SELECT * FROM pub.slow")
            assert client.execute(ALL).fetchall() == ROWS

    def test_an_unknown_minor_version_is_negotiated_by_the_hub(self, dial, published):
        connection = dial()
        parameters = ("user", published["user"], "database", published["dbname"])
        grease = startup(*parameters, "_pq_.test_protocol_negotiation", "", code=(3 << 16) | 9999)
        connection.sendall(grease)
        answer = connection.recv(1000)
        assert answer[:1] == b"v"
        assert b"_pq_.test_protocol_negotiation" in answer

    def test_byte_by_byte(self, dial, published):
        connection = dial()
        for byte in startup("user", published["user"], "database", published["dbname"]):
            connection.sendall(bytes([byte]))
        assert connection.recv(1) == b"R"

    def test_opened_and_closed(self, dial, client):
        for part in (b"", b"\0", SSL_REQUEST[:6], startup("user", "x")[:12]):
            connection = dial()
            connection.sendall(part)
            connection.close()
        assert client.execute("SELECT 1").fetchone() == (1,)

    @pytest.mark.parametrize(
        "message",
        [
            b"!" + struct.pack("!I", 4),
            b"p" + struct.pack("!I", 4),
            b"S" + struct.pack("!I", 3),
            b"E" + struct.pack("!I", 10_001),
            b"Q" + struct.pack("!I", 0xFFFFFFFF),
            b"B" + struct.pack("!I", 256 * 1024 * 1024 + 1),
        ],
    )
    def test_messages_that_cannot_be_end_the_session(self, raw, message):
        raw.send(message)
        (code, body), (end, _) = raw.receive(), raw.receive()
        assert fatal(code.encode() + struct.pack("!I", len(body) + 4) + body)[0] == "08P01"
        assert end is None


class TestTls:
    @pytest.mark.parametrize("negotiation", ["postgres", "direct"])
    @pytest.mark.parametrize("version", ["3.0", "3.2"])
    def test_a_session_over_tls(self, where, tls_door, executes, certificate, negotiation, version):
        with psycopg.connect(
            **{**where, "port": tls_door.port},
            sslmode="verify-ca" if negotiation == "postgres" else "verify-full",
            sslrootcert=str(certificate[0]),
            sslnegotiation=negotiation,
            max_protocol_version=version,
            autocommit=True,
        ) as client:
            assert client.pgconn.ssl_in_use
            assert client.execute(ALL).fetchall() == ROWS
            with sleeping_cancelled(client, executes):
                client.execute("SELECT pg_sleep(60)")
            assert client.execute("SELECT repeat('x', 3000000)").fetchone() == ("x" * 3_000_000,)

    def test_clear_text_still_works_where_the_client_wants_it(self, where, tls_door):
        with psycopg.connect(
            **{**where, "port": tls_door.port}, sslmode="disable", autocommit=True
        ) as client:
            assert client.execute(ALL).fetchall() == ROWS

    def test_nothing_may_come_in_clear_behind_the_request(self, dial, tls_door):
        connection = dial(tls_door.port)
        connection.sendall(SSL_REQUEST + startup("user", "a"))
        assert fatal(read_all(connection))[0] == "08P01"

    def test_gssapi_is_refused_and_tls_goes_on(self, dial, tls_door):
        connection = dial(tls_door.port)
        connection.sendall(GSSENC_REQUEST)
        assert connection.recv(10) == b"N"
        connection.sendall(SSL_REQUEST)
        assert connection.recv(10) == b"S"

    @pytest.mark.parametrize("protocols", [[], ["http/1.1"]])
    def test_direct_tls_needs_the_protocol_name(self, dial, tls_door, published, protocols):
        connection = dial.encrypted(dial(tls_door.port), protocols)
        connection.sendall(startup("user", published["user"], "database", published["dbname"]))
        assert fatal(read_all(connection))[0] == "08P01"

    @pytest.mark.parametrize("request_packet", [SSL_REQUEST, GSSENC_REQUEST])
    def test_encryption_inside_encryption(self, dial, tls_door, request_packet):
        connection = dial(tls_door.port)
        connection.sendall(SSL_REQUEST)
        assert connection.recv(1) == b"S"
        connection = dial.encrypted(connection)
        connection.sendall(request_packet)
        assert fatal(read_all(connection)) == ("08P01", "encryption requested twice")

    @pytest.mark.parametrize("sent", [SSL_REQUEST, b"\x16", b"\x16\x03\x01\x02\x00\x01"])
    def test_a_handshake_that_never_comes(
        self, open_door, published, certificate, dial, client, sent
    ):
        door = open_door(
            tls_certificate=certificate[0], tls_key=certificate[1], startup_timeout=0.5
        )
        connection = dial(door.port)
        connection.sendall(sent)
        assert read_all(connection) in (b"", b"S")

    def test_direct_tls_without_a_certificate(self, where):
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(**where, sslmode="require", sslnegotiation="direct")


class TestLimits:
    @pytest.fixture
    def small(self, open_door, published):
        return open_door(max_clients=2, startup_timeout=1.0)

    def test_one_client_too_many(self, small, where, dial):
        where = {**where, "port": small.port}
        with psycopg.connect(**where, autocommit=True) as first:
            silent = dial(small.port)
            second = psycopg.connect(**where)
            with pytest.raises(psycopg.OperationalError, match="too many clients") as caught:
                psycopg.connect(**where)
            assert "limit: listen.max_clients, 2" in str(caught.value)
            slow = lambda: ("begun", "slow") in small.federation.events  # noqa: E731
            with once(slow, first.cancel_safe), pytest.raises(psycopg.errors.QueryCanceled):
                first.execute("SELECT * FROM pub.slow")
            assert second.execute("SELECT 1").fetchone() == (1,)
            second.close()
            assert fatal(read_all(silent))[0] == "57014"
            with psycopg.connect(**where) as third:
                assert third.execute("SELECT 1").fetchone() == (1,)

    @pytest.mark.parametrize("leaves_with", ["FIN", "RST"])
    def test_who_leaves_before_the_hub_is_reached_takes_no_place(
        self, small, where, published, dial, monkeypatch, leaves_with
    ):
        """As health checks do that send a startup packet."""
        begun = []
        gone = asyncio.Event()

        async def slow(address, protocol):
            begun.append(address)
            await gone.wait()
            return await reached(address, protocol)

        reached = server.connect
        monkeypatch.setattr(server, "connect", slow)
        packet = startup("user", published["user"], "database", published["dbname"])
        left = [dial(small.port) for _ in range(2)]
        for each in left:
            each.sendall(packet)
        eventually(lambda: len(begun) == 2)
        for each in left:
            if leaves_with == "RST":
                each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            each.close()
        time.sleep(0.1)
        small.call(gone.set)
        eventually(lambda: not small.door._connections)
        assert not small.door._sessions
        with psycopg.connect(**where | {"port": small.port}) as client:
            assert client.execute("SELECT 1").fetchone() == (1,)

    @pytest.mark.parametrize("sent", ["nothing", "half a packet", "no password"])
    def test_whoever_says_nothing_keeps_nobody_out(
        self, open_door, where, published, dial, executes, sent
    ):
        """Neither clients nor cancellations, however many there are of them."""
        door = open_door(max_unauthenticated=4, startup_timeout=60)
        where = {**where, "port": door.port}
        packet = startup("user", published["user"], "database", published["dbname"])

        def fill():
            for _ in range(4):
                silent.append(dial(door.port))
                if sent != "nothing":
                    silent[-1].sendall(packet if sent == "no password" else packet[:20])

        silent = []
        fill()
        begun = time.monotonic()
        with psycopg.connect(**where, autocommit=True) as client:
            assert time.monotonic() - begun < 30
            told = [one for one in silent if readable(one)]
            assert fatal(without_request(read_all(told[0]))) == (
                "53300",
                "sorry, too many connections are being opened",
            )
            fill()
            with sleeping_cancelled(client, executes):
                client.execute("SELECT pg_sleep(60)")

    def test_a_rush_of_clients_is_let_in_one_after_another(self, open_door, where):
        door = open_door(max_unauthenticated=2)
        where = {**where, "port": door.port}
        answers, failures = [], []

        def come():
            try:
                with psycopg.connect(**where) as client:
                    answers.append(client.execute("SELECT 1").fetchone())
            except psycopg.OperationalError as error:
                failures.append(str(error))

        clients = [threading.Thread(target=come) for _ in range(20)]
        for client in clients:
            client.start()
        for client in clients:
            client.join()
        assert (answers, failures) == ([(1,)] * 20, [])

    @pytest.mark.parametrize("step", ["nothing", "half a packet", "no password", "no TLS"])
    def test_one_deadline_for_all_of_the_startup(self, small, dial, published, step):
        connection = dial(small.port)
        packet = startup("user", published["user"], "database", published["dbname"])
        begun = time.monotonic()
        if step == "half a packet":
            connection.sendall(packet[:20])
        if step == "no password":
            connection.sendall(packet)
        if step == "no TLS":
            connection.sendall(GSSENC_REQUEST)
        assert b"canceling authentication due to timeout" in read_all(connection)
        assert time.monotonic() - begun < 10

    def test_the_hub_is_not_there(self, open_door, where, published, dial):
        door = open_door()
        door.door._hub = replace(door.door._hub, host="/nonexistent")
        with pytest.raises(psycopg.OperationalError, match="the hub does not answer"):
            psycopg.connect(**{**where, "port": door.port})

    def test_a_message_over_the_limit(self, open_door, where):
        door = open_door(max_message_bytes=65536)
        with psycopg.connect(**{**where, "port": door.port}, autocommit=True) as client:
            assert client.execute("SELECT length(%s)", ("x" * 60_000,)).fetchone() == (60_000,)
            with pytest.raises(psycopg.OperationalError, match="invalid message length"):
                client.execute("SELECT length(%s)", ("x" * 70_000,))


def resident():
    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


class TestPace:
    def test_a_client_that_does_not_read_costs_a_bounded_amount(self, raw):
        before = resident()
        raw.send(messages.encode_query(b"SELECT repeat('x', 1000) FROM generate_series(1, 400000)"))
        time.sleep(1.5)
        assert resident() - before < 64 * 1024 * 1024
        rows = 0
        while (message := raw.receive())[0] != "Z":
            rows += message[0] == "D"
        assert rows == 400_000

    def test_both_sides_blocked_on_each_other_go_on(self, raw):
        """Requests pile up behind answers nobody reads; reading them lets everything through."""
        one = messages.encode_query(b"SELECT repeat('x', 100000), '" + b"y" * 10_000 + b"'")
        count = 300
        sender = threading.Thread(target=raw.send, args=(one * count,))
        sender.start()
        time.sleep(0.3)
        got = raw.until("Z", count)
        sender.join()
        assert [code for code, _ in got].count("D") == count

    def test_copy_both_ways_at_once(self, client):
        client.execute("CREATE TEMP TABLE big (line text)")
        line = "x" * 1000 + "\n"
        with client.cursor().copy("COPY big FROM STDIN") as copy:
            for _ in range(100):
                copy.write(line * 1000)
        assert client.execute("SELECT count(*) FROM big").fetchone() == (100_000,)
        with client.cursor().copy("COPY big TO STDOUT") as copy:
            assert sum(len(part) for part in copy) == 100_000 * len(line)

    @pytest.mark.parametrize("way", ["the hub ends", "the proxy stops"])
    def test_nothing_is_said_in_the_middle_of_a_message(
        self, open_door, connect_raw, where, admin, way
    ):
        """Bytes of an error there would be taken for bytes of a row."""
        door = open_door(shutdown_timeout=0.1)
        raw = connect_raw({**where, "port": door.port})
        raw.send(messages.encode_query(b"SELECT repeat('x', 100000000)"))
        assert raw.receive()[0] == "T"
        while len(raw._received) < 100:
            raw._received += raw.socket.recv(1000)
        if way == "the hub ends":
            admin.execute("SELECT pg_terminate_backend(%s)", (raw.key,))
        else:
            stopper = threading.Thread(target=door.stop)
            stopper.start()
        got = raw._received + read_all(raw.socket)
        if way == "the proxy stops":
            stopper.join()
        assert got[:1] == b"D"
        assert len(got) < 100_000_000
        assert got[11:].strip(b"x") == b""


class TestStopping:
    def test_idle_at_once_and_busy_when_done(self, open_door, where, published):
        door = open_door(shutdown_timeout=30)
        where = {**where, "port": door.port}
        idle = psycopg.connect(**where, autocommit=True)
        in_transaction = psycopg.connect(**where)
        in_transaction.execute("SELECT 1")
        busy = psycopg.connect(**where, autocommit=True)
        results = []

        def work():
            results.append(busy.execute("SELECT * FROM pub.slow ORDER BY id").fetchall())

        worker = threading.Thread(target=work)
        worker.start()
        eventually(lambda: door.federation.events)
        stopper = threading.Thread(target=door.stop)
        stopper.start()
        eventually(lambda: len(door.door._sessions) == 1)
        for connection in (idle, in_transaction):
            with pytest.raises(psycopg.errors.AdminShutdown):
                connection.execute("SELECT 1")
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(**where)
        assert worker.is_alive()
        door.call(door.federation.release.set)
        worker.join()
        stopper.join()
        assert results == [ROWS]
        # libpq takes an error that comes with the end of an answer for a notice.
        with pytest.raises(psycopg.OperationalError):
            busy.execute("SELECT 1")

    def test_cut_off_after_the_timeout(self, open_door, where, executes, dial, directly):
        door = open_door(shutdown_timeout=0.3)
        where = {**where, "port": door.port}
        clients = [psycopg.connect(**where, autocommit=True) for _ in range(2)]
        silent = dial(door.port)
        failures = []

        def work(client, statement):
            try:
                client.execute(statement)
            except psycopg.Error as error:
                failures.append(error.sqlstate)

        statements = ("SELECT * FROM pub.slow", "SELECT pg_sleep(60)")
        workers = [
            threading.Thread(target=work, args=pair)
            for pair in zip(clients, statements, strict=True)
        ]
        for worker in workers:
            worker.start()
        eventually(lambda: ("begun", "slow") in door.federation.events)
        eventually(lambda: executes(clients[1].info.backend_pid))
        door.stop()
        for worker in workers:
            worker.join()
        assert failures == ["57P01", "57P01"]
        assert ("cancelled", "slow") in door.federation.events
        assert fatal(read_all(silent))[0] == "57P01"
        pids = [client.info.backend_pid for client in clients]
        with psycopg.connect(**directly, autocommit=True) as hub:
            alive = "SELECT count(*) FROM pg_stat_activity WHERE pid = ANY(%s)"
            eventually(lambda: hub.execute(alive, (pids,)).fetchone() == (0,))


def test_psql(where):
    """The oldest client here: libpq's simple protocol and its catalog queries."""
    program = find_binaries().directory / "psql"
    address = ["-h", where["host"], "-p", str(where["port"]), "-U", where["user"]]
    statements = [ALL, "\\d pub.orders", "SELECT 1; SELECT count(*) FROM pub.orders"]
    commands = [part for statement in statements for part in ("-c", statement)]
    run = subprocess.run(
        [program, "-XAt", *address, "-d", where["dbname"], *commands],
        env={**os.environ, "PGPASSWORD": where["password"]},
        capture_output=True,
        text=True,
        check=True,
    )
    lines = run.stdout.splitlines()
    assert lines[:5] == [f"{number}|{name}" for number, name in ROWS]
    assert "id|integer|||" in lines
    assert lines[-2:] == ["1", "5"]


def test_a_hub_over_tcp(door, where, executes, hub, door_class):
    """The hub may be another machine's: here it is the other front door, which looks like one."""
    outer = door_class(hub, hub_address={"host": "127.0.0.1", "port": door.port})
    try:
        with psycopg.connect(**{**where, "port": outer.port}, autocommit=True) as client:
            for prepare in (False, True):
                assert client.execute(ALL, prepare=prepare).fetchall() == ROWS
            with sleeping_cancelled(client, executes):
                client.execute("SELECT pg_sleep(60)")
    finally:
        outer.close()


def test_a_hub_that_is_lost_as_soon_as_it_is_reached(hub, published, dial, door_class, monkeypatch):
    """Its client is told, and neither connection is left open."""

    async def lost(address, protocol):
        side, gone = protocol(), asyncio.Event()
        told = side.connection_lost
        side.connection_lost = lambda error: (told(error), gone.set())
        transport = await reached(address, lambda: side)
        await gone.wait()
        return transport

    def accept():
        listener.accept()[0].close()

    reached = server.connect
    monkeypatch.setattr(server, "connect", lost)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = {"host": "127.0.0.1", "port": listener.getsockname()[1]}
        closing = threading.Thread(target=accept)
        closing.start()
        door = door_class(hub, hub_address=address)
        try:
            client = dial(door.port)
            client.sendall(startup("user", published["user"], "database", published["dbname"]))
            told = fatal(read_all(client))
            assert told == ("08006", "connection not made: the hub does not answer")
            eventually(lambda: not door.door._connections)
            assert not door.door._sessions
        finally:
            door.close()
            closing.join()
