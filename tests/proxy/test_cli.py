from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

OAR = Path(sys.executable).with_name("oar")


def oar(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [OAR, *arguments],
        check=False,
        capture_output=True,
        encoding="utf-8",
        env={"PATH": "/usr/bin:/bin", "COLUMNS": "100", "LC_ALL": "C.UTF-8", **environment},
        timeout=60,
        stdin=subprocess.DEVNULL,
        start_new_session=True,  # without a terminal
    )


def test_help_lists_the_commands():
    shown = oar("--help")
    assert shown.returncode == 0
    assert [
        name
        for name in ("serve", "demo", "ask", "explain", "check", "catalog", "user", "bench")
        if f"│ {name} " not in shown.stdout
    ] == []


def test_the_version_is_told():
    assert re.fullmatch(r"oar \d+\.\d+\.\d+\n", oar("--version").stdout)


def served(host: str, port: int) -> subprocess.CompletedProcess[str]:
    """Run ``oar serve`` where it cannot listen."""
    with tempfile.TemporaryDirectory(prefix="oar-cli-") as directory:
        Path(directory).chmod(0o711)
        config = Path(directory, "oar.yaml")
        config.write_text(f"listen: {{host: {host}, port: {port}}}\n")
        return oar("serve", "-c", str(config))


def test_an_address_that_is_none_is_named():
    done = served("300.1.1.1", 0)
    assert done.returncode == 3
    *logged, last = done.stderr.splitlines()
    assert last.startswith("oar: listen.host 300.1.1.1, port 0: ")
    assert any("no owner is configured" in line for line in logged)


def test_an_address_that_is_in_use_is_named():
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        done = served("127.0.0.1", port)
    assert done.returncode == 3
    *_, error, hint = done.stderr.splitlines()
    assert error == f"oar: listen.host 127.0.0.1, port {port}: Address already in use"
    assert hint == "hint: set another listen.port"


def test_help_imports_nothing_that_is_slow():
    """Counted in modules, since a time would depend on the machine."""
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; import oar_proxy.cli; "
            "print([m for m in ('asyncpg', 'litellm', 'pglast', 'psycopg', 'pydantic', 'sqlglot',"
            " 'structlog', 'uvloop', 'oar_bench') if m in sys.modules])",
        ],
        capture_output=True,
        encoding="utf-8",
        check=True,
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("command", ["ask", "explain"])
def test_no_proxy_is_said_in_one_line_with_a_hint(command: str):
    done = oar(command, "How many orders?", "--dsn", "host=127.0.0.1 port=1 dbname=oar user=x")
    assert done.returncode == 3
    assert done.stdout == ""
    first, second = done.stderr.splitlines()
    assert first.startswith('oar: connection failed: connection to server at "127.0.0.1", port 1')
    assert second.startswith("hint: is oar serve running there?")


LATIN = os.fsdecode(b"\xef\xf0")


@pytest.mark.parametrize("command", ["ask", "policy explain", "user remove"])
def test_an_argument_in_another_encoding_is_refused(command):
    words = command.split()
    done = oar(*words, LATIN)
    assert done.returncode == 2
    assert done.stderr == f"oar: argument {len(words) + 1} is not text in UTF-8\n"


def test_so_is_what_the_environment_has_instead():
    asked = oar("ask", "x", OAR_DSN=LATIN)
    assert asked.returncode == 2
    assert asked.stderr.startswith("oar: --dsn is not a PostgreSQL connection string\n")
    added = oar("user", "add", "ann", "-c", "oar.yaml", "--password-from", "LATIN", LATIN=LATIN)
    assert added.returncode == 2
    assert "variable LATIN is not text in UTF-8" in added.stderr


@pytest.mark.parametrize("command", ["ask", "explain"])
def test_a_configuration_on_the_command_line_counts_more_than_the_environment(command, tmp_path):
    config = tmp_path / "oar.yaml"
    config.write_text("listen: {port: 2}\n")
    elsewhere = "host=127.0.0.1 port=1 dbname=oar user=x"
    done = oar(command, "x", "--config", str(config), OAR_DSN=elsewhere)
    assert "port 2" in done.stderr
    for said in ((), ("--dsn", elsewhere, "--config", str(config))):
        done = oar(command, "x", *said, OAR_DSN=elsewhere, OAR_CONFIG=str(config))
        assert "port 1" in done.stderr


@pytest.mark.parametrize(
    "dsn", ["s3cret", "postgresql://u:s3cret@host/oar?nope=1", "password=s3cret x"]
)
def test_a_connection_string_that_is_none_is_not_repeated(dsn: str):
    for done in (oar("ask", "x", "--dsn", dsn), oar("explain", "x", OAR_DSN=dsn)):
        assert done.returncode == 2
        first, second = done.stderr.splitlines()
        assert first == "oar: --dsn is not a PostgreSQL connection string"
        assert second.startswith("hint: such as postgresql://")


@pytest.mark.parametrize(
    "arguments",
    [("serve",), ("check",), ("catalog",), ("user", "list"), ("ask", "x"), ("explain", "x")],
    ids=" ".join,
)
def test_a_configuration_that_is_not_there(arguments: tuple[str, ...], tmp_path: Path):
    done = oar(*arguments, OAR_CONFIG=str(tmp_path / "oar.yaml"))
    assert done.returncode == 2
    first, second = done.stderr.splitlines()
    assert first == (
        f"oar: configuration file {tmp_path / 'oar.yaml'} cannot be read: No such file or directory"
    )
    assert second.startswith("hint: ")


def test_usage_errors_have_a_status_of_their_own():
    assert oar("ask").returncode == 2
    assert oar("nonsense").returncode == 2


@pytest.mark.parametrize("command", ["add", "password"])
def test_without_a_terminal_a_password_is_not_asked_for(command: str, tmp_path: Path):
    (tmp_path / "oar.yaml").write_text("owners: {}\n")
    done = oar("user", command, "alice", "--config", str(tmp_path / "oar.yaml"))
    assert done.returncode == 2
    said = " ".join(done.stderr.replace("│", " ").split())
    assert "Invalid value for --password-from: there is no terminal to ask for" in said
    assert "Warning" not in said


def test_benchmark_commands_are_mounted():
    shown = oar("bench", "--help")
    assert shown.returncode == 0
    assert "Usage: oar bench " in shown.stdout
