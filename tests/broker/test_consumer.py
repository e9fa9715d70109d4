"""The effect is committed before the delivery is settled, and nothing is settled without it."""

from __future__ import annotations

import sqlite3
import threading
import time
from contextlib import closing
from dataclasses import replace

import pytest
from pika.exceptions import AMQPError
from support.events import event
from support.proxy import proxied
from support.recipients import effects, handler, receipts, store_at
from support.waiting import wait_for
from support.world import World

from delivery import audit
from delivery.connection import connect
from delivery.consumer import Settlement, consume
from delivery.contract import Event
from delivery.errors import TemporaryError
from delivery.handling import Effect
from delivery.inbox import once, receipt_of
from delivery.points import arm
from delivery.reader import ConsumingEnded
from delivery.recovery import Backoff, keep_connected
from delivery.stopping import Stop
from delivery.store import StoreUnavailable


def test_a_handled_delivery_is_committed_and_gone_from_its_queue(world: World) -> None:
    """Both recipients work from their own queue and store."""
    world.declare()
    events = [event(f"m-{n}") for n in range(3)]
    world.publish(*events)

    for route in (world.catalog, world.audit):
        world.consume(route, handler(route), until=lambda seen: len(seen.events) == 3)
        with closing(store_at(world.store_path(route))) as store:
            assert receipts(store, route.recipient) == 3
        assert world.ready(route.queue) == 0


def test_the_ack_follows_the_commit(world: World) -> None:
    """A failure right after the commit finds the effect kept and the message not yet acked."""
    world.declare(routes=[world.audit])
    world.publish(event())

    def fail() -> None:
        raise RuntimeError("between the commit and the ack")

    arm("consumer.committed", fail)
    with pytest.raises(RuntimeError, match="between the commit"):
        world.consume(world.audit, handler(world.audit))

    with closing(store_at(world.store_path(world.audit))) as store:
        assert (effects(store), receipts(store, "audit")) == (1, 1)
    assert world.ready(world.audit.queue) == 1


def test_a_failure_between_receipt_and_commit_rolls_both_back(world: World) -> None:
    """Case 10: the redelivery finds no receipt, and does the effect."""
    world.declare(routes=[world.audit])
    of = event()
    world.publish(of)

    def fail() -> None:
        raise RuntimeError("between the receipt and the commit")

    arm("consumer.applied", fail)
    with pytest.raises(RuntimeError, match="between the receipt"):
        world.consume(world.audit, handler(world.audit))

    with closing(store_at(world.store_path(world.audit))) as store:
        assert (effects(store), receipts(store, "audit")) == (0, 0)
    assert world.ready(world.audit.queue) == 1

    seen = world.consume(world.audit, handler(world.audit), until=lambda s: len(s.events) == 1)
    assert [each.id for each in seen.events] == [of.id]
    with closing(store_at(world.store_path(world.audit))) as store:
        assert (effects(store, of.id), receipts(store, "audit")) == (1, 1)
    assert world.ready(world.audit.queue) == 0


def wait_until_ready_is(world: World, count: int) -> None:
    """Wait on a connection of its own: a handler runs in its consumer's worker thread."""
    with connect(world.settings) as other:
        channel = other.channel()
        queue = world.audit.queue
        wait_for(
            lambda: channel.queue_declare(queue, passive=True).method.message_count == count,
            f"{count} ready",
        )


def test_the_same_message_on_two_consumers_at_once_has_one_effect(world: World) -> None:
    """Case 10: two threads with connections and stores of their own; the other acks a DUPLICATE."""
    world.declare(routes=[world.audit])
    of = event()
    world.publish(of)
    world.publish(of)
    together = threading.Barrier(2)

    def slow(event_: Event, tx: sqlite3.Connection) -> Effect:
        wait_until_ready_is(world, 0)  # both copies are out, one in each consumer's hands
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


