"""The ledger: what was asked of whom and which keys left, written before anything leaves.

Append-only tables in the hub's private schema ``oar_internal``; people read the views in schema
``oar`` (each principal its own asks, members of ``oar_auditor`` all of them). No key value, no
question and no statement text is on it: statements and queries appear as SHA-256 digests.

An outcome is a row of its own, written afterwards. A step without one has an unknown outcome: it
was authorised, and nobody can say that it did not leave.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Final, Literal, LiteralString, cast

import psycopg
from oar_policies.model import Subject
from psycopg_pool import AsyncConnectionPool

from oar_proxy.errors import LedgerUnavailable

TIMEOUT: Final = 10.0
"""Seconds a statement waits for the ledger before it is refused. A write takes milliseconds; only
a hub that is down, restarting or waiting for a lost standby needs longer."""

SUCCESS: Final = "00000"
"""SQLSTATE of a successful completion."""

Kind = Literal["sql", "question"]

COMPILED: Final = "compiled"
"""The protocol of every statement, and of questions that one draft answers: no row is shown."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One statement or question of a principal.

    Its row is written together with the first step or outcome that names it, so that opening one
    costs no round trip. Under another ``protocol`` than ``compiled`` a language model may read the
    rows of its steps.
    """

    id: uuid.UUID
    principal: str
    statement: str
    kind: Kind
    route: str
    kappa: int | None
    catalog_version: str
    protocol: str = COMPILED
    roles: frozenset[str] = frozenset()
    purpose: str | None = None
    sent: Counter[str] = field(default_factory=Counter, compare=False)
    """Queries that left for each owner."""

    @property
    def subject(self) -> Subject:
        """Who asks, as policies see it."""
        return Subject(self.principal, self.roles, self.purpose)


@dataclass(frozen=True)
class Disclosure:
    """Keys about to travel: from whose column, to whose column, how many, by which rule.

    Columns are spelt as a policy spells them. ``policy`` is the digest of the policy that decided.
    """

    from_owner: str
    from_column: str
    to_owner: str
    to_column: str
    keys: int
    rule: str
    policy: str


@dataclass(frozen=True)
class StepEntry:
    """One query about to leave for an owner. ``keys`` counts all it carries, also own keys."""

    owner: str
    sql_digest: str
    row_cap: int
    row_cap_rule: str
    keys: int
    policy: str
    disclosures: tuple[Disclosure, ...] = ()


@dataclass(frozen=True)
class StepOutcome:
    """How one recorded step ended; ``rows`` is what the owner sent, None when unknown."""

    step: int
    sqlstate: str
    rows: int | None


def digest(text: str) -> str:
    """Return the SHA-256 of a text, in hex: how statements and queries appear on the ledger."""
    return hashlib.sha256(text.encode()).hexdigest()


async def install(connection: psycopg.AsyncConnection[object]) -> None:
    """Create or bring up to date the ledger's tables and views, in one transaction.

    ``connection`` is of the proxy's own role, to a hub that `hub.bootstrap` has set up. Safe to
    run again, and by several proxies at once.
    """
    ddl = files("oar_proxy.hub").joinpath("ledger.sql").read_text(encoding="utf-8")
    async with connection.transaction():
        await connection.execute(ddl.encode())


# One statement with one parameter, hence one round trip and next to no work in Python: the entries
# are unfolded by the hub. A wave's numbers are drawn first, because RETURNING cannot say which row
# of the input a number belongs to.
_ENTRY: Final[LiteralString] = """
entry AS (SELECT %s::jsonb AS said),
asked AS (
  INSERT INTO oar_internal.asks
    (ask, principal, statement, kind, route, kappa, catalog_version, protocol)
  SELECT a.* FROM entry, jsonb_to_record(said->'ask')
    AS a(ask uuid, principal text, statement text, kind text, route text, kappa int4, catalog text,
         protocol text)
  ON CONFLICT DO NOTHING
),
finished AS (
  INSERT INTO oar_internal.step_outcomes (step, sqlstate, rows)
  SELECT o.* FROM entry, jsonb_to_recordset(said->'finished')
    AS o(step int8, sqlstate text, rows int8)
)"""

_RECORD: Final[LiteralString] = f"""
WITH {_ENTRY},
wave AS MATERIALIZED (
  SELECT nextval('oar_internal.steps_step_seq') AS step, w.*
  FROM entry, jsonb_to_recordset(said->'steps')
    AS w(position int8, owner text, sql_digest text, row_cap int8, row_cap_rule text, keys int8,
         policy text, disclosures jsonb)
),
sent AS (
  INSERT INTO oar_internal.steps (step, ask, owner, sql_digest, row_cap, row_cap_rule, keys, policy)
  SELECT step, (said->'ask'->>'ask')::uuid, owner, sql_digest, row_cap, row_cap_rule, keys, policy
  FROM entry, wave
),
disclosed AS (
  INSERT INTO oar_internal.disclosures
    (step, from_owner, from_column, to_owner, to_column, keys, rule, policy)
  SELECT wave.step, d.* FROM wave, jsonb_to_recordset(wave.disclosures)
    AS d(from_owner text, from_column text, to_owner text, to_column text, keys int8, rule text,
         policy text)
)
SELECT step, oar_internal.commit_durably() FROM wave ORDER BY position
"""

# Outcomes are not waited for: WAL keeps the order, and a lost one reads as "unknown".
_FINISH_ASK: Final[LiteralString] = f"""
WITH {_ENTRY}
INSERT INTO oar_internal.ask_outcomes (ask, sqlstate, rows)
SELECT (said->'ask'->>'ask')::uuid, said->>'sqlstate', (said->>'rows')::int8
FROM entry, set_config('synchronous_commit', 'off', true)
"""


class Ledger:
    """Writes entries through a pool of administrator connections to the hub's primary.

    With a pool of autocommit connections each write is one round trip; otherwise it is three.
    """

    def __init__(self, pool: AsyncConnectionPool) -> None:
        self._pool = pool

    async def open_ask(
        self,
        subject: Subject,
        statement_fingerprint: str,
        *,
        kind: Kind,
        route: str,
        kappa: int | None,
        catalog_version: str,
        protocol: str = COMPILED,
    ) -> Ask:
        """Name an ask. ``statement_fingerprint`` is 64 hex digits, see `digest`."""
        return Ask(
            uuid.uuid4(),
            subject.principal,
            statement_fingerprint,
            kind,
            route,
            kappa,
            catalog_version,
            protocol,
            subject.roles,
            subject.purpose,
        )

    async def record(
        self, ask: Ask, entries: Sequence[StepEntry], finished: Sequence[StepOutcome] = ()
    ) -> list[int]:
        """Write a wave of steps and what they disclose; return their numbers, in order.

        ``finished`` are outcomes of earlier steps, written along.
        On return they are committed and on disk, whatever ``synchronous_commit`` the hub is
        configured with. Raises :class:`LedgerUnavailable`: then nothing may be sent.
        """
        rows = await self._write(
            "the ledger could not be written: nothing of this step was sent",
            _RECORD,
            {
                "ask": _ask_row(ask),
                "finished": [vars(outcome) for outcome in finished],
                "steps": [
                    {
                        **vars(entry),
                        "position": position,
                        "disclosures": [*map(vars, entry.disclosures)],
                    }
                    for position, entry in enumerate(entries, start=1)
                ],
            },
        )
        return [cast("int", row[0]) for row in rows]

    async def finish_ask(
        self,
        ask: Ask,
        *,
        sqlstate: str = SUCCESS,
        rows: int | None,
        finished: Sequence[StepOutcome] = (),
    ) -> None:
        """Add an ask's outcome, once; ``rows`` is what the client was given, None when unknown.

        ``finished`` are outcomes of its steps that are not written yet.
        An ask that was refused before its first step gets its row here, so that refusals are on
        the ledger too. Raises :class:`LedgerUnavailable`.
        """
        await self._write(
            "an ask's outcome could not be written on the ledger",
            _FINISH_ASK,
            {
                "ask": _ask_row(ask),
                "finished": [vars(outcome) for outcome in finished],
                "sqlstate": sqlstate,
                "rows": rows,
            },
        )

    async def _write(
        self, failure: str, statement: LiteralString, entry: dict[str, object]
    ) -> list[tuple[object, ...]]:
        try:
            async with asyncio.timeout(TIMEOUT), self._pool.connection() as connection:
                cursor = await connection.execute(statement, (json.dumps(entry),), prepare=True)
                rows = await cursor.fetchall() if cursor.description else []
        # Leaving the block above commits; only then has anything been recorded.
        except (psycopg.Error, OSError, TimeoutError) as error:
            raise LedgerUnavailable(
                failure,
                hint="the hub's primary has to accept writes: ask the operator, then retry",
            ) from error
        return rows


def _ask_row(ask: Ask) -> dict[str, object]:
    return {
        "ask": str(ask.id),
        "principal": ask.principal,
        "statement": ask.statement,
        "kind": ask.kind,
        "route": ask.route,
        "kappa": ask.kappa,
        "catalog": ask.catalog_version,
        "protocol": ask.protocol,
    }
