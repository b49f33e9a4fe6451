"""MariaDB and MySQL owners, through asyncmy.

Each snapshot is one connection in one ``REPEATABLE READ, READ ONLY`` transaction with a consistent
snapshot, in a session whose SQL mode, time zone and character set are ours, whatever the server's.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

from oar_adapters.authorized import Authorized
from oar_adapters.cells import WrongValue, wrong_value
from oar_adapters.interface import (
    Agreement,
    Batch,
    Capabilities,
    OwnerError,
    OwnerErrorKind,
    OwnerSchema,
    Predicate,
    Query,
    Scan,
    Statement,
    Table,
)
from oar_adapters.mariadb import cells, sql
from oar_adapters.mariadb import schema as catalog
from oar_adapters.mariadb.session import Address, Session
from oar_adapters.options import check, choice, integer, names, number
from oar_adapters.turns import turn

OLDEST: Final = {True: (10, 3), False: (8, 0, 17)}
"""The first MariaDB and the first MySQL with casts to DOUBLE and a binary NO PAD collation."""

COLLATIONS: Final = {True: "utf8mb4_nopad_bin", False: "utf8mb4_0900_bin"}
"""MariaDB's and MySQL's collation that orders text as the hub does: by its bytes, all of them."""

SCHEMA_SECONDS: Final = 60.0
"""How long reading the catalogs may take once connected."""

_OPTIONS: Final = frozenset(
    {"case", "connect_timeout", "engines", "pool_size", "tables", "tinyint1"}
)
_FORM: Final = "owner URL has the form mariadb://user:password@host:port/database"
_PARAMETERS: Final = frozenset({"socket", "ssl-mode", "ssl-ca", "ssl-cert", "ssl-key"})


def connect(url: str, options: Mapping[str, str]) -> MariadbAdapter:
    """Make the adapter of the database a URL names (``oar.adapters`` entry point).

    ``mariadb://user:password@host:port/database`` or ``mysql://…``; parameters ``socket`` (path),
    ``ssl-mode`` (``disabled``, the default, ``required``, ``verify_ca``, ``verify_identity``),
    ``ssl-ca``, ``ssl-cert``, ``ssl-key`` (files). Options: ``case`` (``lower``, the default, or
    ``keep``), ``tables`` (comma list of names and shell patterns), ``engines`` (comma list, default
    ``innodb,rocksdb``), ``tinyint1`` (``smallint``, the default, or ``boolean``), ``pool_size``
    (connections, default 8), ``connect_timeout`` (seconds, default 10). Raises ``ValueError`` for
    an unknown option or an unusable value.
    """
    check(options, _OPTIONS, "a MariaDB owner")
    naming = catalog.Naming(
        lower=choice(options, "case", "lower", "keep") == "lower",
        tables=names(options, "tables"),
        engines=frozenset(map(str.lower, names(options, "engines", "innodb,rocksdb"))),
        booleans=choice(options, "tinyint1", "smallint", "boolean") == "boolean",
    )
    return MariadbAdapter(
        _address(url, number(options, "connect_timeout", "10", 0.1, 600)),
        naming=naming,
        pool_size=integer(options, "pool_size", "8", 1, 1000),
    )


class MariadbAdapter:
    """One database of a server. See :class:`~oar_adapters.interface.Adapter`."""

    def __init__(self, address: Address, *, naming: catalog.Naming, pool_size: int) -> None:
        self._address = address
        self._naming = naming
        self._pool_size = pool_size
        self._free = asyncio.Semaphore(pool_size)
        self._idle: list[Session] = []
        self._open: set[Session] = set()
        self._closed = False
        self._traits: catalog.Traits = {}
        self._dialect = sql.Dialect()

    @property
    def capabilities(self) -> Capabilities:
        """No statement goes whole."""
        return Capabilities(
            "mysql",
            snapshots=self._pool_size,
            semi_joins=True,
            composite_keys=True,
            digested_types=sql.DIGESTED,
        )

    async def schema(self) -> OwnerSchema:
        """Read tables, views, columns, keys, comments and row estimates."""
        async with self._transaction(self._address.seconds + SCHEMA_SECONDS) as session:
            found = catalog.discover(
                await session.rows(catalog.TABLES),
                await session.rows(catalog.COLUMNS),
                await session.rows(catalog.KEYS),
                self._naming,
                cardinalities=await session.rows(catalog.CARDINALITIES),
                statistics=await _permitted(session, catalog.COLUMN_STATISTICS),
            )
            server = session.server
        self._traits = found.traits
        self._dialect = sql.Dialect(
            COLLATIONS[server.mariadb], min(sql.KEYS_BYTES, server.packet // 4)
        )
        return found.schema

    def supports(self, table: Table, predicate: Predicate) -> bool:
        """Tell whether the owner keeps at least the rows PostgreSQL would keep."""
        return sql.agrees(table, predicate, self._traits) is not Agreement.NONE

    def supports_statement(self, statement: Statement) -> bool:  # noqa: ARG002 - none is taken
        """Tell that no statement goes whole."""
        return False

    def counts(self, query: Scan) -> bool:
        """Tell whether the groups and partials of a counted scan are PostgreSQL's."""
        return sql.counts(query, self._traits)

    def render(self, query: Query) -> str:
        """Return the SQL that is sent; key lists are ``?``.

        Raises ``ValueError`` for a whole statement.
        """
        if not isinstance(query, Scan):
            raise ValueError("a MariaDB owner evaluates no whole statement")
        return sql.shown(query, self._traits, self._dialect)

    @asynccontextmanager
    async def snapshot(
        self,
        timeout: float,  # noqa: ASYNC109 - named so by the contract
    ) -> AsyncIterator[MariadbSnapshot]:
        """Open a consistent snapshot; it is taken before this returns."""
        async with self._transaction(timeout) as session:
            yield MariadbSnapshot(session, self._traits, self._dialect)

    async def close(self) -> None:
        """Close every connection, and stop what runs at the server."""
        self._closed = True
        idle, self._idle = self._idle, []
        leaving = [session.close() for session in idle]
        await asyncio.gather(*leaving, *(session.stop() for session in self._open))

    @asynccontextmanager
    async def _transaction(self, seconds: float) -> AsyncIterator[Session]:
        """Hold one connection in a read-only transaction for at most so many seconds."""
        deadline = asyncio.get_running_loop().time() + seconds
        async with turn(self._free, seconds):
            session = await self._begun(deadline)
            self._open.add(session)
            try:
                yield session
            finally:
                self._open.discard(session)
                await session.end()
                if session.usable and not self._closed:
                    self._idle.append(session)
                else:
                    session.hang_up()

    async def _begun(self, deadline: float) -> Session:
        """Return a connection with a new snapshot; an idle one may have been lost meanwhile."""
        while True:
            if self._closed:
                raise OwnerError(OwnerErrorKind.UNREACHABLE, "the owner's adapter is closed")
            idle = self._idle.pop() if self._idle else None
            session = idle or await self._opened(deadline)
            try:
                await session.begin(deadline - asyncio.get_running_loop().time())
            except OwnerError as error:
                session.hang_up()
                if idle is None or error.kind is not OwnerErrorKind.UNREACHABLE:
                    raise
            except BaseException:
                session.hang_up()
                raise
            else:
                return session

    async def _opened(self, deadline: float) -> Session:
        try:
            async with asyncio.timeout_at(deadline):
                session = await Session.open(self._address)
        except TimeoutError:
            raise OwnerError(
                OwnerErrorKind.TIMEOUT, "connecting: the owner ran out of time"
            ) from None
        oldest = OLDEST[session.server.mariadb]
        if session.server.version < oldest:
            session.hang_up()
            name = "MariaDB" if session.server.mariadb else "MySQL"
            raise OwnerError(
                OwnerErrorKind.REFUSED,
                f"connecting: the owner's {name} is older than {'.'.join(map(str, oldest))}",
            )
        return session


