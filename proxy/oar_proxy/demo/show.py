"""Asking the demo's questions as any client would, and printing what came of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import psycopg
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from oar_proxy.client import StatementFailed, as_table, connect, query
from oar_proxy.demo.orders import Marketplace
from oar_proxy.demo.questions import QUESTIONS, DemoQuestion, same_rows

SHOWN_ROWS: Final = 6
"""Rows of an answer that are printed: what the demo shows is how they were found."""

_LAST_ASK: Final = "SELECT ask, route, kappa FROM oar.asks ORDER BY at DESC LIMIT 1"
_STEPS: Final = (
    "SELECT s.step, s.owner, s.keys, s.rows FROM oar.steps AS s WHERE s.ask = %s ORDER BY s.step"
)
_DISCLOSURES: Final = (
    "SELECT d.step, d.from_owner, d.from_column, d.to_owner, d.keys, d.rule"
    " FROM oar.disclosures AS d WHERE d.ask = %s ORDER BY d.step, d.from_owner"
)


def ask_all(console: Console, conninfo: str, rows: Marketplace) -> bool:
    """Ask every question and print it. Blocks. Returns whether all answers were as expected."""
    with connect(conninfo) as connection:
        results = [
            _ask(console, connection, number, question, rows)
            for number, question in enumerate(QUESTIONS, start=1)
        ]
    return all(results)


def _ask(
    console: Console,
    connection: psycopg.Connection[Any],
    number: int,
    question: DemoQuestion,
    rows: Marketplace,
) -> bool:
    console.print()
    console.rule(Text.assemble((f"{number}. ", "bold"), question.shows), align="left")
    console.print(Text.assemble(("question  ", "dim"), (question.text, "bold cyan")))
    if question.answer is None:
        return _refused(console, connection, question)
    try:
        plan = query(connection, "SELECT * FROM oar_explain(%s)", (question.text,))
        answer = query(connection, "SELECT * FROM oar_ask(%s)", (question.text,))
    except StatementFailed as failure:
        console.print(Text.assemble(("error     ", "red"), failure.message))
        return False
    for (line,) in plan.rows:
        # Long lines fold under their own beginning.
        indent = len(line) - len(line.lstrip())
        console.print(Padding(Text(line.lstrip(), overflow="fold"), (0, 0, 0, indent + 2)))
    seen = frozenset(_print_ledger(console, connection))
    console.print(as_table(answer, limit=SHOWN_ROWS))
    faults = []
    if not same_rows(answer.rows, question.answer(rows)):
        faults.append("the rows are not those that the demo knows to be right")
    if seen != question.keys:
        faults.append("keys travelled otherwise than the policies are written for")
    return _verdict(console, faults, "as computed from all owners' rows merged")


def _refused(console: Console, connection: psycopg.Connection[Any], question: DemoQuestion) -> bool:
    try:
        query(connection, "SELECT * FROM oar_ask(%s)", (question.text,))
    except StatementFailed as failure:
        console.print(Text.assemble(("error     ", "yellow"), failure.message))
        if failure.hint:
            console.print(Text.assemble(("hint      ", "dim"), failure.hint))
        faults = [] if failure.sqlstate == "OA001" else ["another error was expected"]
        return _verdict(console, faults, "refused rather than guessed")
    return _verdict(console, ["it was answered"], "")


def _verdict(console: Console, faults: list[str], praise: str) -> bool:
    for fault in faults:
        console.print(Text(f"✗ {fault}", style="bold red"))
    if not faults:
        console.print(Text(f"✓ {praise}", style="green"))
    return not faults


def _print_ledger(
    console: Console, connection: psycopg.Connection[Any]
) -> Iterator[tuple[str, str]]:
    """Print what the ledger recorded of the last question; yield who disclosed keys to whom."""
    ask, route, kappa = query(connection, _LAST_ASK, ()).rows[0]
    disclosures = query(connection, _DISCLOSURES, (str(ask),)).rows
    table = Table("asked", "keys it was given", "rows it sent", box=None, header_style="dim")
    for step, owner, keys, sent in query(connection, _STEPS, (str(ask),)).rows:
        given = [
            f"{count:,} from {giver} ({column}), allowed by {rule}"
            for at, giver, column, _, count, rule in disclosures
            if at == step
        ]
        none = f"{keys:,} of its own" if keys else "none"
        table.add_row(owner, "\n".join(given) or none, "?" if sent is None else f"{sent:,}")
    console.print(Text.assemble(("ledger    ", "dim"), f"κ = {kappa}, route {route}"))
    console.print(Padding(table, (0, 0, 0, 2)))
    for _, giver, _, receiver, _, _ in disclosures:
        yield giver, receiver
