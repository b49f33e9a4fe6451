"""``oar policy``: the commands. Their work is in the modules beside this one."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from oar_proxy.commandline import (
    FAULTS,
    Config,
    Format,
    FormatOption,
    OptionalConfig,
    counted,
    fail,
    given,
    print_json,
    run,
)

policy = typer.Typer(no_args_is_help=True, help="Check, test, explain and compare policies.")

Catalog = Annotated[
    Path | None,
    typer.Option(
        "--catalog", help="Ask no owner: what oar catalog --format json printed has their tables."
    ),
]


@policy.command("schema")
def schema(form: FormatOption = Format.json) -> None:
    """Print the JSON Schema of a policy file, for editors."""
    from oar_policies import schema as schemas

    described = schemas.schema()
    if form is Format.json:
        print_json(described)
        return
    for line in schemas.outline(described):
        typer.echo(line)


@policy.command("lint")
def lint(
    context: typer.Context,
    files: Annotated[
        list[Path] | None, typer.Argument(help="Policy files, each named after its owner.")
    ] = None,
    config: OptionalConfig = None,
    *,
    catalog: Catalog = None,
    strict: Annotated[bool, typer.Option("--strict", help="Fail for warnings, too.")] = False,
    form: FormatOption = Format.text,
) -> None:
    """Find rules that name nothing, contradict others or can have no effect."""
    from oar_proxy.governance import linting

    if not files and config is None:
        raise typer.BadParameter("files or --config are needed", param_hint="FILES")
    if files and given(context, "config"):
        raise typer.BadParameter("files or --config, not both", param_hint="--config")
    linted = run(linting.lint(files or [], config, catalog))
    if form is Format.json:
        print_json(linted.document())
    else:
        for finding in linted.findings:
            typer.echo(str(finding))
        for owner, reason in linted.unread.items():
            typer.echo(f"owner {owner}: not compared with its tables: {reason}", err=True)
    failing = [f for f in linted.findings if strict or f.severity == "error"]
    if failing:
        fail(counted(len(failing), "finding"), None, FAULTS)


@policy.command("test")
def run_tests(config: Config, catalog: Catalog = None, form: FormatOption = Format.text) -> None:
    """Run the tests that the policy files hold; no owner is asked for a row."""
    from oar_proxy.governance import testing

    results = run(testing.run_tests(config, catalog))
    failed = sum(not result.passed for result in results)
    if form is Format.json:
        print_json([result.document() for result in results])
    else:
        for result in results:
            typer.echo(str(result))
        typer.echo(f"{len(results) - failed} passed, {failed} failed")
    if failed:
        fail(f"{failed} of {len(results)} tests failed", None, FAULTS)
    if not results:
        fail("no policy file has a test", "docs/governance.md says how to write one", FAULTS)


Principal = Annotated[str, typer.Option("--principal", help="Who asks.")]
Roles = Annotated[list[str] | None, typer.Option("--role", help="A role of the principal's.")]
Purpose = Annotated[str | None, typer.Option("--purpose", help="What for: oar.purpose.")]
Day = Annotated[
    datetime | None,
    typer.Option("--day", formats=["%Y-%m-%d"], help="On which day, in UTC. Default: today."),
]


@policy.command("explain")
def explain(
    sql: Annotated[str, typer.Argument(help="A SELECT over published tables.")],
    config: Config,
    *,
    catalog: Catalog = None,
    principal: Principal = "anyone",
    roles: Roles = None,
    purpose: Purpose = None,
    day: Day = None,
    form: FormatOption = Format.text,
) -> None:
    """Show what policies make of a statement, and what would change it."""
    from oar_policies.model import Subject

    from oar_proxy.governance import explaining

    subject = Subject(principal, frozenset({principal, *(roles or ())}), purpose)
    asked = None if day is None else day.date()
    told = run(explaining.explain(config, catalog, sql, subject, asked))
    if form is Format.json:
        print_json(told)
    else:
        for line in explaining.lines(told):
            typer.echo(line)
    if "refused" in told:
        fail("the statement would be refused", None, FAULTS)


@policy.command("diff")
def diff(
    old: Annotated[Path, typer.Argument(help="The files before: a directory, or one file.")],
    new: Annotated[Path, typer.Argument(help="The files after, in the same way.")],
    config: Config,
    *,
    catalog: Catalog = None,
    replay: Annotated[
        list[str] | None,
        typer.Option("--replay", help="Decide again about a ledger: hub, or a file of entries."),
    ] = None,
    form: FormatOption = Format.text,
) -> None:
    """Show what two versions of the policies decide otherwise."""
    from oar_proxy.governance import comparing

    told = run(comparing.compare(config, catalog, (old, new), replay or []))
    if form is Format.json:
        print_json(told)
    else:
        for line in comparing.lines(told):
            typer.echo(line)
    if comparing.differs(told):
        fail("the versions differ", None, FAULTS)
