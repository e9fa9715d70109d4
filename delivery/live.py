"""Watch the whole exchange while somebody looks: stores, queues, and what happened."""

from __future__ import annotations

import contextlib
import secrets
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from pika.adapters.blocking_connection import BlockingConnection
from pika.exceptions import AMQPError

from delivery.config import Config
from delivery.connection import connect
from delivery.errors import DeliveryError
from delivery.listeners import Listeners, listeners
from delivery.live_counts import Counts, count
from delivery.live_snapshot import PARKED, Places, snapshot
from delivery.live_story import Story
from delivery.live_watch import NOT_YET, WAITING, Watcher
from delivery.management import Sample
from delivery.observe import MANAGEMENT_AGE, waiting
from delivery.parking import parked
from delivery.routes import RECIPIENTS, routes_of
from delivery.stores import PUBLISHER, Stores

__all__ = ["Onlooker"]

PERIOD = 0.25  # seconds between two looks


class Onlooker:
    """What the live page shows. *find* names the broker, or raises DeliveryError.

    *look* counts the stores, if they are no files. It asks for counts only: the dead are never
    opened, however many there are.
    """

    def __init__(
        self, stores: Stores, find: Callable[[], Config], look: Callable[[], Counts] | None = None
    ) -> None:
        self.instance = secrets.token_hex(8)
        self.story = Story()
        self._find = find
        self._config: Config | None = None
        self._connection: BlockingConnection | None = None
        self._lock = threading.Lock()
        self._viewers = 0
        self._stands: dict[str, object] = {}
        self._changed = time.monotonic()
        self._counted: Counts | None = None
        self._placed: Places | None = None
        publisher, *others = (_opener(stores, name) for name in (PUBLISHER, *RECIPIENTS))
        inboxes = dict(zip(RECIPIENTS, others, strict=True))
        self._counts: Watcher[Counts] = Watcher(
            "stores",
            look or partial(count, publisher, inboxes),
            period=PERIOD,
            told=self._hear_counts,
        )
        self._places: Watcher[Places] = Watcher(
            "broker", self._look_at_broker, period=PERIOD, share=WAITING, told=self._hear_places
        )
        self._samples: Watcher[Mapping[str, Sample]] = Watcher(
            "management", self._ask_management, period=1.0, share=WAITING
        )
        self._listeners: Watcher[Listeners | None] = Watcher(
            "listeners", self._ask_who_listens, period=MANAGEMENT_AGE, share=WAITING
        )
        self._watchers = (self._counts, self._places, self._samples, self._listeners)

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Keep looking while the block runs."""
        self._count_viewers(1)
        try:
            yield
        finally:
            self._count_viewers(-1)

    def close(self) -> None:
        """Look no more."""
        for watcher in self._watchers:
            watcher.close()

    def snapshot(self) -> dict[str, Any]:
        """Return what was seen last, ready for JSON."""
        calm = time.monotonic() - self._changed
        seen = (self._counts.seen, self._places.seen, self._samples.seen)
        return snapshot(*seen, listeners=self._listeners.seen, calm=calm)

    def _count_viewers(self, more: int) -> None:
        with self._lock:
            self._viewers += more
            for watcher in self._watchers:
                watcher.want(self._viewers > 0)

    def _look_at_broker(self) -> Places:
        kept = self._connection is not None and self._connection.is_open
        try:
            return self._look()
        except (AMQPError, OSError):
            if not kept:
                raise
            return self._look()  # nobody watched, and kept the connection alive: the broker is well

    def _look(self) -> Places:
        if self._connection is None or not self._connection.is_open:
            self._config = self._find()
            self._connection = connect(self._config.named("live"))
        assert self._config is not None
        try:
            routes = routes_of(self._config.namespace)
            places = waiting(self._connection, routes, retries=len(self._config.retries_ms))
            return Places(places, parked(self._connection, self._config.parking))
        except (AMQPError, OSError):
            lost, self._connection = self._connection, None
            with contextlib.suppress(AMQPError, OSError):
                lost.close()
            raise

    def _ask_management(self) -> Mapping[str, Sample]:
        config, placed = self._config, self._placed
        if config is None or config.management is None:
            return {}
        queues = {name: config.route(name).queue for name in RECIPIENTS}
        if placed and placed.parked:
            queues[PARKED] = placed.parked.queue
        found = {}
        for name, queue in queues.items():
            with contextlib.suppress(OSError):
                found[name] = config.management.sample(queue)
        return found

    def _ask_who_listens(self) -> Listeners | None:
        if self._config is None:
            raise DeliveryError(NOT_YET)
        return listeners(self._config)

    def _hear_counts(self, new: Counts | None) -> None:
        self.story.compare_counts(self._counted, new)
        self._counted = new
        self._note("stores", (new.outgoing, new.receipts) if new else None)

    def _hear_places(self, new: Places | None) -> None:
        old, self._placed = self._placed, new
        self.story.compare_places(old.recipients if old else None, new.recipients if new else None)
        if old and new:
            self.story.compare_parked(old.parked, new.parked)
        seen = new.recipients if new else ()
        stand: list[object] = [(p.ready, p.retry, p.dead, p.consumers) for p in seen]
        self._note("queues", [*stand, new and new.parked and new.parked.ready])

    def _note(self, where: str, stand: object) -> None:
        if self._stands.get(where) != stand:
            self._stands[where] = stand
            self._changed = time.monotonic()


def _opener(stores: Stores, participant: str) -> Callable[[], sqlite3.Connection | None]:
    return lambda: stores.open_to_read(participant)
