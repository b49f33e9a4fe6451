"""Frames that tests write themselves, and the comparison of what two servers answer to them."""

from __future__ import annotations

import os
import socket
import struct

import psycopg
from oar_proxy.federation import Parameter
from oar_proxy.wire import messages as m

SYNC, FLUSH = m.SYNC, m.FLUSH

REVALIDATES = b"RevalidateCachedQuery"
"""The routine by which drivers know that a statement has to be prepared again."""


def frame(code, body=b""):
    return code + struct.pack("!I", len(body) + 4) + body


def parse(text, name=b"", oids=()):
    return m.encode_parse(name, text.encode(), oids)


def bind(portal=b"", statement=b"", values=(), results=()):
    return b"".join(m.encode_bind(portal, statement, values, results))


def bind_formats(formats, values, results=(), portal=b"", statement=b""):
    """Write a Bind message with as many format codes as are given."""
    body = (
        portal
        + b"\0"
        + statement
        + b"\0"
        + struct.pack(f"!H{len(formats)}H", len(formats), *formats)
    )
    body += struct.pack("!H", len(values)) + b"".join(
        struct.pack("!i", -1) if value is None else struct.pack("!i", len(value)) + value
        for value in values
    )
    return frame(b"B", body + struct.pack(f"!H{len(results)}H", len(results), *results))


def execute(portal=b"", rows=0):
    return m.encode_execute(portal, rows)


def describe(kind, name=b""):
    return m.encode_describe(kind, name)


def close(kind, name=b""):
    return m.encode_close(kind, name)


def query(text):
    return m.encode_query(text.encode())


def run(text, *values, results=()):
    return parse(text) + bind(values=values, results=results) + execute()


def binary(number, oid=23):
    return Parameter(oid, 1, struct.pack("!i" if oid == 23 else "!q", number))


def text(value):
    return Parameter(0, 0, str(value).encode())


class Raw:
    """An authenticated connection on which a test writes and reads frames itself."""

    def __init__(self, **where):
        self._connection = psycopg.connect(**where, autocommit=True)
        self.key = self._connection.info.backend_pid
        self.socket = socket.socket(fileno=os.dup(self._connection.fileno()))
        self.socket.settimeout(60)
        self._received = b""

    def send(self, *messages):
        self.socket.sendall(b"".join(messages))

    def receive(self):
        """Return the next message's code and body; ``(None, None)`` once the server has closed."""
        while len(self._received) < 5 or len(self._received) < self._length():
            try:
                part = self.socket.recv(65536)
            except ConnectionResetError:
                part = b""
            if not part:
                return None, None
            self._received += part
        length = self._length()
        message, self._received = self._received[:length], self._received[length:]
        return chr(message[0]), message[5:]

    def _length(self):
        return int.from_bytes(self._received[1:5], "big") + 1

    def until(self, code, times=1):
        """Return all messages up to one of that code, or up to the end."""
        got = []
        while times:
            got.append(self.receive())
            if got[-1][0] is None:
                break
            times -= got[-1][0] == code
        return got

    def ask(self, *messages, until="Z", times=1):
        self.send(*messages)
        return self.until(until, times)

    def close(self):
        self.socket.close()
        self._connection.close()


def messages(data):
    """Cut bytes into messages: code and body."""
    while data:
        length = int.from_bytes(data[1:5], "big") + 1
        yield data[:1], data[5:length]
        data = data[length:]


def with_table(data, table):
    """Put the table's name where its placeholder is, and correct the lengths."""
    return b"".join(frame(code, body.replace(b"{t}", table)) for code, body in messages(data))


def columns(body):
    """Return name, type, its length and modifier, and format of each column."""
    (count,), at, found = struct.unpack_from("!H", body), 2, []
    for _ in range(count):
        end = body.index(b"\0", at)
        _, _, *shown = struct.unpack_from("!IHIhiH", body, end + 1)
        found.append((body[at:end], *shown))
        at = end + 1 + 18
    assert at == len(body)
    return found


def comparable(code, body):
    """Leave out what differs for a good reason: table numbers, positions of source code."""
    if code == "T":
        return code, columns(body)
    if code in ("E", "N"):
        fields = m.decode_fields(frame(code.encode(), body))
        return code, {
            k: v for k, v in fields.items() if k in "SVCMDHR" and (k != "R" or v == REVALIDATES)
        }
    return code, body


def play(raw, steps, table):
    """Send each step and read up to the answer's end: by default one Z for each Sync, or Query."""
    got = []
    for step in steps:
        data, until, times = step if isinstance(step, tuple) else (step, "Z", 0)
        sent = [code for code, _ in messages(data)]
        times = times or sent.count(b"S") or 1
        got += [comparable(*m) for m in raw.ask(with_table(data, table), until=until, times=times)]
    return got
