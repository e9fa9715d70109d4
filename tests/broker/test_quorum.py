"""What quorum queues do on the real broker, one node: retries, limits, dead messages, versions."""

from __future__ import annotations

import os
import sqlite3
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import pytest
from pika.adapters.blocking_connection import BlockingChannel, BlockingConnection
from pika.exceptions import ChannelClosedByBroker
from support.events import event
from support.exchange import Exchange, exchange_on
from support.patience import patiently, remove_queues
from support.waiting import wait_for

from delivery.broker import Broker
from delivery.codec import encode
from delivery.connection import BrokerSettings, connect
from delivery.consumer import consume
from delivery.contract import Event
from delivery.dead import dead_queue, dead_topology
from delivery.handling import Effect
from delivery.kinds import CLASSIC_ONLY, QUORUM_ONLY
from delivery.publisher import properties_of
from delivery.quorum import DELIVERY_LIMIT, as_quorum, delayed_retry
from delivery.retry import retry_queue, retry_topology
from delivery.routes import Route, topology_of
from delivery.sandbox import disposable_broker
from delivery.store import StoreUnavailable, open_store
from delivery.topology import DeclarationRefused, Queue, Topology, declare

TTL_MS = 300


@pytest.fixture(scope="session")
def broker(undisturbed_broker: Broker) -> Broker:
    return undisturbed_broker


@pytest.fixture
def mortal_broker() -> Iterator[Broker]:
    with disposable_broker(os.environ, print) as own:
        yield own


def version(broker: Broker) -> tuple[int, ...]:
    return tuple(int(part) for part in broker.version.split(".")[:2])


@pytest.fixture
def exchange(broker: Broker, tmp_path: Path, namespace: str) -> Iterator[Exchange]:
    with exchange_on(
        broker, tmp_path, namespace, retries_ms=(50,), shape=as_quorum, DELIVERY_QUEUES="quorum"
    ) as opened:
        yield opened


@pytest.fixture
def route(connection: BlockingConnection, settings: BrokerSettings, namespace: str) -> Route:
    """The catalog's route with quorum queues on the broker, its retry waiting 300 ms."""
    route = Route("catalog", namespace)
    declare_patiently(settings, shape(route))
    return route


def declare_patiently(settings: BrokerSettings, topology: Topology) -> None:
    patiently(settings, lambda own: declare(own, topology))


def shape(route: Route) -> Topology:
    plain = topology_of([route]) + retry_topology([route], [TTL_MS]) + dead_topology([route])
    return as_quorum(plain)


def ready(connection: BlockingConnection, queue: str) -> int:
    channel = connection.channel()
    found = int(channel.queue_declare(queue, passive=True).method.message_count)
    channel.close()
    return found


def put(settings: BrokerSettings, queue: str, count: int = 1) -> set[str]:
    """Put events straight into *queue*, confirmed; return their ids."""
    events = [event() for _ in range(count)]

    def send(own: BlockingConnection) -> None:
        """Send those that did not arrive yet: what a 541 stopped is at the end."""
        channel = own.channel()
        channel.confirm_delivery()
        for each in events[ready(own, queue) :]:
            channel.basic_publish("", queue, encode(each), properties_of(each))

    patiently(settings, send)
    return {each.id for each in events}


def deliveries(
    connection: BlockingConnection, queue: str, give_back: Callable[..., None], most: int
) -> list[float]:
    """Take the one message of *queue* again and again; return the seconds between, at most *most*.

    *give_back* gets the channel and the delivery tag.
    """
    gaps, last = [], time.monotonic()
    for _ in range(most):
        channel = connection.channel()
        method = get(channel, queue, seconds=3)  # a consumer would be handed it again at once
        if method is None:
            channel.close()
            break
        gaps.append(time.monotonic() - last)
        last = time.monotonic()
        give_back(channel, method.delivery_tag)
        if channel.is_open:
            channel.close()
    return gaps


def get(channel: BlockingChannel, queue: str, *, seconds: float) -> Any:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        method, _, _ = channel.basic_get(queue)
        if method is not None:
            return method
        channel.connection.sleep(0.02)
    return None


def reject(channel, tag) -> None:
    channel.basic_reject(tag, requeue=True)


def nack(channel, tag) -> None:
    channel.basic_nack(tag, requeue=True)


def leave(channel, tag) -> None:
    channel.close()


def test_the_exchange_runs_on_quorum_queues_with_retry_dead_and_replay(exchange: Exchange) -> None:
    """Real processes: applied, retried, parked, looked at, replayed; the ledger is in balance."""
    exchange.start("relay", "catalog", "audit")
    with exchange.refusing("m-bad"):
        bad, *_ = exchange.accept("m-bad", "m-1", "m-2")
        exchange.await_dead("catalog")
    listed = exchange.run("dead", "list", "catalog")
    assert bad in listed.stdout, listed.stderr
    replayed = exchange.run("dead", "replay", "catalog", "--id", bad, "--reason", "healed")
    assert replayed.returncode == 0, replayed.stdout + replayed.stderr

    exchange.assert_all_applied()
    with connect(exchange.config.broker) as connection, pytest.raises(ChannelClosedByBroker) as no:
        Queue(exchange.config.route("audit").queue).declare(connection.channel())
    assert "inequivalent arg" in no.value.reply_text  # it is no classic queue


