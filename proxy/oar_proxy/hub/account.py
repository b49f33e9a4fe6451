"""The OS user the embedded server runs as: another where the proxy runs as root."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from oar_proxy.hub.address import HubError

SERVER_ACCOUNT: Final = "oar-hub"
"""The OS user the server runs as when the proxy runs as root; created when missing."""

_ACCOUNT_TRIES: Final = 5
_ACCOUNT_SECONDS: Final = 0.2
"""Between two attempts: meanwhile another program may hold the lock of /etc/passwd."""


@dataclass(frozen=True, slots=True)
class Account:
    """An OS user other than the proxy's. ``name`` is what an operator is told."""

    uid: int
    gid: int
    name: str


def server_account(pgdata: Path) -> Account | None:
    """Return the OS user that a server over ``pgdata`` has to run as; None: the proxy's own.

    Raises :class:`HubError` when none can.
    """
    owner = pgdata.stat().st_uid if pgdata.exists() else None
    if os.geteuid() != 0:
        if owner not in (None, os.geteuid()):
            raise HubError(
                f"hub directory {pgdata} belongs to another OS user (uid {owner})",
                hint="run oar as that user or as root, or set hub.data_dir",
            )
        if owner is None:
            _require_name(os.geteuid())
        return None
    if owner == 0:
        raise HubError(
            f"hub directory {pgdata} belongs to root, as which no PostgreSQL runs",
            hint=f"chown -R {SERVER_ACCOUNT} {pgdata}",
        )
    if owner is not None:
        return Account(owner, pgdata.stat().st_gid, f"uid {owner}")
    return _dedicated_account()


def _require_name(uid: int) -> None:
    try:
        pwd.getpwuid(uid)
    except KeyError:
        raise HubError(
            f"the OS user oar runs as (uid {uid}) has no name, and initdb needs one",
            hint="add it to /etc/passwd, run oar as a named user, or set hub.dsn",
        ) from None


def _dedicated_account() -> Account:
    try:
        entry = pwd.getpwnam(SERVER_ACCOUNT)
    except KeyError:
        entry = _create_account()
    return Account(entry.pw_uid, entry.pw_gid, entry.pw_name)


def _create_account() -> pwd.struct_passwd:
    commands = {
        "useradd": ["--system", "--user-group", "--no-create-home", "--shell", "/bin/false"],
        "adduser": ["-S", "-D", "-H", "-s", "/bin/false"],  # BusyBox
    }
    for program, arguments in commands.items():
        path = shutil.which(program, path="/usr/sbin:/sbin:/usr/bin:/bin")
        if path is None:
            continue
        for _ in range(_ACCOUNT_TRIES):
            subprocess.run(  # noqa: S603 - a fixed program and fixed arguments
                [path, *arguments, SERVER_ACCOUNT], capture_output=True, check=False
            )
            # Whoever made it: two proxies that start together both try.
            with contextlib.suppress(KeyError):
                return pwd.getpwnam(SERVER_ACCOUNT)
            time.sleep(_ACCOUNT_SECONDS)
    raise HubError(
        f"PostgreSQL does not run as root, and OS user {SERVER_ACCOUNT} could not be created",
        hint=f"create a system user {SERVER_ACCOUNT}, run oar as an ordinary user, or set hub.dsn",
    )
