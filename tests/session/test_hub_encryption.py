"""A hub elsewhere: clients' sessions reach it as safely as the proxy's own connection does."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import ssl
from dataclasses import replace
from functools import partial

import psycopg
import psycopg.conninfo
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from oar_proxy.cert import authority
from oar_proxy.hub.access import open_hub
from oar_proxy.hub.address import HubError
from oar_proxy.hub.users import add_user
from oar_proxy.settings import HubSettings
from places import TcpServer, installed_programs
from waits import executes, once

ENCRYPTED = "SELECT ssl, version FROM pg_stat_ssl WHERE pid = pg_backend_pid()"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    """Two authorities' certificates for localhost, in a directory each."""
    made = [tmp_path_factory.mktemp(name) for name in ("tls", "other")]
    for directory in made:
        authority.make(directory, ["localhost"], authority.KeyKind.ecdsa, 30)
    return made


@pytest.fixture(scope="module")
def server(certificates):
    """A PostgreSQL that lets clients in by TLS only."""
    with TcpServer(programs=installed_programs(), certificate=certificates[0]) as server:
        yield server


async def _reached(dsn, name=None):
    async with open_hub(HubSettings(dsn=dsn)) as address:
        if name is not None:
            connection = await psycopg.AsyncConnection.connect(address.conninfo, autocommit=True)
            async with connection:
                await add_user(connection, name, "secret")
        return address


@pytest.fixture(scope="module")
def user(server):
    asyncio.run(_reached(server.dsn("oar"), "anna"))
    return {"user": "anna", "password": "secret", "dbname": "oar"}


@pytest.fixture
def opened(door_class):
    """Open a front door on a hub; how clients reach it."""
    with contextlib.ExitStack() as stack:

        def open_door(address, **listen):
            door = door_class(address, channel_binding=False, **listen)
            stack.callback(door.close)
            return {"host": "localhost", "port": door.port}

        yield open_door


def dsn_of(server, certificates, options):
    told = psycopg.conninfo.conninfo_to_dict(
        options.format(ca=certificates[0] / "ca.crt", other=certificates[1] / "ca.crt")
    )
    return psycopg.conninfo.make_conninfo(server.dsn("oar"), **{"host": "localhost"} | told)


@pytest.mark.parametrize(
    "options",
    [
        "",
        "sslmode=require",
        "sslmode=require sslrootcert={ca}",
        "sslmode=verify-ca sslrootcert={ca} host=127.0.0.1",
        "sslmode=verify-full sslrootcert={ca}",
        "sslmode=verify-full sslrootcert={ca} hostaddr=127.0.0.1",
        "sslmode=require ssl_max_protocol_version=TLSv1.2 sslsni=0",
    ],
)
def test_sessions_and_cancellations_are_encrypted(server, certificates, user, opened, options):
    address = asyncio.run(_reached(dsn_of(server, certificates, options)))
    with psycopg.connect(**user, **opened(address), autocommit=True) as client:
        encrypted, version = client.execute(ENCRYPTED).fetchone()
        assert encrypted
        assert version == ("TLSv1.2" if "TLSv1.2" in options else "TLSv1.3")
        wide = "SELECT repeat('x', 1000) FROM generate_series(1, 5000)"
        assert len(client.execute(wide).fetchall()) == 5000
        with (
            psycopg.connect(server.dsn("oar"), autocommit=True) as watcher,
            once(partial(executes, watcher, client.info.backend_pid), client.cancel_safe),
            pytest.raises(psycopg.errors.QueryCanceled),
        ):
            client.execute("SELECT pg_sleep(60)")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ("sslmode=disable", "no encryption"),
        ("sslmode=verify-ca sslrootcert={other}", "certificate verify failed"),
        ("sslmode=require sslrootcert={other}", "certificate verify failed"),
        ("sslmode=verify-full sslrootcert={ca} host=127.0.0.1", "does not match host name"),
    ],
)
def test_what_libpq_refuses_is_refused(server, certificates, user, options, told):
    with pytest.raises(HubError, match=told):
        asyncio.run(_reached(dsn_of(server, certificates, options)))


