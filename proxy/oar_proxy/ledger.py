"""The ledger: what was asked of whom and which keys left, written before anything leaves.

Entries are chained by their hashes (:mod:`oar_proxy.chain`) in one append-only table of the hub's
private schema ``oar_internal``; people read the views in schema ``oar`` (each principal its own
asks, members of ``oar_auditor`` all of them). No key value, no question and no statement text is on
it: statements and queries appear as SHA-256 digests, keys as a digest under a key of the hub.

An outcome is an entry of its own, written afterwards. A step without one has an unknown outcome: it
was authorised, and nobody can say that it did not leave.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
import uuid
from array import array
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import date
from importlib.resources import files
from pathlib import Path
from typing import Final, Literal, LiteralString

import psycopg
import structlog
from oar_policies.model import Subject
from psycopg.rows import TupleRow
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from oar_proxy.chain import Body, Chain, Entry
from oar_proxy.errors import LedgerUnavailable
from oar_proxy.hub.bootstrap import changing
from oar_proxy.writer import TIMEOUT, Writer, insert

SUCCESS: Final = "00000"
"""SQLSTATE of a successful completion."""

Kind = Literal["sql", "question", "verified"]
"""``verified``: a question, all drafts for which people have reviewed."""

COMPILED: Final = "compiled"
"""The protocol of every statement, and of questions that one draft answers: no row is shown."""

_BEFORE: Final = files("oar_proxy.hub").joinpath("ledger_before.sql").read_bytes()

log = structlog.get_logger(__name__)

_OLD_TABLES: Final = ("asks", "steps", "disclosures", "step_outcomes", "ask_outcomes")


@dataclass(slots=True)
class _Progress:
    """What of an ask is on the ledger: under which writer, and the steps that have an outcome."""

    writer: uuid.UUID | None = None
    ended: set[int] = field(default_factory=set)


@dataclass(slots=True)
class Admission:
    """Whether an ask is counted in its application's budget; queries of one may leave at once."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    given: bool = False


