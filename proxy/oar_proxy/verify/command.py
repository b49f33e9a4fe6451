"""``oar verify``: the commands. Their work is in the modules beside this one."""

from __future__ import annotations

import getpass
from typing import TYPE_CHECKING, Annotated

import typer

from oar_proxy.commandline import (
    FAULTS,
    Config,
    Dsn,
    Format,
    FormatOption,
    fail,
    print_json,
    run,
)

if TYPE_CHECKING:
    from oar_proxy.verify.pinning import Request

verify = typer.Typer(no_args_is_help=True, help="Pin reviewed answers to questions.")

Name = Annotated[str, typer.Argument(help="The answer's name: its file's, without .yaml.")]


@verify.command("add")
def add(
    *,
    config: Config,
    question: Annotated[
        str, typer.Option("--question", help="The question, with {name} for each parameter.")
    ],
    sql: Annotated[
        str | None, typer.Option("--sql", help="The SELECT that answers it: $1 is the first one.")
    ] = None,
    draft: Annotated[
        bool, typer.Option("--draft", help="Take the draft of the running proxy instead.")
    ] = False,
    phrasing: Annotated[
        list[str] | None, typer.Option("--phrasing", help="How else it is asked.")
    ] = None,
    param: Annotated[
        list[str] | None, typer.Option("--param", help="A parameter, as name:type.")
    ] = None,
    view: Annotated[
        str | None, typer.Option("--view", help="Publish it as a view of this name, too.")
    ] = None,
    reviewer: Annotated[
        str | None, typer.Option("--reviewer", help="Who reviewed it. Default: who you are here.")
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", help="Its name. Default: made of the question.")
    ] = None,
    dsn: Dsn = None,
    form: FormatOption = Format.text,
) -> None:
    """Pin a reviewed answer to a question, if it fits what is published now."""
    from oar_proxy.verify import pinning

    if (sql is None) == (not draft):
        raise typer.BadParameter("either --sql or --draft is needed", param_hint="--sql")
    if draft:
        if param:
            raise typer.BadParameter(
                "no draft has parameters: write the SELECT", param_hint="--draft"
            )
        sql = pinning.running_draft(question, dsn, config)
    assert sql is not None
    request: Request = pinning.Request(
        question=question,
        phrasings=tuple(phrasing or ()),
        sql=sql,
        parameters=tuple(_parameter(text) for text in param or ()),
        view=view,
        reviewer=reviewer or getpass.getuser(),
        name=name,
    )
    entry = run(pinning.pin(config, request))
    if form is Format.json:
        print_json(pinning.as_json(entry))
    else:
        typer.echo(f"{entry.source}\n{entry.sql}")


@verify.command("list")
def list_answers(config: Config, form: FormatOption = Format.text) -> None:
    """Print the verified answers, asking nobody."""
    from oar_proxy.verify import pinning

    _, answers = pinning.load(config)
    if form is Format.json:
        print_json([pinning.as_json(entry) for entry in answers.entries])
        return
    for entry in answers.entries:
        view = "" if entry.view is None else f"  (view verified.{entry.view})"
        by = f"by {entry.reviewer} on {entry.reviewed}"
        typer.echo(f"{entry.name}  {entry.question}{view}  {by}")


@verify.command("check")
def check(config: Config, form: FormatOption = Format.text) -> None:
    """Try all verified answers against what the owners publish now, asking for no row."""
    from oar_proxy.verify import pinning

    settings, answers = pinning.load(config)
    trial = run(pinning.trial(settings, answers))
    if form is Format.json:
        print_json(pinning.trial_as_json(answers, trial))
    else:
        for entry in answers.entries:
            fault = trial.faults.get(entry.name)
            since = "" if entry.catalog == trial.catalog.version else ", reviewed under another one"
            told = f"fits catalog {trial.catalog.version}{since}" if fault is None else fault
            typer.echo(f"{pinning.place(entry)}: {told}")
    if trial.faults:
        count = len(trial.faults)
        fail(
            f"{count} of {len(answers.entries)} verified answers "
            f"{'does' if count == 1 else 'do'} not fit what is published",
            "review them again: oar verify remove, then oar verify add",
            FAULTS,
        )


@verify.command("remove")
def remove(name: Name, config: Config) -> None:
    """Remove a verified answer: its question is drafted again."""
    from oar_proxy.verify import pinning

    pinning.unpin(config, name)


def _parameter(text: str) -> tuple[str, str]:
    name, colon, kind = text.partition(":")
    if not (name and colon and kind):
        raise typer.BadParameter(f"{text!r} is not of the form name:type", param_hint="--param")
    return name.strip(), kind.strip()
