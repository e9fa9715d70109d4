"""Lesson 11: one transaction decides and announces. Run it: python lessons/11/run.py"""

from __future__ import annotations

import sqlite3
import time
from functools import partial
from pathlib import Path

import pika

from delivery import audit, inbox, materials, outbox
from delivery.audit import append
from delivery.connection import BrokerSettings, connect
from delivery.consumer import consume
from delivery.contract import Event, PublishMaterial
from delivery.handling import Effect
from delivery.inbox import once
from delivery.lesson import Scene, play
from delivery.materials import accept
from delivery.outbox import SqliteOutbox
from delivery.pipeline import ConfirmedChannel
from delivery.points import arm, kill_here
from delivery.relay import relay_once
from delivery.routes import Route, topology_of
from delivery.stopping import Stop
from delivery.store import open_store, transaction
from delivery.topology import declare

COMMAND = PublishMaterial(title="Both or neither", slug="both-or-neither", author="Delivery")
SCHEMAS = (materials.SCHEMA, outbox.SCHEMA, audit.SCHEMA, inbox.SCHEMA)
# At each point where the publisher is killed: what the kill left, and how often the event was sent
# when all is done.
POINTS = {
    "materials.written": ("material 0, pending 0, copies 0", "copies 1, effects 1"),
    "materials.committed": ("material 1, pending 1, copies 0", "copies 1, effects 1"),
    "relay.confirmed": ("material 1, pending 1, copies 1", "copies 2, effects 1"),
    "relay.marked": ("material 1, pending 0, copies 1", "copies 1, effects 1"),
}


def naive(url: str, route: Route, path: Path, *, first: str) -> None:
    """A publisher that writes to its database and to the broker, and is killed in between."""

    def publish() -> None:
        with pika.BlockingConnection(pika.URLParameters(url)) as connection:
            channel = connection.channel()
            channel.confirm_delivery()  # a confirm does not help here
            channel.basic_publish(route.exchange, "material.published.v1", b"m-1", mandatory=True)

    def commit() -> None:
        with transaction(open_store(path, *SCHEMAS)) as tx:
            tx.execute("INSERT INTO material VALUES ('m-1', 1, 'T', 's', 'A', '', '')")

    for step in (publish, commit) if first == "publish" else (commit, publish):
        step()
        kill_here()  # the mistake is the gap: whichever comes second never runs


def careful(url: str, route: Route, path: Path, *, kill_at: str = "") -> None:
    """The package's publisher: it decides on a request, then relays what is pending."""
    arm(kill_at, kill_here)
    store = open_store(path, *SCHEMAS)
    accept(store, "m-1", COMMAND, key="request-1")  # the cure
    with ConfirmedChannel(BrokerSettings(url=url)) as channel:
        relay_once(SqliteOutbox(store, route.exchange), channel)


def count(path: Path, table: str) -> int:
    return int(open_store(path, *SCHEMAS).execute(f"SELECT count(*) FROM {table}").fetchone()[0])


def left(url: str, route: Route, path: Path) -> str:
    """Say how many materials, pending events and copies on the broker there are."""
    with connect(BrokerSettings(url=url)) as connection:
        queue = connection.channel().queue_declare(route.queue, passive=True)
    pending = count(path, "outbox WHERE confirmed_at IS NULL")
    copies = queue.method.message_count
    return f"material {count(path, 'material')}, pending {pending}, copies {copies}"


def receive(url: str, route: Route, path: Path) -> None:
    """Take what is in the recipient's queue, as lesson 09 does."""
    stop, handle = Stop(), once(route, append)
    with connect(BrokerSettings(url=url)) as connection:
        channel, store = connection.channel(), open_store(path, *SCHEMAS)
        copies = list(range(channel.queue_declare(route.queue, passive=True).method.message_count))

        def apply(event: Event, tx: sqlite3.Connection) -> Effect:
            copies.pop()
            if not copies:
                stop.request()
            return handle(event, tx)

        consume(channel, route.queue, store, apply, stop=stop, idle=9)


def declared(scene: Scene, recipient: str) -> Route:
    route = Route(recipient, scene.namespace)
    with connect(BrokerSettings(url=scene.url)) as connection:
        declare(connection, topology_of([route]))
        connection.channel().queue_purge(route.queue)
    return route


def broken(scene: Scene) -> None:
    """The publisher commits, and it publishes; it is killed in between."""
    for first, found in (
        ("commit", "material 1, pending 0, copies 0"),
        ("publish", "material 0, pending 0, copies 1"),
    ):
        route, path = declared(scene, "audit"), scene.folder / f"{first}.sqlite3"
        crashed = scene.child(partial(naive, first=first), scene.url, route, path)
        scene.fact(f"{first} first, exit code of the publisher", crashed, -9)
        scene.fact("  the kill left", left(scene.url, route, path), found)


def fixed(scene: Scene) -> None:
    """Material, request and event are in one commit; the publisher is killed at every point."""
    for point, (at_once, in_the_end) in POINTS.items():
        route, path = declared(scene, "audit"), scene.folder / f"{point}.sqlite3"
        crashed = scene.child(partial(careful, kill_at=point), scene.url, route, path)
        scene.fact(f"{point}, exit code of the publisher", crashed, -9)
        scene.fact("  the kill left", left(scene.url, route, path), at_once)
        careful(scene.url, route, path)
        seen = left(scene.url, route, path)
        receive(scene.url, route, path)
        done = f"{seen}, effects {count(path, 'audit')}"
        scene.fact("  after a restart", done, f"material 1, pending 0, {in_the_end}")


def cost(scene: Scene) -> None:
    """Time 2,000 decisions, and the relay of their events."""
    route, store = declared(scene, "audit"), open_store(scene.folder / "publisher", *SCHEMAS)
    begun = time.monotonic()
    for number in range(2000):
        accept(store, f"m-{number}", COMMAND, key=f"request-{number}")
    accepted = time.monotonic()
    with ConfirmedChannel(BrokerSettings(url=scene.url)) as channel:
        while relay_once(SqliteOutbox(store, route.exchange), channel):
            pass
    relayed = time.monotonic() - accepted
    print(f"  accepted: {2000 / (accepted - begun):.0f}/s; relayed: {2000 / relayed:.0f}/s")


if __name__ == "__main__":
    play(broken, fixed, cost)