@dataclass(frozen=True, slots=True)
class Ask:
    """One statement or question of a principal.

    Its entry is written together with the first step or outcome that names it, so that opening one
    costs no round trip. Under another ``protocol`` than ``compiled`` a language model may read the
    rows of its steps. ``verified`` are the names of the reviewed answers in it.
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
    verified: tuple[str, ...] = ()
    application: str = ""
    """What the client calls itself. It is not on the ledger: nobody vouches for it."""
    sent: Counter[str] = field(default_factory=Counter, compare=False)
    """Queries that left for each owner."""
    admission: Admission = field(default_factory=Admission, compare=False, repr=False)
    progress: _Progress = field(default_factory=_Progress, init=False, compare=False, repr=False)

    @property
    def subject(self) -> Subject:
        """Who asks, as policies see it."""
        return Subject(self.principal, self.roles, self.purpose)

    def body(self) -> Body:
        """Return what its entry says."""
        return {
            "ask": str(self.id),
            "principal": self.principal,
            "roles": sorted(self.roles),
            "purpose": self.purpose,
            "statement": self.statement,
            "asked": self.kind,
            "verified": self.verified,
            "route": self.route,
            "kappa": self.kappa,
            "catalog_version": self.catalog_version,
            "protocol": self.protocol,
        }


@dataclass(frozen=True)
class Disclosure:
    """Keys about to travel: from whose column, to whose column, how many, by which rule.

    Columns are spelt as a policy spells them. ``policy`` is the digest of the policy that decided,
    ``key_digest`` that of the keys, see :meth:`Ledger.keys_digest`; None: they stand in the SQL.
    """

    from_owner: str
    from_column: str
    to_owner: str
    to_column: str
    keys: int
    rule: str
    policy: str
    key_digest: str | None = None


@dataclass(frozen=True)
class StepEntry:
    """One query about to leave for an owner, permitted by ``rules``.

    ``keys`` counts all it carries, also own keys. ``tables`` are the published ones it reads.
    """

    owner: str
    sql_digest: str
    row_cap: int
    row_cap_rule: str
    keys: int
    policy: str
    disclosures: tuple[Disclosure, ...] = ()
    rules: tuple[str, ...] = ()
    tables: tuple[str, ...] = ()

    def body(self, ask: Ask) -> Body:
        """Return what its entry says."""
        disclosures = [vars(disclosure) for disclosure in self.disclosures]
        body = {"ask": str(ask.id), "decision": "permit", **vars(self)}
        return {**body, "disclosures": disclosures}


@dataclass(frozen=True)
class StepOutcome:
    """How one recorded step ended; ``rows`` is what the owner sent, None when unknown.

    ``microseconds`` passed since it was sent, None when it was not.
    """

    step: int
    sqlstate: str
    rows: int | None
    microseconds: int | None = None

    def body(self, ask: Ask) -> Body:
        """Return what its entry says."""
        return {"ask": str(ask.id), **vars(self)}


def digest(text: str) -> str:
    """Return the SHA-256 of a text, in hex: how statements and queries appear on the ledger."""
    return hashlib.sha256(text.encode()).hexdigest()


async def install(connection: psycopg.AsyncConnection[TupleRow]) -> None:
    """Make the ledger ready to be written, in one transaction.

    ``connection`` is of the proxy's own role, to a hub that `hub.bootstrap` has set up. Safe to
    run again, and by several proxies at once. Entries of a hub that had a table for each kind
    become the chain of one writer, which begins with an entry of kind ``before``. Raises
    ``HubError``.
    """
    async with connection.transaction():
        await changing(connection)
        await connection.execute(
            "DELETE FROM oar_internal.application_hours WHERE hour < now() - interval '31 days'"
        )
        await connection.execute(
            "INSERT INTO oar_internal.ledger_key (key) VALUES (%s) ON CONFLICT DO NOTHING",
            (secrets.token_bytes(32),),
        )
        cursor = await connection.execute("SELECT to_regclass('oar_internal.asks') IS NOT NULL")
        ((has_old,),) = await cursor.fetchall()
        if has_old:
            await _take_over(connection)


async def _take_over(connection: psycopg.AsyncConnection[TupleRow]) -> None:
    """Make entries of the old tables' rows, and drop those tables."""
    chain = Chain(uuid.uuid4())
    opening = chain.append("before", "1970-01-01T00:00:00.000000Z", {})
    async with connection.cursor(name="oar_ledger_before") as old:
        await old.execute(_BEFORE)
        batch = [opening]
        while rows := await old.fetchmany(1000):
            for ask, steps, outcome in rows:
                batch += _entries_of_before(chain, ask, steps or [], outcome)
            await insert(connection, batch)
            batch = []
        await insert(connection, batch)
    await connection.execute(f"DROP TABLE {', '.join(f'oar_internal.{t}' for t in _OLD_TABLES)}")
    await connection.execute("DROP FUNCTION IF EXISTS oar_internal.commit_durably()")


def _entries_of_before(
    chain: Chain, ask: Body, steps: Sequence[Body], outcome: Body | None
) -> list[Entry]:
    asked = {"ask": ask["ask"]}
    entries = [chain.append("ask", ask.pop("at"), ask)]
    for step in steps:
        ended = step.pop("outcome")
        former = step.pop("number")
        entries.append(chain.append("step", step.pop("at"), {**asked, **step, "former": former}))
        if ended is not None:
            content = {**asked, "step": chain.number}
            entries.append(chain.append("step_outcome", ended.pop("at"), {**content, **ended}))
    if outcome is not None:
        entries.append(chain.append("ask_outcome", outcome.pop("at"), {**asked, **outcome}))
    return entries


_HELD: Final[LiteralString] = """
INSERT INTO oar_internal.keys_of_days AS d (principal, owner, day, keys)
VALUES (%s, %s, %s, 0)
ON CONFLICT (principal, owner, day) DO UPDATE SET keys = d.keys
RETURNING keys, xmax = 0
"""
"""Until the transaction ends, nobody else counts keys of that owner, principal and day."""