def test_a_broker_killed_as_retries_come_back_loses_none(mortal_broker: Broker) -> None:
    """Lesson 07's gap, closed: the source keeps a message until the target has confirmed it."""
    settings = BrokerSettings(url=mortal_broker.amqp_url)
    route = Route("catalog", f"t{uuid.uuid4().hex[:10]}")
    waiting = retry_queue(route, 1)
    with connect(settings) as connection:
        declare(connection, shape(route))
        connection.sleep(3.0)  # a quorum queue of one node is safe from then on (a dets file)
        sent = put(settings, waiting, 20)
        wait_for(lambda: ready(connection, route.queue) == 20, "all came back")
    mortal_broker.kill()
    mortal_broker.start()

    with connect(settings) as connection:
        channel = connection.channel()
        found = set()
        for method, properties, _ in channel.consume(route.queue, inactivity_timeout=10):
            if method is None:
                break
            found.add(properties.message_id)
            if found == sent:
                break
        channel.cancel()
        connection.channel().exchange_delete(route.exchange)
    remove_queues(settings, *(queue.name for queue in shape(route).queues))
    assert found == sent


def test_what_counts_toward_the_delivery_limit(
    broker: Broker, settings: BrokerSettings, connection: BlockingConnection, namespace: str
) -> None:
    """Limit 3 is four deliveries. Since 4.3 a nack with requeue counts no more."""
    counted = {}
    for how in (reject, leave, nack):
        queue = f"{namespace}.{how.__name__}"
        dead = Queue(f"{queue}.dead", {"x-delivery-limit": 9})
        to = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead.name}
        limited = Queue(queue, {"x-delivery-limit": 3, **to}, "quorum")
        declare_patiently(settings, Topology(queues=(Queue(dead.name), limited)))
        put(settings, queue)
        counted[how.__name__] = len(deliveries(connection, queue, how, 8))
        at_end = 0 if counted[how.__name__] == 8 else 1
        wait_for(lambda d=dead, n=at_end: ready(connection, d.name) == n, "parked by the broker")
        remove_queues(settings, queue, dead.name)

    endless = 8 if version(broker) >= (4, 3) else 4
    assert counted == {"reject": 4, "leave": 4, "nack": endless}


def test_looking_at_a_dead_message_does_not_use_it_up(
    settings: BrokerSettings, connection: BlockingConnection, route: Route
) -> None:
    """Each look counts as a delivery: with the default limit the 21st dropped it."""
    put(settings, dead_queue(route))

    looks = deliveries(connection, dead_queue(route), leave, 25)

    assert len(looks) == 25
    wait_for(lambda: ready(connection, dead_queue(route)) == 1, "it is still there")


def test_the_brokers_own_delayed_retry_is_there_from_4_3_on(
    broker: Broker, settings: BrokerSettings, connection: BlockingConnection, namespace: str
) -> None:
    """Rejected, it waits in its queue, each time longer; 3.10 takes the arguments and forgets them.

    Only lower bounds are asserted of the waits, and that without them nothing waits as long.
    """
    route = Route("catalog", namespace)
    declare_patiently(settings, delayed_retry(shape(route), first_ms=200, most_ms=500))
    put(settings, route.queue)

    _, *waits = deliveries(connection, route.queue, reject, 4)

    native = version(broker) >= (4, 3)
    least = [0.19, 0.39, 0.49] if native else [0.0] * 3
    assert all(wait >= limit for wait, limit in zip(waits, least, strict=True)), waits
    assert native or sum(waits) < sum([0.19, 0.39, 0.49]), waits


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_the_broker_refuses_what_lint_calls_the_other_kinds(
    broker: Broker,
    settings: BrokerSettings,
    connection: BlockingConnection,
    namespace: str,
    kind: str,
) -> None:
    """But for delayed retry before 4.3, which is an unknown argument there."""
    for name in QUORUM_ONLY if kind == "classic" else CLASSIC_ONLY:
        value = {"x-queue-mode": "lazy", "x-dead-letter-strategy": "at-least-once"}.get(name, 5)
        value = "all" if name == "x-delayed-retry-type" else value
        queue = Queue(f"{namespace}.other", {name: value}, kind)
        unknown = name == "x-delayed-retry-type" and version(broker) < (4, 3)
        if unknown:
            declare_patiently(settings, Topology(queues=(queue,)))
            remove_queues(settings, queue.name)
        else:
            with pytest.raises(DeclarationRefused, match=name):
                declare(connection, Topology(queues=(queue,)))


def test_a_store_that_is_away_for_long_costs_no_message(
    broker: Broker,
    connection: BlockingConnection,
    settings: BrokerSettings,
    route: Route,
    tmp_path: Path,
) -> None:
    """Each try hands over what is prefetched, too; nobody is at fault, and none is declared dead.

    3.10 counts whatever comes back, and has them dead in the end.
    """
    put(settings, route.queue, 3)

    def away(of: Event, tx: sqlite3.Connection) -> Effect:
        raise StoreUnavailable("the store can't be used: it is locked")

    kept = route.queue if version(broker) >= (4, 3) else dead_queue(route)
    with closing(open_store(tmp_path / "store.db")) as store:
        for number in range(DELIVERY_LIMIT + 2):
            there = kept == route.queue or number <= DELIVERY_LIMIT
            meets = pytest.raises(StoreUnavailable) if there else nullcontext()
            with connect(settings) as inbound, meets:
                consume(inbound.channel(), route.queue, store, away, idle=5.0)

    wait_for(lambda: ready(connection, kept) == 3, f"all are in {kept}")
