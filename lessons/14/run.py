"""Lesson 14: every queue has a limit that was chosen. Run it: python lessons/14/run.py"""

from __future__ import annotations

import sqlite3
import statistics
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from functools import partial

import pika
from pika.adapters.blocking_connection import BlockingChannel, BlockingConnection

from delivery import audit, inbox, outbox
from delivery.audit import append
from delivery.breaker import Breaker, consume_guarded
from delivery.codec import encode
from delivery.connection import BrokerSettings, connect
from delivery.consumer import consume
from delivery.contract import Event, MaterialPublished, material_published
from delivery.dead import dead_queue, dead_topology, park
from delivery.handling import Effect
from delivery.inbox import once
from delivery.lesson import Scene, play
from delivery.limits import Limit, Refuse, Shed, bounded, shed_because
from delivery.outbox import SqliteOutbox
from delivery.pipeline import ConfirmedChannel
from delivery.publisher import Message, properties_of
from delivery.recovery import Backoff, keep_connected
from delivery.relay import relay_once
from delivery.retry import retry_later, retry_topology
from delivery.routes import Route, routes_of, topology_of
from delivery.stopping import Stop
from delivery.store import open_store, transaction
from delivery.topology import declare

SCHEMAS = (audit.SCHEMA, inbox.SCHEMA)
AT = datetime(2026, 1, 31, tzinfo=UTC)
DATA = MaterialPublished(
    material_id="m-1", revision=1, title="Title", slug="s", author="A", published_at=AT
)
BULK, ROOM, AWAY = 1_000, 100, 6  # messages; room in a bounded queue; calls while a service is away


def event(name: object) -> Event:
    return material_published(f"event-{name}", DATA)


def to_queue(queue: str, count: int) -> list[Message]:
    events = map(event, range(count))
    return [Message("", queue, properties_of(each), encode(each)) for each in events]


def ready(connection: BlockingConnection, queue: str, wanted: int = 0) -> int:
    """Return how many messages are ready; wait at most 5 s for as many as *wanted*."""
    end, channel, count = time.monotonic() + 5, connection.channel(), -1
    while count < wanted and time.monotonic() < end:
        count = int(channel.queue_declare(queue, passive=True).method.message_count)
    channel.close()
    return count


@contextmanager
def memory_alarm(scene: Scene) -> Iterator[None]:
    """Let the broker believe that it has no memory left: it allows itself none."""
    usual = "0.4" if int(scene.broker.version.split(".")[0]) < 4 else "0.6"  # RabbitMQ's default
    scene.broker.ctl("set_vm_memory_high_watermark", "0")
    try:
        yield
    finally:
        scene.broker.ctl("set_vm_memory_high_watermark", usual)


def in_hand(channel: BlockingChannel, queue: str, prefetch: int) -> int:
    """Return how many of the queue's messages a reader gets before it has done any."""
    got: list[object] = []
    channel.basic_qos(prefetch_count=prefetch)
    channel.basic_consume(queue, lambda *message: got.append(message))
    before = -1
    while len(got) > before:
        before = len(got)
        channel.connection.process_data_events(time_limit=0.3)
    return len(got)


class Service:
    """What every message needs: it is away for the first calls, or for ever."""

    def __init__(self, calls_away: float) -> None:
        self.calls_away = calls_away
        self.applied: set[str] = set()

    def __call__(self, of: Event, tx: sqlite3.Connection) -> Effect:
        self.calls_away -= 1
        if self.calls_away >= 0:
            raise TimeoutError("the search index does not answer")
        self.applied.add(of.id)
        return append(of, tx)


def receive(scene: Scene, route: Route, service: Service, breaker: Breaker, stop: Stop) -> None:
    """Run the recipient once: two attempts for each message, then dead."""
    settings = BrokerSettings(url=scene.url)
    store = open_store(scene.folder / "audit", *SCHEMAS)
    with connect(settings) as inbound, ConfirmedChannel(settings) as copies:

        def meanwhile() -> None:
            copies.serve()
            if len(service.applied) == 20 or ready(inbound, dead_queue(route)) == 20:
                stop.request()

        policy = retry_later(copies, route, [scene.ms(500)], exhausted=park(copies, route))
        take = partial(
            consume,
            inbound.channel(),
            route.queue,
            store,
            once(route, breaker.watched(service)),
            on_failure=breaker.holding(copies, policy),
        )
        consume_guarded(breaker, take, stop=stop, meanwhile=meanwhile)


