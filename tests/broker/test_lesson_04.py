"""Lesson 04: a recipient that pauses goes on where it stopped."""

from __future__ import annotations

from support.events import event
from support.queues import World

from delivery.connection import connect


def test_a_paused_recipient_goes_on_where_it_stopped(world: World) -> None:
    """Its queue stays while nobody reads it, and collects what is published meanwhile."""
    world.declare()
    events = [event(event_id=f"e{number}") for number in range(4)]
    world.publish(*events[:2])

    with connect(world.settings) as recipient:
        channel = recipient.channel()
        channel.basic_qos(prefetch_count=1)
        method, _, _ = next(channel.consume(world.audit.queue))
        channel.basic_ack(method.delivery_tag)
        channel.cancel()
    world.publish(*events[2:])

    waiting = [properties.message_id for properties, _ in world.take(world.audit.queue)]
    assert waiting == ["e1", "e2", "e3"]
    assert world.ready(world.catalog.queue) == 4


def test_each_recipient_gets_its_own_copy(world: World) -> None:
    """One event, two queues: taking it from one leaves the other."""
    world.declare()
    world.publish(event())

    assert len(world.take(world.catalog.queue)) == 1
    assert world.ready(world.audit.queue) == 1
