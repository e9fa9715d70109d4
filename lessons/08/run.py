"""Lesson 08: keep what can't be processed. Run it: python lessons/08/run.py"""

from __future__ import annotations

import sqlite3
import time
from datetime import UTC, datetime
from functools import partial

from pika.adapters.blocking_connection import BlockingConnection

from delivery import audit
from delivery.codec import encode
from delivery.confirms import NotConfirmed
from delivery.connection import BrokerSettings, connect
from delivery.consumer import consume
from delivery.contract import EVENT_TYPE, Event, MaterialPublished, material_published
from delivery.dead import dead_queue, dead_topology, park
from delivery.handling import Effect, Handler
from delivery.lesson import Scene, play
from delivery.pipeline import ConfirmedChannel
from delivery.publisher import envelope, properties_of
from delivery.replay import replay
from delivery.routes import Route, routes_of, topology_of
from delivery.store import open_store
from delivery.topology import declare
from delivery.triage import DeadMessage, browse

DATA = MaterialPublished(
    material_id="lesson-08",
    revision=1,
    title="Сохрани непонятное",
    slug="keep-the-dead",
    author="Delivery",
    published_at=datetime(2026, 1, 31, tzinfo=UTC),
)
IDLE = 0.4  # seconds without a message after which a queue counts as empty
STRANGE = b'{"specversion":"1.0","id":"strange","type":"material.published.v9"}'


def two_messages(scene: Scene, connection: BlockingConnection) -> tuple[Route, Route]:
    """Publish an event, and a message of a version that no recipient here can read."""
    catalog, other = routes_of(scene.namespace)
    declare(connection, topology_of([catalog, other]))
    channel = connection.channel()
    channel.confirm_delivery()
    event = material_published("event-1", DATA)
    strange = envelope("strange", "material.published.v9", timestamp=0)
    for about, body in ((strange, STRANGE), (properties_of(event), encode(event))):
        channel.basic_publish(catalog.exchange, about.type or "", body, about, mandatory=True)
    return catalog, other


def held_in(connection: BlockingConnection, queue: str) -> list[str | None]:
    """Return the ids of the messages in *queue*; they go back when the channel closes."""
    channel, found = connection.channel(), []
    while (got := channel.basic_get(queue))[1]:
        found.append(got[1].message_id)
    channel.close()
    return found


def entries(scene: Scene) -> int:
    store = open_store(scene.folder / "audit.sqlite3", audit.SCHEMA)
    return int(store.execute("SELECT count(*) FROM audit").fetchone()[0])


def receive(scene: Scene, route: Route, handle: Handler) -> None:
    """Run one recipient until its queue is empty; park what fails, as one should."""
    settings = BrokerSettings(url=scene.url)
    store = open_store(scene.folder / f"{route.recipient}.sqlite3", audit.SCHEMA)
    with connect(settings) as connection, ConfirmedChannel(settings) as copies:
        policy = park(copies, route)  # the cure
        consume(connection.channel(), route.queue, store, handle, on_failure=policy, idle=IDLE)


def sick(event: Event, tx: sqlite3.Connection) -> Effect:
    raise RuntimeError("the catalog can't do this today")


def broken(scene: Scene) -> None:
    """The recipient acks after a copy that went nowhere; the operator sends again to everybody."""
    with connect(BrokerSettings(url=scene.url)) as connection:
        catalog, other = two_messages(scene, connection)
        channel = connection.channel()
        method, about, body = channel.basic_get(catalog.queue)
        assert method and body
        channel.basic_publish("", dead_queue(catalog), body, about)  # the mistake
        channel.basic_ack(method.delivery_tag or 0)
        channel.close()  # now the broker has done both
        declare(connection, dead_topology([catalog, other]))
        kept = held_in(connection, catalog.queue) + held_in(connection, dead_queue(catalog))
        scene.fact("2 came, none was handled; the broker still has", kept, ["event-1"])

        receive(scene, other, audit.append)
        receive(scene, catalog, sick)  # parks properly; the next mistake is the operator's
        scene.fact("dead at the catalog", held_in(connection, dead_queue(catalog)), ["event-1"])
        channel = connection.channel()
        method, about, body = channel.basic_get(dead_queue(catalog))
        assert method and body
        channel.basic_publish(catalog.exchange, EVENT_TYPE, body, about)  # the mistake
        channel.basic_ack(method.delivery_tag or 0)
        channel.close()
        receive(scene, other, audit.append)
        scene.fact("sent again to all; audit's entries for the one event", entries(scene), 2)


def fixed(scene: Scene) -> None:
    """A message leaves its queue only after its copy is confirmed, and returns to one recipient."""
    settings = BrokerSettings(url=scene.url)
    with connect(settings) as connection:
        catalog, other = two_messages(scene, connection)
        answer = "acked"
        try:
            receive(scene, catalog, sick)
        except NotConfirmed as refused:
            answer = refused.answer.outcome.value
        scene.fact("without a dead queue, the copy is", answer, "returned")
        kept = held_in(connection, catalog.queue)
        scene.fact("without a dead queue, the catalog's queue has", kept, ["strange", "event-1"])

        declare(connection, dead_topology([catalog, other]))  # the cure
        receive(scene, catalog, sick)
        receive(scene, other, audit.append)
        found = {message.key: message.reason for message in browse(connection, catalog)}
        right = {"strange": "incompatible", "event-1": "exhausted"}
        scene.fact("with a dead queue, parked there", found, right)

        plan = [key for key, reason in found.items() if reason == "exhausted"]
        scene.fact("planned", plan, ["event-1"])
        unsent = held_in(connection, catalog.queue)
        scene.fact("nothing is sent yet, the catalog's queue has", unsent, [])
        written: list[DeadMessage] = []
        why = {"operator": "Ann", "reason": "the catalog is well again"}
        with ConfirmedChannel(settings) as copies:  # the cure: to the catalog's queue only
            send = partial(replay, connection, copies, catalog, plan, **why, record=written.append)
            scene.fact("sent again", send(), ["event-1"])
            scene.fact("asked a second time", send(), [])
        scene.fact("decisions written down", [m.key for m in written], ["event-1"])
        scene.fact("the catalog's queue has", held_in(connection, catalog.queue), ["event-1"])
        receive(scene, other, audit.append)
        scene.fact("sent again to one; audit's entries for the one event", entries(scene), 1)
        scene.fact("still dead", [m.key for m in browse(connection, catalog)], ["strange"])


def cost(scene: Scene) -> None:
    """Time 1,000 messages that the catalog can't read, and 1,000 that it applies."""
    with connect(BrokerSettings(url=scene.url)) as connection:
        catalog, other = two_messages(scene, connection)
        declare(connection, dead_topology([catalog, other]))
        channel, event = connection.channel(), material_published("event-1", DATA)
        for way, body in (("parked", STRANGE), ("applied", encode(event))):
            channel.queue_purge(catalog.queue)
            for _ in range(1000):
                channel.basic_publish("", catalog.queue, body, properties_of(event))
            begun = time.monotonic()
            receive(scene, catalog, audit.append)
            print(f"  {way}: {1000 / (time.monotonic() - begun - IDLE):.0f}/s")


if __name__ == "__main__":
    play(broken, fixed, cost)
