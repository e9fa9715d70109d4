"""Lesson 09: one effect, however often it is delivered. Run it: python lessons/09/run.py"""

from __future__ import annotations

import sqlite3
import time
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from delivery import audit, inbox
from delivery.audit import append
from delivery.codec import decode
from delivery.connection import BrokerSettings, connect
from delivery.consumer import consume
from delivery.contract import Event, MaterialPublished, material_published
from delivery.handling import Effect, Handler
from delivery.inbox import once, receipt_of
from delivery.lesson import Scene, play
from delivery.points import arm, kill_here
from delivery.publisher import publish
from delivery.routes import Route, topology_of
from delivery.stopping import Stop
from delivery.store import Schema, open_store, transaction
from delivery.topology import declare

AT = datetime(2026, 1, 31, tzinfo=UTC)
DATA = MaterialPublished(
    material_id="lesson-09", revision=1, title="Once", slug="once", author="D", published_at=AT
)
SEEN = Schema("seen", 1, "CREATE TABLE seen (message_id TEXT PRIMARY KEY) STRICT")
SCHEMAS = (audit.SCHEMA, inbox.SCHEMA, SEEN)


def sent_one(scene: Scene, *recipients: str) -> list[Route]:
    """Declare the queues of these recipients, publish one event, and return their routes."""
    routes = [Route(recipient, scene.namespace) for recipient in recipients]
    with connect(BrokerSettings(url=scene.url)) as connection:
        declare(connection, topology_of(routes))
        event = material_published("event-1", DATA)
        publish(connection.channel(), event, exchange=routes[0].exchange)
    return routes


def note(event: Event, tx: sqlite3.Connection) -> Effect:
    tx.execute("INSERT INTO seen VALUES (?)", (event.id,))
    return Effect.APPLIED


def naive(url: str, route: Route, path: Path, *steps: Handler, crash: bool = False) -> None:
    """A recipient that skips the ids it has seen; if *crash*, killed after its first commit."""
    with connect(BrokerSettings(url=url)) as connection:
        channel, store = connection.channel(), open_store(path, *SCHEMAS)
        method, _, body = next(channel.consume(route.queue, inactivity_timeout=9))
        assert method and method.delivery_tag and body
        event = decode(body)
        seen = "SELECT 1 FROM seen WHERE message_id = ?"  # the mistake: seen by whom?
        if store.execute(seen, (event.id,)).fetchone() is None:
            for step in steps:
                with transaction(store) as tx:  # the mistake: a commit for each step
                    step(event, tx)
                if crash:
                    kill_here()
        channel.basic_ack(method.delivery_tag)


def careful(url: str, route: Route, path: Path, *, kill_at: str = "") -> None:
    """The package's recipient, with its receipts; it takes one delivery and stops."""
    arm(kill_at, kill_here)
    stop, handle = Stop(), once(route, append)  # the cure

    def apply(event: Event, tx: sqlite3.Connection) -> Effect:
        stop.request()
        return handle(event, tx)

    with connect(BrokerSettings(url=url)) as connection:
        store = open_store(path, *SCHEMAS)
        consume(connection.channel(), route.queue, store, apply, stop=stop, idle=9)


def effects(path: Path) -> int:
    return int(open_store(path, *SCHEMAS).execute("SELECT count(*) FROM audit").fetchone()[0])


def broken(scene: Scene) -> None:
    """The recipient notes the ids that it has seen, but not together with the effect."""
    for name, steps, left in (("before", (note, append), 0), ("after", (append, note), 2)):
        (route,) = sent_one(scene, "audit")
        path = scene.folder / f"{name}.sqlite3"
        crashed = scene.child(partial(naive, crash=True), scene.url, route, path, *steps)
        scene.fact(f"noted {name} the effect, killed in between, exit code", crashed, -9)
        naive(scene.url, route, path, *steps)
        scene.fact(f"noted {name} the effect, effects of two deliveries", effects(path), left)
    path = scene.folder / "shared.sqlite3"
    for route in sent_one(scene, "catalog", "audit"):
        naive(scene.url, route, path, append, note)
    scene.fact("one list of ids for two recipients, effects", effects(path), 1)


def fixed(scene: Scene) -> None:
    """Receipt and effect are in one commit, and the receipt names its recipient."""
    catalog, audit_ = sent_one(scene, "catalog", "audit")
    path = scene.folder / "shared.sqlite3"
    for when, point, done in (("before", "applied", 0), ("after", "committed", 1)):
        work = partial(careful, kill_at=f"consumer.{point}")
        crashed = scene.child(work, scene.url, audit_, path)
        scene.fact(f"killed {when} the commit, exit code", crashed, -9)
        scene.fact(f"killed {when} the commit, effects", effects(path), done)
    careful(scene.url, audit_, path)
    scene.fact("effects of three deliveries", effects(path), 1)
    receipt = receipt_of(open_store(path, *SCHEMAS), "audit", "event-1")
    scene.fact("copies that the receipt counted", receipt and receipt.duplicates, 1)
    careful(scene.url, catalog, path)
    scene.fact("receipts that name their recipient, effects of both", effects(path), 2)


def cost(scene: Scene) -> None:
    """Time 5,000 effects without and with a receipt for each, in one commit, three times."""
    events = [material_published(f"e{number}", DATA) for number in range(5000)]
    for turn in range(6):
        handle = (append, once(Route("audit"), append))[turn % 2]
        store = open_store(scene.folder / f"{turn}.sqlite3", *SCHEMAS)
        begun = time.monotonic()
        with transaction(store) as tx:
            for event in events:
                handle(event, tx)
        each = (time.monotonic() - begun) / len(events) * 1e6
        print(f"  {('without', 'with')[turn % 2]} receipts: {each:.1f} microseconds a message")


if __name__ == "__main__":
    play(broken, fixed, cost)
