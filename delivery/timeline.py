"""Sample where messages are, once a second, while a run goes on."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pika.adapters.blocking_connection import BlockingConnection
from pika.exceptions import AMQPError

from delivery.arena import Arena
from delivery.connection import BrokerUnavailable, connect
from delivery.dead import dead_queue
from delivery.observe import depth
from delivery.retry import retry_queue
from delivery.routes import RECIPIENTS

__all__ = ["Sample", "Timeline"]


@dataclass(frozen=True)
class Sample:
    """Counts at one moment; None where nobody answered (a killed broker, a locked store)."""

    at: float  # Unix seconds
    accepted: int
    pending: int | None
    settled: Mapping[str, int | None]  # receipts, by recipient
    ready: Mapping[str, int | None]
    retry: Mapping[str, int | None]
    dead: Mapping[str, int | None]

    @property
    def at_rest(self) -> bool:
        """Nothing is pending, ready, or waiting for a retry."""
        on_the_way = (self.pending, *self.ready.values(), *self.retry.values())
        return all(count == 0 for count in on_the_way)


class Timeline(threading.Thread):
    """Takes samples until `end`."""

    def __init__(self, arena: Arena, *, every: float = 1.0) -> None:
        super().__init__(daemon=True, name="timeline")
        self._arena = arena
        self._every = every
        self._ending = threading.Event()
        self.samples: list[Sample] = []

    def run(self) -> None:
        """Take samples."""
        connection: BlockingConnection | None = None
        while not self._ending.wait(self._every):
            connection = self._sample(connection)
        hang_up(connection)

    def end(self) -> None:
        """Take no more samples."""
        self._ending.set()
        self.join()

    def once(self) -> list[Sample]:
        """Take a single sample now, without a thread."""
        hang_up(self._sample(None))
        return self.samples

    def _sample(self, connection: BlockingConnection | None) -> BlockingConnection | None:
        places: dict[str, dict[str, int | None]] = {"ready": {}, "retry": {}, "dead": {}}
        try:
            if connection is None or not connection.is_open:
                connection = connect(self._arena.config.named("timeline"))
            for recipient in RECIPIENTS:
                self._count(connection, recipient, places)
        except (AMQPError, BrokerUnavailable):
            connection = None
        nothing = dict.fromkeys(RECIPIENTS)
        sample = Sample(
            at=time.time(),
            accepted=len(self._arena.journal.entries),
            pending=self._rows(
                "publisher", "SELECT count(*) FROM outbox WHERE confirmed_at IS NULL"
            ),
            settled={each: self._rows(each, "SELECT count(*) FROM receipt") for each in RECIPIENTS},
            ready={**nothing, **places["ready"]},
            retry={**nothing, **places["retry"]},
            dead={**nothing, **places["dead"]},
        )
        self.samples.append(sample)
        return connection

    def _count(
        self,
        connection: BlockingConnection,
        recipient: str,
        places: dict[str, dict[str, int | None]],
    ) -> None:
        route = self._arena.config.route(recipient)
        retries = range(1, len(self._arena.config.retries_ms) + 1)
        queues = {
            "ready": [route.queue],
            "retry": [retry_queue(route, attempt) for attempt in retries],
            "dead": [dead_queue(route)],
        }
        for place, names in queues.items():
            found = [depth(connection, name) for name in names]
            places[place][recipient] = sum(each.ready for each in found if each)

    def _rows(self, participant: str, query: str) -> int | None:
        path: Path = self._arena.config.stores.path(participant)
        with contextlib.suppress(sqlite3.Error):
            store = sqlite3.connect(path, timeout=0.5)
            with contextlib.closing(store):
                return int(store.execute(query).fetchone()[0])
        return None


def hang_up(connection: BlockingConnection | None) -> None:
    """Close *connection*, if there still is one."""
    if connection is not None and connection.is_open:
        connection.close()
