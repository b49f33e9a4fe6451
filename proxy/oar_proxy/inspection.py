"""Owners and their files, looked at without a proxy: what each has, and what lint says of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from oar_adapters.interface import Adapter, OwnerError
from oar_adapters.recorded import InvalidCatalog, Recorded
from oar_adapters.recorded import read as read_recorded
from oar_adapters.registry import open_adapter
from oar_policies.lint import Finding, Surroundings, Tables, lint
from oar_policies.model import Form, Mark, Policy, default_policy
from oar_policies.parse import PolicyError, load_policies, load_policy

from oar_proxy.edges import key_type
from oar_proxy.predicate import relayable
from oar_proxy.settings import ConfigurationError, OwnerSettings, Settings

TIMEOUT: Final = 15.0
"""Seconds an owner or a hub has to answer: whoever checks is waiting in front of a terminal."""


@dataclass(frozen=True, slots=True)
class Inspected:
    """One owner.

    ``policy`` is None where its file is ``invalid``, ``recorded`` where it is not known what the
    owner has, of which ``fault`` says why.
    """

    name: str
    schema: str
    policy: Policy | None = None
    invalid: Finding | None = None
    recorded: Recorded | None = None
    fault: str | None = None


async def inspect(
    settings: Settings, catalog: Mapping[str, Recorded] | None = None
) -> tuple[Inspected, ...]:
    """Read every owner's file, and what it has: from a catalog file, or by asking it.

    What cannot be read is told of, not raised.
    """
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(_inspect(name, owner, catalog))
            for name, owner in settings.owners.items()
        ]
    return tuple(task.result() for task in tasks)


async def _inspect(
    name: str, owner: OwnerSettings, catalog: Mapping[str, Recorded] | None
) -> Inspected:
    schema = owner.published_schema or name
    policy = read_policy(name, owner.policy)
    invalid = policy if isinstance(policy, Finding) else None
    known = policy if isinstance(policy, Policy) else None
    recorded = fault = None
    if catalog is not None:
        recorded = catalog.get(name)
        fault = None if recorded else "the catalog file does not have it"
    else:
        try:
            recorded = await _ask(name, owner, schema)
        except OwnerError as error:
            fault = str(error)
        except ConfigurationError as error:
            fault = str(error.__cause__)
        except TimeoutError:
            fault = f"no answer within {TIMEOUT:.0f} seconds"
        except Exception as error:  # noqa: BLE001 - an adapter's fault must not stop the others
            fault = f"its adapter failed: {type(error).__name__}"
    return Inspected(name, schema, known, invalid, recorded, fault)


def open_owner(name: str, owner: OwnerSettings) -> Adapter:
    """Make an owner's adapter; it is not contacted. Raises ``ConfigurationError``."""
    try:
        return open_adapter(owner.url.get_secret_value(), owner.options)
    except ValueError as error:
        raise ConfigurationError(f"owners.{name}: {error}") from error


async def require_adapters(settings: Settings) -> None:
    """Raise ``ConfigurationError`` where no adapter takes an owner's URL and options."""
    for name, owner in settings.owners.items():
        await open_owner(name, owner).close()


async def _ask(name: str, owner: OwnerSettings, schema: str) -> Recorded:
    adapter = open_owner(name, owner)
    try:
        async with asyncio.timeout(TIMEOUT):
            content = await adapter.schema()
        return Recorded(schema, adapter.capabilities, content.tables)
    finally:
        await adapter.close()


def configured_policies(settings: Settings) -> dict[str, Policy]:
    """Read every owner's file, all or none. Raises ``ConfigurationError``."""
    try:
        return load_policies({name: owner.policy for name, owner in settings.owners.items()})
    except PolicyError as error:
        raise ConfigurationError(str(error)) from error


def read_policy(owner: str, path: Path | None) -> Policy | Finding:
    """Read an owner's file, if it has one; a finding where it is no policy."""
    try:
        return default_policy(owner) if path is None else load_policy(path, owner)
    except PolicyError as error:
        mark = Mark(error.line, error.column)
        return Finding("invalid", owner, error.source, mark, error.message)


def read_catalog(path: Path) -> dict[str, Recorded]:
    """Read a catalog file. Raises ``ConfigurationError``."""
    try:
        return read_recorded(path.read_bytes())
    except OSError as error:
        raise ConfigurationError(f"catalog file {path}: {error.strerror}") from None
    except InvalidCatalog as error:
        raise ConfigurationError(
            f"catalog file {path}: {error}", hint="oar catalog --format json writes one"
        ) from None


def findings(owners: Sequence[Inspected], settings: Settings) -> list[Finding]:
    """Say what is wrong with the files of owners, in their order."""
    found = lint(
        {owner.name: owner.policy for owner in owners if owner.policy is not None},
        Surroundings(
            today=datetime.now(UTC).date(),
            owners=settings.owners.keys(),
            published={o.name: tables(o.recorded) for o in owners if o.recorded is not None},
            looks_up=looks_up({o.name: o.recorded for o in owners if o.recorded is not None}),
            max_keys=settings.limits.max_keys,
            schemas={owner.name: owner.schema for owner in owners},
        ),
    )
    return [*(owner.invalid for owner in owners if owner.invalid is not None), *found]


def looks_up(owners: Mapping[str, Recorded]) -> Callable[[str, str, str, Form], bool]:
    """Return what tells whether an owner looks up keys of a type in a column of another type."""

    def tell(owner: str, source: str, target: str, form: Form) -> bool:
        if not relayable(source, target):
            return False
        digested = owners[owner].capabilities.digested_types
        return form == "plain" or key_type((source, target)) in digested

    return tell


def tables(recorded: Recorded) -> Tables:
    """Return an owner's columns and their types by table."""
    return {t.name: {c.name: c.type for c in t.columns} for t in recorded.tables}
