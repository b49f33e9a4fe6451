"""Why no connection came about, as far as it may be told."""

from __future__ import annotations

import os
import socket
import ssl


def system_reason(error: BaseException | None) -> str:
    """Return what the operating system says of a connection, in brackets; empty: nothing.

    It quotes no address and no row: the words are its own for the error's number.
    """
    if isinstance(error, ssl.SSLError):
        return f" (TLS: {(error.reason or 'failed').lower().replace('_', ' ')})"
    if isinstance(error, socket.gaierror):
        return f" ({error.strerror})"
    if isinstance(error, OSError) and error.errno:
        return f" ({os.strerror(error.errno)})"
    return ""