def broken(scene: Scene) -> None:
    """Nothing has a limit, or a wrong one, and what is sick makes everything dead."""
    settings = BrokerSettings(url=scene.url)
    route, other = routes_of(scene.namespace)
    with connect(settings) as connection, ConfirmedChannel(settings, timeout=1) as publisher:
        topology = topology_of([route, other]) + dead_topology([route, other])  # the mistake
        declare(connection, topology + retry_topology([route], [scene.ms(500)]))
        publisher.send_all(to_queue(route.queue, BULK))
        scene.fact(
            "nobody reads; the queue without a limit has", ready(connection, route.queue), BULK
        )
        with memory_alarm(scene):
            answer = publisher.send(*to_queue(other.queue, 1))
        scene.fact(
            "a memory alarm; a publish to the other queue is", answer.outcome.value, "unknown"
        )

        with connect(settings) as first, connect(settings) as second:
            got = in_hand(first.channel(), route.queue, 1)  # the mistake: one at a time
            scene.fact("prefetch 1: in a reader's hands", got, 1)
            got = in_hand(second.channel(), route.queue, 0)  # the mistake: no limit
            scene.fact("prefetch 0: in the hands of another reader", got, BULK - 1)
            got = in_hand(connection.channel(), route.queue, 10)
            scene.fact("prefetch 0: left for a third reader", got, 0)
    with connect(settings) as connection:
        ready(connection, route.queue, BULK)  # all that was in hand is back
        connection.channel().queue_purge(route.queue)
        queue, taken, channel = scene.name("priority"), Counter[int](), connection.channel()
        channel.queue_declare(queue, durable=True, arguments={"x-max-priority": 1})
        channel.confirm_delivery()
        for priority in (0, 1):
            channel.basic_publish("", queue, b"", pika.BasicProperties(priority=priority))
        for _ in range(200):
            _, about, _ = channel.basic_get(queue, auto_ack=True)
            assert about
            taken[about.priority or 0] += 1
            channel.basic_publish("", queue, b"", about)  # the mistake: urgent ones never end
        scene.fact("of 200 taken, of low priority, which was first", taken[0], 0)

        with ConfirmedChannel(settings) as publisher:
            publisher.send_all(to_queue(route.queue, 20))
        never = Breaker(after=1_000)  # the mistake: each message is tried, and tried again
        receive(scene, route, Service(float("inf")), never, Stop())
        scene.fact("a service is away: dead, of 20", ready(connection, dead_queue(route)), 20)


def fixed(scene: Scene) -> None:
    """The background sheds, the critical refuses, and a breaker waits for the service."""
    settings = BrokerSettings(url=scene.url)
    background, critical = routes_of(scene.namespace)
    topology = topology_of([background, critical]) + dead_topology([background, critical])
    limits: dict[str, Limit] = {
        background.queue: Shed(ROOM, ttl_ms=60_000, into=dead_queue(background)),  # the cure
        critical.queue: Refuse(ROOM),  # the cure
    }
    with connect(settings) as connection, ConfirmedChannel(settings) as publisher:
        declare(connection, bounded(topology, limits))
        publisher.send_all(to_queue(background.queue, BULK))
        aside = ready(connection, dead_queue(background), BULK - ROOM)
        scene.fact("the background's queue has", ready(connection, background.queue), ROOM)
        scene.fact("it has shed into dead", aside, BULK - ROOM)
        _, about, _ = connection.channel().basic_get(dead_queue(background))
        assert about
        found = (about.message_id, shed_because(about))
        scene.fact("the oldest first, because of", found, ("event-0", "maxlen"))

        store, now = open_store(scene.folder / "publisher", outbox.SCHEMA), time.time()
        with transaction(store) as tx:
            for number in range(ROOM + 10):
                outbox.add(tx, event(number), correlation_id="r", accepted_at=now)
        connection.channel().queue_unbind(background.queue, background.exchange, background.pattern)
        for clock, taken, right in (
            (now, 0, {"confirmed": ROOM, "refused": 10}),
            (now + 60, ROOM, {"confirmed": 10}),
        ):
            channel = connection.channel()
            for _ in range(taken):
                channel.basic_get(critical.queue, auto_ack=True)
            counts = relay_once(
                SqliteOutbox(store, critical.exchange, clock=partial(float, clock)), publisher
            )
            seen = {outcome.value: count for outcome, count in counts.items()}
            scene.fact(f"the critical queue, {taken} taken; the relay sees", seen, right)
        scene.clean()

    breaker, service, stop = Breaker(after=3), Service(AWAY), Stop()  # the cure
    with connect(settings) as connection, ConfirmedChannel(settings) as publisher:
        declare(connection, topology + retry_topology([critical], [scene.ms(500)]))
        publisher.send_all(to_queue(critical.queue, 20))
        job = partial(receive, scene, critical, service, breaker, stop)
        keep_connected(job, stop=stop, backoff=Backoff(0.05, 0.2))
        scene.fact(f"a service is away for {AWAY} calls: applied", len(service.applied), 20)
        scene.fact("dead", ready(connection, dead_queue(critical)), 0)
        scene.fact("the breaker is in the end", breaker.position.value, "closed")


