"""Lesson 02: what the package declares is durable, as the broker understands it."""

from __future__ import annotations

from pika.adapters.blocking_connection import BlockingConnection

from delivery.topology import Exchange, Queue, Topology, declare


def test_what_is_declared_is_durable(connection: BlockingConnection, namespace: str) -> None:
    """The broker accepts an equal declare only: a durable one by another client is equal."""
    queue, exchange = f"{namespace}.catalog", f"{namespace}.events"
    declare(connection, Topology((Exchange(exchange),), (Queue(queue),)))

    channel = connection.channel()
    channel.queue_declare(queue, durable=True, arguments={"x-queue-type": "classic"})
    channel.exchange_declare(exchange, "topic", durable=True)
    assert channel.is_open
