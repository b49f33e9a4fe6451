"""A language model that knows one form of question and takes the time it is told to.

It speaks OpenAI's protocol over HTTP, as far as a drafter needs it.
"""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

QUESTION: Final = "How many orders of promo P{promo} cost less than {amount}?"
"""What it knows: ``{amount}`` makes questions different, and costs no order less than 2,000."""

_ASKED: Final = re.compile(r"promo P(\d+) cost less than (\d+)")
_DRAFT: Final = "SELECT count(*) FROM shop.orders WHERE promo = 'P{}' AND amount < {}"

_TICK: Final = 0.02


class Model:
    """``delay`` is in seconds; ``left`` counts requests that were broken off."""

    def __init__(self) -> None:
        self.delay = 0.0
        self.left = 0
        self.thinking: set[tuple[str, ...]] = set()
        """Promo and amount of the questions that it takes its time for."""
        self._lock = threading.Lock()
        self._over = threading.Event()
        model = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                length = int(self.headers["content-length"])
                chat = json.loads(self.rfile.read(length))
                found = _ASKED.search(chat["messages"][1]["content"])
                asked = found.groups() if found else ()
                sql = _DRAFT.format(*asked) if found else ""
                if not model.think(self, asked):
                    self.close_connection = True
                    return
                content = json.dumps({"sql": sql, "reason": ""})
                body = json.dumps(
                    {
                        "id": "draft",
                        "object": "chat.completion",
                        "created": 1,
                        "model": "load",
                        "choices": [
                            {
                                "index": 0,
                                "finish_reason": "stop",
                                "message": {"role": "assistant", "content": content},
                            }
                        ],
                        "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
                    }
                ).encode()
                try:
                    self.send_response(200)
                    self.send_header("content-type", "application/json")
                    self.send_header("content-length", str(len(body)))
                    self.end_headers()
                    self.wfile.write(body)
                except OSError:
                    model.note_left()

            def log_message(self, *arguments: object) -> None:
                """Stay silent."""

        class Server(ThreadingHTTPServer):
            request_queue_size = 512
            daemon_threads = True

            def handle_error(self, request: Any, client_address: Any) -> None:
                """A client that does not wait may reset its connection."""

        self._http = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_port}/v1"

    def note_left(self) -> None:
        """A client did not wait for its reply."""
        with self._lock:
            self.left += 1

    def think(self, handler: BaseHTTPRequestHandler, asked: tuple[str, ...]) -> bool:
        """Take the time; False: the client has gone meanwhile."""
        with self._lock:
            self.thinking.add(asked)
        try:
            until = time.monotonic() + self.delay
            while time.monotonic() < until:
                if self._over.wait(_TICK):
                    return False
                if self._gone(handler):
                    self.note_left()
                    return False
            return True
        finally:
            with self._lock:
                self.thinking.discard(asked)

    @staticmethod
    def _gone(handler: BaseHTTPRequestHandler) -> bool:
        look = socket.MSG_PEEK | socket.MSG_DONTWAIT
        try:
            return not handler.connection.recv(1, look)
        except BlockingIOError:
            return False
        except OSError:
            return True

    @contextmanager
    def serving(self) -> Iterator[Model]:
        """Serve for the length of the block."""
        thread = threading.Thread(target=self._http.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield self
        finally:
            self._over.set()
            self._http.shutdown()
            thread.join()
            self._http.server_close()
