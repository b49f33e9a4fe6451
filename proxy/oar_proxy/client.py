"""A client of a running proxy, for ``oar ask``, ``oar explain`` and the demo.

It speaks to the proxy as any other client does: through psycopg, by SQL alone.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import psycopg
import psycopg.conninfo
from rich.console import Console
from rich.table import Table
from rich.text import Text

from oar_proxy.settings import ConfigurationError, load

Output = Literal["table", "csv", "json"]


class NotConnected(Exception):
    """No connection to the proxy, or none any more: libpq's reason, on one line.

    The hint is the proxy's own where it gave one with its refusal.
    """

    def __init__(self, error: psycopg.Error) -> None:
        reason, _, advice = str(error).partition("\nHINT:")
        self.message = " ".join(reason.split())
        self.hint = " ".join(advice.split()) or _way_in(error)
        super().__init__(self.message)


def _way_in(error: psycopg.Error) -> str:
    """Say what may help, by how far libpq got with the connection."""
    connection = error.pgconn
    if connection is not None and connection.needs_password:
        return "give your password in PGPASSWORD or ~/.pgpass"
    if connection is not None and connection.used_password:
        return (
            "are user, password and database right? --dsn says them, or PGUSER with PGPASSWORD or"
            " ~/.pgpass; oar user password sets another password"
        )
    return "is oar serve running there? --dsn or --config says where it is"


class StatementFailed(Exception):
    """The proxy answered with an error: its own words, with the SQLSTATE in brackets."""

    def __init__(self, error: psycopg.Error) -> None:
        said = error.diag.message_primary
        detail = f": {error.diag.message_detail}" if error.diag.message_detail else ""
        self.sqlstate = error.sqlstate
        self.message = f"{said}{detail} [{error.sqlstate}]"
        self.hint = error.diag.message_hint
        super().__init__(self.message)


@dataclass(frozen=True, slots=True)
class Answer:
    """Rows with the names of their columns."""

    columns: tuple[str, ...]
    rows: Sequence[Sequence[Any]]


def address(dsn: str | None, config: Path | None) -> str:
    """Return libpq's connection string: the one given, or what the configuration listens on.

    libpq adds PGUSER, PGPASSWORD and ~/.pgpass by itself. Raises ``ConfigurationError``.
    """
    if dsn is not None:
        try:
            psycopg.conninfo.conninfo_to_dict(dsn)
        except (psycopg.ProgrammingError, UnicodeEncodeError):
            # libpq's own text quotes the string, with the password in it.
            raise ConfigurationError(
                "--dsn is not a PostgreSQL connection string",
                hint="such as postgresql://user@host:6432/oar, or host=… port=6432 dbname=oar",
            ) from None
        return dsn
    settings = load(config)
    host = settings.listen.host
    return psycopg.conninfo.make_conninfo(
        # A proxy that listens on all addresses is reached through this machine's own.
        host="127.0.0.1" if host in {"0.0.0.0", "::", "*"} else host,  # noqa: S104
        port=settings.listen.port,
        dbname=settings.hub.database,
    )


def connect(conninfo: str) -> psycopg.Connection[Any]:
    """Connect, in autocommit mode. Raises :class:`NotConnected`."""
    try:
        return psycopg.connect(conninfo, autocommit=True, application_name="oar")
    except psycopg.OperationalError as error:
        raise NotConnected(error) from None


def query(connection: psycopg.Connection[Any], sql: str, parameters: Sequence[str]) -> Answer:
    """Run one statement; parameters are put into its text by this client.

    A function whose columns depend on its argument needs the argument when it is parsed. Raises
    :class:`StatementFailed`, and :class:`NotConnected` where the connection is lost meanwhile.
    """
    try:
        with psycopg.ClientCursor(connection) as cursor:
            cursor.execute(sql.encode(), parameters)
            columns = tuple(column.name for column in cursor.description or ())
            return Answer(columns, cursor.fetchall() if columns else ())
    except psycopg.Error as error:
        if error.sqlstate is None:  # not the proxy's words but libpq's
            raise NotConnected(error) from None
        raise StatementFailed(error) from None


def ask(conninfo: str, question: str, output: Output) -> None:
    """Ask a question and print the rows.

    Raises :class:`NotConnected` and :class:`StatementFailed`.
    """
    _print(_query_once(conninfo, "SELECT * FROM oar_ask(%s)", question), output)


def explain(conninfo: str, statement: str, output: Output) -> None:
    """Print how a question or a statement would be answered.

    Raises :class:`NotConnected` and :class:`StatementFailed`.
    """
    _print(_query_once(conninfo, "SELECT * FROM oar_explain(%s)", statement), output)


def _query_once(conninfo: str, sql: str, argument: str) -> Answer:
    with connect(conninfo) as connection:
        connection.add_notice_handler(_print_notice)
        return query(connection, sql, (argument,))


def _print_notice(notice: psycopg.errors.Diagnostic) -> None:
    # To standard error, so that rows can be piped on. Among the notices is the draft.
    print(f"{notice.severity}: {notice.message_primary}", file=sys.stderr)
    if notice.message_detail:
        print(f"DETAIL: {notice.message_detail}", file=sys.stderr)


def _print(answer: Answer, output: Output) -> None:
    if output == "csv":
        writer = csv.writer(sys.stdout)
        writer.writerow(answer.columns)
        writer.writerows(answer.rows)
    elif output == "json":
        records = [dict(zip(answer.columns, row, strict=True)) for row in answer.rows]
        json.dump(records, sys.stdout, ensure_ascii=False, indent=2, default=str)
        sys.stdout.write("\n")
    else:
        console = Console()
        console.print(as_table(answer))
        count = len(answer.rows)
        console.print(f"({count} row{'' if count == 1 else 's'})", style="dim")


def as_table(answer: Answer, limit: int | None = None) -> Table:
    """Return the rows as a table for a console, cut after ``limit`` rows with a line that says so.

    NULL is shown as ∅, which an empty text is not.
    """
    table = Table()
    for name in answer.columns:
        table.add_column(Text(name))
    shown = answer.rows if limit is None else answer.rows[:limit]
    for row in shown:
        table.add_row(*(Text("∅", style="dim") if v is None else Text(str(v)) for v in row))
    if len(shown) < len(answer.rows):
        table.caption = f"{len(answer.rows) - len(shown)} more rows"
    for index, column in enumerate(table.columns):
        values = [row[index] for row in answer.rows if row[index] is not None]
        if values and not any(isinstance(value, str) for value in values):
            column.justify = "right"
    return table