def test_a_bad_message_in_a_batch_of_fifty_fails_alone(world: World) -> None:
    """One transaction, 49 effects, one dead message: a savepoint for each."""
    world.declare(routes=[world.audit])
    opener, bad = event(title="opener"), event(title="bad")
    fifty = [event() for _ in range(25)] + [bad] + [event() for _ in range(24)]
    commits: list[str] = []
    served = 0

    def apply(event_: Event, tx: sqlite3.Connection) -> Effect:
        effect = handler(world.audit)(event_, tx)
        if event_.id == opener.id:  # the fifty arrive while this one is being handled
            wait_until_ready_is(world, 0)
            ticks = served
            wait_for(lambda: served > ticks + 2, "and read from the socket")
            tx.set_trace_callback(commits.append)
        if event_.id == bad.id:
            raise RuntimeError("the bad one")
        return effect

    def until(seen: object) -> bool:
        nonlocal served
        served += 1
        return len(seen.failures) == 1  # type: ignore[attr-defined]

    world.publish(opener, *fifty)
    seen = world.consume(world.audit, apply, batch=50, until=until, prefetch=60)

    assert [delivery.message_id for delivery, _ in seen.failures] == [bad.id]
    assert commits.count("COMMIT") == 2  # the opener's, and one for the fifty
    with closing(store_at(world.store_path(world.audit))) as store:
        assert effects(store) == receipts(store, "audit") == 1 + 49
        assert effects(store, bad.id) == 0
    assert world.ready(world.audit.queue) == 0
    ((headers, _),) = world.dead(world.audit)
    assert headers["x-delivery-reason"] == "exhausted"


def test_a_store_that_is_full_settles_nothing(world: World) -> None:
    """Nobody's message is at fault: no attempt is spent, all return to the queue."""
    world.declare(100, routes=[world.audit])
    world.publish(*(event() for _ in range(3)))

    def fill(event_: Event, tx: sqlite3.Connection) -> Effect:
        effect = handler(world.audit)(event_, tx)
        pages = tx.execute("PRAGMA page_count").fetchone()[0]
        tx.execute(f"PRAGMA max_page_count = {pages}")
        tx.execute("CREATE TABLE bulk AS SELECT randomblob(200000) AS b")
        return effect

    with pytest.raises(StoreUnavailable, match="full"):
        world.consume(world.audit, fill, delays_ms=[100])

    assert world.ready(world.audit.queue) == 3
    assert world.ready(f"{world.audit.queue}.retry.1") == 0
    assert world.dead(world.audit) == []
    with closing(store_at(world.store_path(world.audit))) as store:
        assert effects(store) == 0


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
            return handler(world.audit)(event_, tx)

        with pytest.raises((AMQPError, TemporaryError)):
            through.consume(world.audit, cut)
    wait_for(lambda: world.ready(world.audit.queue) == 1, "the broker has it back")

    world.consume(world.audit, handler(world.audit), until=lambda seen: len(seen.events) == 1)

    with closing(store_at(world.store_path(world.audit))) as store:
        receipt = receipt_of(store, "audit", of.id)
        assert effects(store, of.id) == 1
    assert receipt is not None
    assert receipt.duplicates == 1
    assert world.ready(world.audit.queue) == 0


def test_a_queue_deleted_while_consuming_is_an_error(world: World) -> None:
    """pika's own loop would return as if the work were done."""
    world.declare(routes=[world.audit])
    deleted = False

    def delete(_: object) -> bool:
        nonlocal deleted
        if not deleted:
            world.channel.queue_delete(world.audit.queue)
            deleted = True
        return False

    with pytest.raises(ConsumingEnded, match=world.audit.queue):
        world.consume(world.audit, handler(world.audit), until=delete)


def test_a_queue_deleted_during_a_handler_is_an_error(world: World) -> None:
    """The end of consuming is seen while the worker is busy, too."""
    world.declare(routes=[world.audit])
    world.publish(event())

    def delete(event_: Event, tx: sqlite3.Connection) -> Effect:
        with connect(world.settings) as other:
            other.channel().queue_delete(world.audit.queue)
        return handler(world.audit)(event_, tx)

    with pytest.raises(ConsumingEnded):
        world.consume(world.audit, delete)


def test_what_was_only_prefetched_is_given_back(world: World) -> None:
    """A consumer that stops returns what it did not handle, at once."""
    world.declare(routes=[world.audit])
    world.publish(*(event() for _ in range(10)))

    seen = world.consume(
        world.audit, handler(world.audit), until=lambda s: len(s.events) >= 1, prefetch=10
    )

    assert world.ready(world.audit.queue) == 10 - len(seen.events) > 0


