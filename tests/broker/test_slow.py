"""What takes its time: long handlers, idle connections, long delays. All of it at once."""

from __future__ import annotations

import sqlite3
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace

import pytest
from pika import BasicProperties
from support.events import event, message
from support.recipients import effects, store_at
from support.retrying import World, attempts

from delivery import audit
from delivery.broker import Broker
from delivery.codec import encode
from delivery.confirms import Outcome
from delivery.connection import BrokerSettings, connect
from delivery.contract import Event
from delivery.handling import Effect
from delivery.pipeline import ConfirmedChannel
from delivery.publisher import properties_of
from delivery.retry import ATTEMPT_HEADER

HEARTBEAT = 4  # seconds; pika notices a silent side within two of them, and five seconds more
Scenario = Callable[[World], None]


def _a_long_handler(world: World) -> None:
    world.declare(routes=[world.audit])
    of = event()
    world.publish(of)

    def work(event_: Event, tx: sqlite3.Connection) -> Effect:
        time.sleep(15)
        return audit.append(event_, tx)

    begun = time.monotonic()
    seen = world.consume(world.audit, work, until=lambda s: time.monotonic() - begun > 15)

    assert [each.id for each in seen.events] == [of.id]
    assert seen.failures == []
    with closing(store_at(world.store_path(world.audit))) as store:
        assert effects(store, of.id) == 1
    assert world.take(world.audit.queue) == []


def _an_idle_publisher(world: World) -> None:
    world.declare(routes=[world.audit])
    with ConfirmedChannel(world.settings, timeout=5.0) as channel:
        for _ in range(28):
            channel.serve(0.5)
        answer = channel.send(message(event(), world.namespace))
    assert answer.outcome is Outcome.CONFIRMED


def _two_delays(world: World) -> None:
    world.declare(1_000, 10_000, routes=[world.audit])
    slow, quick = event("slow"), event("quick")
    second = properties_of(slow)
    second.headers = {ATTEMPT_HEADER: 2}  # its next delay is the second one: 10 s
    world.put(world.audit, encode(slow), second)
    world.put(world.audit, encode(quick), quick)
    failed: dict[str, float] = {}
    back: dict[str, float] = {}

    def once_failing(event_: Event, tx: sqlite3.Connection) -> Effect:
        if event_.id not in failed:
            failed[event_.id] = time.monotonic()
            raise RuntimeError("later")
        back[event_.id] = time.monotonic() - failed[event_.id]
        return audit.append(event_, tx)

    seen = world.consume(
        world.audit, once_failing, delays_ms=[1_000, 10_000], until=lambda _: len(back) == 2
    )

    assert attempts(seen) == [2, 1]
    assert list(back) == [quick.id, slow.id]
    assert 0.9 <= back[quick.id] <= 2.0
    assert 9.9 <= back[slow.id] <= 11.0


def _mixed_delays_in_one_queue(world: World) -> None:
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": world.audit.queue}
    waiting = world.channel.queue_declare("", exclusive=True, arguments=arguments).method.queue
    world.channel.queue_declare(world.audit.queue, durable=True)
    begun = time.monotonic()
    for delay in ("3000", "300"):
        properties = BasicProperties(expiration=delay)
        world.channel.basic_publish("", waiting, delay.encode(), properties)

    back = []
    for _, _, body in world.channel.consume(world.audit.queue, auto_ack=True):
        back.append((body, time.monotonic() - begun))
        if len(back) == 2:
            break
    world.channel.cancel()

    assert [body for body, _ in back] == [b"3000", b"300"]
    assert all(took >= 2.9 for _, took in back)


SCENARIOS: list[Scenario] = [
    _a_long_handler,
    _an_idle_publisher,
    _two_delays,
    _mixed_delays_in_one_queue,
]


@pytest.fixture(scope="module")
def outcome_of(
    broker: Broker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[Scenario], None]]:
    """Play every scenario at once: each in a thread, a connection and a namespace of its own."""
    settings = BrokerSettings(url=broker.amqp_url, name="slow", heartbeat=HEARTBEAT)

    def play(scenario: Scenario) -> None:
        name = f"t{uuid.uuid4().hex[:10]}"
        with connect(replace(settings, heartbeat=0)) as connection:
            world = World(connection, settings, name, tmp_path_factory.mktemp(name))
            try:
                scenario(world)
            finally:
                world.remove()

    with ThreadPoolExecutor(len(SCENARIOS)) as pool:
        running = {scenario: pool.submit(play, scenario) for scenario in SCENARIOS}
        yield lambda scenario: running[scenario].result(60)


def test_a_short_delay_behind_a_long_one_in_the_same_queue_waits_for_it(
    outcome_of: Callable[[Scenario], None],
) -> None:
    """Case 7, the reason for a queue per delay: expiry happens at the head only (plain pika)."""
    outcome_of(_mixed_delays_in_one_queue)


def test_a_short_delay_overtakes_a_long_one(outcome_of: Callable[[Scenario], None]) -> None:
    """Case 7: 10 s and then 1 s, each in its own queue: the second comes back first, in time."""
    outcome_of(_two_delays)


def test_an_idle_confirmed_channel_that_is_served_stays_usable(
    outcome_of: Callable[[Scenario], None],
) -> None:
    """Three heartbeats without a message: the next publish is confirmed."""
    outcome_of(_an_idle_publisher)


def test_a_handler_longer_than_the_heartbeat_keeps_its_connection(
    outcome_of: Callable[[Scenario], None],
) -> None:
    """Case 17: 15 s of work under a heartbeat of 4 s: one delivery, and its ack is taken."""
    outcome_of(_a_long_handler)
