"""Builders of messages as either side sends them."""

from __future__ import annotations

import struct
from types import SimpleNamespace

import pytest


def message(code, body=b""):
    return code.encode() + struct.pack("!I", len(body) + 4) + body


def error(code="XX000", severity="ERROR"):
    fields = f"S{severity}\0V{severity}\0C{code}\0Mboom\0"
    return message("E", fields.encode() + b"\0")


def ready(status="I"):
    return message("Z", status.encode())


def row(*cells):
    body = struct.pack("!H", len(cells))
    for cell in cells:
        body += struct.pack("!i", -1) if cell is None else struct.pack("!I", len(cell)) + cell
    return message("D", body)


def columns(*named):
    body = struct.pack("!H", len(named))
    for name, oid in named:
        body += name.encode() + b"\0" + struct.pack("!IHIhiH", 0, 0, oid, -1, -1, 0)
    return message("T", body)


@pytest.fixture(scope="session")
def hub():
    """What a hub sends."""
    return SimpleNamespace(
        message=message,
        error=error,
        ready=ready,
        row=row,
        columns=columns,
        parsed=message("1"),
        bound=message("2"),
        closed=message("3"),
        no_data=message("n"),
        done=message("C", b"SELECT 1\0"),
        copy_in=message("G", b"\0\0\0"),
        notice=message("N", b"SNOTICE\0Mhm\0\0"),
    )
