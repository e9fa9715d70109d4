"""Lesson 04: a queue for each recipient. Run it: python lessons/04/run.py"""

from __future__ import annotations

import time
from datetime import UTC, datetime

from pika.adapters.blocking_connection import BlockingChannel, BlockingConnection
from pika.spec import Basic

from delivery.codec import decode
from delivery.connection import BrokerSettings, connect
from delivery.contract import MaterialPublished, material_published
from delivery.lesson import Scene, play
from delivery.publisher import publish
from delivery.routes import Route, topology_of
from delivery.topology import declare

DATA = MaterialPublished(
    material_id="lesson-04",
    revision=1,
    title="Каждому получателю своя очередь",
    slug="a-queue-for-each-recipient",
    author="Delivery",
    published_at=datetime(2026, 1, 31, tzinfo=UTC),
)


def publish_all(channel: BlockingChannel, exchange: str, *revisions: int) -> None:
    """Publish one event for each revision; the number is its id, too."""
    for number in revisions:
        data = DATA.model_copy(update={"revision": number})
        publish(channel, material_published(str(number), data), exchange=exchange)


def reader(connection: BlockingConnection, queue: str) -> list[int]:
    """Start to read a queue; return the list that fills with what this reader is handed."""
    handed: list[int] = []

    def on_delivery(ch: BlockingChannel, method: Basic.Deliver, _: object, body: bytes) -> None:
        handed.append(int(decode(body).id))
        ch.basic_ack(method.delivery_tag or 0)

    connection.channel().basic_consume(queue, on_delivery)
    return handed


def wait_for(connection: BlockingConnection, count: int, *lists: list[int]) -> None:
    """Serve the connection until the lists hold *count* together, for at most 10 s."""
    end = time.monotonic() + 10
    while sum(map(len, lists)) < count and time.monotonic() < end:
        connection.process_data_events(time_limit=0.1)


def taken(connection: BlockingConnection, queue: str, most: int, seconds: float = 10) -> list[int]:
    """Take *most* events, one by one, then stop; wait for *seconds* at most."""
    channel, found, end = connection.channel(), list[int](), time.monotonic() + seconds
    while len(found) < most and time.monotonic() < end:
        if (body := channel.basic_get(queue, auto_ack=True)[2]) is not None:
            found.append(int(decode(body).id))
    return found


def broken(scene: Scene) -> None:
    """Two recipients read one queue, and a third makes its queue when it first starts."""
    route, late = Route("catalog", scene.namespace), Route("late", scene.namespace)
    with connect(BrokerSettings(url=scene.url)) as connection:
        declare(connection, topology_of([route]))
        catalog = reader(connection, route.queue)
        audit = reader(connection, route.queue)  # the mistake: catalog's queue
        publish_all(connection.channel(), route.exchange, *range(1, 7))
        wait_for(connection, 6, catalog, audit)
        scene.fact("published 6; catalog has", len(catalog), 3)
        scene.fact("published 6; audit has", len(audit), 3)
        scene.fact("events that both have", len({*catalog} & {*audit}), 0)
        scene.name(late.recipient)  # so that its queue is deleted afterwards
        declare(connection, topology_of([late]))  # the mistake: after the six were published
        found = taken(connection, late.queue, 1, seconds=0.5)
        scene.fact("published 6; the late one finds", len(found), 0)


def fixed(scene: Scene) -> None:
    """Each recipient has its own queue, and all of them are declared before the first event."""
    catalog, audit = Route("catalog", scene.namespace), Route("audit", scene.namespace)
    with connect(BrokerSettings(url=scene.url)) as connection:
        declare(connection, topology_of([catalog, audit]))  # the cure
        one, two = reader(connection, catalog.queue), reader(connection, catalog.queue)
        publish_all(connection.channel(), catalog.exchange, *range(1, 7))
        wait_for(connection, 6, one, two)
        scene.fact("published 6; catalog's two readers have", (len(one), len(two)), (3, 3))
        scene.fact("the two together", sorted(one + two), [1, 2, 3, 4, 5, 6])
        begun = taken(connection, audit.queue, 2)
        scene.fact("audit starts late, takes two and pauses", begun, [1, 2])
        publish_all(connection.channel(), catalog.exchange, 7, 8)
        wait_for(connection, 8, one, two)
        scene.fact("published 8; meanwhile catalog has", len(one + two), 8)
        rest = taken(connection, audit.queue, 6)
        scene.fact("audit goes on after its pause with", rest, [3, 4, 5, 6, 7, 8])


def cost(scene: Scene) -> None:
    """Time 1,000 events, waiting for the broker after each, with one queue and with ten."""
    with connect(BrokerSettings(url=scene.url)) as connection:
        for count in (1, 10):
            routes = [Route(f"reader-{n}", scene.namespace) for n in range(count)]
            names = [scene.name(route.recipient) for route in routes]  # deleted afterwards
            declare(connection, topology_of(routes))
            channel = connection.channel()
            channel.confirm_delivery()  # publish returns when the broker has it (lesson 06)
            begun = time.monotonic()
            publish_all(channel, routes[0].exchange, *range(1, 1001))
            rate = 1000 / (time.monotonic() - begun)
            print(f"  {len(names)} queue(s): {rate:.0f} events a second")


if __name__ == "__main__":
    play(broken, fixed, cost)
