"""Client users: what they may be called, how they log in, and that they can be taken away."""

from __future__ import annotations

import asyncio

import psycopg
import psycopg.conninfo
import pytest
from oar_proxy.hub.address import HubError
from oar_proxy.hub.users import User, add_user, is_reserved, list_users, remove_user, set_password


@pytest.fixture(scope="module")
def on_hub(hub):
    """Run a coroutine function over an administrator's connection."""

    def run(work, *arguments, **options):
        async def connected():
            async with await psycopg.AsyncConnection.connect(
                hub.conninfo, autocommit=True
            ) as connection:
                return await work(connection, *arguments, **options)

        return asyncio.run(connected())

    return run


@pytest.fixture
def user(on_hub):
    """Create users by name, with the name as the password; they go when the test ends."""
    made = []

    def make(name, **options):
        on_hub(add_user, name, name, **options)
        made.append(name)
        return name

    yield make
    left = {user.name for user in on_hub(list_users)}
    for name in made:
        if name in left:
            on_hub(remove_user, name)


def log_in(hub, name, password):
    conninfo = psycopg.conninfo.make_conninfo(hub.conninfo, user=name, password=password)
    return psycopg.connect(conninfo, autocommit=True)


@pytest.mark.parametrize("name", ["boris", "Борис", 'o"dd; --', "two words", "x" * 63])
def test_a_user_logs_in_under_its_name(hub, user, name):
    user(name)
    with log_in(hub, name, name) as connection:
        assert connection.execute("SELECT current_user").fetchone() == (name,)
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        log_in(hub, name, "wrong")


def test_a_user_is_an_ordinary_client(user, admin):
    user("boris")
    row = admin.execute(
        "SELECT rolsuper, rolcreatedb, rolcreaterole, rolreplication, rolbypassrls, rolinherit"
        " FROM pg_roles WHERE rolname = 'boris'"
    ).fetchone()
    assert row == (False, False, False, False, False, True)


def test_the_password_is_kept_as_a_verifier_and_never_sent(user, on_hub, admin):
    user("boris")
    verifier = "SELECT rolpassword FROM pg_authid WHERE rolname = 'boris'"
    (first,) = admin.execute(verifier).fetchone()
    assert first.startswith("SCRAM-SHA-256$4096:")
    on_hub(set_password, "boris", "another")
    assert admin.execute(verifier).fetchone() != (first,)


def test_a_changed_password_is_the_one_that_counts(hub, user, on_hub):
    user("boris")
    on_hub(set_password, "boris", "another")
    with pytest.raises(psycopg.OperationalError):
        log_in(hub, "boris", "boris")
    log_in(hub, "boris", "another").close()


def test_users_are_listed(user, on_hub):
    user("Zoe", connection_limit=3)
    user("anna", auditor=True)
    # Other tests have users of their own on this server.
    listed = [each for each in on_hub(list_users) if each.name in ("Zoe", "anna")]
    assert listed == [User("Zoe", False, 3), User("anna", True, None)]


def test_a_connection_limit_binds(hub, user):
    user("boris", connection_limit=1)
    with log_in(hub, "boris", "boris"), pytest.raises(psycopg.OperationalError, match="too many"):
        log_in(hub, "boris", "boris")


def test_removing_a_user_ends_its_sessions(hub, user, on_hub, admin):
    user("boris")
    with log_in(hub, "boris", "boris") as connection:
        connection.execute("CREATE TEMP TABLE kept (id int)")
        connection.execute("ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO PUBLIC")
        on_hub(remove_user, "boris")
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
    assert admin.execute("SELECT FROM pg_roles WHERE rolname = 'boris'").fetchone() is None


@pytest.mark.parametrize(
    ("name", "password", "message"),
    [
        ("", "x", "1 to 63 bytes"),
        ("я" * 32, "x", "1 to 63 bytes"),
        ("a\0b", "x", "1 to 63 bytes"),
        ("pg_anna", "x", 'user name "pg_anna" is reserved'),
        ("oar_admin", "x", "is reserved"),
        ("OAR_anna", "x", "is reserved"),
        ("public", "x", "is reserved"),
        ("carl", "", "a password may not be empty"),
        ("taken", "x", 'user "taken" exists already'),
    ],
)
def test_a_user_that_cannot_be_is_refused(user, on_hub, name, password, message):
    user("taken")
    with pytest.raises(HubError, match=message):
        on_hub(add_user, name, password)


@pytest.mark.parametrize("name", ["nobody here", "oar_admin", "oar_client", "oar_planner"])
def test_only_client_users_can_be_changed_or_removed(on_hub, name):
    for work in (remove_user, lambda c, n: set_password(c, n, "x")):
        with pytest.raises(HubError, match="there is no user"):
            on_hub(work, name)


@pytest.mark.parametrize(
    ("name", "reserved"), [("oar_admin", True), ("Pg_x", True), ("oarsman", False), ("pgx", False)]
)
def test_reserved_names(name, reserved):
    assert is_reserved(name) is reserved
