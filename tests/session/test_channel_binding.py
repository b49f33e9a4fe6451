"""SCRAM-SHA-256-PLUS: the client proves which certificate it sees, and the hub decides the rest."""

from __future__ import annotations

import base64
import datetime
import hashlib
import hmac
import secrets
import shutil
import socket
import ssl
import struct
import subprocess

import pg8000.native
import psycopg
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.x509.oid import NameOID
from oar_proxy.wire import messages

PLUS, PLAIN = b"SCRAM-SHA-256-PLUS", b"SCRAM-SHA-256"
SSL_REQUEST = struct.pack("!II", 8, 80877103)

PSS = padding.PSS(padding.MGF1(hashes.SHA384()), 48)


def _rsa():
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


CERTIFICATES = {
    "ECDSA, SHA-256": (lambda: ec.generate_private_key(ec.SECP256R1()), hashes.SHA256(), None),
    "ECDSA, SHA-384": (lambda: ec.generate_private_key(ec.SECP384R1()), hashes.SHA384(), None),
    "RSA, SHA-256": (_rsa, hashes.SHA256(), None),
    "RSA, SHA-512": (_rsa, hashes.SHA512(), None),
    "RSA-PSS, SHA-384": (_rsa, hashes.SHA384(), PSS),
    "Ed25519": (ed25519.Ed25519PrivateKey.generate, None, None),
}
OLD = ("RSA, SHA-1", "RSA, MD5")
"""Signatures that cryptography does not make any more; SHA-256 stands in for their hashes."""

ALL = [*CERTIFICATES, *OLD]
BINDABLE = [name for name in ALL if name != "Ed25519"]


def certificate_files(directory, name):
    """Make a self-signed certificate and its key; return what the settings name."""
    certificate, private = directory / "server.crt", directory / "server.key"
    if name in OLD:
        program = shutil.which("openssl")
        if program is None:
            pytest.skip("no openssl program to make a certificate with")
        digest = name.partition(", ")[2].replace("-", "").lower()
        request = f"req -x509 -newkey rsa:2048 -{digest} -nodes -days 60 -subj /CN=oar"
        subprocess.run(
            [program, *request.split(), "-out", certificate, "-keyout", private],
            check=True,
            capture_output=True,
        )
        return {"tls_certificate": certificate, "tls_key": private}
    make_key, algorithm, rsa_padding = CERTIFICATES[name]
    key, now = make_key(), datetime.datetime.now(datetime.UTC)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "oar")])
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=60))
    )
    extra = {} if rsa_padding is None else {"rsa_padding": rsa_padding}
    made = builder.sign(key, algorithm, **extra)
    certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    private.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return {"tls_certificate": certificate, "tls_key": private}


@pytest.fixture(scope="module")
def served(open_door, published, tmp_path_factory):
    """Open a front door with a certificate of some kind, once each."""
    doors = {}

    def make(name="ECDSA, SHA-256", **settings):
        found = (name, *settings)
        if found not in doors:
            files = certificate_files(tmp_path_factory.mktemp("tls"), name)
            doors[found] = open_door(**files, **settings)
        return doors[found]

    return make


@pytest.fixture
def at(where, served):
    """How a client reaches the door with a certificate of some kind."""

    def at(name="ECDSA, SHA-256", **settings):
        return {**where, "port": served(name, **settings).port, "sslmode": "require"}

    return at


@pytest.fixture
def asked(served, monkeypatch):
    """The users whose keys were looked up: only channel binding needs them."""
    door, users = served().door, []
    keys_of = door._keys_of

    def noted(user):
        users.append(user)
        return keys_of(user)

    monkeypatch.setattr(door, "_keys_of", noted)
    return users


@pytest.fixture
def user(admin, published):
    """A user of the test's own: its name, password and database."""
    name = f"bob_{secrets.token_hex(4)}"
    admin.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'secret' IN ROLE oar_client")
    yield {"user": name, "password": "secret", "dbname": published["dbname"]}
    admin.execute(f"DROP ROLE {name}")


