"""The consumer's small print: its defaults, its guard, its log, and how it leaves a channel."""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest
from support.events import event
from support.handlers import handler
from support.recipients import effects, store_at
from support.waiting import wait_for
from support.world import World

from delivery.codec import encode
from delivery.connection import connect
from delivery.consumer import Settlement, consume, consume_with, requeue
from delivery.contract import Event
from delivery.errors import PermanentError
from delivery.handling import Delivery, Effect, apply_batch
from delivery.points import arm
from delivery.publisher import properties_of
from delivery.stopping import Stop


@contextmanager
def consuming(world: World, handle: Any, **options: Any) -> Iterator[sqlite3.Connection]:
    """Consume the audit queue until nothing came for 0.4 s; the connection is open in the block."""
    with (
        closing(store_at(world.store_path(world.audit))) as store,
        connect(world.settings) as connection,
    ):
        consume(connection.channel(), world.audit.queue, store, handle, **{"idle": 0.4, **options})
        yield store


class Crowd:
    """A handler whose first event waits until all the others have been read from the socket."""

    def __init__(self, world: World, *, left: int = 0) -> None:
        self._world = world
        self._left = left
        self._ticks = 0
        self.events: list[Event] = []
        self.begun: list[str] = []

    def __call__(self, event_: Event, tx: sqlite3.Connection) -> Effect:
        if not self.events:
            with connect(self._world.settings) as other:
                channel, queue = other.channel(), self._world.audit.queue
                wait_for(
                    lambda: (
                        channel.queue_declare(queue, passive=True).method.message_count
                        == self._left
                    ),
                    f"{self._left} ready",
                )
            ticks = self._ticks
            wait_for(lambda: self._ticks > ticks + 2, "and read from the socket")
            tx.set_trace_callback(self.begun.append)
        self.events.append(event_)
        return handler(self._world.audit)(event_, tx)

    def meanwhile(self) -> None:
        self._ticks += 1

    @property
    def transactions(self) -> int:
        return sum(each.startswith("COMMIT") for each in self.begun)


def test_by_default_ten_are_in_hand_and_each_has_a_transaction_of_its_own(world: World) -> None:
    """What is in hand is what a crash brings back; a shared transaction makes each wait."""
    world.declare(routes=[world.audit])
    world.publish(*(event() for _ in range(12)))
    crowd = Crowd(world, left=2)

    with consuming(world, crowd, meanwhile=crowd.meanwhile) as store:
        assert effects(store) == 12
    assert crowd.transactions == 12


def test_with_any_other_store_the_defaults_are_the_same(world: World) -> None:
    """Ten in hand, each committed by itself."""
    world.declare(routes=[world.audit])
    world.publish(*(event() for _ in range(12)))
    crowd = Crowd(world, left=2)

    with (
        closing(store_at(world.store_path(world.audit))) as store,
        connect(world.settings) as connection,
    ):
        consume_with(
            connection.channel(),
            world.audit.queue,
            lambda taken: apply_batch(taken, store, crowd),
            idle=0.4,
            meanwhile=crowd.meanwhile,
        )
        assert effects(store) == 12
    assert crowd.transactions == 12


def test_a_batch_is_acked_to_its_last_delivery(world: World) -> None:
    """One ack for all of them: none is left unsettled, none is handled twice."""
    world.declare(routes=[world.audit])
    world.publish(*(event() for _ in range(5)))
    crowd = Crowd(world)

    with consuming(world, crowd, batch=4, prefetch=5, meanwhile=crowd.meanwhile) as store:
        assert effects(store) == 5
    assert len(crowd.events) == 5
    assert crowd.transactions == 2  # the first alone, then four together
    assert world.ready(world.audit.queue) == 0


def test_a_handled_delivery_beside_a_failed_one_is_acked(world: World) -> None:
    """In one batch: the good ones go, the bad one is asked about and kept."""
    world.declare(routes=[world.audit])
    events = [event() for _ in range(4)]
    bad = events[2]
    world.publish(*events)
    crowd = Crowd(world)
    asked: list[str] = []

    def fail(event_: Event, tx: sqlite3.Connection) -> Effect:
        effect = crowd(event_, tx)
        if event_.id == bad.id and not asked:
            raise RuntimeError
        return effect

    def policy(delivery: Delivery, error: Exception) -> Settlement:
        asked.append(delivery.message_id)
        return requeue(delivery, error)

    with consuming(world, fail, batch=3, on_failure=policy, meanwhile=crowd.meanwhile) as store:
        assert effects(store) == 4
    assert asked == [bad.id]
    assert len(crowd.events) == 5  # the bad one twice, the others once
    assert world.ready(world.audit.queue) == 0


