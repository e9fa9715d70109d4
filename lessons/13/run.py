"""Lesson 13: nothing unroutable vanishes; the urgent does not wait. python lessons/13/run.py"""

from __future__ import annotations

import sqlite3
import statistics
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from threading import Lock, Thread

from pika.adapters.blocking_connection import BlockingConnection

from delivery import audit, inbox
from delivery.audit import append
from delivery.codec import encode
from delivery.connection import BrokerSettings, connect
from delivery.consumer import consume
from delivery.contract import EVENT_TYPE, Event, MaterialPublished, material_published
from delivery.handling import Effect
from delivery.inbox import once
from delivery.lanes import (
    Lane,
    lane_route,
    lane_topology,
    run_lanes,
    unrouted_queue,
    with_alternate,
)
from delivery.lesson import Scene, play
from delivery.lint import lint
from delivery.pipeline import ConfirmedChannel
from delivery.publisher import Message, properties_of
from delivery.routes import Route, topology_of
from delivery.stopping import Stop
from delivery.store import open_store
from delivery.topology import Binding, Exchange, Queue, Topology, declare
from delivery.unrouted import alarm, look, replay_unrouted

AT = datetime(2026, 1, 31, tzinfo=UTC)
DATA = MaterialPublished(
    material_id="m-1", revision=1, title="Title", slug="s", author="A", published_at=AT
)
WRONG_KEY = "materials.published.v1"  # the bindings say material
BULK_KEY = f"bulk.{EVENT_TYPE}"
BULK = 5_000
Turn = AbstractContextManager[object]
LANES = (Lane("critical", "material.published.*"), Lane("background", "bulk.#", prefetch=50))


def message(exchange: str, key: str, name: str) -> Message:
    event = material_published(name, DATA)
    return Message(exchange, key, properties_of(event), encode(event))


def ready(connection: BlockingConnection, queue: str) -> int:
    channel = connection.channel()
    count = int(channel.queue_declare(queue, passive=True).method.message_count)
    channel.close()
    return count


def nets(scene: Scene) -> dict[str, Topology]:
    """Return the nets that the broker accepts and that hold nothing, by what is wrong."""
    kinds = {
        "missing": (),
        "without a queue": (Exchange(scene.name("no queue"), "fanout"),),
        "a direct one": (Exchange(scene.name("direct"), "direct"),),
    }
    found = {}
    for what, net in kinds.items():
        name = net[0].name if net else scene.name("nothing")
        events = Exchange(scene.name(what), "topic", {"alternate-exchange": name})  # the mistake
        found[what] = Topology((events, *net))
    queue, exchange = scene.name("lost"), kinds["a direct one"][0].name
    found["a direct one"] += Topology((), (Queue(queue),), (Binding(exchange, queue, "lost"),))
    return found


def work(
    url: str,
    path: Path,
    route: Route,
    stop: Stop,
    seen: list[str],
    lane: Lane,
    *,
    turn: Turn,
    batch: int = 1,
) -> None:
    """Take what comes by one lane, note its id, and stop after the urgent event."""
    store, handle = open_store(path, audit.SCHEMA, inbox.SCHEMA), once(route, append)

    def note(event: Event, tx: sqlite3.Connection) -> Effect:
        effect = handle(event, tx)
        seen.append(event.id)
        if event.id == "urgent":
            stop.request()
        return effect

    with connect(BrokerSettings(url=url)) as connection:
        take = partial(consume, connection.channel(), lane_route(route, lane).queue, store, note)
        take(prefetch=lane.prefetch, batch=batch, stop=stop, turn=turn)


def flood(scene: Scene, route: Route, lanes: Sequence[Lane], batch: int) -> list[str]:
    """Publish the bulk, then one urgent event; return what was applied up to that, in order."""
    with ConfirmedChannel(BrokerSettings(url=scene.url)) as channel:
        keys = {f"bulk-{n}": BULK_KEY for n in range(BULK)} | {"urgent": EVENT_TYPE}
        channel.send_all([message(route.exchange, key, name) for name, key in keys.items()])
    seen, stop, path = list[str](), Stop(), scene.folder / f"{len(lanes)} lanes"
    job = partial(work, scene.url, path, route, stop, seen, turn=Lock(), batch=batch)
    open_store(path, audit.SCHEMA, inbox.SCHEMA).close()
    run_lanes(lanes, job, stop)
    return seen[: seen.index("urgent")]


def broken(scene: Scene) -> None:
    """What no queue wants is confirmed and gone, with a net, too; the urgent waits in one queue."""
    route, all_in_one = Route("audit", scene.namespace), Lane("all", "#")
    scene.name("audit.all")
    with connect(BrokerSettings(url=scene.url)) as connection:
        declare(connection, topology_of([route]))
        channel = connection.channel()
        channel.confirm_delivery()
        channel.basic_publish(route.exchange, WRONG_KEY, b"x")  # the mistake: not mandatory
        scene.fact("no queue wants it: confirmed; audit has", ready(connection, route.queue), 0)
        for what, topology in nets(scene).items():
            declare(connection, topology)
            channel.basic_publish(topology.exchanges[0].name, WRONG_KEY, b"x")
            kept = sum(ready(connection, queue.name) for queue in topology.queues)
            scene.fact(f"an alternate exchange, {what}: confirmed; kept", kept, 0)
        declare(connection, lane_topology(route, [all_in_one]))  # the mistake: all in one queue
    before = flood(scene, route, [all_in_one], batch=100)
    scene.fact("one queue for all, applied before the urgent event", len(before), BULK)


