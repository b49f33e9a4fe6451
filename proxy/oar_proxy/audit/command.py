"""``oar audit``: verify, read, export and prune the ledger."""

from __future__ import annotations

import json
import uuid
from contextlib import aclosing
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from oar_proxy.commandline import (
    FAULTS,
    Config,
    Format,
    FormatOption,
    OptionalConfig,
    at_hub,
    counted,
    fail,
    on_hub,
    print_json,
)

if TYPE_CHECKING:
    from oar_proxy.chain import Entry, Report
    from oar_proxy.hub.address import HubAddress

audit = typer.Typer(no_args_is_help=True, help="Verify, read, export and prune the ledger.")


Since = Annotated[datetime | None, typer.Option("--since", help="From this time on, UTC.")]
Until = Annotated[datetime | None, typer.Option("--until", help="Before this time, UTC.")]


@audit.command("verify")
def verify(
    file: Annotated[
        Path | None, typer.Argument(help="A ledger file.", exists=True, dir_okay=False)
    ] = None,
    config: OptionalConfig = None,
    heads: Annotated[
        Path | None,
        typer.Option(
            "--heads", help="What an earlier run printed as JSON.", exists=True, dir_okay=False
        ),
    ] = None,
    form: FormatOption = Format.text,
) -> None:
    """Find entries that were changed, removed, reordered, inserted or cut off."""
    from oar_proxy.audit import verification

    if file is None and config is None:
        raise typer.BadParameter("a file, --config, or both are needed", param_hint="FILE")
    expected = [] if heads is None else verification.read_heads(heads)
    reports: dict[str, Report] = {}
    if file is not None:
        report = reports[str(file)] = verification.verify_file(
            file, expected if config is None else ()
        )
        # A chain whose head is there is there as a whole.
        expected += [(head, str(file)) for head in report.heads.values()]
    if config is not None:
        reports["hub"] = on_hub(config, lambda hub: verification.verify_hub(hub, expected))
    _print_reports(reports, form)
    if not all(report.sound for report in reports.values()):
        fail("the ledger is not as it was written", None, FAULTS)


def _print_reports(reports: dict[str, Report], form: Format) -> None:
    from oar_proxy.audit import verification

    if form is Format.json:
        answers = {name: verification.as_json(report) for name, report in reports.items()}
        # One report is printed as it is, so that it can be given to --heads.
        print_json(answers if len(answers) > 1 else next(iter(answers.values())))
        return
    for name, report in reports.items():
        for fault in report.faults:
            typer.echo(
                f"{name}: writer {fault.writer}, entry {fault.number}: {fault.kind}: {fault.text}"
            )
        if report.found > len(report.faults):
            typer.echo(f"{name}: {counted(report.found - len(report.faults), 'more fault')}")
        for writer in report.open:
            last = report.heads[writer].number
            typer.echo(
                f"{name}: writer {writer} ends with entry {last}, which does not close its chain"
            )
        state = "sound" if report.sound else counted(report.found, "fault")
        entries = f"{counted(report.entries, 'entry')} of {counted(len(report.heads), 'writer')}"
        typer.echo(f"{name}: {entries}: {state}")


@audit.command("heads")
def heads(config: Config, form: FormatOption = Format.json) -> None:
    """Print the last entry of each writer, to keep where nobody who writes the hub can write."""
    from oar_proxy.writer import heads_of_all

    found = on_hub(config, heads_of_all)
    if form is Format.json:
        print_json({"heads": [head.named() for head in found]})
        return
    for head in found:
        typer.echo(f"{head.writer} {head.number} {head.hash.hex()}")


@audit.command("tail")
def tail(
    config: Config,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="How many entries.")] = 20,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with what is written, until stopped.")
    ] = False,
    form: FormatOption = Format.text,
) -> None:
    """Print the last entries."""
    from oar_proxy.audit import reading

    async def read(hub: Any) -> None:
        if not follow:
            for entry in await reading.last(hub, lines):
                _print_entry(entry, form)
            return
        # Closed here when nobody reads any more what is printed.
        async with aclosing(reading.follow(hub, lines)) as entries:
            async for entry in entries:
                _print_entry(entry, form)

    on_hub(config, read)


@audit.command("show")
def show(
    ask: Annotated[uuid.UUID, typer.Argument(help="The ask, as oar.asks and the log name it.")],
    config: Config,
    form: FormatOption = Format.text,
) -> None:
    """Print everything that is on the ledger of one ask."""
    from oar_proxy.audit import reading

    entries = on_hub(config, lambda hub: reading.of_ask(hub, ask))
    if not entries:
        fail(f"there is no ask {ask} on the ledger", None, FAULTS)
    if form is Format.json:
        print_json([reading.read(entry) for entry in entries])
        return
    for entry in entries:
        _print_entry(entry, form)


@audit.command("export")
def export(
    config: Config,
    openlineage: Annotated[
        bool, typer.Option("--openlineage", help="Run events of OpenLineage instead of entries.")
    ] = False,
    since: Since = None,
    until: Until = None,
) -> None:
    """Print the ledger as JSON lines."""
    from oar_proxy.audit import openlineage as lineage
    from oar_proxy.audit import reading

    if since is not None and until is not None and since >= until:
        raise typer.BadParameter("it is not after --since", param_hint="--until")

    async def read(hub: Any) -> None:
        if not openlineage:
            async with aclosing(reading.everything(hub, _utc(since), _utc(until))) as entries:
                async for entry in entries:
                    typer.echo(entry.line())
            return
        async with aclosing(reading.asks(hub, _utc(since), _utc(until))) as asks:
            async for bodies in asks:
                for event in lineage.events(bodies):
                    typer.echo(json.dumps(event, ensure_ascii=False))

    on_hub(config, read)


@audit.command("prune")
def prune(
    config: Config,
    before: Annotated[datetime, typer.Option("--before", help="Entries older than this, UTC.")],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Count what would be deleted, and delete nothing.")
    ] = False,
    form: FormatOption = Format.text,
) -> None:
    """Delete old entries, so that what is left can still be verified."""
    from oar_proxy.audit import pruning

    async def work(address: HubAddress) -> pruning.Pruned:
        return await pruning.prune(address, before.replace(tzinfo=UTC), dry_run=dry_run)

    pruned = at_hub(config, work)
    if form is Format.json:
        print_json({"entries": pruned.entries, "writers": pruned.writers, "deleted": not dry_run})
        return
    done = "would be deleted" if dry_run else "deleted"
    entries = f"{counted(pruned.entries, 'entry')} of {counted(pruned.writers, 'writer')}"
    typer.echo(f"{entries} {done}")


def _print_entry(entry: Entry, form: Format) -> None:
    from oar_proxy.audit import reading

    typer.echo(entry.line() if form is Format.json else reading.describe(reading.read(entry)))


def _utc(moment: datetime | None) -> datetime | None:
    return None if moment is None else moment.replace(tzinfo=UTC)