def test_one_thread_named_after_its_queue_handles_everything(world: World) -> None:
    """The store is in one thread's hands; a stack dump tells several consumers apart."""
    world.declare(routes=[world.audit])
    world.publish(*(event() for _ in range(200)))
    threads: list[str] = []
    stop = Stop()

    def note(event_: Event, tx: sqlite3.Connection) -> Effect:
        threads.append(threading.current_thread().name)
        if len(threads) == 200:
            stop.request()
        return handler(world.audit)(event_, tx)

    with consuming(world, note, stop=stop, idle=60.0) as store:
        assert effects(store) == 200
    (name,) = set(threads)
    assert name.startswith(world.audit.queue)


def test_a_consumer_that_ends_leaves_its_channel_clean(world: World) -> None:
    """The connection is still open: nobody consumes on it, and nothing is held by it."""
    world.declare(routes=[world.audit])
    world.publish(*(event() for _ in range(4)))
    stop = False

    class After:
        def __bool__(self) -> bool:
            return stop

    def one(event_: Event, tx: sqlite3.Connection) -> Effect:
        nonlocal stop
        effect = handler(world.audit)(event_, tx)
        stop = True
        return effect

    with consuming(world, one, stop=After()) as store:
        assert effects(store) == 1
        assert world.consumers(world.audit.queue) == 0
        wait_for(lambda: world.ready(world.audit.queue) == 3, "the rest is given back")


def test_no_delivery_waits_for_the_next_tick(world: World) -> None:
    """The worker wakes the connection's thread: a hundred in less time than a hundred ticks."""
    world.declare(routes=[world.audit])
    world.publish(*(event() for _ in range(100)))

    begun = time.monotonic()
    with consuming(world, handler(world.audit)) as store:
        assert effects(store) == 100
    assert time.monotonic() - begun < 6.0  # it takes about one second; with ticks of 0.1 s, nine


def test_at_the_point_after_settling_the_message_is_gone(world: World) -> None:
    """A process that dies there gets nothing again."""
    world.declare(routes=[world.audit])
    world.publish(event())

    def die() -> None:
        raise KeyboardInterrupt

    arm("consumer.settled", die)
    with pytest.raises(KeyboardInterrupt), consuming(world, handler(world.audit)):
        pytest.fail("not reached")

    with closing(store_at(world.store_path(world.audit))) as store:
        assert effects(store) == 1
    assert world.ready(world.audit.queue) == 0


def test_at_the_point_after_settling_one_it_is_gone(world: World) -> None:
    """Beside a failure each delivery is settled by itself, and there a process may die."""
    world.declare(routes=[world.audit])
    world.publish(event())

    def fail(event_: Event, tx: sqlite3.Connection) -> Effect:
        raise RuntimeError

    def die() -> None:
        raise KeyboardInterrupt

    arm("consumer.settled_one", die)
    with (
        pytest.raises(KeyboardInterrupt),
        consuming(world, fail, on_failure=lambda *_: Settlement.ELSEWHERE),
    ):
        pytest.fail("not reached")

    assert world.ready(world.audit.queue) == 0