_SEEN: Final[LiteralString] = """
INSERT INTO oar_internal.keys_seen (principal, owner, day, digest)
SELECT %s, %s, %s, d.digest FROM unnest(%s::bytea[]) AS d(digest)
ON CONFLICT DO NOTHING
"""

_SPEND: Final[LiteralString] = """
UPDATE oar_internal.keys_of_days SET keys = keys + %s
WHERE principal = %s AND owner = %s AND day = %s
"""

_FORGET: Final[tuple[LiteralString, ...]] = (
    "DELETE FROM oar_internal.keys_of_days WHERE day < %s::date - 1",
    "DELETE FROM oar_internal.keys_seen WHERE day < %s::date - 1",
)

KEY_DIGEST_BYTES: Final = 16
"""Of a key that is told from others only: two of a day's keys are one by chance in 2^64."""


@dataclass(slots=True)
class Leaving:
    """Keys of one owner that are about to leave.

    ``known`` tells them apart: one that left on the same day is no further one. Of ``more`` only
    their number is known, so that each counts.
    """

    known: set[bytes] = field(default_factory=set)
    more: int = 0

    def __len__(self) -> int:
        """Return how many keys there are."""
        return len(self.known) + self.more


class _TooMany(Exception):
    """Rolls back what was counted."""


class Ledger:
    """Writes entries through a :class:`~oar_proxy.writer.Writer` of its own.

    An asynchronous context manager; outside of its block nothing can be written.
    """

    _key: bytes | None = None

    def __init__(self, conninfo: str, file: Path | None = None) -> None:
        """Write to the hub at ``conninfo`` and, with ``file``, a copy there."""
        self._conninfo = conninfo
        self._writer = Writer(conninfo, file)
        self._counting = AsyncConnectionPool(
            conninfo,
            kwargs={"autocommit": True, "application_name": "oar daily limits"},
            min_size=0,
            max_size=2,
            open=False,
            name="oar daily limits",
        )

    async def __aenter__(self) -> Ledger:
        """Open the chain. Raises :class:`LedgerUnavailable`."""
        try:
            async with await psycopg.AsyncConnection.connect(self._conninfo) as connection:
                cursor = await connection.execute("SELECT key FROM oar_internal.ledger_key")
                ((self._key,),) = await cursor.fetchall()
        except psycopg.Error as error:
            raise LedgerUnavailable("the ledger cannot be read") from error
        await self._writer.__aenter__()
        await self._counting.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._counting.close()
        await self._writer.__aexit__()

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
        verified: tuple[str, ...] = (),
        application: str = "",
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
            verified,
            application,
        )

    def keys_digest(self, keys: Collection[bytes]) -> str | None:
        """Return the HMAC-SHA-256 of a set of keys, in hex, whatever their order.

        Who has the hub's key can tell that the same keys went twice, or test a set of them.
        """
        if self._key is None:
            return None
        ordered = sorted(keys)
        mac = hmac.new(self._key, array("Q", map(len, ordered)).tobytes(), hashlib.sha256)
        mac.update(b"".join(ordered))
        return mac.hexdigest()

    async def spend(
        self, principal: str, owner: str, day: date, leaving: Leaving, most: int
    ) -> bool:
        """Count keys of an owner that leave for a principal; False: the day has no more than that.

        Keys that left on the same day do not count again. They are kept as digests under the hub's
        key, at most as many as the limit allows, until the day is over. What is counted is on disk
        when an entry written later is. Raises :class:`LedgerUnavailable`.
        """
        if leaving.more > most:
            return False
        whose = (principal, owner, day)
        digests = [self._seen_as(key) for key in leaving.known]
        try:
            async with (
                asyncio.timeout(TIMEOUT),
                self._counting.connection() as connection,
                connection.transaction(),
            ):
                cursor = await connection.execute(_HELD, whose)
                ((spent, first),) = await cursor.fetchall()
                if first:
                    for statement in _FORGET:
                        await connection.execute(statement, (day,))
                cursor = await connection.execute(_SEEN, (*whose, digests))
                further = cursor.rowcount + leaving.more
                if spent + further > most:
                    raise _TooMany
                await connection.execute(_SPEND, (further, *whose))
        except _TooMany:
            return False
        except (psycopg.Error, PoolTimeout, TimeoutError) as error:
            raise LedgerUnavailable(
                "the keys of the day could not be counted: nothing of this step was sent",
                hint="the hub's primary has to accept writes: ask the operator, then retry",
            ) from error
        return True

    def _seen_as(self, key: bytes) -> bytes:
        assert self._key is not None
        return hmac.digest(self._key, b"seen\0" + key, "sha256")[:KEY_DIGEST_BYTES]

    async def record(
        self, ask: Ask, entries: Sequence[StepEntry], finished: Sequence[StepOutcome] = ()
    ) -> list[int]:
        """Write a wave of steps and what they disclose; return their numbers, in order.

        ``finished`` are outcomes of earlier steps, written along.
        On return they are committed and on disk, whatever ``synchronous_commit`` the hub is
        configured with. Raises :class:`LedgerUnavailable`: then nothing may be sent.
        """
        wave = _Wave(ask, entries, finished)
        try:
            await self._writer.write(wave)
        except LedgerUnavailable as error:
            raise LedgerUnavailable(
                "the ledger could not be written: nothing of this step was sent",
                detail=error.message,
                hint=error.hint,
            ) from error
        return wave.numbers

    async def finish_ask(
        self,
        ask: Ask,
        *,
        sqlstate: str = SUCCESS,
        rows: int | None = None,
        finished: Sequence[StepOutcome] = (),
        refusal: str | None = None,
    ) -> None:
        """Add an ask's outcome, once; ``rows`` is what the client was given, None when unknown.

        ``finished`` are outcomes of its steps that are not written yet; ``refusal`` names the rule
        or limit that refused it. An ask that was refused before its first step gets its entry here,
        so that refusals are on the ledger too.

        Outcomes do not wait for the disk: what is written later waits for them as well. One that
        is lost or cannot be written fails nothing: what was sent is recorded, and an outcome that
        is not there reads as "unknown".
        """
        outcome = {"sqlstate": sqlstate, "rows": rows, "refusal": refusal}
        try:
            await self._writer.write(_Wave(ask, (), finished, outcome, durable=False))
        except LedgerUnavailable:
            log.warning("ledger outcome not written", ask=str(ask.id))