def test_prefetch_bounds_what_one_consumer_holds(world: World) -> None:
    """The others stay in the queue, for competing consumers."""
    world.declare(routes=[world.audit])
    world.publish(*(event() for _ in range(10)))
    ready: list[int] = []

    def look(event_: Event, tx: sqlite3.Connection) -> Effect:
        with connect(world.settings) as other:
            found = other.channel().queue_declare(world.audit.queue, passive=True)
        ready.append(found.method.message_count)
        return handler(world.audit)(event_, tx)

    world.consume(world.audit, look, until=lambda s: len(s.events) >= 1, prefetch=3)

    assert ready[0] == 7


def test_without_a_policy_a_failed_delivery_returns_to_its_own_queue(world: World) -> None:
    """It comes again at once, marked as redelivered, and no other recipient sees it."""
    world.declare()
    of = event()
    world.publish(of)
    failures = []

    def apply(event_: Event, tx: sqlite3.Connection) -> Effect:
        if not failures:
            failures.append(event_)
            raise RuntimeError
        return handler(world.audit)(event_, tx)

    with closing(store_at(world.store_path(world.audit))) as store:
        with connect(world.settings) as connection:
            consume(connection.channel(), world.audit.queue, store, apply, idle=0.4)
        assert effects(store, of.id) == 1
    assert world.ready(world.audit.queue) == 0
    assert world.ready(world.catalog.queue) == 1


def test_a_policy_decides_for_each_delivery_alone(world: World) -> None:
    """ELSEWHERE acks only its own delivery, ONLY_HERE keeps only its own."""
    world.declare(routes=[world.audit])
    keep, drop = event(title="keep"), event(title="drop")
    world.publish(keep, drop)
    stop = Stop()
    asked: list[str] = []

    def fail(*_: object) -> Effect:
        raise RuntimeError

    def policy(delivery: object, error: Exception) -> Settlement:
        asked.append(delivery.message_id)  # type: ignore[attr-defined]
        if len(asked) == 2:
            stop.request()
        return Settlement.ONLY_HERE if asked[-1] == keep.id else Settlement.ELSEWHERE

    with (
        closing(store_at(world.store_path(world.audit))) as store,
        connect(world.settings) as connection,
    ):
        consume(
            connection.channel(),
            world.audit.queue,
            store,
            fail,
            on_failure=policy,
            stop=stop,
            prefetch=1,
            batch=2,
        )
    assert set(asked) == {keep.id, drop.id} or asked == [keep.id, keep.id]
    kept = [properties.message_id for properties, _ in world.take(world.audit.queue)]
    assert kept == [keep.id]


def test_a_cut_connection_is_opened_again_and_consuming_goes_on(world: World) -> None:
    """keep_connected: after the cut there is one consumer again, and it works."""
    world.declare(routes=[world.audit])
    stop = Stop()
    with proxied(world.settings.url) as proxy:
        through = replace(world.settings, url=proxy.url)
        runs: list[float] = []

        def work() -> None:
            runs.append(time.monotonic())
            with (
                closing(store_at(world.store_path(world.audit))) as store,
                connect(through) as connection,
            ):
                consume(
                    connection.channel(),
                    world.audit.queue,
                    store,
                    handler(world.audit),
                    stop=stop,
                )

        thread = threading.Thread(
            target=keep_connected, args=(work,), kwargs={"stop": stop, "backoff": Backoff(0.1, 0.5)}
        )
        thread.start()
        try:
            wait_for(lambda: world.consumers(world.audit.queue) == 1, "consuming")
            first, second = event(), event()
            world.publish(first)
            wait_for(lambda: _effects(world, first) == 1, "the first effect")

            proxy.cut()
            wait_for(lambda: len(runs) == 2, "it starts again")
            wait_for(lambda: world.consumers(world.audit.queue) == 1, "one consumer again")
            world.publish(second)
            wait_for(lambda: _effects(world, second) == 1, "the second effect")
        finally:
            stop.request()
            thread.join(10)
    assert not thread.is_alive()
    assert _effects(world, first) == 1


def _effects(world: World, of: Event) -> int:
    with closing(store_at(world.store_path(world.audit))) as store:
        return effects(store, of.id)
