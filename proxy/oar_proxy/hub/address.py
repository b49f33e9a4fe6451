"""Where the hub is, and what can be wrong with it before any client is there."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field


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
