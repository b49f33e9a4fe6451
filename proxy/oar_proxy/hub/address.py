"""Where the hub is, and what can be wrong with it before any client is there."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field

import psycopg.conninfo


class HubError(Exception):
    """The hub cannot be started, reached or used. ``hint`` says what an operator can do."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


@dataclass(frozen=True, slots=True)
class Encryption:
    """How a connection is encrypted. ``name`` is what the server is called, empty: it is not told.

    ``direct``: TLS begins at once, without asking for it.
    """

    context: ssl.SSLContext = field(repr=False)
    name: str
    direct: bool


@dataclass(frozen=True, slots=True)
class HubAddress:
    """A hub that accepts connections.

    ``host`` is a socket directory when it begins with ``/``, else a host name or an address.
    ``conninfo`` is libpq's connection string of the proxy's own role and holds its password: it is
    never logged. ``encryption`` is that of other connections than libpq's; None: they have none.
    """

    host: str
    port: int
    database: str
    conninfo: str = field(repr=False)
    embedded: bool = False
    encryption: Encryption | None = None

    @property
    def session(self) -> str:
        """``conninfo`` for a session of the proxy's, which looks names up in ``pg_catalog`` alone.

        In the database's own search path clients may have made functions and operators that fit a
        call better than PostgreSQL's. They would run with the rights of the proxy's role.
        """
        given = psycopg.conninfo.conninfo_to_dict(self.conninfo).get("options") or ""
        options = f"{given} -c search_path=pg_catalog".strip()
        return psycopg.conninfo.make_conninfo(self.conninfo, options=options)
