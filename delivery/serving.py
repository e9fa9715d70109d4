"""Run the API as a process on a loopback address."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from contextlib import closing
from types import FrameType

import uvicorn
from fastapi import FastAPI

from delivery.api import create_app
from delivery.config import Config
from delivery.doorkeeper import check_loopback
from delivery.errors import DeliveryError
from delivery.live import Onlooker
from delivery.live_page import install_page
from delivery.logs import log_to_stderr
from delivery.malformed import ProblemProtocol
from delivery.moved import refuse_moved
from delivery.publisher_store import SqlitePublisher
from delivery.served import served
from delivery.spans import begin_request
from delivery.stopping import Stop, stop_on_signals
from delivery.stores import PUBLISHER, Stores
from delivery.tracing import trace_with

__all__ = ["listen", "run_server", "serve", "serve_app", "url_of"]

log = logging.getLogger(__name__)


def serve(
    stores: Stores,
    host: str,
    port: int,
    log_level: str = "info",
    *,
    find: Callable[[], Config],
    log_json: bool = False,
) -> None:
    """Serve until SIGINT or SIGTERM; port 0 takes a free one, and the log says which.

    The live page shows the stores, and the broker that *find* names. Raises DeliveryError for a
    host that is not loopback, an address that is taken, or a file that is being copied; Moved.
    """
    check_loopback(host)
    log_to_stderr(log_level, as_json=log_json)
    stores.open(PUBLISHER).close()  # a store that can't be used is said now, not at a request
    publisher = SqlitePublisher(lambda: stores.open(PUBLISHER), trace_with(stores.inboxes()))
    app = create_app(publisher, begin=begin_request())
    leaving, lookout = Stop(), Onlooker(stores, find)
    install_page(app, lookout, stopping=lambda: bool(leaving), more=lambda: {"mode": "read-only"})
    with served(stores.path(PUBLISHER)):
        with closing(stores.open(PUBLISHER)) as store:
            refuse_moved(store)
        serve_app(app, host, port, leaving)


def serve_app(app: FastAPI, host: str, port: int, leaving: Stop) -> None:
    """Serve *app* until SIGINT or SIGTERM, and log where. Raises DeliveryError as listen does."""
    listener = listen(host, port)
    log.info("api.ready", extra={"url": url_of(listener)})
    stop_on_signals()  # uvicorn raises the signal again when it has shut down: no second death
    run_server(app, listener, leaving)
    log.info("api.stopped")


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket. Raises DeliveryError for an address that is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise DeliveryError(
            f"can't listen on {host}:{port}: {error.strerror}; take another --port"
        ) from error


def url_of(listener: socket.socket) -> str:
    """Return where the socket is reached."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def run_server(app: FastAPI, listener: socket.socket, leaving: Stop) -> None:
    """Run *app* until SIGINT or SIGTERM, when *leaving* is requested: streams end by themselves."""
    config = uvicorn.Config(
        app,
        http=ProblemProtocol,
        log_config=None,
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=5,
    )
    _Server(config, leaving).run(sockets=[listener])


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, leaving: Stop) -> None:
        super().__init__(config)
        self._leaving = leaving

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._leaving.request()
        super().handle_exit(sig, frame)
