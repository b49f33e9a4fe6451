"""How the benchmark commands print: a table for people and, last, one line of JSON."""

from __future__ import annotations

import json
from typing import Any, Final, NoReturn

import typer
from rich.console import Console
from rich.table import Table

CONSOLE: Final = Console(width=120)


def refuse(why: str) -> NoReturn:
    """Say why a command cannot run, and end with status 2."""
    typer.echo(f"oar bench: {why}", err=True)
    raise typer.Exit(2)


def finish(table: Table, result: dict[str, Any]) -> None:
    """Print the table for people, then the result for programs, on the last line."""
    CONSOLE.print(table)
    typer.echo(json.dumps(result))