class _Wave:
    """What is written of an ask at once. See :class:`oar_proxy.writer.Request`."""

    def __init__(
        self,
        ask: Ask,
        steps: Sequence[StepEntry],
        finished: Sequence[StepOutcome],
        outcome: Body | None = None,
        *,
        durable: bool = True,
    ) -> None:
        self._ask = ask
        self._steps = steps
        self._finished = finished
        self._outcome = outcome
        self.durable = durable
        self.numbers: list[int] = []
        self._opens = False
        self._ends: set[int] = set()

    def contents(self, writer: uuid.UUID, number: int) -> Sequence[tuple[str, Body]]:
        ask, progress = self._ask, self._ask.progress
        if progress.writer not in (None, writer):
            raise LedgerUnavailable("the ledger's chain was lost while the statement ran")
        contents: list[tuple[str, Body]] = []
        if progress.writer is None:
            progress.writer, self._opens = writer, True
            contents.append(("ask", ask.body()))
        for outcome in self._finished:
            if outcome.step not in progress.ended:
                progress.ended.add(outcome.step)
                self._ends.add(outcome.step)
                contents.append(("step_outcome", outcome.body(ask)))
        first = number + len(contents)
        self.numbers = list(range(first, first + len(self._steps)))
        contents += (("step", step.body(ask)) for step in self._steps)
        if self._outcome is not None:
            contents.append(("ask_outcome", {"ask": str(ask.id), **self._outcome}))
        return contents

    def undone(self) -> None:
        if self._opens:
            self._ask.progress.writer = None
        self._ask.progress.ended -= self._ends
