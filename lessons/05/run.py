"""Lesson 05: acknowledge after the commit. Run it: python lessons/05/run.py"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from delivery import audit
from delivery.audit import append
from delivery.codec import decode
from delivery.connection import BrokerSettings, connect
from delivery.consumer import consume
from delivery.contract import MaterialPublished, material_published
from delivery.lesson import Scene, play
from delivery.points import arm, kill_here
from delivery.publisher import publish
from delivery.routes import Route, topology_of
from delivery.store import open_store, transaction
from delivery.topology import declare

DATA = MaterialPublished(
    material_id="lesson-05",
    revision=1,
    title="Подтверди после записи",
    slug="ack-after-commit",
    author="Delivery",
    published_at=datetime(2026, 1, 31, tzinfo=UTC),
)


def sent_one(scene: Scene, recipient: str) -> tuple[Route, Path]:
    """Publish one event to a recipient's empty queue; return the route and the recipient's file."""
    route = Route(recipient, scene.namespace)
    with connect(BrokerSettings(url=scene.url)) as connection:
        declare(connection, topology_of([route]))
        channel = connection.channel()
        channel.queue_purge(route.queue)
        publish(channel, material_published("event-1", DATA), exchange=route.exchange)
    return route, scene.folder / f"{recipient}.sqlite3"


def hasty(url: str, queue: str, path: Path, *, auto_ack: bool) -> None:
    """A recipient that tells the broker "done" before it is, and is killed in between."""
    with connect(BrokerSettings(url=url)) as connection:
        channel = connection.channel()
        method, _, body = channel.basic_get(queue, auto_ack=auto_ack)  # the mistake: auto-ack
        assert method is not None
        if not auto_ack:
            channel.basic_ack(method.delivery_tag or 0)  # the mistake: before the commit
        with transaction(open_store(path, audit.SCHEMA)) as tx:
            append(decode(body or b""), tx)
            kill_here()


def careful(url: str, queue: str, path: Path, *, crash: bool) -> None:
    """The package's consumer: it commits, then acks; killed in between if *crash*."""
    if crash:
        arm("consumer.committed", kill_here)
    with connect(BrokerSettings(url=url)) as connection:
        store = open_store(path, audit.SCHEMA)
        consume(connection.channel(), queue, store, append, idle=0.3)  # the cure


def entries(path: Path) -> int:
    return int(open_store(path, audit.SCHEMA).execute("SELECT count(*) FROM audit").fetchone()[0])


def broken(scene: Scene) -> None:
    """The recipient acks first, and is killed before its commit."""
    for how, auto_ack in (("auto-ack", True), ("ack before the commit", False)):
        route, path = sent_one(scene, "catalog" if auto_ack else "audit")
        crashed = scene.child(partial(hasty, auto_ack=auto_ack), scene.url, route.queue, path)
        scene.fact(f"{how}, exit code of the killed recipient", crashed, -9)
        careful(scene.url, route.queue, path, crash=False)
        scene.fact(f"{how}, sent 1, applied after the recipient's restart", entries(path), 0)


def fixed(scene: Scene) -> None:
    """The recipient commits first, and is killed before its ack."""
    route, path = sent_one(scene, "audit")
    crashed = scene.child(partial(careful, crash=True), scene.url, route.queue, path)
    scene.fact("exit code of the killed recipient", crashed, -9)
    scene.fact("sent 1, applied when it was killed", entries(path), 1)
    careful(scene.url, route.queue, path, crash=False)
    scene.fact("applied after the recipient's restart, once too often", entries(path), 2)


def cost(scene: Scene) -> None:
    """Time 2,000 messages with one commit for each, and with one for a hundred."""
    rates = {}
    for batch in (1, 100):
        route, path = sent_one(scene, "audit" if batch == 1 else "catalog")
        with connect(BrokerSettings(url=scene.url)) as connection:
            channel = connection.channel()
            for number in range(2000):
                publish(channel, material_published(f"e{number}", DATA), exchange=route.exchange)
            begun, store = time.monotonic(), open_store(path, audit.SCHEMA)
            consume(channel, route.queue, store, append, batch=batch, prefetch=200, idle=0.5)
            # idle: consume waits so long for more before it returns
            rates[batch] = entries(path) / (time.monotonic() - begun - 0.5)
    print(f"  one commit per message: {rates[1]:.0f}/s; 100 per commit: {rates[100]:.0f}/s")


if __name__ == "__main__":
    play(broken, fixed, cost)
