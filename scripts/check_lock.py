"""Compare requirements.lock with pyproject.toml, without a network.

Every requirement of the package, its extras and its build backend has to be pinned in the lock by
a version that satisfies it, with hashes, and the lock may name no package index.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent


def wanted(pyproject: Path) -> list[Requirement]:
    """Return all direct requirements that the project states."""
    content = tomllib.loads(pyproject.read_text(encoding="utf-8"))
    project = content["project"]
    texts = [*project["dependencies"], *content["build-system"]["requires"]]
    for extra in project.get("optional-dependencies", {}).values():
        texts.extend(extra)
    return [requirement for text in texts if (requirement := Requirement(text)).name != "oar"]


def pinned(lock: str) -> dict[str, list[Version]]:
    """Return the versions the lock pins by package; one package may have one a Python version."""
    pins: dict[str, list[Version]] = {}
    for name, version in re.findall(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)", lock, re.MULTILINE):
        pins.setdefault(canonicalize_name(name), []).append(Version(version))
    return pins


def faults(pyproject: Path, lock: Path) -> list[str]:
    """Return one line for everything in which the two files differ."""
    text = lock.read_text(encoding="utf-8")
    pins = pinned(text)
    found = []
    for requirement in wanted(pyproject):
        versions = pins.get(canonicalize_name(requirement.name), [])
        if not versions:
            found.append(f"{requirement.name}: not in {lock.name}")
        found.extend(
            f"{requirement.name}: {lock.name} has {version}, wanted {requirement.specifier}"
            for version in versions
            if version not in requirement.specifier
        )
    for block in re.split(r"\n(?=[A-Za-z0-9])", text):
        name = re.match(r"([A-Za-z0-9._-]+)==", block)
        if name and "--hash=sha256:" not in block:
            found.append(f"{name[1]}: no hash in {lock.name}")
    if "://" in text:
        found.append(f"{lock.name}: names an address; packages come from whatever index pip has")
    return found


def main() -> int:
    """Print the faults; the exit status says whether there were any."""
    found = faults(ROOT / "pyproject.toml", ROOT / "requirements.lock")
    for line in found:
        print(f"lock: {line}", file=sys.stderr)
    if found:
        print("hint: run make lock and commit requirements.lock", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
