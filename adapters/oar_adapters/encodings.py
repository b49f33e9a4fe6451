"""PostgreSQL's encodings: what Python calls them, and what a database in one of them can hold.

A server refuses a query with a character that its encoding has not, though no value there can be
equal to it. Pure.
"""

from __future__ import annotations

from typing import Final

UTF8: Final = "UTF8"

CODECS: Final = {
    "LATIN1": "latin-1",
    "LATIN2": "iso8859-2",
    "LATIN3": "iso8859-3",
    "LATIN4": "iso8859-4",
    "LATIN5": "iso8859-9",
    "LATIN6": "iso8859-10",
    "LATIN7": "iso8859-13",
    "LATIN8": "iso8859-14",
    "LATIN9": "iso8859-15",
    "LATIN10": "iso8859-16",
    "ISO_8859_5": "iso8859-5",
    "ISO_8859_6": "iso8859-6",
    "ISO_8859_7": "iso8859-7",
    "ISO_8859_8": "iso8859-8",
    "KOI8R": "koi8-r",
    "KOI8U": "koi8-u",
    "WIN866": "cp866",
    "WIN874": "cp874",
    "WIN1250": "cp1250",
    "WIN1251": "cp1251",
    "WIN1252": "cp1252",
    "WIN1253": "cp1253",
    "WIN1254": "cp1254",
    "WIN1255": "cp1255",
    "WIN1256": "cp1256",
    "WIN1257": "cp1257",
    "WIN1258": "cp1258",
}
"""PostgreSQL's encodings of one byte a character, by what Python calls them. Of others it is not
known which characters they have."""


def holds(text: str, encoding: str) -> bool | None:
    """Tell whether a database of an encoding can hold a text; None: not known."""
    if encoding == UTF8 or text.isascii():
        return True
    if encoding not in CODECS:
        return None
    try:
        text.encode(CODECS[encoding])
    except UnicodeEncodeError:
        return False
    return True
