"""Our relay and our receiver, as their processes run them, for as long as there is work."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from bench.load import Place, fill_outbox, fresh

from delivery import catalog, inbox, outbox, revision, strikes
from delivery.confirms import Outcome
from delivery.connection import connect
from delivery.consumer import consume
from delivery.contract import Event
from delivery.dead import park
from delivery.handling import Effect, Handler
from delivery.inbox import once
from delivery.outbox import SqliteOutbox
from delivery.pipeline import ConfirmedChannel
from delivery.relay import relay_once
from delivery.retry import retry_later
from delivery.revision import latest_only
from delivery.stopping import Stop
from delivery.store import open_store
from delivery.strikes import limit_deaths

SCHEMAS = (inbox.SCHEMA, strikes.SCHEMA, revision.SCHEMA, catalog.SCHEMA)


def relayed(
    place: Place, folder: Path, made: Sequence[Event], *, batch: int = 500, window: int = 500
) -> float:
    """Relay *made* from a new outbox; return the events a second, confirmed and marked."""
    with closing(open_store(fresh(folder), outbox.SCHEMA)) as store:
        fill_outbox(store, made)
        return relay_all(store, place, len(made), batch=batch, window=window)


def relay_all(
    store: sqlite3.Connection, place: Place, count: int, *, batch: int = 500, window: int = 500
) -> float:
    """Relay *count* of what the outbox holds."""
    box = SqliteOutbox(store, place.route.exchange)
    with ConfirmedChannel(place.settings, window=window) as channel:
        left, begun = count, time.perf_counter()
        while left > 0:
            outcomes = relay_once(box, channel, limit=min(batch, left))
            assert set(outcomes) == {Outcome.CONFIRMED}, outcomes
            left -= outcomes[Outcome.CONFIRMED]
        return count / (time.perf_counter() - begun)


def received(place: Place, path: Path, count: int, *, batch: int, latest: bool = False) -> float:
    """Receive *count* messages into the store at *path*; return those applied a second.

    The effect is the catalog's card, *latest* with the rule that an older revision never wins.
    """
    stop, left, route = Stop(), count, place.route
    handle: Handler = once(route, latest_only(catalog.upsert) if latest else catalog.upsert)

    def counted(event: Event, tx: sqlite3.Connection) -> Effect:
        nonlocal left
        left -= 1
        if left == 0:
            stop.request()
        return handle(event, tx)

    with (
        closing(open_store(path, *SCHEMAS)) as store,
        connect(place.settings) as inbound,
        ConfirmedChannel(place.settings) as outbound,
    ):
        policy = retry_later(outbound, route, (1000,), exhausted=park(outbound, route))
        begun = time.perf_counter()
        consume(
            inbound.channel(),
            route.queue,
            store,
            counted,
            on_failure=policy,
            guard=limit_deaths(),
            batch=batch,
            prefetch=max(50, 10 * batch),
            stop=stop,
            meanwhile=outbound.serve,
        )
        return count / (time.perf_counter() - begun)
