"""Lesson 17: a node may die. Run it: python lessons/17/run.py"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path

from pika.adapters.blocking_connection import BlockingConnection

from delivery.broker import Broker
from delivery.cluster import Cluster, three_nodes
from delivery.codec import encode
from delivery.confirms import Outcome
from delivery.connection import BrokerSettings, connect
from delivery.contract import EVENT_TYPE, MaterialPublished, material_published
from delivery.dead import dead_topology
from delivery.lesson import Scene, play
from delivery.pipeline import ConfirmedChannel
from delivery.publisher import Message, properties_of
from delivery.quorum import as_quorum, delayed_retry
from delivery.retry import retry_queue, retry_topology
from delivery.routes import Route, topology_of
from delivery.topology import Queue, Topology, declare

WAIT, EVENTS = 1_000, 5  # milliseconds before the retry; events published while all nodes live
DATA = MaterialPublished(
    material_id="lesson-17",
    revision=1,
    title="Когда узел умер",
    slug="a-node-dies",
    author="Delivery",
    published_at=datetime(2026, 1, 31, tzinfo=UTC),
)
clusters: list[Cluster] = []


def send(node: Broker, exchange: str, key: str, event_id: str) -> bool:
    """Publish one event through *node*, again for 10 s if it is refused; say if it was confirmed.

    On a new connection each time: on 3.10 a channel that met a dead leader goes on to refuse.
    """
    event, end = material_published(event_id, DATA), time.monotonic() + 10
    message = Message(exchange, key, properties_of(event), encode(event))
    while True:
        with ConfirmedChannel(BrokerSettings(url=node.amqp_url), timeout=30) as channel:
            if channel.send(message).outcome is Outcome.CONFIRMED:
                return True
        if time.monotonic() > end:
            return False
        time.sleep(0.5)


def read(connection: BlockingConnection, queue: str, at_least: int) -> set[str]:
    """Return the different messages of *queue*; wait at most 30 s for so many. They stay there."""
    end, found = time.monotonic() + 30, set[str]()
    channel = connection.channel()
    for method, about, _ in channel.consume(queue, inactivity_timeout=0.5):
        if method is None and (len(found) >= at_least or time.monotonic() > end):
            break
        found |= {about.message_id or ""} if about else set()
    channel.close()
    return found


def until_empty(connection: BlockingConnection, queue: str) -> bool:
    """Wait at most 30 s until nothing is ready in *queue*; say whether it came to that."""
    end, channel = time.monotonic() + 30, connection.channel()
    while channel.queue_declare(queue, passive=True).method.message_count:
        if time.monotonic() > end:
            return False
        connection.sleep(0.1)
    return True


def node_dies(scene: Scene, topology: Topology, *, lost: int) -> None:
    """Kill the node of the recipient's queue, publish, let a retry come back, and count."""
    alive, home, _ = clusters[0].nodes
    route, safe = Route("catalog", scene.namespace), lost == 0
    waiting = retry_queue(route, 1)
    retries = Topology(queues=tuple(queue for queue in topology.queues if queue.name == waiting))
    for node, part in ((alive, retries), (home, topology)):
        with connect(BrokerSettings(url=node.amqp_url)) as connection:
            declare(connection, part)  # a classic queue lives where it was declared
    sent = sum(send(alive, route.exchange, EVENT_TYPE, f"event-{n}") for n in range(EVENTS))
    scene.fact("all nodes live: events confirmed", sent, EVENTS)

    home.kill()
    during = send(alive, route.exchange, EVENT_TYPE, "during")
    scene.fact("a node is dead: the next event is confirmed", during, safe)
    retry = send(alive, "", waiting, "failed-before")
    scene.fact("a node is dead: a failed message waits for its retry", retry, True)
    sent += during + retry
    any_node = BrokerSettings(url=clusters[0].amqp_url)
    with connect(any_node) as connection:
        scene.fact("a node is dead: the wait ends", until_empty(connection, waiting), True)
        if safe:
            found = read(connection, route.queue, sent)
            scene.fact("a node is dead: the recipient can read", len(found), sent)
    home.start()
    with connect(any_node) as connection:
        found = read(connection, route.queue, sent - lost)
    scene.fact("the node is back: of the confirmed ones lost", sent - len(found), lost)
    clusters[0].await_formed()