def test_the_trace_of_a_message_is_logged_with_it(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """So a recipient's line is found by the request that caused it."""
    world.declare(routes=[world.audit])
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    of = event()
    properties = properties_of(of)
    properties.headers = {"traceparent": trace}
    world.put(world.audit, encode(of), properties)

    with (
        caplog.at_level(logging.INFO, "delivery.consumer"),
        consuming(world, handler(world.audit)),
    ):
        pass

    (record,) = [each for each in caplog.records if each.message == "delivery.settled"]
    assert (vars(record)["message_id"], vars(record)["traceparent"]) == (of.id, trace)


def test_every_settled_delivery_is_logged(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """Its queue, its id and what became of it; an error in one line of at most 500 characters."""
    world.declare(routes=[world.audit])
    good, bad = event(), event()
    world.publish(good, bad)

    def fail(event_: Event, tx: sqlite3.Connection) -> Effect:
        if event_.id == bad.id:
            raise RuntimeError("x" * 501)
        return handler(world.audit)(event_, tx)

    with (
        caplog.at_level(logging.INFO, "delivery.consumer"),
        consuming(world, fail, on_failure=lambda *_: Settlement.ELSEWHERE),
    ):
        pass

    records = [record for record in caplog.records if record.name == "delivery.consumer"]
    assert {record.message for record in records} == {"delivery.settled"}
    names = ("queue", "message_id", "effect", "error")
    assert [[vars(record).get(name) for name in names] for record in records] == [
        [world.audit.queue, good.id, "applied", None],
        [world.audit.queue, bad.id, "failed", "x" * 500],
    ]


def redelivered(world: World, count: int = 1) -> None:
    """Let a consumer that dies have held the first *count* messages."""
    channel = world.connection.channel()
    for _ in range(count):
        channel.basic_get(world.audit.queue)
    channel.close()
    wait_for(lambda: world.ready(world.audit.queue) >= count, "the broker has them back")


def test_a_redelivered_message_is_handled_inside_the_guard(world: World) -> None:
    """The guard gets the delivery and the store, and a fresh message never meets it."""
    world.declare(routes=[world.audit])
    again, fresh = event(), event()
    world.publish(again)
    redelivered(world)
    world.publish(fresh)
    steps: list[object] = []

    @contextmanager
    def guard(delivery: Delivery, store: sqlite3.Connection) -> Iterator[None]:
        steps.append(("in", delivery.message_id, effects(store)))
        yield
        steps.append(("out", delivery.message_id, effects(store)))

    def note(event_: Event, tx: sqlite3.Connection) -> Effect:
        steps.append(event_.id)
        return handler(world.audit)(event_, tx)

    with consuming(world, note, guard=guard, batch=2):
        pass

    assert steps == [("in", again.id, 0), again.id, ("out", again.id, 1), fresh.id]


def test_without_a_guard_a_redelivered_message_is_handled_as_any_other(world: World) -> None:
    """A guard is a choice."""
    world.declare(routes=[world.audit])
    world.publish(event())
    redelivered(world)

    with consuming(world, handler(world.audit)) as store:
        assert effects(store) == 1


@pytest.mark.parametrize("settlement", list(Settlement))
def test_what_the_guard_refuses_is_the_policys_to_settle(
    world: World, settlement: Settlement
) -> None:
    """The handler is not called; the policy gets the delivery and the guard's own error."""
    world.declare(routes=[world.audit])
    killer, good = event(), event()
    world.publish(killer)
    redelivered(world)
    world.publish(good)
    error = PermanentError("it killed three processes")
    asked: list[tuple[str, Exception]] = []

    @contextmanager
    def guard(delivery: Delivery, store: sqlite3.Connection) -> Iterator[None]:
        if not asked:
            raise error
        yield

    def policy(delivery: Delivery, error: Exception) -> Settlement:
        asked.append((delivery.message_id, error))
        return settlement

    seen: list[str] = []

    def note(event_: Event, tx: sqlite3.Connection) -> Effect:
        seen.append(event_.id)
        return handler(world.audit)(event_, tx)

    with consuming(world, note, guard=guard, on_failure=policy):
        pass

    assert asked == [(killer.id, error)]
    handled = {good.id} if settlement is Settlement.ELSEWHERE else {good.id, killer.id}
    assert set(seen) == handled
    assert world.ready(world.audit.queue) == 0


def test_a_turn_is_held_for_each_transaction_and_given_back(world: World) -> None:
    """Also around the guard of a redelivered message, and when the handler fails."""
    world.declare(routes=[world.audit])
    world.publish(event("good"), event("bad"))
    log: list[str] = []

    class Turn:
        def __enter__(self) -> None:
            log.append("(")

        def __exit__(self, *error: object) -> None:
            log.append(")")

    def handle(of: Event, tx: sqlite3.Connection) -> Effect:
        log.append(of.subject)
        if of.subject == "bad" and log.count("bad") == 1:
            raise RuntimeError("the first time")
        return Effect.APPLIED

    @contextmanager
    def guard(delivery: Delivery, store: sqlite3.Connection) -> Iterator[None]:
        log.append("guard")
        yield

    with consuming(world, handle, guard=guard, turn=Turn()):
        assert log == ["(", "good", ")", "(", "bad", ")", "(", "guard", "bad", ")"]
