"""One test's own piece of the broker: declare, publish, put, and look."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pika import BasicProperties
from pika.adapters.blocking_connection import BlockingConnection

from delivery.connection import BrokerSettings, connect
from delivery.contract import Event
from delivery.publisher import Message, properties_of
from delivery.routes import Route, topology_of
from delivery.topology import declare
from support.events import message


@dataclass
class World:
    """A namespace on the broker, and a folder for files.

    It grows as the package does: ``consuming``, ``retrying`` and ``world`` add to this class.
    """

    connection: BlockingConnection
    settings: BrokerSettings
    namespace: str
    folder: Path

    def __post_init__(self) -> None:
        self.catalog = Route("catalog", self.namespace)
        self.audit = Route("audit", self.namespace)
        self.both = (self.catalog, self.audit)
        self.channel = self.connection.channel()

    def declare(self, *, routes: Sequence[Route] = ()) -> None:
        """Declare *routes*: all, if none is named."""
        declare(self.connection, topology_of(routes or self.both))

    def remove(self) -> None:
        """Delete what the test declared, for a world that no fixture cleans up."""
        channel = self.connection.channel()
        for route in self.both:
            for suffix in ("", ".dead", ".retry.1", ".retry.2"):
                channel.queue_delete(route.queue + suffix)
        channel.exchange_delete(self.catalog.exchange)

    def publish(self, *events: Event) -> None:
        """Publish to the exchange, and see that every event is confirmed, and went somewhere."""
        self.send(*(message(event, self.namespace) for event in events))

    def put(self, route: Route, body: bytes, properties: BasicProperties | Event) -> None:
        """Put any bytes straight into *route*'s queue, as a stranger could."""
        if isinstance(properties, Event):
            properties = properties_of(properties)
        self.send(Message("", route.queue, properties, body))

    def send(self, *messages: Message) -> None:
        """Send on a connection of its own: raises for what is returned or refused."""
        with connect(self.settings) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            for each in messages:
                channel.basic_publish(
                    each.exchange, each.routing_key, each.body, each.properties, mandatory=True
                )

    def ready(self, queue: str) -> int:
        """Ask the broker how many messages of *queue* are ready."""
        return int(self.channel.queue_declare(queue, passive=True).method.message_count)

    def consumers(self, queue: str) -> int:
        return int(self.channel.queue_declare(queue, passive=True).method.consumer_count)

    def take(self, queue: str) -> list[tuple[BasicProperties, bytes]]:
        """Take every ready message out of *queue*."""
        found = []
        while True:
            method, properties, body = self.channel.basic_get(queue, auto_ack=True)
            if method is None:
                return found
            found.append((properties, body))
