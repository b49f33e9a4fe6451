"""``oar cert``: a certificate authority of one's own, and the proxy's certificate under it."""

from __future__ import annotations

import enum
from typing import Final

SERVER_DAYS: Final = 397
"""Days a server certificate is valid: the most that browsers take of public authorities."""

MOST_DAYS: Final = 825
"""macOS takes no server certificate that is valid for longer, whoever signed it."""


class KeyKind(enum.StrEnum):
    """What keys are made. Both sign with SHA-256."""

    ecdsa = "ecdsa"
    rsa = "rsa"