class MariadbSnapshot:
    """One connection inside its transaction. See :class:`~oar_adapters.interface.Snapshot`."""

    def __init__(self, session: Session, traits: catalog.Traits, dialect: sql.Dialect) -> None:
        self._session = session
        self._traits = traits
        self._dialect = dialect

    async def run(self, query: Authorized) -> AsyncIterator[Batch]:
        """Stream the rows, a batch at a time; a long list of keys is several queries."""
        asked = query.query
        try:
            if not isinstance(asked, Scan):
                raise ValueError
            chunks = list(sql.key_conditions(asked, self._traits, self._dialect))
        except (KeyError, ValueError):
            raise _refused() from None
        left = asked.limit
        for keys in chunks:
            try:
                text = sql.scan(asked, self._traits, self._dialect, keys, left)
            except (KeyError, ValueError):
                raise _refused() from None
            async with aclosing(self._batches(asked, text)) as batches:
                async for batch in batches:
                    left = None if left is None else left - batch.rows
                    yield batch
            if left is not None and left <= 0:
                return

    async def _batches(self, asked: Scan, text: str) -> AsyncGenerator[Batch, None]:
        types = [output.type for output in asked.outputs]
        counted = not types
        async with aclosing(self._session.stream(text, types or ["bigint"])) as batches:
            async for rows in batches:
                if counted:
                    yield Batch((), int(rows[0][0] or 0))
                else:
                    yield Batch(_encoded(asked, rows), len(rows))


