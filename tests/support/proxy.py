"""A TCP proxy between client and broker that can swallow what is said, slow it, or cut the line."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from urllib.parse import urlsplit, urlunsplit


class Proxy:
    """Set ``swallow_replies`` or ``swallow_requests`` to drop bytes; ``cut`` ends all connections.

    ``pause`` are the seconds after each piece of a reply: a slow line.
    ``swallowed`` counts the dropped bytes: the evidence that the fault did bite.
    """

    def __init__(self, amqp_url: str) -> None:
        parts = urlsplit(amqp_url)
        self._target = (parts.hostname or "127.0.0.1", parts.port or 5672)
        self._server = socket.create_server(("127.0.0.1", 0))
        port = self._server.getsockname()[1]
        user = parts.netloc.rpartition("@")[0]
        self.url = urlunsplit(parts._replace(netloc=f"{user}@127.0.0.1:{port}"))
        self.swallow_replies = False
        self.swallow_requests = False
        self.swallowed = 0
        self.pause = 0.0
        self.refusing = False
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """End every open connection, on both sides."""
        for pair in self._pairs:
            for end in pair:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
        self._pairs.clear()

    def close(self) -> None:
        self._server.close()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            if self.refusing:
                client.close()
                continue
            try:
                broker = socket.create_connection(self._target)
            except OSError:
                client.close()
                continue
            self._pairs.append((client, broker))
            threading.Thread(target=self._pump, args=(client, broker, True), daemon=True).start()
            threading.Thread(target=self._pump, args=(broker, client, False), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, requests: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if self.swallow_requests if requests else self.swallow_replies:
                    self.swallowed += len(data)
                    continue
                target.sendall(data)
                if self.pause and not requests:
                    time.sleep(self.pause)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def proxied(amqp_url: str) -> Iterator[Proxy]:
    proxy = Proxy(amqp_url)
    try:
        yield proxy
    finally:
        proxy.close()
