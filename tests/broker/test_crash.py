"""Processes are killed between two durable steps; nothing is lost, and nothing is applied twice."""

from __future__ import annotations

from contextlib import closing

import pytest
from support import child_consumer, children
from support.children import KILLED
from support.events import event
from support.recipients import effects, receipts, store_at
from support.waiting import wait_for
from support.world import World

from delivery.codec import encode
from delivery.inbox import receipt_of


@pytest.mark.parametrize(
    ("point", "effects_then", "duplicates_later"),
    [("consumer.applied", 0, 0), ("consumer.committed", 1, 1)],
)
def test_a_recipient_killed_around_its_commit_applies_the_message_once(
    world: World, point: str, effects_then: int, duplicates_later: int
) -> None:
    """Case 10: before the commit nothing is kept, after it the redelivery is a DUPLICATE."""
    world.declare(routes=[world.audit])
    of = event()
    world.publish(of)

    assert children.run(child_consumer, world, die_at=[point, 1]) == KILLED
    with closing(store_at(world.store_path(world.audit))) as store:
        assert effects(store, of.id) == receipts(store, "audit") == effects_then
        wait_for(lambda: world.ready(world.audit.queue) == 1, "the broker has it back")

        assert children.run(child_consumer, world) == 0
        receipt = receipt_of(store, "audit", of.id)
        assert effects(store, of.id) == 1
        assert receipt is not None
        assert receipt.duplicates == duplicates_later
    assert world.ready(world.audit.queue) == 0
    assert world.dead(world.audit) == []


def test_a_recipient_killed_between_copy_and_ack_loses_nothing(world: World) -> None:
    """A retry copy and the original both come: never none. The effect is one."""
    world.declare(100, routes=[world.audit])
    of = event()
    world.publish(of)

    crashing = {"die_at": ["retry.copied", 1], "delays_ms": [100], "fails": of.id}
    assert children.run(child_consumer, world, **crashing) == KILLED
    wait_for(lambda: world.ready(world.audit.queue) == 2, "original and copy")

    assert children.run(child_consumer, world, delays_ms=[100]) == 0
    with closing(store_at(world.store_path(world.audit))) as store:
        receipt = receipt_of(store, "audit", of.id)
        assert effects(store, of.id) == 1
    assert receipt is not None
    assert receipt.duplicates == 1


def test_a_recipient_killed_between_park_and_ack_keeps_the_message(world: World) -> None:
    """The dead queue may hold it twice, under one id; it does not miss it."""
    world.declare(routes=[world.audit])
    of = event()
    world.publish(of)

    crashing = {"die_at": ["park.copied", 1], "fails": of.id}
    assert children.run(child_consumer, world, **crashing) == KILLED
    wait_for(lambda: world.ready(world.audit.queue) == 1, "the original is back")
    assert children.run(child_consumer, world, fails=of.id) == 0

    assert [body for _, body in world.dead(world.audit)] == [encode(of)] * 2
    assert world.ready(world.audit.queue) == 0


@pytest.mark.parametrize("batch", [1, 50])
def test_a_message_that_kills_the_process_ends_dead_and_stops_nobody(
    world: World, batch: int
) -> None:
    """Three deaths, then reason ``killer``; the messages around it have their effects.

    In a batch, too: what was in it when the process died is redelivered, and then goes alone.
    """
    world.declare(routes=[world.audit])
    before, killer, after = event("m-1"), event("m-2"), event("m-3")
    world.publish(before, killer, after)

    ends = []
    while not ends or ends[-1] == KILLED:
        ends.append(children.run(child_consumer, world, kills=killer.id, batch=batch))
        assert len(ends) < 8, "it kills for ever"

    assert ends == [KILLED, KILLED, KILLED, 0]
    ((headers, body),) = world.dead(world.audit)
    assert (headers["x-delivery-reason"], body) == ("killer", encode(killer))
    with closing(store_at(world.store_path(world.audit))) as store:
        assert [effects(store, each.id) for each in (before, killer, after)] == [1, 0, 1]
    assert world.ready(world.audit.queue) == 0
