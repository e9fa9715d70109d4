"""What is moved in a measurement: events of 512 bytes, and the places that hold them."""

from __future__ import annotations

import sqlite3
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from bench import ceilings
from pika import BasicProperties

from delivery import outbox
from delivery.codec import encode
from delivery.connection import BrokerSettings, connect
from delivery.contract import Event, MaterialPublished, material_published
from delivery.identity import new_event_id
from delivery.publisher import properties_of
from delivery.routes import Route, topology_of
from delivery.store import transaction
from delivery.topology import declare

SIZE = 512  # bytes of one event
MATERIALS = 1000  # different ones


@dataclass(frozen=True)
class Place:
    """One recipient's queue, bound to an exchange of its own on the broker at *url*."""

    url: str
    route: Route

    @property
    def settings(self) -> BrokerSettings:
        return BrokerSettings(url=self.url, name="bench")

    def purge(self) -> None:
        with connect(self.settings) as connection:
            connection.channel().queue_purge(self.route.queue)

    def fill(self, events: Sequence[Event]) -> None:
        """Empty the queue, then put *events* into it."""
        self.purge()
        self.publish(events)

    def publish(self, events: Sequence[Event]) -> float:
        """Publish by plain pika, pipelined; return the messages a second."""
        bodies = [encode(each) for each in events]
        properties = [properties_of(each) for each in events]
        return self.publish_raw(bodies, properties)

    def publish_raw(
        self,
        bodies: Sequence[bytes],
        properties: Sequence[BasicProperties],
        window: int = 500,
        *,
        queue: str = "",
    ) -> float:
        """Publish to the exchange, or straight into *queue*."""
        key = queue or "material.published.v1"
        exchange = "" if queue else self.route.exchange
        return ceilings.pipelined(self.url, exchange, key, bodies, properties, window)


@contextmanager
def place(url: str) -> Iterator[Place]:
    """Give a queue with its exchange, and delete both at the end."""
    route = Route("catalog", f"bench{uuid.uuid4().hex[:8]}")
    found = Place(url, route)
    with connect(found.settings) as connection:
        declare(connection, topology_of([route]))
    yield found
    with connect(found.settings) as connection:
        channel = connection.channel()
        channel.queue_delete(route.queue)
        channel.exchange_delete(route.exchange)


def events(count: int, *, first_revision: int = 1) -> list[Event]:
    """Return *count* events of SIZE bytes for MATERIALS materials, each revision used once."""
    now = datetime.now(UTC)
    made = []
    for number in range(count):
        data = MaterialPublished(
            material_id=f"m-{number % MATERIALS:06}",
            revision=first_revision + number // MATERIALS,
            title="T",
            slug="a-slug",
            author="An Author",
            published_at=now,
        )
        if not made:
            room = SIZE - len(encode(material_published(str(uuid.uuid4()), data)))
        title = "T" * (room + 1 - (len(str(data.revision)) - 1))
        data = data.model_copy(update={"title": title})
        made.append(material_published(new_id(), data))
    return made


def new_id() -> str:
    """Return an event id as the publisher makes them."""
    return new_event_id(time.time())


def fill_outbox(store: sqlite3.Connection, made: Sequence[Event]) -> None:
    """Put *made* into the outbox, 10,000 a commit."""
    now = time.time()
    for begin in range(0, len(made), 10_000):
        with transaction(store) as tx:
            for each in made[begin : begin + 10_000]:
                outbox.add(tx, each, correlation_id=each.id, accepted_at=now)


def fresh(folder: Path) -> Path:
    """Return the path of a file that is not there yet."""
    return folder / f"{uuid.uuid4().hex}.sqlite3"
