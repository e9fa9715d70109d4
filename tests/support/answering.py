"""Servers that stand for the management plugin where it is not as it should be."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from urllib.error import HTTPError

from delivery.management import Management

Answer = tuple[int, bytes]


@contextmanager
def answering(status: int, body: bytes) -> Iterator[str]:
    """Give the address of a server with one answer to everything; it ends with the block."""
    with _serving(lambda _: (status, body)) as url:
        yield url


@contextmanager
def between(management: Management, act: Callable[[str], int | None]) -> Iterator[str]:
    """Give the address of a server that passes on each question to the plugin, after *act*.

    It gets the path asked for, and may return a status: that is the answer then.
    """

    def answer(path: str) -> Answer:
        if status := act(path):
            return status, b'{"error": "the test says so"}'
        try:
            return 200, json.dumps(management.get(path)[0]).encode()
        except HTTPError as error:
            return error.code, b"{}"

    with _serving(answer) as url:
        yield url


@contextmanager
def _serving(answer: Callable[[str], Answer]) -> Iterator[str]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = answer(self.path)
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
