"""Compare the lock files with pyproject.toml and each other, without a network.

Every requirement of the package, its extras build and dev and its build backend has to be pinned
in requirements.lock by a version that satisfies it, with hashes, and the lock may name no package
index. The image's lock is the part of it that is needed to build and run.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Collection, Iterable
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent


def wanted(pyproject: Path, extras: Collection[str]) -> list[Requirement]:
    """Return the direct requirements that the project states, with those of some extras."""
    content = tomllib.loads(pyproject.read_text(encoding="utf-8"))
    project = content["project"]
    texts = [*project["dependencies"], *content["build-system"]["requires"]]
    for name, extra in project["optional-dependencies"].items():
        if name in extras:
            texts.extend(extra)
    return [Requirement(text) for text in texts]


def pinned(lock: str) -> dict[str, list[Version]]:
    """Return the versions the lock pins by package; one package may have one a Python version."""
    pins: dict[str, list[Version]] = {}
    for name, version in re.findall(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)", lock, re.MULTILINE):
        pins.setdefault(canonicalize_name(name), []).append(Version(version))
    return pins


def faults(requirements: Iterable[Requirement], lock: Path) -> list[str]:
    """Return one line for everything that is wrong with a lock file."""
    text = lock.read_text(encoding="utf-8")
    pins = pinned(text)
    found = []
    for requirement in requirements:
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


def differences(part: Path, whole: Path) -> list[str]:
    """Return one line for every package that ``part`` pins otherwise than ``whole``."""
    pins = pinned(whole.read_text(encoding="utf-8"))
    return [
        f"{name}: {part} has {version}, {whole.name} has not"
        for name, versions in pinned(part.read_text(encoding="utf-8")).items()
        for version in versions
        if version not in pins.get(name, [])
    ]


def main() -> int:
    """Print the faults; the exit status says whether there were any."""
    pyproject = ROOT / "pyproject.toml"
    whole, image = ROOT / "requirements.lock", ROOT / "docker" / "requirements.lock"
    found = [
        *faults(wanted(pyproject, ("build", "dev")), whole),
        *faults(wanted(pyproject, ("build",)), image),
        *differences(image, whole),
    ]
    for line in found:
        print(f"lock: {line}", file=sys.stderr)
    if found:
        print("hint: run make lock and commit both lock files", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
