"""``oar user …`` on a hub without a proxy, and the log-in that follows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psycopg
import psycopg.conninfo
import pytest

OAR = Path(sys.executable).with_name("oar")


@pytest.fixture(scope="module")
def oar(hub, tmp_path_factory):
    config = tmp_path_factory.mktemp("users") / "oar.yaml"
    config.write_text("{}")

    def run(*arguments: str, status: int = 0, **environment: str) -> list[str]:
        done = subprocess.run(
            [OAR, "user", *arguments],
            capture_output=True,
            check=False,
            encoding="utf-8",
            timeout=60,
            env={
                "PATH": "/usr/bin:/bin",
                "OAR_CONFIG": str(config),
                "OAR_HUB__DSN": hub.conninfo,
                **environment,
            },
        )
        assert done.returncode == status, done.stderr
        return (done.stdout if status == 0 else done.stderr).splitlines()

    return run


def log_in(hub, name: str, password: str) -> None:
    conninfo = psycopg.conninfo.make_conninfo(hub.conninfo, user=name, password=password)
    psycopg.connect(conninfo).close()


def test_a_user_s_life(hub, oar):
    name = f"мария {hub.database}"
    assert oar("add", name, "--password-from", "NEW", NEW="пароль") == []
    log_in(hub, name, "пароль")
    assert name in oar("list")
    assert oar("add", name, "--password-from", "NEW", NEW="x", status=1) == [
        f'oar: user "{name}" exists already'
    ]
    oar("password", name, "--password-from", "NEW", NEW="another")
    log_in(hub, name, "another")
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        log_in(hub, name, "пароль")
    oar("remove", name)
    assert name not in oar("list")
    assert oar("remove", name, status=1)[0] == f'oar: there is no user "{name}"'


def test_an_auditor_is_marked(hub, oar):
    name = f"auditor {hub.database}"
    oar("add", name, "--auditor", "--password-from", "NEW", NEW="x")
    assert f"{name} (auditor)" in oar("list")
    oar("remove", name)


def test_a_password_variable_that_is_not_there(oar):
    assert "there is no environment variable NOWHERE" in " ".join(
        oar("add", "x", "--password-from", "NOWHERE", status=2)
    )


def test_reserved_names_are_refused(oar):
    assert oar("add", "oar_x", "--password-from", "NEW", NEW="x", status=1)[0] == (
        'oar: user name "oar_x" is reserved'
    )
