"""The certificate clients see: made by ``oar cert``, checked at the start, renewed while it runs."""

from __future__ import annotations

import contextlib
import datetime
import shutil
import subprocess
import sys

import psycopg
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from oar_proxy.cert import KeyKind, authority
from oar_proxy.settings import ConfigurationError, Listen
from oar_proxy.tls import open_certificate

KINDS = (KeyKind.ecdsa, KeyKind.rsa)


@pytest.fixture(params=KINDS)
def made(request, tmp_path):
    return authority.make(tmp_path / "tls", ["127.0.0.1", "db.test"], request.param, 30)


@pytest.fixture
def connect(where):
    """Connect with all checks a client can make, to a door or a host of another name."""

    @contextlib.contextmanager
    def connect(door, made, host="127.0.0.1"):
        with psycopg.connect(
            **{**where, "port": door.port, "host": host},
            hostaddr="127.0.0.1",
            sslmode="verify-full",
            sslrootcert=str(made.directory / authority.AUTHORITY),
            autocommit=True,
        ) as client:
            yield client

    return connect


@pytest.fixture
def tls_door(open_door, published, made):
    return open_door(**files(made.directory))


def files(directory):
    return {
        "tls_certificate": directory / authority.SERVER,
        "tls_key": directory / authority.SERVER_KEY,
    }


def test_a_client_that_checks_everything(tls_door, made, connect):
    for host in ("127.0.0.1", "db.test"):
        with connect(tls_door, made, host) as client:
            assert client.pgconn.ssl_in_use
            assert client.execute("SELECT count(*) FROM pub.orders").fetchone() == (5,)


def test_another_host_and_another_authority_are_refused(tls_door, made, connect, tmp_path):
    with pytest.raises(psycopg.OperationalError, match="does not match host name"):
        connect(tls_door, made, "elsewhere.test").__enter__()
    other = authority.make(tmp_path / "other", ["127.0.0.1"], KeyKind.ecdsa, 30)
    with pytest.raises(psycopg.OperationalError, match="certificate verify failed"):
        connect(tls_door, other).__enter__()


def test_a_renewed_certificate_is_served_at_once_and_still_trusted(tls_door, made, connect):
    serial = _served(tls_door)
    assert serial == made.server.serial_number
    with connect(tls_door, made) as before:
        renewed = authority.renew(made.directory)
        assert _served(tls_door) == renewed.server.serial_number != serial
        with connect(tls_door, made) as after:
            assert after.execute("SELECT 1").fetchone() == (1,)
        assert before.execute("SELECT 1").fetchone() == (1,)


@pytest.mark.parametrize("half", ["server.crt", "server.key"])
def test_half_of_a_new_pair_changes_nothing_and_the_other_half_all(
    tls_door, made, connect, tmp_path, half
):
    shutil.copytree(made.directory, tmp_path / "new")
    renewed = authority.renew(tmp_path / "new")
    (other,) = {"server.crt", "server.key"} - {half}
    (tmp_path / "new" / half).replace(made.directory / half)
    assert _served(tls_door) == made.server.serial_number
    (tmp_path / "new" / other).replace(made.directory / other)
    assert _served(tls_door) == renewed.server.serial_number
    with connect(tls_door, made) as client:
        assert client.execute("SELECT 1").fetchone() == (1,)


def test_files_that_are_gone_change_nothing(tls_door, made, connect):
    (made.directory / authority.SERVER).unlink()
    with connect(tls_door, made) as client:
        assert client.execute("SELECT 1").fetchone() == (1,)


class TestAtTheStart:
    """What cannot be used is said before anything else is started."""

    @pytest.fixture
    def faulty(self, tmp_path):
        return authority.make(tmp_path / "tls", ["127.0.0.1"], KeyKind.ecdsa, 30).directory

    def refusal(self, directory):
        with pytest.raises(ConfigurationError) as refused:
            open_certificate(Listen(**files(directory)))
        assert "-----" not in refused.value.message
        return refused.value

    def test_not_there(self, faulty):
        (faulty / authority.SERVER_KEY).unlink()
        assert "tls_key: " in (message := self.refusal(faulty).message)
        assert message.endswith("server.key cannot be read: No such file or directory")

    def test_of_another_certificate(self, faulty, tmp_path):
        authority.make(tmp_path / "other", ["a"], KeyKind.ecdsa, 30)
        (tmp_path / "other" / authority.SERVER_KEY).replace(faulty / authority.SERVER_KEY)
        assert self.refusal(faulty).message == (
            "listen.tls_key: not the key of the first certificate in listen.tls_certificate"
        )

    @pytest.mark.parametrize("name", ["tls_certificate", "tls_key"])
    def test_no_pem(self, faulty, name):
        files(faulty)[name].write_text("nonsense")
        assert self.refusal(faulty).message.startswith(f"listen.{name}: no ")

    def test_encrypted(self, faulty):
        path = faulty / authority.SERVER_KEY
        key = serialization.load_pem_private_key(path.read_bytes(), None)
        encryption = serialization.BestAvailableEncryption(b"secret")
        form = serialization.PrivateFormat.PKCS8
        path.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, encryption))
        assert self.refusal(faulty).message == "listen.tls_key: the key is encrypted"

    def test_ended(self, faulty, monkeypatch):
        now = authority._now() - datetime.timedelta(days=60)
        monkeypatch.setattr(authority, "_now", lambda: now)
        authority.renew(faulty)
        monkeypatch.setattr(authority, "_now", lambda: now)
        ended = authority.renew(faulty, days=30).server.not_valid_after_utc
        refusal = self.refusal(faulty)
        assert refusal.message == (
            f"listen.tls_certificate: the certificate ended on {ended:%Y-%m-%d %H:%M} UTC"
        )
        assert "oar cert renew" in refusal.hint


def test_serve_says_it_in_one_line(tmp_path):
    directory = authority.make(tmp_path / "tls", ["127.0.0.1"], KeyKind.ecdsa, 30).directory
    (directory / authority.SERVER_KEY).write_text("nonsense")
    config = tmp_path / "oar.yaml"
    config.write_text(
        f"listen: {{port: 0, tls_certificate: {directory / authority.SERVER},"
        f" tls_key: {directory / authority.SERVER_KEY}}}\nhub: {{data_dir: {tmp_path / 'hub'}}}\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "oar_proxy.cli", "serve", "--config", config],
        capture_output=True,
        check=False,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (2, "oar: listen.tls_key: no private key in PEM\n")
    assert not (tmp_path / "hub").exists()


def _served(door):
    """Return the serial number of the certificate a new connection is shown."""
    program = shutil.which("openssl")
    if program is None:
        pytest.skip("no openssl program to look with")
    address = f"127.0.0.1:{door.port}"
    shown = subprocess.run(
        [program, "s_client", "-starttls", "postgres", "-connect", address, "-showcerts"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        timeout=20,
    )
    begin = shown.stdout.index(b"-----BEGIN CERTIFICATE")
    return x509.load_pem_x509_certificate(shown.stdout[begin:]).serial_number