# --- libpq --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BINDABLE)
@pytest.mark.parametrize("negotiation", ["postgres", "direct"])
def test_a_client_that_requires_it(at, name, negotiation):
    with psycopg.connect(
        **at(name), channel_binding="require", sslnegotiation=negotiation
    ) as client:
        assert client.execute("SELECT count(*) FROM pub.orders").fetchone() == (5,)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("binding", ["prefer", "disable"])
def test_a_client_that_does_not(at, name, binding):
    with psycopg.connect(**at(name), channel_binding=binding) as client:
        assert client.execute("SELECT count(*) FROM pub.orders").fetchone() == (5,)


def test_a_certificate_without_a_hash_function_of_its_own(at):
    with pytest.raises(psycopg.OperationalError, match="did not offer an authentication method"):
        psycopg.connect(**at("Ed25519"), channel_binding="require")


def test_a_renewed_certificate_is_the_one_that_is_bound_to(open_door, where, tmp_path):
    door = open_door(**certificate_files(tmp_path, "RSA, SHA-256"))
    where = {**where, "port": door.port, "sslmode": "require", "channel_binding": "require"}
    psycopg.connect(**where).close()
    certificate_files(tmp_path, "ECDSA, SHA-384")
    psycopg.connect(**where).close()


def test_a_hub_whose_verifiers_may_not_be_read(at):
    where = at(channel_binding=False)
    with pytest.raises(psycopg.OperationalError, match="did not offer an authentication method"):
        psycopg.connect(**where, channel_binding="require")
    psycopg.connect(**where).close()


def test_nothing_is_offered_without_tls(where):
    with pytest.raises(psycopg.OperationalError, match="channel binding"):
        psycopg.connect(**where, sslmode="disable", channel_binding="require")


def refusal(where):
    with pytest.raises(psycopg.OperationalError) as caught:
        psycopg.connect(**where)
    return str(caught.value).partition("FATAL:")[2].strip()


