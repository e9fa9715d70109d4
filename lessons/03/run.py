"""Lesson 03: an envelope for every event. Run it: python lessons/03/run.py"""

from __future__ import annotations

import time
from datetime import UTC, datetime

from pika import BasicProperties
from pika.adapters.blocking_connection import BlockingChannel

from delivery.codec import encode
from delivery.connection import BrokerSettings, connect
from delivery.contract import EVENT_TYPE, MaterialPublished, material_published
from delivery.lesson import Scene, play
from delivery.publisher import envelope, properties_of
from delivery.topology import Binding, Exchange, Queue, Topology, declare

DATA = MaterialPublished(
    material_id="lesson-03",
    revision=1,
    title="Конверт для каждого события",
    slug="an-envelope-for-every-event",
    author="Delivery",
    published_at=datetime(2026, 1, 31, tzinfo=UTC),
)
ONE = material_published("event-1", DATA)
TWO = material_published("event-2", DATA.model_copy(update={"revision": 2}))
# Two facts. The first was sent twice, because its sender did not know whether it had arrived.
SENT = (ONE, ONE, TWO)
EXPECTED = {
    "message_id": "event-1",
    "type": "material.published.v1",
    "timestamp": 1769817600,  # 31 January 2026, in Unix seconds
    "app_id": "delivery",
    "correlation_id": "request-7",
    "content_type": "application/cloudevents+json",
    "content_encoding": "utf-8",
    "delivery_mode": 2,
}


def topology(scene: Scene) -> Topology:
    """Describe a durable exchange and a durable queue (lesson 02)."""
    exchange, queue = scene.name("events"), scene.name("looked-at")
    binding = Binding(exchange, queue, "material.published.*")
    return Topology((Exchange(exchange),), (Queue(queue),), (binding,))


def read_back(channel: BlockingChannel, queue: str) -> list[BasicProperties]:
    """Take every waiting message; return the properties as the broker hands them over."""
    found: list[BasicProperties] = []
    while (properties := channel.basic_get(queue, auto_ack=True)[1]) is not None:
        found.append(properties)
    return found


def report(scene: Scene, seen: list[BasicProperties], expected: list[int]) -> None:
    """State what can be told of the messages without opening a body, by recipient or operator."""
    told = {
        "messages that the queue handed over": len(seen),
        "marked persistent (a restart loses the others)": sum(p.delivery_mode == 2 for p in seen),
        "of a type that the recipient knows": sum(p.type == EVENT_TYPE for p in seen),
        "that name the request behind them": sum(p.correlation_id == "request-7" for p in seen),
        "handled, of 2 facts, if an id seen before is skipped": len({p.message_id for p in seen}),
    }
    for (what, count), right in zip(told.items(), expected, strict=True):
        scene.fact(what, count, right)


def broken(scene: Scene) -> None:
    """Two facts are sent as bare bodies, the first of them twice."""
    with connect(BrokerSettings(url=scene.url)) as connection:
        parts = topology(scene)
        declare(connection, parts)
        channel = connection.channel()
        for event in SENT:
            body = event.data.model_dump_json().encode()
            channel.basic_publish(parts.exchanges[0].name, event.type, body)  # the mistake
        report(scene, read_back(channel, parts.queues[0].name), [3, 0, 0, 0, 1])


def fixed(scene: Scene) -> None:
    """The same two facts are sent in envelopes, the first of them twice."""
    with connect(BrokerSettings(url=scene.url)) as connection:
        parts = topology(scene)
        declare(connection, parts)
        channel = connection.channel()
        for event in SENT:
            properties = properties_of(event, correlation_id="request-7")  # the cure
            channel.basic_publish(parts.exchanges[0].name, event.type, encode(event), properties)
        seen = read_back(channel, parts.queues[0].name)
    report(scene, seen, [3, 3, 3, 3, 2])
    for name, right in EXPECTED.items():
        scene.fact(f"read back, {name}", getattr(seen[0], name), right)
    try:
        envelope("event-3", EVENT_TYPE, timestamp=0, headers={"ratio": 0.5})
        answer = "accepted"
    except ValueError as error:
        answer = str(error)
    refusal = "header 'ratio': AMQP cannot carry a float"
    scene.fact("an envelope that AMQP cannot carry", answer, refusal)


def cost(scene: Scene) -> None:
    """Count the bytes of one envelope, and time the making of 20,000."""
    begun = time.monotonic()
    for _ in range(20_000):
        properties_of(ONE, correlation_id="request-7")
    each = (time.monotonic() - begun) / 20_000 * 1e6
    size = sum(len(part) for part in properties_of(ONE, correlation_id="request-7").encode())
    print(f"  an envelope: {size} bytes, {each:.1f} microseconds; its body: {len(encode(ONE))}")


if __name__ == "__main__":
    play(broken, fixed, cost)
