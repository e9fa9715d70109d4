"""A heavy load: a steady flood of accepted events, and a dead queue that is full."""

from __future__ import annotations

import sqlite3
import threading
import time
import uuid
from contextlib import closing
from datetime import UTC, datetime

from delivery import outbox
from delivery.config import Config
from delivery.contract import MaterialPublished, material_published
from delivery.dead import dead_queue
from delivery.pipeline import ConfirmedChannel
from delivery.publisher import Message, envelope
from delivery.store import transaction
from delivery.stores import PUBLISHER

RATE = 1_000  # events a second


class Flood(threading.Thread):
    """Commits events into the outbox at RATE, a batch every 50 ms, until told to end."""

    def __init__(self, config: Config) -> None:
        super().__init__(daemon=True)
        self._stores = config.stores
        self._ending = threading.Event()
        self.committed = 0

    def run(self) -> None:
        begun = time.monotonic()
        with closing(self._stores.open(PUBLISHER)) as store:
            while not self._ending.wait(0.05):
                owed = int((time.monotonic() - begun) * RATE) - self.committed
                with transaction(store) as tx:
                    for _ in range(owed):
                        self._add(tx)
                self.committed += owed

    def _add(self, tx: sqlite3.Connection) -> None:
        data = MaterialPublished(
            material_id=f"m-{uuid.uuid4().hex[:12]}",
            revision=1,
            title="One of many",
            slug="one",
            author="A",
            published_at=datetime.now(UTC),
        )
        event = material_published(str(uuid.uuid4()), data)
        outbox.add(tx, event, correlation_id="flood", accepted_at=time.time())

    def end(self) -> None:
        self._ending.set()
        self.join()


def bury(config: Config, recipient: str, count: int) -> None:
    """Put *count* dead messages of some 1 kB into the recipient's dead queue."""
    queue = dead_queue(config.route(recipient))
    with ConfirmedChannel(config.broker) as channel:
        for first in range(0, count, 10_000):
            channel.send_all([_dead(queue) for _ in range(first, min(count, first + 10_000))])


def _dead(queue: str) -> Message:
    properties = envelope(str(uuid.uuid4()), "t", timestamp=1, correlation_id="c")
    return Message("", queue, properties, b"x" * 1000)
