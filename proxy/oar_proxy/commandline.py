"""What the commands of ``oar`` share: exit status, options, the way to the hub.

Exit status: 0 done, 1 the answer is no (a question that is not answered, a check with faults), 2
the command line, configuration or a policy is wrong, 3 something needed cannot be started, reached
or used. What a check of the configuration, the owners or the policies finds wrong is its answer: 1.
"""

from __future__ import annotations

import asyncio
import enum
import json
import sys
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn, TypeVar

import typer

if TYPE_CHECKING:
    from psycopg import AsyncConnection
    from psycopg.rows import TupleRow

    from oar_proxy.hub.address import HubAddress

FAULTS: Final = 1
WRONG_INPUT: Final = 2
OUT_OF_REACH: Final = 3

Config = Annotated[
    Path,
    typer.Option("--config", "-c", envvar="OAR_CONFIG", help="The configuration file."),
]

OptionalConfig = Annotated[
    Path | None, typer.Option("--config", "-c", envvar="OAR_CONFIG", help="The configuration file.")
]


class Format(enum.StrEnum):
    """How an answer is printed."""

    text = "text"
    json = "json"


FormatOption = Annotated[Format, typer.Option("--format", help="Text for people, or JSON.")]

Dsn = Annotated[
    str | None,
    typer.Option(
        "--dsn",
        envvar="OAR_DSN",
        help="Where the proxy is, as libpq reads it: postgresql://user@host:6432/oar. "
        "PGUSER, PGPASSWORD and ~/.pgpass work too.",
    ),
]

_Result = TypeVar("_Result")


class Refused(Exception):
    """The hub is there and says no."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


def run(work: Coroutine[Any, Any, _Result]) -> _Result:
    """Run a command's coroutine."""
    if sys.platform == "win32":
        return asyncio.run(work)
    import uvloop

    return uvloop.run(work)


def given(context: typer.Context, option: str) -> bool:
    """Tell whether the command line has an option; what the environment says of it is less."""
    source = context.get_parameter_source(option)
    return source is not None and source.name == "COMMANDLINE"


def at_hub(config: Path, work: Callable[[HubAddress], Awaitable[_Result]]) -> _Result:
    """Run ``work`` with the hub of a proxy that runs, else with the hub started for it.

    Raises ``ConfigurationError``, ``HubError``, and :class:`Refused` for one of ``work``'s own.
    """
    from oar_proxy import log
    from oar_proxy.hub.access import join_hub
    from oar_proxy.hub.address import HubError
    from oar_proxy.settings import load

    settings = load(config)
    log.configure("warning", settings.log_format)  # to standard error: the answer is on the other

    async def at() -> _Result:
        async with join_hub(settings.hub) as address:
            try:
                return await work(address)
            except HubError as error:
                raise Refused(error.message, error.hint) from None

    return run(at())


def on_hub(
    config: Path, work: Callable[[AsyncConnection[TupleRow]], Awaitable[_Result]]
) -> _Result:
    """Run ``work`` on a connection of the proxy's own role. See :func:`at_hub`."""

    async def on(address: HubAddress) -> _Result:
        from oar_proxy.hub.access import admin_pool

        async with admin_pool(address, size=1) as pool, pool.connection() as connection:
            return await work(connection)

    return at_hub(config, on)


def fail(message: str, hint: str | None, status: int) -> NoReturn:
    """Print an error and what to do, and exit."""
    typer.echo(f"oar: {message}", err=True)
    if hint:
        typer.echo(f"hint: {hint}", err=True)
    sys.exit(status)


def counted(number: int, noun: str) -> str:
    """Return a number with what it counts, such as ``2 entries`` or ``1 entry``."""
    if number == 1:
        return f"1 {noun}"
    return f"{number} {noun[:-1]}ies" if noun.endswith("y") else f"{number} {noun}s"


def print_json(value: Any) -> None:
    """Print a value as JSON."""
    typer.echo(json.dumps(value, ensure_ascii=False, indent=2))
