"""The effect is committed before the delivery is settled, and nothing is settled without it."""

from __future__ import annotations

import sqlite3
from collections import Counter
from contextlib import closing

import pytest
from support.consuming import World
from support.events import event
from support.recipients import effects, store_at
from support.waiting import wait_for

from delivery import audit, catalog
from delivery.connection import connect
from delivery.consumer import Settlement, consume
from delivery.contract import Event
from delivery.handling import Delivery, Effect
from delivery.points import arm
from delivery.reader import ConsumingEnded, Reader
from delivery.stopping import Stop
from delivery.store import StoreUnavailable


def test_a_handled_delivery_is_committed_and_gone_from_its_queue(world: World) -> None:
    """Both recipients work from their own queue and store."""
    world.declare()
    events = [event(f"m-{n}") for n in range(3)]
    world.publish(*events)

    for route, handle in ((world.catalog, catalog.upsert), (world.audit, audit.append)):
        world.consume(route, handle, until=lambda seen: len(seen.events) == 3)
        with closing(store_at(world.store_path(route))) as store:
            done = store.execute(f"SELECT count(*) FROM {route.recipient}").fetchone()
        assert done == (3,)
        assert world.ready(route.queue) == 0


def test_the_ack_follows_the_commit(world: World) -> None:
    """A failure right after the commit finds the effect kept and the message not yet acked."""
    world.declare(routes=[world.audit])
    world.publish(event())

    def fail() -> None:
        raise RuntimeError("between the commit and the ack")

    arm("consumer.committed", fail)
    with pytest.raises(RuntimeError, match="between the commit"):
        world.consume(world.audit, audit.append)

    with closing(store_at(world.store_path(world.audit))) as store:
        assert effects(store) == 1
    assert world.ready(world.audit.queue) == 1


def elsewhere(delivery: Delivery, error: Exception) -> Settlement:
    return Settlement.ELSEWHERE


def test_a_bad_message_in_a_batch_of_fifty_fails_alone(
    world: World, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One transaction, 49 effects, one failure: a savepoint for each, and two lines of log."""
    caplog.set_level("INFO", "delivery.consumer")
    world.declare(routes=[world.audit])
    opener, bad = event(title="opener"), event(title="bad")
    fifty = [event() for _ in range(25)] + [bad] + [event() for _ in range(24)]
    commits: list[str] = []
    arrived: list[object] = []
    take_in = Reader._on_delivery

    def noted(reader: Reader, *delivery: object) -> None:
        take_in(reader, *delivery)
        arrived.append(delivery)

    monkeypatch.setattr(Reader, "_on_delivery", noted)

    def apply(event_: Event, tx: sqlite3.Connection) -> Effect:
        effect = audit.append(event_, tx)
        if event_.id == opener.id:  # the fifty arrive while this one is being handled, alone
            world.publish(*fifty)
            wait_for(lambda: len(arrived) == 51, "all are read from the socket")
            tx.set_trace_callback(commits.append)
        if event_.id == bad.id:
            raise RuntimeError("the bad one")
        return effect

    def until(seen: object) -> bool:
        return len(seen.failures) == 1  # type: ignore[attr-defined]

    world.publish(opener)
    seen = world.consume(
        world.audit, apply, on_failure=elsewhere, batch=50, until=until, prefetch=60
    )

    assert [delivery.message_id for delivery, _ in seen.failures] == [bad.id]
    assert commits.count("COMMIT") == 2  # the opener's, and one for the fifty
    with closing(store_at(world.store_path(world.audit))) as store:
        assert effects(store) == 1 + 49
        assert effects(store, bad.id) == 0
    assert world.ready(world.audit.queue) == 0
    names = ("queue", "effect", "applied")
    said = [
        (record.getMessage(), *(vars(record).get(name) for name in names))
        for record in caplog.records
        if record.name == "delivery.consumer"
    ]
    assert Counter(said) == Counter(
        [
            ("delivery.settled", world.audit.queue, "applied", None),
            ("delivery.settled", world.audit.queue, "failed", None),
            ("batch.settled", world.audit.queue, None, 49),
        ]
    )


def test_a_store_that_is_full_settles_nothing(world: World) -> None:
    """Nobody's message is at fault: no policy is asked, all return to the queue."""
    world.declare(routes=[world.audit])
    world.publish(*(event() for _ in range(3)))

    def fill(event_: Event, tx: sqlite3.Connection) -> Effect:
        effect = audit.append(event_, tx)
        pages = tx.execute("PRAGMA page_count").fetchone()[0]
        tx.execute(f"PRAGMA max_page_count = {pages}")
        tx.execute("CREATE TABLE bulk AS SELECT randomblob(200000) AS b")
        return effect

    with pytest.raises(StoreUnavailable, match="full"):
        world.consume(world.audit, fill, on_failure=elsewhere)

    assert world.ready(world.audit.queue) == 3
    with closing(store_at(world.store_path(world.audit))) as store:
        assert effects(store) == 0


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
        world.consume(world.audit, audit.append, until=delete)


def test_a_queue_deleted_during_a_handler_is_an_error(world: World) -> None:
    """The end of consuming is seen while the worker is busy, too."""
    world.declare(routes=[world.audit])
    world.publish(event())

    def delete(event_: Event, tx: sqlite3.Connection) -> Effect:
        with connect(world.settings) as other:
            other.channel().queue_delete(world.audit.queue)
        return audit.append(event_, tx)

    with pytest.raises(ConsumingEnded):
        world.consume(world.audit, delete)


def test_what_was_only_prefetched_is_given_back(world: World) -> None:
    """A consumer that stops returns what it did not handle, at once."""
    world.declare(routes=[world.audit])
    world.publish(*(event() for _ in range(10)))

    seen = world.consume(world.audit, audit.append, until=lambda s: len(s.events) >= 1, prefetch=10)

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
        return audit.append(event_, tx)

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
        return audit.append(event_, tx)

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
