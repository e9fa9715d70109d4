"""A child that keeps the audit log: the effect, then the ack, and nothing around them."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from delivery import audit, points
from delivery.connection import BrokerSettings, connect
from delivery.consumer import consume
from delivery.contract import Event
from delivery.handling import Effect, Handler
from delivery.routes import Route
from delivery.stopping import stop_on_signals
from support.children import arguments
from support.recipients import store_at


def read(
    *,
    url: str,
    store: str,
    namespace: str,
    idle: float | None = 0.5,
    kills: str = "",
    fails: str = "",
    slow: float = 0.0,
    around: Callable[[Handler], Handler] = lambda handle: handle,
    **options: Any,
) -> None:
    """Consume the audit queue until SIGTERM, or until nothing came for *idle* seconds.

    The event *kills* ends the process in its handler; *fails* raises; *slow* seconds each takes,
    after having made the file ``<store>.begun``.
    """

    def apply(event: Event, tx: sqlite3.Connection) -> Effect:
        Path(f"{store}.begun").touch()
        time.sleep(slow)
        effect = audit.append(event, tx)
        if event.id == kills:
            points.kill_here()
        if event.id == fails:
            raise RuntimeError("fails")
        return effect

    with (
        closing(store_at(Path(store))) as opened,
        connect(BrokerSettings(url=url)) as connection,
    ):
        consume(
            connection.channel(),
            Route("audit", namespace).queue,
            opened,
            around(apply),
            prefetch=10,
            idle=idle,
            stop=stop_on_signals(),
            **options,
        )


if __name__ == "__main__":
    read(**arguments())
