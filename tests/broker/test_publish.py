"""What goes out without confirms is complete; that it arrived is not known (lesson 06)."""

from __future__ import annotations

from pika.adapters.blocking_connection import BlockingConnection
from support.events import event
from support.waiting import wait_for

from delivery.codec import encode
from delivery.publisher import properties_of, publish
from delivery.topology import Binding, Exchange, Queue, Topology, declare


def test_publishing_without_confirms_promises_nothing_but_sends_the_whole_event(
    connection: BlockingConnection, namespace: str
) -> None:
    """Lesson 03's publish: the envelope is complete, persistent, and identified."""
    exchange, queue = Exchange(f"{namespace}.events"), Queue(f"{namespace}.catalog")
    bindings = (Binding(exchange.name, queue.name, "material.published.*"),)
    declare(connection, Topology((exchange,), (queue,), bindings))
    of = event(title="Ünïcödé 🐇")

    channel = connection.channel()
    publish(channel, of, exchange=exchange.name)

    def arrived() -> int:
        return channel.queue_declare(queue.name, passive=True).method.message_count

    wait_for(lambda: arrived() == 1, "the event arrives")
    _, properties, body = channel.basic_get(queue.name, auto_ack=True)
    assert body == encode(of)
    assert properties.encode() == properties_of(of).encode()