async def _permitted(session: Session, text: str) -> list[tuple[str | None, ...]]:
    """Fetch rows of the server's own that may not be there, or not be for us."""
    try:
        return await session.rows(text)
    except OwnerError as error:
        if error.kind in (OwnerErrorKind.REFUSED, OwnerErrorKind.SCHEMA_CHANGED):
            return []
        raise


def _encoded(asked: Scan, rows: list[tuple[bytes | None, ...]]) -> list[list[bytes | None]]:
    encoded = []
    for output, values in zip(asked.outputs, zip(*rows, strict=True), strict=True):
        try:
            encoded.append(cells.encode(output.type, values))
        except WrongValue:
            place = f'table "{asked.table.name}" column "{output.name}"'
            raise wrong_value(place, output.type) from None
    return encoded


def _refused() -> OwnerError:
    return OwnerError(OwnerErrorKind.REFUSED, "the query is not one a MariaDB owner evaluates")


# --- URL and options ------------------------------------------------------------------------------


def _address(url: str, seconds: float) -> Address:
    try:
        parts = urlsplit(url)
        port = parts.port or 3306
        given = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError:
        raise ValueError(_FORM) from None
    parameters = dict(given)
    database = unquote(parts.path[1:])
    whole = parts.username and database and "/" not in database and not parts.fragment
    reached = bool(parts.hostname) is not bool(parameters.get("socket"))
    if parts.scheme.lower() not in ("mariadb", "mysql") or not whole or not reached:
        raise ValueError(f"{_FORM}, or mariadb://user@/database?socket=/path")
    if len(parameters) != len(given) or not parameters.keys() <= _PARAMETERS:
        raise ValueError(
            f"owner URL has a parameter that is none of {', '.join(sorted(_PARAMETERS))}"
        )
    return Address(
        user=unquote(parts.username or ""),
        password=unquote(parts.password or ""),
        host=parts.hostname,
        port=port,
        socket=parameters.get("socket"),
        database=database,
        tls=_tls(parameters),
        seconds=seconds,
    )


def _tls(parameters: Mapping[str, str]) -> ssl.SSLContext | None:
    files = {"ssl-ca", "ssl-cert", "ssl-key"} & parameters.keys()
    mode = parameters.get("ssl-mode", "disabled").lower().replace("-", "_")
    if mode == "disabled":
        if files:
            raise ValueError("owner URL has files for TLS, and no ssl-mode that uses it")
        return None
    if mode not in ("required", "verify_ca", "verify_identity"):
        raise ValueError("ssl-mode is none of disabled, required, verify_ca, verify_identity")
    if parameters.get("socket"):
        raise ValueError("ssl-mode is for a host, and the owner URL names a socket")
    try:
        context = ssl.create_default_context(cafile=parameters.get("ssl-ca"))
        if "ssl-cert" in parameters:
            context.load_cert_chain(parameters["ssl-cert"], parameters.get("ssl-key"))
    except OSError:  # what ssl raises is one, too
        raise ValueError("a file that the owner URL names for TLS cannot be read") from None
    context.check_hostname = mode == "verify_identity"
    if mode == "required":
        context.verify_mode = ssl.CERT_NONE
    return context
