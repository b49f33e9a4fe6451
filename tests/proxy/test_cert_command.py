"""``oar cert``: what it makes is what OpenSSL, clients and the proxy take for good."""

from __future__ import annotations

import ipaddress
import os
import shutil
import stat
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key


def oar(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "oar_proxy.cli", "cert", *map(str, arguments)],
        check=False,
        capture_output=True,
        encoding="utf-8",
        env={**os.environ, "COLUMNS": "100", "LC_ALL": "C.UTF-8"},
        timeout=60,
    )


def verified(directory: Path, *arguments: str) -> bool:
    program = shutil.which("openssl")
    if program is None:
        pytest.skip("no openssl program to verify with")
    command = [program, "verify", "-x509_strict", "-purpose", "sslserver", *arguments]
    done = subprocess.run(
        [*command, "-CAfile", directory / "ca.crt", directory / "server.crt"],
        check=False,
        capture_output=True,
        text=True,
    )
    return done.returncode == 0


def certificate(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


@pytest.fixture
def directory(tmp_path):
    """A directory with an authority and a certificate."""
    done = oar("make", "db.example.com", "127.0.0.1", "--dir", tmp_path / "tls")
    assert done.returncode == 0, done.stderr
    return tmp_path / "tls"


def test_openssl_verifies_the_hosts_that_were_given_and_no_other(directory):
    assert verified(directory, "-verify_hostname", "db.example.com")
    assert verified(directory, "-verify_ip", "127.0.0.1")
    assert not verified(directory, "-verify_hostname", "other.example.com")
    assert not verified(directory, "-verify_ip", "127.0.0.2")


@pytest.mark.parametrize(
    ("kind", "key"), [("ecdsa", ec.EllipticCurvePrivateKey), ("rsa", rsa.RSAPrivateKey)]
)
def test_the_keys_are_of_the_kind_asked_for_also_when_renewed(tmp_path, kind, key):
    assert oar("make", "::1", "*.example.com", "--dir", tmp_path, "--key", kind).returncode == 0
    assert oar("renew", "--dir", tmp_path).returncode == 0
    for name in ("ca.key", "server.key"):
        assert isinstance(load_pem_private_key((tmp_path / name).read_bytes(), None), key)
    assert verified(tmp_path, "-verify_ip", "::1")
    assert verified(tmp_path, "-verify_hostname", "db.example.com")


def test_who_may_read_the_files(directory):
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()}
    assert modes == {
        "ca.crt": 0o644,
        "ca.cer": 0o644,
        "server.crt": 0o644,
        "ca.key": 0o600,
        "server.key": 0o600,
    }


def test_what_windows_imports_is_the_authority(directory):
    authority = certificate(directory / "ca.crt")
    assert (directory / "ca.cer").read_bytes() == authority.public_bytes(Encoding.DER)
    assert authority.extensions.get_extension_for_class(x509.BasicConstraints).value.ca


def test_what_it_says(directory):
    said = oar("show", "--dir", directory).stdout
    server = certificate(directory / "server.crt")
    assert "certificate of db.example.com, 127.0.0.1\n" in said
    assert f"valid until {server.not_valid_after_utc:%Y-%m-%d %H:%M} UTC" in said
    assert f"tls_certificate: {directory / 'server.crt'}\n" in said
    assert f"tls_key: {directory / 'server.key'}\n" in said
    for command in (
        "certutil -addstore -f Root ca.cer",
        "keytool -importcert",
        "sslmode=verify-full",
    ):
        assert command in said
    assert "PRIVATE" not in said


def test_a_second_authority_only_with_force(directory):
    before = {path.name: path.read_bytes() for path in directory.iterdir()}
    refused = oar("make", "db.example.com", "--dir", directory)
    assert refused.returncode == 2
    assert "has ca.crt, ca.cer, ca.key, server.crt, server.key already" in refused.stderr
    assert "oar cert renew" in refused.stderr
    assert before == {path.name: path.read_bytes() for path in directory.iterdir()}
    assert oar("make", "db.example.com", "--dir", directory, "--force").returncode == 0
    assert not any(before[path.name] == path.read_bytes() for path in directory.iterdir())
    assert verified(directory)


def test_one_file_is_enough_to_overwrite_nothing(tmp_path):
    (tmp_path / "server.key").write_text("of another server")
    assert oar("make", "a", "--dir", tmp_path).returncode == 2
    assert [path.name for path in tmp_path.iterdir()] == ["server.key"]


class TestRenewed:
    def test_under_the_same_authority_for_the_same_hosts(self, directory):
        authority, server = (directory / "ca.crt").read_bytes(), directory / "server.crt"
        before, key = certificate(server), (directory / "server.key").read_bytes()
        assert oar("renew", "--dir", directory, "--days", "30").returncode == 0
        after = certificate(server)
        assert (directory / "ca.crt").read_bytes() == authority
        assert (directory / "server.key").read_bytes() != key
        assert after.serial_number != before.serial_number
        left = after.not_valid_after_utc - datetime.now(UTC)
        assert timedelta(days=29) < left <= timedelta(days=30)
        assert verified(directory, "-verify_hostname", "db.example.com")
        assert verified(directory, "-verify_ip", "127.0.0.1")

    def test_for_other_hosts(self, directory):
        assert oar("renew", "10.0.0.5", "--dir", directory).returncode == 0
        names = certificate(directory / "server.crt").extensions.get_extension_for_class(
            x509.SubjectAlternativeName
        )
        assert list(names.value) == [x509.IPAddress(ipaddress.ip_address("10.0.0.5"))]

    def test_not_without_the_authoritys_key(self, directory):
        (directory / "ca.key").unlink()
        refused = oar("renew", "--dir", directory)
        assert refused.returncode == 2
        assert "ca.key cannot be read: No such file or directory" in refused.stderr

    def test_not_with_another_authoritys_key(self, directory, tmp_path):
        assert oar("make", "a", "--dir", tmp_path / "other").returncode == 0
        shutil.copy(tmp_path / "other" / "ca.key", directory / "ca.key")
        refused = oar("renew", "--dir", directory)
        assert refused.returncode == 2
        assert "ca.key is not the key of ca.crt" in refused.stderr
        assert verified(directory)


@pytest.mark.parametrize(
    "host", ["", "https://db.example.com", "db.example.com:6432", "a b", "-a", "a..b", "x" * 64]
)
def test_a_host_that_is_none(tmp_path, host):
    refused = oar("make", "--dir", tmp_path / "tls", "--", host)
    assert refused.returncode == 2
    assert "is neither a host name nor an address" in refused.stderr
    assert not (tmp_path / "tls").exists()


def test_a_host_beyond_ascii(tmp_path):
    assert oar("make", "бд.example", "--dir", tmp_path).returncode == 0
    assert verified(tmp_path, "-verify_hostname", "xn--90ag.example")