REFUSED = {
    "a wrong password": ("SELECT", {"password": "wrong"}, "password authentication failed"),
    "a user that there is not": ("SELECT", {"user": "nobody"}, "password authentication failed"),
    "a password that is over": (
        "ALTER ROLE {} VALID UNTIL '2020-01-01'",
        {},
        "password authentication failed",
    ),
    "no password": ("ALTER ROLE {} PASSWORD NULL", {}, "password authentication failed"),
    "a role that may not log in": ("ALTER ROLE {} NOLOGIN", {}, "is not permitted to log in"),
    "no connection left": ("ALTER ROLE {} CONNECTION LIMIT 0", {}, "too many connections for role"),
    "another database": ("SELECT", {"dbname": "nonesuch"}, "does not exist"),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("binding", ["require", "disable"])
def test_the_hub_says_who_may_enter(at, user, admin, name, binding, hub):
    """In the same words with channel binding and without, and as it says it itself."""
    change, who, message = REFUSED[name]
    admin.execute(change.format(user["user"]))
    where = {**at(), **user, **who, "channel_binding": binding}
    directly = {**user, **who, "host": hub.host, "port": hub.port}
    assert message in refusal(where)
    assert refusal(where) == refusal(directly)


def test_a_password_that_lasts(at, user, admin):
    admin.execute(f"ALTER ROLE {user['user']} VALID UNTIL '2999-01-01'")
    psycopg.connect(**{**at(), **user}, channel_binding="require").close()


def test_another_driver(at, asked):
    """pg8000 has an implementation of its own, and binds wherever it can."""
    where = at()
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    names = {key: where[key] for key in ("user", "password", "host", "port")}
    with pg8000.native.Connection(
        **names, database=where["dbname"], ssl_context=context
    ) as connection:
        assert connection.run("SELECT count(*) FROM pub.orders") == [[5]]
    assert asked == [where["user"].encode()]
    with pytest.raises(pg8000.DatabaseError) as caught:
        pg8000.native.Connection(
            **{**names, "password": "wrong"}, database=where["dbname"], ssl_context=context
        )
    assert caught.value.args[0]["C"] == "28P01"


# --- frame by frame -------------------------------------------------------------------------------


def frame(code, body):
    return code + struct.pack("!I", len(body) + 4) + body


class Scram:
    """A client that says what the test wants; everything that is not said is as it should be."""

    def __init__(self, where, encrypted=True):
        self.where = where
        self.socket = socket.create_connection((where["host"], where["port"]))
        self.socket.settimeout(60)
        if encrypted:
            self.socket.sendall(SSL_REQUEST)
            assert self.socket.recv(1) == b"S"
            context = ssl.create_default_context()
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            self.socket = context.wrap_socket(self.socket)
            der = self.socket.getpeercert(binary_form=True)
            self.end_point = hashlib.sha256(der).digest()
        names = ("user", where["user"], "database", where["dbname"])
        body = b"".join(name.encode() + b"\0" for name in names) + b"\0"
        self.socket.sendall(struct.pack("!II", 8 + len(body), 196608) + body)
        code, body = self.receive()
        assert (code, body[:4]) == (b"R", b"\0\0\0\n")
        self.mechanisms = body[4:].split(b"\0")[:-2]
        self.first = b"n=,r=" + base64.b64encode(secrets.token_bytes(18))

    def receive(self):
        head = self._exactly(5)
        return head[:1], self._exactly(int.from_bytes(head[1:], "big") - 4)

    def _exactly(self, size):
        received = b""
        while len(received) < size:
            part = self.socket.recv(size - len(received))
            assert part, "closed"
            received += part
        return received

    def initial(self, mechanism=PLUS, flag=b"p=tls-server-end-point", first=None, length=None):
        first = flag + b",," + self.first if first is None else first
        self.header = flag + b",,"
        length = len(first) if length is None else length
        self.socket.sendall(frame(b"p", mechanism + b"\0" + struct.pack("!i", length) + first))
        return self.receive()

    def final(self, server_first, *, binding=None, alter=lambda message: message, nonce=None):
        attributes = dict(part.split(b"=", 1) for part in server_first.split(b","))
        salted = hashlib.pbkdf2_hmac(
            "sha256",
            self.where["password"].encode(),
            base64.b64decode(attributes[b"s"]),
            int(attributes[b"i"]),
        )
        binding = self.end_point if binding is None else binding
        unproved = b"c=" + base64.b64encode(self.header + binding)
        unproved += b",r=" + (nonce or attributes[b"r"])
        said = b",".join((self.first, server_first, unproved))
        key = hmac.digest(salted, b"Client Key", "sha256")
        signature = hmac.digest(hashlib.sha256(key).digest(), said, "sha256")
        proof = base64.b64encode(bytes(a ^ b for a, b in zip(key, signature, strict=True)))
        server_key = hmac.digest(salted, b"Server Key", "sha256")
        self.due = b"v=" + base64.b64encode(hmac.digest(server_key, said, "sha256"))
        self.socket.sendall(frame(b"p", alter(unproved + b",p=" + proof)))
        return self.receive()

    def close(self):
        self.socket.close()


@pytest.fixture
def scram(at):
    clients = []

    def make(name="ECDSA, SHA-256", **changed):
        clients.append(Scram({**at(name), **changed}))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


def continued(answer):
    code, body = answer
    assert (code, body[:4]) == (b"R", b"\0\0\0\x0b"), answer
    return body[4:]


def error(answer):
    code, body = answer
    assert code == b"E", answer
    fields = messages.decode_fields(frame(code, body))
    assert fields["S"] == fields["V"] == b"FATAL"
    return fields["C"].decode(), fields["M"].decode()


def test_the_whole_exchange(scram):
    client = scram()
    assert client.mechanisms == [PLUS, PLAIN]
    final = client.final(continued(client.initial()))
    assert final == (b"R", b"\0\0\0\x0c" + client.due)
    assert client.receive() == (b"R", bytes(4))


def test_what_is_offered_depends_on_the_certificate(scram):
    assert scram("Ed25519").mechanisms == [PLAIN]


def test_the_initial_response_may_come_later(scram):
    client = scram()
    assert continued(client.initial(first=b"", length=-1)) == b""
    client.socket.sendall(frame(b"p", b"p=tls-server-end-point,," + client.first))
    client.header = b"p=tls-server-end-point,,"
    assert client.final(continued(client.receive())) == (b"R", b"\0\0\0\x0c" + client.due)


def test_without_channel_binding_the_hub_alone_is_asked(scram):
    client = scram()
    final = client.final(continued(client.initial(PLAIN, b"n")), binding=b"")
    assert final == (b"R", b"\0\0\0\x0c" + client.due)


def test_the_first_message_may_come_later_without_channel_binding(scram):
    client = scram()
    assert continued(client.initial(PLAIN, b"y", first=b"", length=-1)) == b""
    client.socket.sendall(frame(b"p", b"y,," + client.first))
    assert error(client.receive())[0] == "28000"


def test_whoever_is_told_that_there_is_none_is_warned(scram):
    """Somebody in between took it from the offer."""
    client = scram()
    assert error(client.initial(PLAIN, b"y")) == (
        "28000",
        "SCRAM channel binding negotiation error",
    )


def test_thinking_so_is_right_where_there_is_none(scram):
    client = scram("Ed25519")
    final = client.final(continued(client.initial(PLAIN, b"y")), binding=b"")
    assert final == (b"R", b"\0\0\0\x0c" + client.due)


@pytest.mark.parametrize("binding", [b"", bytes(32), hashlib.sha256(b"another").digest()])
def test_another_certificate_is_refused(scram, binding):
    client = scram()
    answer = client.final(continued(client.initial()), binding=binding)
    assert error(answer) == ("28000", "SCRAM channel binding check failed")


def test_an_exchange_for_another_certificate_is_of_no_use(scram):
    """In between, the binding can be replaced, but not what the proof was made for."""
    client = scram()

    def replaced(message):
        right = b"c=" + base64.b64encode(client.header + client.end_point)
        return right + message[message.index(b",r=") :]

    answer = client.final(continued(client.initial()), binding=bytes(32), alter=replaced)
    assert error(answer)[0] == "28P01"


def test_leaving_the_binding_out_of_the_proof_is_refused(scram):
    client = scram()
    server_first = continued(client.initial())
    client.header = b"n,,"
    assert error(client.final(server_first, binding=b""))[0] == "28000"


@pytest.mark.parametrize(
    ("flag", "sqlstate"),
    [(b"n", "08P01"), (b"y", "08P01"), (b"p=tls-unique", "08P01"), (b"p", "08P01")],
)
def test_flags_that_do_not_fit_the_mechanism(scram, flag, sqlstate):
    assert error(scram().initial(PLUS, flag))[0] == sqlstate


def test_a_binding_without_the_mechanism_for_it(scram):
    assert error(scram().initial(PLAIN))[0] == "08P01"


def test_an_authorization_identity_is_the_hubs_to_refuse(scram):
    client = scram()
    answer = client.initial(first=b"p=tls-server-end-point,a=root," + client.first)
    assert error(answer)[0] == "0A000"


MALFORMED_FIRST = [b"", b",", b"p", b"p=tls-server-end-point", b"p=tls-server-end-point,,", b"\0"]


@pytest.mark.parametrize("mechanism", [PLUS, PLAIN])
@pytest.mark.parametrize("first", MALFORMED_FIRST)
def test_a_malformed_first_message(scram, first, mechanism):
    assert error(scram().initial(mechanism, first=first))[0] == "08P01"


@pytest.mark.parametrize("length", [-2, 5, 10_000, 2**31 - 1])
def test_a_first_message_that_lies_about_its_length(scram, length):
    assert error(scram().initial(length=length))[0] == "08P01"


MALFORMED_FINAL = {
    "empty": lambda message: b"",
    "zero byte": lambda message: b"\0",
    "no proof": lambda message: message.rpartition(b",p=")[0],
    "proof too short": lambda message: message[:-4],
    "proof not base64": lambda message: message[:-2] + b"!=",
    "proof twice": lambda message: message + b",p=" + message[-44:],
    "no binding": lambda message: message[message.index(b",r=") + 1 :],
    "binding not base64": lambda message: b"c=!" + message[2:],
    "only a binding": lambda message: message[: message.index(b",r=")],
    "something behind": lambda message: message + b",x=1",
    "a megabyte": lambda message: b"c=" + b"A" * 60_000,
}


@pytest.mark.parametrize("name", MALFORMED_FINAL)
def test_a_malformed_final_message(scram, client, name):
    bad = scram()
    answer = bad.final(continued(bad.initial()), alter=MALFORMED_FINAL[name])
    assert error(answer)[0] in {"08P01", "28000", "28P01"}
    assert client.execute("SELECT 1").fetchone() == (1,)


@pytest.mark.parametrize("first", [b"", b"n", b"n,,", b"n,,r=x", b"\0", b"n,a=b,n=,r=x", b"n,,m=x"])
def test_a_malformed_first_message_without_tls(where, client, first):
    """The hub says what is wrong with it."""
    bad = Scram(where, encrypted=False)
    assert bad.mechanisms == [PLAIN]
    assert error(bad.initial(PLAIN, first=first))[0] in {"08P01", "0A000"}
    bad.close()
    assert client.execute("SELECT 1").fetchone() == (1,)


@pytest.mark.parametrize("name", MALFORMED_FINAL)
def test_a_malformed_final_message_without_tls(where, client, name):
    bad = Scram(where, encrypted=False)
    server_first = continued(bad.initial(PLAIN, b"n"))
    answer = bad.final(server_first, binding=b"", alter=MALFORMED_FINAL[name])
    assert error(answer)[0] in {"08P01", "28P01"}
    bad.close()
    assert client.execute("SELECT 1").fetchone() == (1,)


def test_another_nonce_is_refused(scram):
    client = scram()
    answer = client.final(continued(client.initial()), nonce=client.first[5:] + b"mine")
    assert error(answer)[0] == "08P01"


def test_a_mechanism_that_was_not_offered(scram):
    assert error(scram("Ed25519").initial())[0] == "08P01"
    assert error(scram().initial(b"PLAIN"))[0] == "08P01"


@pytest.mark.parametrize("code", [b"Q", b"X"])
def test_nothing_is_taken_behind_the_proof(scram, client, code):
    """Not even when the proof is right: the client is known once the hub says so."""
    bad = scram()
    behind = frame(code, b"SELECT 1\0")
    server_first = continued(bad.initial())
    bad.socket = Along(bad.socket, behind)
    assert error(bad.final(server_first))[0] == "08P01"
    assert client.execute("SELECT 1").fetchone() == (1,)


class Along:
    """A socket that sends something more along with what it is given."""

    def __init__(self, connection, more):
        self.connection = connection
        self.more = more

    def sendall(self, data):
        self.connection.sendall(data + self.more)

    def __getattr__(self, name):
        return getattr(self.connection, name)


def test_a_user_that_there_is_not_is_no_different(scram, asked):
    """The same messages, a salt that stays the same, and the same look-up."""
    salts = {}
    for user in ("nobody", scram().where["user"]):
        for _ in range(3):
            client = scram(user=user, password="wrong")
            server_first = continued(client.initial())
            assert error(client.final(server_first)) == (
                "28P01",
                f'password authentication failed for user "{user}"',
            )
            assert asked.pop() == user.encode()
            salts.setdefault(user, set()).add(server_first.split(b",")[1])
    assert [len(seen) for seen in salts.values()] == [1, 1]
    assert not asked
