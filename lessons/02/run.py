"""Lesson 02: what survives a restart. Run it: python lessons/02/run.py"""

from __future__ import annotations

import time
import uuid
from contextlib import suppress

from pika import BasicProperties, DeliveryMode
from pika.adapters.blocking_connection import BlockingConnection
from pika.exceptions import AMQPError, ChannelClosedByBroker

from delivery.broker import NotOurs
from delivery.connection import BrokerSettings, connect
from delivery.lesson import Scene, play
from delivery.topology import Binding, Exchange, Queue, Topology, TopologyConflict, declare

# A restart takes most of this lesson's time, so both scenes share one: what the second looks at
# was made, under this name, before the restart in the first.
KEPT = f"lesson-{uuid.uuid4().hex[:8]}"
EXPIRY = {"x-message-ttl": 60_000}  # milliseconds


def durable(namespace: str) -> Topology:
    """Describe a durable exchange, a durable queue, and which messages reach it."""
    exchange, queue = f"{namespace}.events", f"{namespace}.catalog"
    return Topology((Exchange(exchange),), (Queue(queue),), (Binding(exchange, queue, "a.key"),))


def waiting(connection: BlockingConnection, queue: str) -> int | None:
    """Return how many messages wait in the queue, None if there is no such queue."""
    try:
        # "passive": only ask, make nothing
        return int(connection.channel().queue_declare(queue, passive=True).method.message_count)
    except ChannelClosedByBroker as refusal:
        assert refusal.reply_code == 404, refusal
        return None


def broken(scene: Scene) -> None:
    """Of a queue and its message, only one is told to outlive a restart; the broker restarts."""
    if not scene.broker.ours:
        raise NotOurs(
            "this lesson restarts the broker; unset DELIVERY_AMQP_URL, and it gets its own"
        )
    settings = BrokerSettings(url=scene.url)
    plain, queue = scene.name("no-options"), scene.name("durable")
    with connect(settings) as connection:
        channel = connection.channel()
        channel.queue_declare(queue, durable=True)
        channel.basic_publish("", queue, b"hello")  # the mistake: pika's messages are transient
        scene.fact("before, messages in the durable queue", waiting(connection, queue), 1)
        declare(connection, durable(KEPT))  # the cure, looked at in the second scene
        persistent = BasicProperties(delivery_mode=DeliveryMode.Persistent)  # the cure
        channel.basic_publish(f"{KEPT}.events", "a.key", b"hello", persistent)
    with suppress(AMQPError), connect(settings) as connection:  # some brokers refuse such a queue
        channel = connection.channel()
        channel.queue_declare(plain)  # the mistake: pika's queues are transient
        channel.basic_publish("", plain, b"hello", persistent)
        scene.fact(
            "before, messages in the queue made without options", waiting(connection, plain), 1
        )
    scene.broker.restart_app()
    with connect(settings) as connection:
        scene.fact("after, messages in the durable queue", waiting(connection, queue), 0)
        left = waiting(connection, plain)
        scene.fact("after, messages in the queue made without options", left, None)
        channel, first, last = connection.channel(), scene.name("first"), scene.name("last")
        try:
            channel.queue_declare(first, durable=True)
            channel.queue_declare(queue, durable=True, arguments=EXPIRY)  # the mistake
            channel.queue_declare(last, durable=True)
        except ChannelClosedByBroker as refusal:
            scene.fact("a changed argument, the broker's answer", refusal.reply_code, 406)
        scene.fact("the channel is open", channel.is_open, False)
        there = [waiting(connection, each) is not None for each in (first, last)]
        scene.fact("queues declared before and after the conflict", there, [True, False])


def fixed(scene: Scene) -> None:
    """What the package declared went through the same restart."""
    scene.namespace = KEPT  # so that the player cleans up there
    exchange, queue = f"{KEPT}.events", f"{KEPT}.catalog"
    first, last = scene.name("first"), scene.name("last")
    wanted = Topology(queues=(Queue(first), Queue(queue, EXPIRY), Queue(last)))
    with connect(BrokerSettings(url=scene.url)) as connection:
        scene.fact("after, messages in the queue", waiting(connection, queue), 1)
        channel = connection.channel()
        channel.basic_publish(exchange, "a.key", b"again")
        taken = [channel.basic_get(queue)[2] for _ in range(2)]
        scene.fact("exchange and binding work, taken", taken, [b"hello", b"again"])
        try:
            declare(connection, wanted)  # the cure: it asks about every part first
        except TopologyConflict as refusal:
            (found,) = refusal.conflicts
            seen = f"{found.argument} is {found.have}, wanted {found.want}"
            scene.fact("a changed argument", seen, "x-message-ttl is none, wanted 60000")
        there = [waiting(connection, each) is not None for each in (first, last)]
        scene.fact("queues declared before and after the conflict", there, [False, False])


def cost(scene: Scene) -> None:
    """Time a declare that finds everything as it should be, as at every start."""
    with connect(BrokerSettings(url=scene.url)) as connection:
        topology = durable(scene.namespace)
        declare(connection, topology)
        begun = time.monotonic()
        for _ in range(50):
            declare(connection, topology)
        print(f"  to find out that nothing is to do: {(time.monotonic() - begun) * 20:.0f} ms")


if __name__ == "__main__":
    play(broken, fixed, cost)
