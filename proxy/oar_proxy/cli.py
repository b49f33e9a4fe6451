"""The command ``oar``.

A command's own work is imported when it runs, so that ``oar --help`` stays quick. For the exit
status see :mod:`oar_proxy.commandline`.
"""

from __future__ import annotations

import enum
import errno
import getpass
import os
import re
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from oar_proxy.audit.command import audit
from oar_proxy.cert.command import cert
from oar_proxy.commandline import (
    FAULTS,
    OUT_OF_REACH,
    WRONG_INPUT,
    Config,
    Dsn,
    Format,
    FormatOption,
    Refused,
    fail,
    given,
    on_hub,
    print_json,
    run,
)
from oar_proxy.governance.command import policy
from oar_proxy.verify.command import verify

app = typer.Typer(
    name="oar",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
user = typer.Typer(no_args_is_help=True, help="Manage who may connect.")
app.add_typer(user, name="user")
app.add_typer(audit, name="audit")
app.add_typer(cert, name="cert")
app.add_typer(policy, name="policy")
app.add_typer(verify, name="verify")

OptionalConfig = Annotated[
    Path | None,
    typer.Option(
        "--config", "-c", envvar="OAR_CONFIG", help="Take host, port and database from this file."
    ),
]


class Output(enum.StrEnum):
    """How rows are printed."""

    table = "table"
    csv = "csv"
    json = "json"


OutputFormat = Annotated[Output, typer.Option("--output", "-o", help="How rows are printed.")]


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"oar {version('oar')}")
        raise typer.Exit


@app.callback()
def oar(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print it and exit."),
    ] = False,
) -> None:
    """One PostgreSQL connection to tables that stay with their owners."""


@app.command()
def serve(config: Config) -> None:
    """Run the proxy until SIGTERM or SIGINT."""
    from oar_proxy import log
    from oar_proxy.settings import load

    settings = load(config)
    # Only now: it imports everything there is.
    from oar_proxy.app import open_application

    log.configure(settings.log_level, settings.log_format)

    async def serve() -> None:
        async with open_application(settings) as application:
            await application.serve_forever()

    run(serve())


@app.command()
def demo(
    once: Annotated[bool, typer.Option("--once", help="Stop after the questions.")] = False,
    directory: Annotated[
        Path, typer.Option("--dir", help="Where the demo keeps its databases.")
    ] = Path("oar-data/demo"),
    port: Annotated[
        int | None,
        typer.Option("--port", min=0, max=65535, help="The proxy's port. Default: 6432 or later."),
    ] = None,
) -> None:
    """Start a marketplace with four owners and ask it questions."""
    from oar_proxy.demo.command import run_demo

    directory = directory.absolute()
    directory.mkdir(parents=True, exist_ok=True)
    if not run(run_demo(directory, port=port, once=once)):
        fail("an answer of the demo was not as expected", None, FAULTS)


@app.command()
def ask(
    context: typer.Context,
    question: Annotated[str, typer.Argument(help="The question, in plain language.")],
    dsn: Dsn = None,
    config: OptionalConfig = None,
    output: OutputFormat = Output.table,
) -> None:
    """Ask a running proxy a question."""
    from oar_proxy import client

    client.ask(client.address(_said(context, dsn), config), question, output.value)


@app.command()
def explain(
    context: typer.Context,
    statement: Annotated[str, typer.Argument(help="A question or a SELECT statement.")],
    dsn: Dsn = None,
    config: OptionalConfig = None,
    output: OutputFormat = Output.table,
) -> None:
    """Show how a running proxy would answer a question or a statement, asking no owner."""
    from oar_proxy import client

    client.explain(client.address(_said(context, dsn), config), statement, output.value)


def _said(context: typer.Context, dsn: str | None) -> str | None:
    """Return ``--dsn``, but not the environment's where the command line has ``--config``."""
    return None if given(context, "config") and not given(context, "dsn") else dsn


@app.command()
def check(config: Config) -> None:
    """Check the configuration, the policies and the owners, starting nothing."""
    from oar_proxy import check as checking
    from oar_proxy.settings import load, strangers

    report = run(checking.examine(load(config)))
    for told in strangers():
        typer.echo(f"warning: {told}", err=True)
    checking.print_report(report)
    if not report.sound:
        fail("the check found faults", None, FAULTS)


@app.command()
def catalog(config: Config, form: FormatOption = Format.text) -> None:
    """Print what the owners publish after their policies; as JSON, all that they have."""
    from oar_adapters import recorded

    from oar_proxy import check as checking
    from oar_proxy.settings import load

    report = run(checking.examine(load(config)))
    unread = any(owner.fault for owner in report.owners)
    if unread or (form is Format.text and not report.complete):
        checking.print_report(report)
        fail("the check found faults", None, FAULTS)
    if form is Format.json:
        print_json(recorded.write(report.recorded()))
        return
    checking.print_catalog(report.catalog)
    if report.unpublished:
        fail("\noar: ".join(report.unpublished), None, FAULTS)


