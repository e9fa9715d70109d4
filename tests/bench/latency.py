"""How long a publication is on its way: from the API's commit to both effects committed."""

from __future__ import annotations

import sqlite3
import threading
import time
from contextlib import closing
from statistics import median, quantiles

from bench.exchange import Exchange, exchange
from bench.scene import Row, Scene
from support.waiting import wait_for

from delivery.routes import RECIPIENTS
from delivery.stores import PUBLISHER

RATE = 100  # publications a second
SECONDS = 10.0
LOOK = 0.0005  # seconds between two looks at a recipient's store


def rows(scene: Scene) -> list[Row]:
    """Both ends are cautious: begun before the commit, ended when another process sees it."""
    middles, slowest = [], []
    with exchange(scene) as opened:
        opened.start("api", "relay", "catalog", "audit")
        _way(opened, 0.5)
        for _ in range(min(3, scene.rounds)):
            took = _way(opened, SECONDS if scene.size >= 1 else 3.0)
            middles.append(median(took) * 1000)
            slowest.append(quantiles(took, n=100)[98] * 1000)
    work = f"commit at the API to both effects committed, {RATE} a second"
    return [
        Row(f"{work}: p50", median(middles), "ms", target="<= 8 ms"),
        Row(f"{work}: p99", median(slowest), "ms", target="<= 50 ms"),
    ]


def _way(opened: Exchange, seconds: float) -> list[float]:
    """Publish at RATE; return the seconds that each event took."""
    count, begun = int(RATE * seconds), time.monotonic()
    published: set[str] = set()
    stop = threading.Event()
    seen: dict[str, dict[str, float]] = {recipient: {} for recipient in RECIPIENTS}
    watchers = [
        threading.Thread(target=_watch, args=(opened, recipient, seen[recipient], stop))
        for recipient in RECIPIENTS
    ]
    for each in watchers:
        each.start()
    try:
        with closing(opened.client()) as api:
            for number in range(count):
                time.sleep(max(0.0, begun + number / RATE - time.monotonic()))
                published.add(api.publish(f"m-{number % 50}", "T" * 300))
        wait_for(lambda: all(published <= each.keys() for each in seen.values()), "all effects", 60)
    finally:
        stop.set()
        for each in watchers:
            each.join()
    with closing(opened.config.stores.open(PUBLISHER)) as store:
        accepted = dict(store.execute("SELECT event_id, accepted_at FROM outbox").fetchall())
    return [max(each[e] for each in seen.values()) - accepted[e] for e in published]


def _watch(opened: Exchange, recipient: str, seen: dict[str, float], stop: threading.Event) -> None:
    """Note when each receipt that comes is there for others: then its effect is committed."""
    store: sqlite3.Connection | None = opened.config.stores.open_to_read(recipient)
    assert store is not None
    with closing(store):
        last, version = 0.0, -1
        while not stop.is_set():
            (now,) = store.execute("PRAGMA data_version").fetchone()
            if now == version:
                time.sleep(LOOK)
                continue
            version = now
            found = store.execute(
                "SELECT message_id, received_at FROM receipt WHERE recipient = ?"
                " AND received_at >= ?",
                (recipient, last),
            ).fetchall()
            moment = time.time()
            for message_id, received_at in found:
                seen.setdefault(message_id, moment)
                last = max(last, received_at)
