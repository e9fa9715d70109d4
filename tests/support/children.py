"""Processes to kill: a relay and a consumer that a test starts, stops, and starts again."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import delivery
from delivery import audit, outbox, points
from delivery.connection import BrokerSettings, connect
from delivery.consumer import consume
from delivery.contract import Event
from delivery.dead import park
from delivery.handling import Effect
from delivery.inbox import once
from delivery.outbox import SqliteOutbox
from delivery.pipeline import ConfirmedChannel
from delivery.relay import only_relay, relay_once
from delivery.retry import retry_later
from delivery.routes import Route
from delivery.stopping import stop_on_signals
from delivery.store import open_store
from delivery.strikes import limit_deaths
from support.recipients import store_at


def start(role: str, **arguments: Any) -> subprocess.Popen[bytes]:
    """Start a child in *role* (``relay`` or ``consumer``), with the package that the test has."""
    paths = (Path(__file__).parents[1], Path(delivery.__file__).parents[1])
    path = os.pathsep.join(str(each) for each in paths)
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "support.children", role, json.dumps(arguments)],
        env={**os.environ, "PYTHONPATH": path},
    )


def run(role: str, *, seconds: float = 60.0, **arguments: Any) -> int:
    """Run a child to its end, and return its exit code: -9 if it was killed."""
    with start(role, **arguments) as child:
        try:
            return child.wait(seconds)
        finally:
            child.kill()


def relay(*, url: str, store: str, exchange: str, limit: int, die_at: list[Any]) -> None:
    """Relay what is due, then end; or die at the n-th visit of a point."""
    _arm(die_at)
    with (
        only_relay(Path(store)),
        closing(open_store(store, outbox.SCHEMA)) as opened,
        ConfirmedChannel(BrokerSettings(url=url)) as channel,
    ):
        box = SqliteOutbox(opened, exchange)
        while relay_once(box, channel, limit=limit):
            pass


def consumer(
    *,
    url: str,
    store: str,
    namespace: str,
    die_at: list[Any],
    delays_ms: list[int],
    idle: float | None,
    kills: str = "",
    fails: str = "",
    slow: float = 0.0,
    batch: int = 1,
) -> None:
    """Consume the audit queue until SIGTERM, or until nothing came for *idle* seconds.

    The event *kills* ends the process in its handler; *fails* raises; *slow* seconds each takes,
    after having made the file ``<store>.begun``.
    """
    _arm(die_at)
    route = Route("audit", namespace)

    def apply(event: Event, tx: sqlite3.Connection) -> Effect:
        Path(f"{store}.begun").touch()
        time.sleep(slow)
        effect = audit.append(event, tx)
        if event.id == kills:
            points.kill_here()
        if event.id == fails:
            raise RuntimeError("fails")
        return effect

    settings = BrokerSettings(url=url)
    with (
        closing(store_at(Path(store))) as opened,
        connect(settings) as connection,
        ConfirmedChannel(settings) as copies,
    ):
        consume(
            connection.channel(),
            route.queue,
            opened,
            once(route, apply),
            on_failure=retry_later(copies, route, delays_ms, exhausted=park(copies, route)),
            guard=limit_deaths(3),
            batch=batch,
            prefetch=10,
            idle=idle,
            stop=stop_on_signals(),
            meanwhile=copies.serve,
        )


def _arm(die_at: list[Any]) -> None:
    if die_at:
        point, visit = die_at
        points.arm(point, points.kill_here, on_visit=visit)


if __name__ == "__main__":
    {"relay": relay, "consumer": consumer}[sys.argv[1]](**json.loads(sys.argv[2]))
