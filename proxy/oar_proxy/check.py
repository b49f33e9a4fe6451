"""``oar check`` and ``oar catalog``: what the proxy would find, found without starting it."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import psycopg
import psycopg.conninfo
from oar_adapters.interface import OwnerError, OwnerSchema
from oar_adapters.registry import open_adapter
from oar_policies.decide import unmatched
from oar_policies.model import Policy, default_policy
from oar_policies.parse import PolicyError, load_policy
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from oar_proxy.catalog import Catalog, CatalogConflict, PublishedTable, build
from oar_proxy.drafters.replay import InvalidRecording, ReplayDrafter
from oar_proxy.gate import Gate
from oar_proxy.hub.address import HubError
from oar_proxy.hub.binaries import find_binaries
from oar_proxy.ledger import Ledger
from oar_proxy.settings import OwnerSettings, Settings

TIMEOUT: Final = 15.0
"""Seconds an owner or a hub has to answer: whoever checks is waiting in front of a terminal."""


@dataclass(frozen=True, slots=True)
class OwnerReport:
    """One owner: what it publishes before and after its policy, or why that is not known."""

    name: str
    technology: str
    schema: str
    everything: OwnerSchema | None = None
    visible: OwnerSchema | None = None
    faults: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Report:
    """What was found. ``catalog`` is None when the owners do not agree about a table."""

    owners: tuple[OwnerReport, ...]
    catalog: Catalog | None
    faults: tuple[str, ...] = field(default=())

    @property
    def sound(self) -> bool:
        """Whether nothing is wrong."""
        return not self.faults and not any(owner.faults for owner in self.owners)


async def examine(settings: Settings) -> Report:
    """Look at everything the configuration names. Faults are reported, not raised."""
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(_owner(settings, name, owner))
            for name, owner in settings.owners.items()
        ]
        hub = group.create_task(_hub(settings))
    owners = tuple(task.result() for task in tasks)
    faults = [*_own_files(settings), *hub.result()]
    if not owners:
        faults.append("owners: none is configured")
    catalog = None
    try:
        catalog = build(
            [(owner.name, owner.schema, owner.visible) for owner in owners if owner.visible]
        )
    except CatalogConflict as conflict:
        faults.append(str(conflict))
    return Report(owners, catalog, tuple(faults))


async def _owner(settings: Settings, name: str, owner: OwnerSettings) -> OwnerReport:
    url = owner.url.get_secret_value()
    technology = url.partition(":")[0]
    schema = owner.published_schema or name
    faults: list[str] = []
    try:
        policy = load_policy(owner.policy, name) if owner.policy else default_policy(name)
    except PolicyError as error:
        return OwnerReport(name, technology, schema, faults=(f"policy {error}",))
    faults.extend(_unknown_receivers(policy, settings.owners))
    everything = visible = None
    try:
        everything = await _published(url, owner.options)
    except (OwnerError, ValueError) as error:
        faults.append(str(error))
    except TimeoutError:
        faults.append(f"no answer within {TIMEOUT:.0f} seconds")
    else:
        names = {table.name: [c.name for c in table.columns] for table in everything.tables}
        faults.extend(
            f"policy {policy.source}:{miss.mark.line}:{miss.mark.column}: "
            f"{miss.name} is not published by this owner"
            for miss in unmatched(policy, names)
        )
        # Only the part of the gate that hides is used: with a ledger that is never opened, nothing
        # could be put on it, so nothing could be asked.
        ledger = Ledger("")
        visible = Gate({name: policy}, ledger, settings.limits).visible(name, everything)
    return OwnerReport(name, technology, schema, everything, visible, tuple(faults))


async def _published(url: str, options: Mapping[str, str]) -> OwnerSchema:
    adapter = open_adapter(url, options)
    try:
        async with asyncio.timeout(TIMEOUT):
            return await adapter.schema()
    finally:
        await adapter.close()


def _unknown_receivers(policy: Policy, owners: Mapping[str, object]) -> Iterator[str]:
    for grant in (*policy.key_disclosure, *(policy.accept_keys or ())):
        for other in sorted((grant.owners or frozenset()) - owners.keys()):
            yield (
                f"policy {policy.source}:{grant.mark.line}:{grant.mark.column}: "
                f"no owner {other} is configured"
            )


async def _hub(settings: Settings) -> list[str]:
    try:
        if settings.hub.dsn is None:
            await asyncio.to_thread(find_binaries)
            return []
        dsn = settings.hub.dsn.get_secret_value()
        async with asyncio.timeout(TIMEOUT), await psycopg.AsyncConnection.connect(dsn):
            return []
    except HubError as error:
        return [error.message]
    except psycopg.ProgrammingError:
        # libpq's own text quotes the connection string.
        return ["hub.dsn is not a PostgreSQL connection string"]
    except psycopg.OperationalError as error:
        return [f"hub: {' '.join(str(error).split())}"]
    except TimeoutError:
        return [f"hub: no answer within {TIMEOUT:.0f} seconds"]


def _own_files(settings: Settings) -> Iterator[str]:
    listen, drafter = settings.listen, settings.drafter
    if listen.tls_certificate is not None:
        try:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(listen.tls_certificate, listen.tls_key)
        except OSError as error:
            yield f"listen.tls_certificate, listen.tls_key: {error.strerror or error}"
    if drafter.kind == "replay" and drafter.file is not None:
        try:
            ReplayDrafter.from_file(drafter.file)
        except InvalidRecording as error:
            yield f"drafter.file: {error}"
        except OSError as error:
            yield f"drafter.file: {error.strerror}"


def print_report(report: Report) -> None:
    """Print a line an owner, then the faults."""
    console = Console()
    table = RichTable("owner", "technology", "schema", "tables", "hidden", "state")
    for owner in report.owners:
        everything, visible = owner.everything, owner.visible
        known = everything is not None and visible is not None
        table.add_row(
            owner.name,
            owner.technology,
            owner.schema,
            str(len(visible.tables)) if visible else "",
            f"{_hidden(everything, visible)} columns" if known else "",
            "[red]fault[/red]" if owner.faults else "[green]ok[/green]",
        )
    console.print(table)
    for owner in report.owners:
        for fault in owner.faults:
            console.print(f"[red]owner {owner.name}[/red]: {escape(fault)}", soft_wrap=True)
    for fault in report.faults:
        console.print(f"[red]fault[/red]: {escape(fault)}", soft_wrap=True)


def _hidden(everything: OwnerSchema | None, visible: OwnerSchema | None) -> int:
    return _columns(everything) - _columns(visible)


def _columns(schema: OwnerSchema | None) -> int:
    return sum(len(table.columns) for table in schema.tables) if schema else 0


def print_catalog(catalog: Catalog) -> None:
    """Print every published table: columns, types, keys, comments and who holds its rows."""
    console = Console()
    for table in catalog.tables.values():
        console.print(_catalog_table(table))


def _catalog_table(table: PublishedTable) -> RichTable:
    keys = {table.primary_key, *table.unique_keys} - {()}
    shown = RichTable(
        "column",
        "type",
        "",
        "comment",
        title=f"[bold]{escape(table.schema)}.{escape(table.name)}[/bold]",
        title_justify="left",
        caption="; ".join(
            [
                f"rows held by {', '.join(table.owners)}",
                f"about {table.row_estimate:,.0f} rows",
                *(f"key ({', '.join(key)})" for key in sorted(keys)),
                *([table.comment] if table.comment else []),
            ]
        ),
        caption_justify="left",
    )
    for column in table.columns:
        null = "not null" if column.not_null else ""
        shown.add_row(escape(column.name), column.type, null, escape(column.comment or ""))
    return shown