def cost(scene: Scene) -> None:
    """Time 1,000 events for each prefetch, and 5,000 messages with and without priorities."""
    print("  prefetch   one at a time, no disk   a commit for all in hand")
    for prefetch, (one, batch) in prefetch_rates(scene).items():
        print(f"  {prefetch:8}   {one:20.0f}/s   {batch:22.0f}/s")
    for levels in (0, 10):
        rates = [priority_rate(scene, levels) for _ in range(3)]
        print(f"  x-max-priority {levels}: {statistics.median(rates):.0f}/s")


def prefetch_rates(scene: Scene) -> dict[int, tuple[float, float]]:
    """Return events a second for each prefetch: without a disk, and a commit for all in hand."""
    return {
        prefetch: (
            rate(scene, prefetch, 1, ":memory:"),
            rate(scene, prefetch, prefetch, f"{scene.folder}/{prefetch}"),
        )
        for prefetch in (1, 2, 4, 8, 16, 32, 64, 128, 256)
    }


def rate(scene: Scene, prefetch: int, batch: int, file: str, count: int = 1_000) -> float:
    """Return events a second, applied one transaction for each batch in *file*."""
    settings, route = BrokerSettings(url=scene.url), Route("audit", scene.namespace)
    done, stop = [0], Stop()

    def counted(of: Event, tx: sqlite3.Connection) -> Effect:
        done[0] += 1
        if done[0] == count:
            stop.request()
        return append(of, tx)

    with (
        connect(settings) as connection,
        ConfirmedChannel(settings) as publisher,
        closing(open_store(file, audit.SCHEMA)) as store,
    ):
        declare(connection, topology_of([route]))
        connection.channel().queue_purge(route.queue)
        publisher.send_all(to_queue(route.queue, count))
        begun, channel = time.monotonic(), connection.channel()
        consume(channel, route.queue, store, counted, prefetch=prefetch, batch=batch, stop=stop)
        return count / (time.monotonic() - begun)


def priority_rate(scene: Scene, levels: int, count: int = 5_000) -> float:
    """Return messages a second: published, taken and acked; with no levels, an ordinary queue."""
    settings, queue = BrokerSettings(url=scene.url), scene.name(f"rate-{levels}")
    arguments = {"x-max-priority": levels} if levels else {}
    with connect(settings) as connection, ConfirmedChannel(settings) as publisher:
        channel = connection.channel()
        channel.queue_declare(queue, durable=True, arguments=arguments)
        messages = to_queue(queue, count)
        for number, each in enumerate(messages):
            each.properties.priority = number % 10
        begun = time.monotonic()
        publisher.send_all(messages)
        for method, _, _ in channel.consume(queue):
            channel.basic_ack(method.delivery_tag or 0)
            if method.delivery_tag == count:
                break
        return count / (time.monotonic() - begun)


if __name__ == "__main__":
    play(broken, fixed, cost)
