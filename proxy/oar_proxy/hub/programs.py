"""Running the server's programs: as its OS user, and with next to nothing of our environment."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from oar_proxy.hub.account import Account
from oar_proxy.hub.address import HubError
from oar_proxy.hub.binaries import ServerBinaries, copy_binaries

_KEPT: Final = ("GLIBC_TUNABLES", "LD_LIBRARY_PATH", "TMPDIR", "TZ")
"""What the server's programs are given of the proxy's environment."""


@dataclass(frozen=True, slots=True)
class Programs:
    """PostgreSQL's programs over the data directory ``pgdata``.

    They run as ``account``, None: as the proxy's own OS user, and write their logs into ``log``.
    """

    binaries: ServerBinaries
    account: Account | None
    pgdata: Path
    log: Path

    def reachable(self, copies: Path) -> Programs:
        """Return these, or a copy of them below ``copies`` where their OS user may not read them.

        Raises :class:`HubError` that says what keeps that user out of the hub's directory.
        """
        if self.account is None:
            return self
        blocked = self._closed(self.log)
        if blocked is not None:
            raise HubError(
                f"the hub's server runs as OS user {self.account.name}, which may not enter "
                f"{blocked} to reach the hub's directory",
                hint=f"set hub.data_dir to one that it can reach, allow it (chmod o+x {blocked}), "
                "or run oar as an ordinary user",
            )
        if self._closed(self.binaries.directory) is None:
            return self
        # Root's own installations lie below its home, which nobody else may enter.
        return replace(self, binaries=copy_binaries(self.binaries, copies))

    def run(self, name: str, *arguments: str) -> None:
        """Run a program to its end. Raises :class:`HubError` with the reason why it failed."""
        began = time.time()
        answer = self._run([str(self.binaries.directory / name), *arguments])
        if answer.returncode != 0:
            written = [
                path.read_text(errors="replace")
                for path in sorted(self.log.iterdir(), key=lambda path: path.stat().st_mtime)
                if path.stat().st_mtime >= began - 1
            ]
            reason = _reason([answer.stderr, *written])
            raise HubError(f"the hub's {name} failed: {reason}", hint=f"see {self.log}")

    def _closed(self, directory: Path) -> Path | None:
        """Return the first directory on the way there that the programs' OS user may not enter."""
        resolved = directory.resolve()
        path = [*reversed(resolved.parents), resolved]
        return next((step for step in path if not self._may_enter(step)), None)

    def _may_enter(self, directory: Path) -> bool:
        command = ["/bin/sh", "-c", 'cd -P -- "$1"', "sh", str(directory)]
        return self._run(command).returncode == 0

    def _run(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        # A clean environment: the proxy's holds owners' credentials, and PG… variables would
        # change what the programs do.
        kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
        account = self.account
        return subprocess.run(  # noqa: S603 - programs found by this package
            command,
            user=account.uid if account else None,
            group=account.gid if account else None,
            extra_groups=[] if account else None,
            umask=0o077,
            # pg_ctl puts paths into a shell's command line between double quotes, which not every
            # path survives: so the data directory travels in the environment, the log as a name.
            cwd=self.log,
            env={"PATH": "/usr/bin:/bin", "LC_ALL": "C", "PGDATA": str(self.pgdata)} | kept,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )


def _reason(outputs: Sequence[str]) -> str:
    """Return the last line that says why a program failed, without its level."""
    lines = [line.strip() for output in outputs for line in output.splitlines() if line.strip()]
    for level in ("FATAL:", "PANIC:", "error:"):
        for line in reversed(lines):
            if level in line:
                return line.partition(level)[2].strip()
    return lines[-1] if lines else "it said nothing"