def fixed(scene: Scene) -> None:
    """What no queue wants is kept, seen, and sent again; the urgent has a lane of its own."""
    route = Route("audit", scene.namespace)
    for name in ("events.unrouted", *(f"audit.{lane.name}" for lane in LANES)):
        scene.name(name)
    problems = {what: len(lint(topology)) for what, topology in nets(scene).items()}
    ones = dict.fromkeys(problems, 1)
    scene.fact("problems that lint finds in such a net", problems, ones)
    topology = topology_of([route]) + lane_topology(route, LANES)
    topology = with_alternate(topology, route.exchange)  # the cure
    wider = topology + Topology(bindings=(Binding(route.exchange, route.queue, WRONG_KEY),))
    settings = BrokerSettings(url=scene.url)
    with connect(settings) as connection, ConfirmedChannel(settings) as channel:
        declare(connection, topology)
        answer = channel.send(message(route.exchange, WRONG_KEY, "event-1"))
        scene.fact("with a net, no return comes; it is", answer.outcome.value, "confirmed")
        scene.fact("the alarm counts", alarm(connection, route.exchange), 1)
        for name, each, right in (("now", topology, False), ("with a binding", wider, True)):
            plan = [(m.key, m.wanted) for m in look(connection, each, route.exchange)]
            scene.fact(f"planned {name}, a queue wants it", plan, [("event-1", right)])
        send = partial(replay_unrouted, connection, channel, keys=["event-1"])
        sent = [m.key for m in send(topology, route.exchange)]
        scene.fact("sent again without the binding", sent, [])
        sent = [m.key for m in send(wider, route.exchange)]
        scene.fact("sent again with the binding", sent, ["event-1"])
        left = [ready(connection, q) for q in (route.queue, unrouted_queue(route.exchange))]
        scene.fact("audit has, and still parked", left, [1, 0])
    before = flood(scene, route, LANES, batch=1)  # the cure
    scene.fact("two lanes, the bulk was not half done", len(before) < BULK / 2, True)


def cost(scene: Scene) -> None:
    """Time urgent events in a quiet lane, beside a flood, and behind one, in three rounds."""
    everything, no_turns = [Lane("all", "#")], nullcontext()
    ways: dict[str, tuple[Sequence[Lane], int, int, Turn]] = {
        "quiet lane": (LANES, 0, 60, Lock()),
        "lane beside a flood": (LANES, BULK, 60, Lock()),
        "lane beside a flood, no turns": (LANES, BULK, 60, no_turns),
        "one queue, behind the flood": (everything, BULK, 1, no_turns),
    }
    found: dict[str, list[float]] = {way: [] for way in ways}
    for number in range(3):
        for place, (way, (lanes, bulk, urgent, turn)) in enumerate(ways.items()):
            route = Route("audit", f"{scene.namespace}-{number}{place}")
            found[way] += latencies(scene, route, lanes, bulk, urgent, turn)
    for way, seconds in found.items():
        at = sorted(each * 1000 for each in seconds)
        late = at[int(len(at) * 0.95)]
        print(f"  {way}: median {statistics.median(at):.1f} ms, 95 of 100 within {late:.1f} ms")


def latencies(
    scene: Scene, route: Route, lanes: Sequence[Lane], bulk: int, urgent: int, turn: Turn
) -> list[float]:
    """Return how long each urgent event took from its publish to its effect (seconds)."""
    settings, path = BrokerSettings(url=scene.url), scene.folder / route.namespace
    open_store(path, audit.SCHEMA, inbox.SCHEMA).close()
    seen, stop, took = list[str](), Stop(), []
    with connect(settings) as connection, ConfirmedChannel(settings) as channel:
        declare(connection, topology := lane_topology(route, lanes))
        names = [f"bulk-{n}" for n in range(bulk)]
        channel.send_all([message(route.exchange, BULK_KEY, name) for name in names])
        job = partial(work, scene.url, path, route, stop, seen, turn=turn)
        crew = Thread(target=run_lanes, args=(lanes, job, stop))
        crew.start()
        while bulk and not seen:
            time.sleep(0.01)  # until the flood is being worked on
        for n in range(urgent):
            begun = time.monotonic()
            channel.send(message(route.exchange, EVENT_TYPE, f"urgent-{n}"))
            while f"urgent-{n}" not in seen[-100:]:
                time.sleep(0.0005)
            took.append(time.monotonic() - begun)
        stop.request()
        crew.join()
        for queue in topology.queues:
            connection.channel().queue_delete(queue.name)
        connection.channel().exchange_delete(route.exchange)
    return took


if __name__ == "__main__":
    play(broken, fixed, cost)
