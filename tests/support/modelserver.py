"""An OpenAI-compatible server of one test's own: real HTTP, scripted replies, faults on the wire."""

from __future__ import annotations

import json
import select
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from oar_proxy import prompt
from oar_proxy.protocols import prompts

HELD = 20
"""Seconds after which a held reply goes out all the same: no test waits that long."""


@dataclass
class Reply:
    """One answer: ``content`` (JSON of it, unless it is text), or a fault.

    ``body`` is sent as it is. ``hold`` waits until the test is over or the client has left;
    ``reset`` breaks the connection off.
    """

    content: Any = None
    status: int = 200
    finish: str = "stop"
    refusal: str | None = None
    body: str | None = None
    headers: dict[str, str] = field(default_factory=dict)
    hold: bool = False
    reset: bool = False
    tokens: tuple[int, int] = (1, 1)

    def text(self) -> str:
        if self.status != 200:
            return json.dumps({"error": {"message": "secret prompt text", "type": "x"}})
        if self.body is not None:
            return self.body
        content = self.content
        if not isinstance(content, str | None):
            content = json.dumps(content)
        message = {"role": "assistant", "content": content, "refusal": self.refusal}
        read, written = self.tokens
        return json.dumps(
            {
                "id": "reply",
                "object": "chat.completion",
                "created": 1,
                "model": "tiny",
                "choices": [{"index": 0, "message": message, "finish_reason": self.finish}],
                "usage": {
                    "prompt_tokens": read,
                    "completion_tokens": written,
                    "total_tokens": read + written,
                },
            }
        )


Respond = Callable[[dict[str, Any]], Reply]
"""Answers a request. Called by one thread a connection."""


class ModelServer:
    """What ``serving`` starts. It keeps the requests and the authorization they came with."""

    def __init__(self, respond: Respond) -> None:
        self.received: list[dict[str, Any]] = []
        self.keys: list[str] = []
        self.arrived = threading.Event()
        self.left = threading.Event()
        """Set when a client went away while its reply was held."""
        self.over = threading.Event()
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                request = json.loads(self.rfile.read(int(self.headers["content-length"])))
                server.received.append(request)
                server.keys.append(self.headers["authorization"])
                reply = respond(request)
                server.arrived.set()
                if reply.hold:
                    server.hold(self.connection)
                if reply.reset:
                    now = struct.pack("ii", 1, 0)
                    self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, now)
                    self.close_connection = True
                    self.connection.close()
                    return
                payload = reply.text().encode()
                try:
                    self.send_response(reply.status)
                    self.send_header("content-type", "application/json")
                    self.send_header("content-length", str(len(payload)))
                    for name, value in reply.headers.items():
                        self.send_header(name, value)
                    self.end_headers()
                    self.wfile.write(payload)
                except OSError:
                    pass  # a client that gave up is not there any more

            def log_message(self, *arguments: object) -> None:
                """Stay silent."""

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}/v1"

    def hold(self, connection: socket.socket) -> None:
        for _ in range(HELD * 100):
            if self.over.wait(0.01):
                return
            readable, _, _ = select.select([connection], [], [], 0)
            if readable and _is_over(connection):
                self.left.set()
                return


def _is_over(connection: socket.socket) -> bool:
    try:
        return not connection.recv(1, socket.MSG_PEEK)
    except ConnectionError:
        return True


@contextmanager
def serving(respond: Respond) -> Iterator[ModelServer]:
    server = ModelServer(respond)
    thread = threading.Thread(target=server.http.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server
    finally:
        server.over.set()
        server.http.shutdown()
        thread.join()
        server.http.server_close()


def in_order(*replies: Reply) -> Respond:
    """Give replies in order, the last one for ever."""
    left = list(replies)
    lock = threading.Lock()

    def respond(_: dict[str, Any]) -> Reply:
        with lock:
            return left.pop(0) if len(left) > 1 else left[0]

    return respond


ROLES = {
    prompt.RULES: "draft",
    prompts.OWNER: "owner",
    prompts.planner(pass_keys=True): "planner",
    prompts.planner(pass_keys=False): "planner",
    prompts.PLANNED: "planned",
    prompts.RECEIVER: "receiver",
    prompts.SELF: "self",
    prompts.ASK: "ask",
}
"""What a model is asked for, by its instruction."""


def asked(request: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Read the prompt: the role that the model is given, and its material."""
    system, user = request["messages"][:2]
    return ROLES[system["content"]], json.loads(user["content"])


Script = Callable[[dict[str, Any]], Any]
"""A reply, or its content, to material."""


def scripted(scripts: dict[str, Script], *faults: Reply) -> Respond:
    """Answer by role; ``faults`` are given first, whoever asks."""
    left = list(faults)
    lock = threading.Lock()

    def respond(request: dict[str, Any]) -> Reply:
        role, material = asked(request)
        with lock:
            if left:
                return left.pop(0)
        reply = scripts[role](material)
        return reply if isinstance(reply, Reply) else Reply(reply)

    return respond
