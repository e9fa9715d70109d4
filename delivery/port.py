"""Serve a process's metrics and health over HTTP, in a thread of its own."""

from __future__ import annotations

import contextlib
import json
import logging
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from delivery.errors import DeliveryError
from delivery.health import Health
from delivery.vitals import State

__all__ = ["serving_port"]

log = logging.getLogger(__name__)


@contextlib.contextmanager
def serving_port(
    host: str, port: int, registry: CollectorRegistry, health: Health
) -> Iterator[int]:
    """Serve /metrics, /healthz and /readyz until the block ends; port 0 takes a free one.

    Gives the port. There is nothing to change, and no name of a person or a material. Raises
    DeliveryError if the address is taken.
    """

    class Answer(BaseHTTPRequestHandler):
        """One request."""

        timeout = 10  # seconds that a client may take: a thread waits for it

        def do_GET(self) -> None:
            vital = health.vital
            match self.path.partition("?")[0]:
                case "/metrics":
                    self._send(200, CONTENT_TYPE_LATEST, generate_latest(registry))
                case "/healthz":
                    self._say(vital.alive, "alive" if vital.alive else vital.state.value)
                case "/readyz":
                    self._say(vital.state is State.READY, vital.state.value)
                case _:
                    self._send(404, "text/plain", b"/metrics, /healthz or /readyz\n")

        def log_message(self, *_: object) -> None:
            """Keep the log for what the process does."""

        def _say(self, well: bool, status: str) -> None:
            vital = health.vital
            fields = {"status": status, "reason": vital.reason, "since": vital.since}
            self._send(200 if well else 503, "application/json", json.dumps(fields).encode())

        def _send(self, code: int, kind: str, body: bytes) -> None:
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    try:
        server = ThreadingHTTPServer((host, port), Answer)
    except OSError as error:
        raise DeliveryError(
            f"can't listen on {host}:{port}: {error.strerror}; take another --metrics-port"
        ) from error
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
    log.info("metrics.ready", extra={"url": f"http://{host}:{server.server_port}"})
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
