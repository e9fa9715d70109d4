"""One test's own piece of the broker: declare, publish, consume, and look."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from threading import Barrier
from typing import Any

from pika import BasicProperties
from pika.adapters.blocking_connection import BlockingConnection

from delivery.confirms import Answer, Outcome
from delivery.connection import BrokerSettings, connect
from delivery.consumer import FailurePolicy, Settlement, consume
from delivery.contract import Event
from delivery.dead import dead_queue, dead_topology, park
from delivery.handling import Delivery, Handler
from delivery.pipeline import ConfirmedChannel
from delivery.publisher import properties_of
from delivery.retry import retry_later, retry_topology
from delivery.routes import Route, topology_of
from delivery.stopping import Stop
from delivery.topology import Topology, declare
from support.events import message
from support.recipients import store_at

DEADLINE = 20.0  # seconds: for a condition that should come at once


@dataclass
class Seen:
    """What a consumer of the test went through."""

    events: list[Event] = field(default_factory=list)
    failures: list[tuple[Delivery, Exception]] = field(default_factory=list)


@dataclass
class World:
    """A namespace on the broker, and the files of its recipients."""

    connection: BlockingConnection
    settings: BrokerSettings
    namespace: str
    folder: Path

    def __post_init__(self) -> None:
        self.catalog = Route("catalog", self.namespace)
        self.audit = Route("audit", self.namespace)
        self.channel = self.connection.channel()

    def declare(self, *delays_ms: int, routes: Sequence[Route] = (), dead: bool = True) -> None:
        """Declare *routes* (all, if none is named) with retry queues and dead queues."""
        routes = routes or (self.catalog, self.audit)
        topology = topology_of(routes) + retry_topology(routes, delays_ms)
        declare(self.connection, topology + (dead_topology(routes) if dead else Topology()))

    def remove(self) -> None:
        """Delete what the test declared, for a world that no fixture cleans up."""
        channel = self.connection.channel()
        for route in (self.catalog, self.audit):
            for suffix in ("", ".dead", ".retry.1", ".retry.2"):
                channel.queue_delete(route.queue + suffix)
        channel.exchange_delete(self.catalog.exchange)

    def store_path(self, route: Route) -> Path:
        return self.folder / f"{route.recipient}.db"

    def publish(self, *events: Event) -> None:
        """Publish to the exchange, and see that every event is confirmed."""
        with ConfirmedChannel(self.settings) as channel:
            answers = channel.send_all([message(each, self.namespace) for each in events])
        assert answers == [Answer(Outcome.CONFIRMED)] * len(events)

    def put(self, route: Route, body: bytes, properties: BasicProperties | Event) -> None:
        """Put any bytes straight into *route*'s queue, as a stranger could."""
        if isinstance(properties, Event):
            properties = properties_of(properties)
        with connect(self.settings) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            channel.basic_publish("", route.queue, body, properties, mandatory=True)

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

    def dead(self, route: Route) -> list[tuple[dict[str, Any], bytes]]:
        """Take *route*'s dead messages: their headers and bodies."""
        return [(dict(p.headers), body) for p, body in self.take(dead_queue(route))]

    def consume(
        self,
        route: Route,
        handle: Handler,
        *,
        delays_ms: Sequence[int] = (),
        until: Callable[[Seen], bool] | None = None,
        together: Barrier | None = None,
        **options: Any,
    ) -> Seen:
        """Consume with retry and dead queue until *until* holds, or nothing came for 0.4 s.

        The connection, the confirmed channel and the store are this consumer's own; with
        *together* it begins when the other consumers are as far.
        """
        seen, stop, end = Seen(), Stop(), time.monotonic() + DEADLINE

        def noting(event: Event, tx: Any) -> Any:
            seen.events.append(event)
            return handle(event, tx)

        def meanwhile() -> None:
            copies.serve()
            assert time.monotonic() < end, f"not within {DEADLINE} s: {seen}"
            if until is not None and until(seen):
                stop.request()

        with (
            closing(store_at(self.store_path(route))) as store,
            connect(self.settings) as connection,
            ConfirmedChannel(self.settings) as copies,
        ):
            if together is not None:
                together.wait()
            consume(
                connection.channel(),
                route.queue,
                store,
                noting,
                on_failure=noted(seen, self.policy(copies, route, delays_ms)),
                idle=0.4 if until is None else None,
                stop=stop,
                meanwhile=meanwhile,
                **options,
            )
        return seen

    def policy(
        self, copies: ConfirmedChannel, route: Route, delays_ms: Sequence[int]
    ) -> FailurePolicy:
        return retry_later(copies, route, delays_ms, exhausted=park(copies, route))


def noted(seen: Seen, policy: FailurePolicy) -> FailurePolicy:
    def note(delivery: Delivery, error: Exception) -> Settlement:
        seen.failures.append((delivery, error))
        return policy(delivery, error)

    return note