def plain(namespace: str) -> Topology:
    """Return the topology of lessons 04, 07 and 08."""
    routes = [Route("catalog", namespace)]
    return topology_of(routes) + retry_topology(routes, [WAIT]) + dead_topology(routes)


def broken(scene: Scene) -> None:
    """A classic queue lives on one node, and what the broker itself moves is not confirmed."""
    node_dies(scene, plain(scene.namespace), lost=1)  # the mistake


def fixed(scene: Scene) -> None:
    """Three nodes hold each queue, and a message leaves a waiting queue when it has arrived."""
    topology = as_quorum(plain(scene.namespace))  # the cure
    node_dies(scene, topology, lost=0)

    queue = scene.name("native")
    to_dead = {"x-delivery-limit": 9, "x-dead-letter-exchange": ""}
    own = Topology(queues=(Queue(queue, to_dead, "quorum"),))
    with connect(BrokerSettings(url=scene.url)) as connection:
        declare(connection, delayed_retry(own, first_ms=300, most_ms=900))
        send(scene.broker, "", queue, "rejected")
        channel, begun = connection.channel(), 0.0
        for number in range(3):
            method, _, _ = next(channel.consume(queue, inactivity_timeout=10))
            begun = begun if number else time.monotonic()
            assert method is not None
            channel.basic_reject(method.delivery_tag or 0, requeue=True)
        waited = time.monotonic() - begun >= 0.3 + 0.6
    known = [int(part) for part in scene.broker.version.split(".")[:2]] >= [4, 3]
    scene.fact("the broker's own delayed retry is there from 4.3 on", waited == known, True)


def cost(scene: Scene) -> None:
    """Confirm messages into each kind of queue; then kill a leader between two of them."""
    alive, home, _ = clusters[0].nodes
    events = [material_published(f"{n}", DATA) for n in range(2_000)]
    for kind in ("classic", "quorum"):
        queue = Queue(scene.name(kind), {}, "quorum" if kind == "quorum" else "classic")
        with connect(BrokerSettings(url=home.amqp_url)) as connection:
            declare(connection, Topology(queues=(queue,)))
        messages = [Message("", queue.name, properties_of(e), encode(e)) for e in events]
        for window in (1, 500):
            with ConfirmedChannel(BrokerSettings(url=home.amqp_url), window=window) as channel:
                begun = time.monotonic()
                channel.send_all(messages)
                rate = len(messages) / (time.monotonic() - begun)
            print(f"  {kind}, {window} in flight: {rate:,.0f} confirmed a second")
    killing, slowest = threading.Thread(target=home.kill), 0.0
    with ConfirmedChannel(BrokerSettings(url=alive.amqp_url), timeout=60) as channel:
        killing.start()
        for _ in range(10):
            while killing.is_alive():
                begun = time.monotonic()
                channel.send(messages[0])
                slowest = max(slowest, time.monotonic() - begun)
            begun = time.monotonic()
            channel.send(messages[0])
            slowest = max(slowest, time.monotonic() - begun)
    print(f"  the leader's node is killed: the slowest confirm took {slowest:.2f} s")
    home.start()


def first_of_three(environ: Mapping[str, str], state: Path, say: Callable[[str], None]) -> Broker:
    """Start three nodes, which end with this script; return the first, ours to talk to."""
    clusters.append(opened.enter_context(three_nodes(environ, say)))
    return clusters[0].nodes[0]


if __name__ == "__main__":
    with contextlib.ExitStack() as opened:
        play(broken, fixed, cost, find=first_of_three)
