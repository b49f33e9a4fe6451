"""``oar check`` and ``oar catalog``: what the proxy would find, found without starting it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import psycopg
import psycopg.conninfo
from oar_adapters.interface import OwnerSchema
from oar_adapters.recorded import Recorded
from oar_policies.lint import Finding
from psycopg.rows import TupleRow
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from oar_proxy.catalog import Catalog, PublishedTable, build
from oar_proxy.drafters.replay import InvalidRecording, ReplayDrafter
from oar_proxy.gate import Gate
from oar_proxy.hub import inforce
from oar_proxy.hub.address import HubError
from oar_proxy.hub.binaries import find_binaries
from oar_proxy.hub.refusals import RefusedTable
from oar_proxy.hub.server import running_hub
from oar_proxy.inspection import TIMEOUT, Inspected, findings, inspect
from oar_proxy.ledger import Ledger
from oar_proxy.publishing import less, unfit_tables
from oar_proxy.settings import ConfigurationError, Settings
from oar_proxy.tls import open_certificate
from oar_proxy.unreadable import ScratchHub, refused_tables, unreadable
from oar_proxy.verified.answers import load_answers
from oar_proxy.verified.entry import EntryError


@dataclass(frozen=True, slots=True)
class Report:
    """What was found. ``catalog`` has what would be published.

    ``visible`` is what policies leave of the tables of each owner that could be read.
    """

    owners: tuple[Inspected, ...]
    technologies: Mapping[str, str]
    visible: Mapping[str, OwnerSchema]
    findings: tuple[Finding, ...]
    catalog: Catalog
    faults: tuple[str, ...] = field(default=())
    unpublished: tuple[str, ...] = field(default=())
    """Why tables are not in the catalog that policies leave in it."""

    @property
    def sound(self) -> bool:
        """Whether nothing is wrong. Rules without an effect are told of, and are not wrong."""
        return self.complete and not self.unpublished

    @property
    def complete(self) -> bool:
        """Whether the catalog is that of a proxy: nothing is wrong but with single tables."""
        return not (
            self.faults
            or any(owner.fault for owner in self.owners)
            or any(finding.severity == "error" for finding in self.findings)
        )

    def recorded(self) -> dict[str, Recorded]:
        """Everything that owners have, hidden or not, for a catalog file."""
        return {owner.name: owner.recorded for owner in self.owners if owner.recorded}


async def examine(settings: Settings) -> Report:
    """Look at everything the configuration names. Faults are reported, not raised."""
    async with asyncio.TaskGroup() as group:
        inspecting = group.create_task(inspect(settings))
        hub = group.create_task(_hub(settings))
    owners = inspecting.result()
    faults = [*_own_files(settings), *hub.result()]
    if not owners:
        faults.append("owners: none is configured")
    # Only the part of the gate that hides is used: with a ledger that is never opened, nothing
    # could be put on it, so nothing could be asked.
    known = {o.name: o.policy for o in owners if o.policy is not None and o.recorded is not None}
    gate = Gate(known, Ledger(""), settings.limits)
    visible = {
        owner.name: gate.visible(owner.name, owner.recorded.content)
        for owner in owners
        if owner.name in known and owner.recorded is not None
    }
    left = {o.name: (o.schema, visible[o.name]) for o in owners if o.name in visible}
    unfit = list(unfit_tables(left))
    unpublished = [_unpublished(it.owner, it.table, it.reason, it.hint) for it in unfit]
    hidden = {(left[it.owner][0], it.table) for it in unfit}
    catalog = build(less(left, hidden), groups=gate.groups())
    found = findings(owners, settings)
    refused: Sequence[RefusedTable] = ()
    try:
        async with ScratchHub() as scratch:
            refused = await refused_tables(catalog, scratch)
            found += await unreadable(owners, settings, scratch)
    except HubError as error:
        faults.append(error.message)
    for it in refused:
        unpublished.append(_unpublished(", ".join(it.owners), it.key[1], it.reason, it.hint))
    catalog = catalog.less({it.key for it in refused})
    technologies = {
        name: owner.url.get_secret_value().partition(":")[0]
        for name, owner in settings.owners.items()
    }
    return Report(
        owners,
        technologies,
        visible,
        tuple(found),
        catalog,
        faults=tuple(faults),
        unpublished=tuple(unpublished),
    )


def _unpublished(owners: str, table: str, reason: str, hint: str) -> str:
    return f"owner {owners}: table {table} is not published: {reason} ({hint})"


async def _hub(settings: Settings) -> list[str]:
    try:
        if settings.hub.dsn is None:
            await asyncio.to_thread(find_binaries)
            running = running_hub(settings.hub)
            if running is None:
                return []
            dsn = running.conninfo
        else:
            dsn = psycopg.conninfo.make_conninfo(settings.hub.dsn.get_secret_value())
        connecting = psycopg.AsyncConnection.connect(dsn, autocommit=True)
        async with asyncio.timeout(TIMEOUT), await connecting as connection:
            return await _not_reloaded(connection, settings)
    except HubError as error:
        return [error.message]
    except psycopg.OperationalError as error:
        return [f"hub: {' '.join(str(error).split())}"]
    except TimeoutError:
        return [f"hub: no answer within {TIMEOUT:.0f} seconds"]


async def _not_reloaded(
    connection: psycopg.AsyncConnection[TupleRow], settings: Settings
) -> list[str]:
    """Tell where the proxy of this configuration runs on with older policies than its files."""
    proxy = inforce.proxy_name(settings.listen)
    failure = await inforce.failure(connection, proxy)
    if failure is None:
        return []
    return [
        f"proxy {proxy} could not read its policies at {failure.at:%Y-%m-%d %H:%M:%S %Z}, "
        f"and those in force stay: {failure.reason}"
    ]


def _own_files(settings: Settings) -> Iterator[str]:
    listen, drafter = settings.listen, settings.drafter
    try:
        open_certificate(listen)
    except ConfigurationError as error:
        yield error.message
    if drafter.kind == "replay" and drafter.file is not None:
        try:
            ReplayDrafter.from_file(drafter.file)
        except InvalidRecording as error:
            yield f"drafter.file: {error}"
        except OSError as error:
            yield f"drafter.file: {error.strerror}"
    try:
        load_answers(settings.verified)
    except EntryError as error:
        yield f"verified answer {error}"


def print_report(report: Report) -> None:
    """Print a line an owner, then the faults."""
    console = Console()
    table = RichTable("owner", "technology", "schema", "tables", "hidden", "state")
    wrong = {finding.owner for finding in report.findings if finding.severity == "error"}
    for owner in report.owners:
        visible = report.visible.get(owner.name)
        everything = owner.recorded.content if owner.recorded else None
        known = everything is not None and visible is not None
        table.add_row(
            owner.name,
            report.technologies[owner.name],
            owner.schema,
            str(len(visible.tables)) if visible else "",
            f"{_hidden(everything, visible)} columns" if known else "",
            "[red]fault[/red]" if owner.fault or owner.name in wrong else "[green]ok[/green]",
        )
    console.print(table)
    for owner in report.owners:
        if owner.fault:
            console.print(f"[red]owner {owner.name}[/red]: {escape(owner.fault)}", soft_wrap=True)
        for finding in report.findings:
            if finding.owner == owner.name:
                colour = "red" if finding.severity == "error" else "yellow"
                told = f"[{colour}]owner {owner.name}[/{colour}]: policy {escape(str(finding))}"
                console.print(told, soft_wrap=True)
    for fault in (*report.unpublished, *report.faults):
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
