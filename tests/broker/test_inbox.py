"""Receipt and effect are there together, whatever happens to the delivery: one effect each."""

from __future__ import annotations

import sqlite3
import threading
from contextlib import closing
from dataclasses import replace

import pytest
from pika.exceptions import AMQPError
from support.consuming import World
from support.events import event
from support.proxy import proxied
from support.recipients import effects, receipts, store_at
from support.waiting import wait_for

from delivery import audit
from delivery.connection import connect
from delivery.contract import Event
from delivery.errors import TemporaryError
from delivery.handling import Effect
from delivery.inbox import once, receipt_of
from delivery.points import arm


def test_a_failure_between_receipt_and_commit_rolls_both_back(world: World) -> None:
    """Case 10: the redelivery finds no receipt, and does the effect."""
    world.declare(routes=[world.audit])
    of = event()
    world.publish(of)

    def fail() -> None:
        raise RuntimeError("between the receipt and the commit")

    arm("consumer.applied", fail)
    with pytest.raises(RuntimeError, match="between the receipt"):
        world.consume(world.audit, once(world.audit, audit.append))

    with closing(store_at(world.store_path(world.audit))) as store:
        assert (effects(store), receipts(store, "audit")) == (0, 0)
    assert world.ready(world.audit.queue) == 1

    seen = world.consume(
        world.audit, once(world.audit, audit.append), until=lambda s: len(s.events) == 1
    )
    assert [each.id for each in seen.events] == [of.id]
    with closing(store_at(world.store_path(world.audit))) as store:
        assert (effects(store, of.id), receipts(store, "audit")) == (1, 1)
    assert world.ready(world.audit.queue) == 0


def test_the_same_message_on_two_consumers_at_once_has_one_effect(world: World) -> None:
    """Case 10: two threads with connections and stores of their own; the other acks a DUPLICATE."""
    world.declare(routes=[world.audit])
    of = event()
    world.publish(of)
    world.publish(of)
    together = threading.Barrier(2)

    def slow(event_: Event, tx: sqlite3.Connection) -> Effect:
        with connect(world.settings) as other:  # this is a worker thread
            look, queue = other.channel(), world.audit.queue
            wait_for(
                lambda: look.queue_declare(queue, passive=True).method.message_count == 0,
                "both copies are out, one in each consumer's hands",
            )
        return audit.append(event_, tx)

    def both_done(_: object) -> bool:
        with closing(sqlite3.connect(world.store_path(world.audit))) as look:
            receipt = receipt_of(look, "audit", of.id)
        return receipt is not None and receipt.duplicates == 1

    def work() -> None:
        handle = once(world.audit, slow)
        world.consume(world.audit, handle, until=both_done, together=together, prefetch=1)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert both_done(None)
    with closing(store_at(world.store_path(world.audit))) as store:
        assert effects(store, of.id) == 1
    assert world.ready(world.audit.queue) == 0


def test_a_connection_lost_during_a_handler_costs_a_second_delivery_not_a_second_effect(
    world: World,
) -> None:
    """The effect commits, its ack cannot: the redelivery is a DUPLICATE."""
    world.declare(routes=[world.audit])
    of = event()
    world.publish(of)
    with proxied(world.settings.url) as proxy:
        through = replace(world, settings=replace(world.settings, url=proxy.url))

        def cut(event_: Event, tx: sqlite3.Connection) -> Effect:
            proxy.cut()
            return once(world.audit, audit.append)(event_, tx)

        with pytest.raises((AMQPError, TemporaryError)):
            through.consume(world.audit, cut)
    wait_for(lambda: world.ready(world.audit.queue) == 1, "the broker has it back")

    world.consume(
        world.audit, once(world.audit, audit.append), until=lambda seen: len(seen.events) == 1
    )

    with closing(store_at(world.store_path(world.audit))) as store:
        receipt = receipt_of(store, "audit", of.id)
        assert effects(store, of.id) == 1
    assert receipt is not None
    assert receipt.duplicates == 1
    assert world.ready(world.audit.queue) == 0