def test_a_hub_that_is_another_later_gets_no_client(server, certificates, user, opened):
    """An impostor in its place: with another's certificate, or with another name's, or with none."""
    trusted, other = (
        asyncio.run(_reached(dsn_of(server, certificates, options)))
        for options in ("sslmode=verify-full sslrootcert={ca}", "sslmode=require")
    )
    inner = opened(other)  # a front door looks like a hub; this one takes no TLS
    impostors = [
        replace(trusted, port=inner["port"]),
        replace(trusted, encryption=replace(trusted.encryption, name="db.example.com")),
    ]
    named = {
        "tls_certificate": certificates[1] / "server.crt",
        "tls_key": certificates[1] / "server.key",
    }
    impostors.append(replace(trusted, port=opened(other, **named)["port"]))
    for impostor in impostors:
        where = opened(impostor)
        with pytest.raises(psycopg.OperationalError, match="the hub does not answer"):
            psycopg.connect(**user, **where)


def test_a_client_that_misses_channel_binding_is_told_what_to_do(
    server, certificates, user, opened
):
    """The hub offers it by its own certificate, and would take the client's word for an attack."""
    trusted = asyncio.run(_reached(dsn_of(server, certificates, "sslmode=require")))
    directory = certificates[1]
    where = opened(
        trusted, tls_certificate=directory / "server.crt", tls_key=directory / "server.key"
    )
    with pytest.raises(psycopg.OperationalError, match="the driver's channel_binding to disable"):
        psycopg.connect(**user, **where, sslmode="require")
    with psycopg.connect(**user, **where, sslmode="require", channel_binding="disable") as client:
        assert client.execute("SELECT 1").fetchone() == (1,)


def test_direct_tls(server, certificates, user, opened):
    """To a front door in the hub's place: an installed PostgreSQL may be too old for it."""
    trusted = asyncio.run(
        _reached(dsn_of(server, certificates, "sslmode=verify-full sslrootcert={ca}"))
    )
    named = {
        "tls_certificate": certificates[0] / "server.crt",
        "tls_key": certificates[0] / "server.key",
    }
    inner = opened(trusted, **named)
    direct = replace(trusted.encryption, direct=True)
    where = opened(replace(trusted, port=inner["port"], encryption=direct))
    with psycopg.connect(**user, **where, autocommit=True) as client:
        assert client.execute("SELECT 1").fetchone() == (1,)


def test_what_tls_cannot_be_is_refused(server, certificates, user):
    options = "sslmode=require gssencmode=require"
    with pytest.raises(HubError, match=r"gssencmode=require|GSSAPI"):
        asyncio.run(_reached(dsn_of(server, certificates, options)))
    with pytest.raises(HubError, match="cannot be encrypted"):
        asyncio.run(_reached(dsn_of(server, certificates, "ssl_min_protocol_version=TLSv1.1")))


@pytest.mark.parametrize("revoked", [False, True])
def test_a_list_of_revoked_certificates_is_looked_at(
    server, certificates, user, opened, tmp_path, revoked
):
    """Once the list has the hub's certificate, nobody is let through to it."""
    directory = certificates[0]
    issuer, served = (
        x509.load_pem_x509_certificate((directory / name).read_bytes())
        for name in ("ca.crt", "server.crt")
    )
    now = datetime.datetime.now(datetime.UTC)
    listed = x509.CertificateRevocationListBuilder().issuer_name(issuer.subject)
    listed = listed.last_update(now).next_update(now + datetime.timedelta(days=1))
    if revoked:
        entry = x509.RevokedCertificateBuilder().serial_number(served.serial_number)
        listed = listed.add_revoked_certificate(entry.revocation_date(now).build())
    key = serialization.load_pem_private_key((directory / "ca.key").read_bytes(), None)
    file = tmp_path / "revoked.crl"
    file.write_bytes(listed.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    options = f"sslmode=verify-full sslrootcert={{ca}} sslcrl={file}"
    if revoked:
        with pytest.raises(HubError, match="certificate"):
            asyncio.run(_reached(dsn_of(server, certificates, options)))
        options = options.partition(" sslcrl")[0]
        trusted = asyncio.run(_reached(dsn_of(server, certificates, options)))
        context = trusted.encryption.context
        context.load_verify_locations(file)
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_CHAIN
        with pytest.raises(psycopg.OperationalError, match="the hub does not answer"):
            psycopg.connect(**user, **opened(trusted))
    else:
        trusted = asyncio.run(_reached(dsn_of(server, certificates, options)))
        with psycopg.connect(**user, **opened(trusted)) as client:
            assert client.execute("SELECT 1").fetchone() == (1,)