UserName = Annotated[str, typer.Argument(help="The user's name.")]
PasswordFrom = Annotated[
    str | None,
    typer.Option("--password-from", help="Environment variable that holds the password."),
]


@user.command("add")
def user_add(
    name: UserName,
    config: Config,
    auditor: Annotated[
        bool, typer.Option("--auditor", help="May also read everyone's entries on the ledger.")
    ] = False,
    password_from: PasswordFrom = None,
) -> None:
    """Add a user, who may connect and read what is published."""
    from oar_proxy.hub import users

    password = _password(password_from)
    on_hub(config, lambda hub: users.add_user(hub, name, password, auditor=auditor))


@user.command("password")
def user_password(name: UserName, config: Config, password_from: PasswordFrom = None) -> None:
    """Set a user's password."""
    from oar_proxy.hub import users

    password = _password(password_from)
    on_hub(config, lambda hub: users.set_password(hub, name, password))


@user.command("list")
def user_list(config: Config) -> None:
    """Print the users, auditors with a mark."""
    from oar_proxy.hub import users

    for entry in on_hub(config, users.list_users):
        typer.echo(f"{entry.name} (auditor)" if entry.auditor else entry.name)


@user.command("remove")
def user_remove(name: UserName, config: Config) -> None:
    """End a user's connections and remove the user."""
    from oar_proxy.hub import users

    on_hub(config, lambda hub: users.remove_user(hub, name))


@app.command(
    add_help_option=False,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)
def bench(context: typer.Context) -> None:
    """Run benchmarks; `oar bench --help` lists them."""
    from oar_bench.cli import app as commands

    commands(args=context.args, prog_name="oar bench")


def _password(variable: str | None) -> str:
    if variable is None:
        # What getpass does without a terminal is to warn, and to show what is typed.
        with warnings.catch_warnings(action="error", category=getpass.GetPassWarning):
            try:
                return str(typer.prompt("Password", hide_input=True, confirmation_prompt=True))
            except getpass.GetPassWarning:
                raise typer.BadParameter(
                    "there is no terminal to ask for the password at: name an environment"
                    " variable that has it",
                    param_hint="--password-from",
                ) from None
    password = os.environ.get(variable)
    if password is None:
        wrong = f"there is no environment variable {variable}"
    elif not _is_utf8(password):
        wrong = f"the environment variable {variable} is not text in UTF-8"
    else:
        return password
    raise typer.BadParameter(wrong, param_hint="--password-from")


def _require_utf8(arguments: Sequence[str]) -> None:
    """Raise ``ConfigurationError`` for arguments that nothing could be sent or written of."""
    for position, argument in enumerate(arguments, start=1):
        if not _is_utf8(argument):
            from oar_proxy.settings import ConfigurationError

            raise ConfigurationError(f"argument {position} is not text in UTF-8")


def _is_utf8(text: str) -> bool:
    """Tell whether what the operating system gave was in UTF-8; Python escapes what was not."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def main() -> None:
    """Run the command line; the package's entry point."""
    try:
        _require_utf8(sys.argv[1:])
        app()
    except BaseExceptionGroup as group:
        # A task group wraps what one of its tasks raised, however deep.
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
            error = error.exceptions[0]
        _report(error)
    except Exception as error:  # noqa: BLE001 - reported or raised again
        _report(error)


def _report(error: BaseException) -> NoReturn:
    """Print an error that a person can act on and exit; raise every other again."""
    from oar_adapters.interface import OwnerError

    from oar_proxy.client import NotConnected, StatementFailed
    from oar_proxy.errors import OarError
    from oar_proxy.hub.address import HubError
    from oar_proxy.settings import ConfigurationError

    hint = getattr(error, "hint", None)
    match error:
        case StatementFailed() | OarError() | Refused():
            fail(error.message, hint, FAULTS)
        case ConfigurationError():
            fail(error.message, hint, WRONG_INPUT)
        case HubError() | NotConnected():
            fail(error.message, hint, OUT_OF_REACH)
        case OSError(errno=errno.EADDRINUSE, strerror=str(said)):
            fail(said, "set another listen.port", OUT_OF_REACH)
        case OwnerError() | OSError():
            fail(re.sub(r"^\[Errno -?\d+\] ", "", str(error)), hint, OUT_OF_REACH)
    raise error


if __name__ == "__main__":
    main()
