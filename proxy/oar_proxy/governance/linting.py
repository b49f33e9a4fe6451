"""``oar policy lint``: files by themselves, or all that a configuration names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from oar_adapters.recorded import Recorded
from oar_policies.lint import Finding, Surroundings
from oar_policies.lint import lint as lint_policies
from oar_policies.model import Policy

from oar_proxy.inspection import (
    findings,
    inspect,
    looks_up,
    read_catalog,
    read_policy,
    require_adapters,
    tables,
)
from oar_proxy.settings import ConfigurationError, load
from oar_proxy.unreadable import ScratchHub, unreadable


@dataclass(frozen=True, slots=True)
class Linted:
    """What was found. ``unread`` says of owners why they were not compared with their tables."""

    findings: Sequence[Finding]
    unread: Mapping[str, str]

    def document(self) -> dict[str, Any]:
        """The same as JSON's plain values."""
        return {
            "findings": [
                {
                    "code": finding.code,
                    "severity": finding.severity,
                    "owner": finding.owner,
                    "file": finding.source,
                    "line": finding.mark.line,
                    "column": finding.mark.column,
                    "message": finding.message,
                }
                for finding in self.findings
            ],
            "not_compared": dict(self.unread),
        }


async def lint(files: Sequence[Path], config: Path | None, catalog: Path | None) -> Linted:
    """Lint ``files``, or without any what the configuration names.

    Raises ``ConfigurationError``, and ``HubError`` where SQL in policies cannot be read.
    Owners of the configuration that cannot be reached, or are not in the catalog file, are passed
    over, and told of.
    """
    recorded = None if catalog is None else read_catalog(catalog)
    if files:
        return Linted(_lint_files(files, recorded), {})
    settings = load(config)
    if recorded is None:
        await require_adapters(settings)
    owners = await inspect(settings, recorded)
    unread = {owner.name: owner.fault for owner in owners if owner.fault is not None}
    async with ScratchHub() as scratch:
        unreadable_rules = await unreadable(owners, settings, scratch)
    return Linted([*findings(owners, settings), *unreadable_rules], unread)


def _lint_files(files: Sequence[Path], recorded: Mapping[str, Recorded] | None) -> list[Finding]:
    """Hold files against each other: each is its owner's, by its name without the suffix."""
    found: list[Finding] = []
    policies: dict[str, Policy] = {}
    for path in files:
        if path.stem in policies:
            raise ConfigurationError(f"two files are of owner {path.stem}: one is {path}")
        policy = read_policy(path.stem, path)
        if isinstance(policy, Finding):
            found.append(policy)
        else:
            policies[path.stem] = policy
    around = Surroundings(
        today=datetime.now(UTC).date(),
        owners=None if recorded is None else recorded.keys(),
        published={name: tables(owner) for name, owner in (recorded or {}).items()},
        looks_up=looks_up(recorded or {}),
        schemas={name: owner.schema for name, owner in (recorded or {}).items()},
    )
    return [*found, *lint_policies(policies, around)]
