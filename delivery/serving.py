"""Run the API as a process on a loopback address."""

from __future__ import annotations

import logging
import socket

import uvicorn

from delivery.api import create_app
from delivery.doorkeeper import check_loopback
from delivery.errors import DeliveryError
from delivery.logs import log_to_stderr
from delivery.malformed import ProblemProtocol
from delivery.spans import begin_request
from delivery.stopping import stop_on_signals
from delivery.stores import PUBLISHER, Stores
from delivery.tracing import trace_with

__all__ = ["serve"]

log = logging.getLogger(__name__)


def serve(
    stores: Stores, host: str, port: int, log_level: str = "info", *, log_json: bool = False
) -> None:
    """Serve until SIGINT or SIGTERM; port 0 takes a free one, and the log says which.

    Raises DeliveryError for a host that is not loopback, or an address that is taken.
    """
    check_loopback(host)
    log_to_stderr(log_level, as_json=log_json)
    stores.open(PUBLISHER).close()  # a store that can't be used is said now, not at a request
    app = create_app(
        lambda: stores.open(PUBLISHER), trace_with(stores.inboxes()), begin=begin_request()
    )
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family)
    except OSError as error:
        raise DeliveryError(
            f"can't listen on {host}:{port}: {error.strerror}; take another --port"
        ) from error
    shown = f"[{host}]" if ":" in host else host
    log.info("api.ready", extra={"url": f"http://{shown}:{listener.getsockname()[1]}"})
    stop_on_signals()  # uvicorn raises the signal again when it has shut down: no second death
    config = uvicorn.Config(
        app,
        http=ProblemProtocol,
        log_config=None,
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=5,
    )
    uvicorn.Server(config).run(sockets=[listener])
    log.info("api.stopped")
