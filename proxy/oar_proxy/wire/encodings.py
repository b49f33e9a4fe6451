"""Client encodings: which of them are taken for UTF-8, and how messages are put into the others.

What the hub converts is converted by it; only its errors and notices about UTF-8 of the proxy's,
and the proxy's own, are put into the client's encoding here (PostgreSQL's manual, 23.3, "Character
Set Support").
"""

from __future__ import annotations

from typing import Final

from oar_adapters.encodings import CODECS, UTF8

AS_UTF8: Final = frozenset({UTF8, "SQL_ASCII"})
"""Client encodings under which the hub takes and gives UTF-8 as it is."""

_CODECS: Final = {
    **dict.fromkeys(AS_UTF8, "utf-8"),
    **CODECS,
    "BIG5": "cp950",
    "EUC_CN": "gb2312",
    "EUC_JIS_2004": "euc_jis_2004",
    "EUC_JP": "euc_jp",
    "EUC_KR": "euc_kr",
    "GB18030": "gb18030",
    "GBK": "gbk",
    "JOHAB": "johab",
    "SHIFT_JIS_2004": "shift_jis_2004",
    "SJIS": "cp932",
    "UHC": "cp949",
}


def encoded(text: str, encoding: str) -> bytes:
    """Put a message into a client encoding, with ``?`` for what that has not.

    PostgreSQL raises 22P05 instead of such a message; here it is worth more than its quotation
    marks. An encoding that Python has not gets ASCII.
    """
    return text.encode(_CODECS.get(encoding, "ascii"), errors="replace")
