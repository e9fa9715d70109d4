"""Lesson 10: come back, and let the newest win. Run it: python lessons/10/run.py"""

from __future__ import annotations

import contextlib
import logging
import socket
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from threading import Thread

import pika
from pika.exceptions import AMQPError

from delivery import catalog, inbox, revision
from delivery.codec import decode
from delivery.connection import BrokerSettings, connect
from delivery.consumer import consume
from delivery.contract import MaterialPublished, material_published
from delivery.dead import dead_topology, park
from delivery.inbox import once, receipt_of
from delivery.lesson import Scene, play
from delivery.pipeline import ConfirmedChannel
from delivery.publisher import publish
from delivery.recovery import Backoff, keep_connected
from delivery.revision import latest_only
from delivery.routes import Route, topology_of
from delivery.stopping import Stop
from delivery.store import open_store, transaction
from delivery.topology import declare
from delivery.triage import browse

SCHEMAS = (catalog.SCHEMA, inbox.SCHEMA, revision.SCHEMA)
AT = datetime(2026, 1, 31, tzinfo=UTC)
DATA = MaterialPublished(
    material_id="m-1", revision=1, title="Title", slug="s", author="A", published_at=AT
)
# What both scenes look at, and what the broken one and the fixed one must see.
FACTS = {
    "revision 2 came, then 1; the catalog shows revision": (1, 2),
    "connection forgotten; the recipient's thread is alive": (True, True),
    "its attempts to come back that were refused": (0, 2),
    "consumers that the broker knows": (0, 1),
    "revision 3 was published; the catalog shows revision": (1, 3),
}


class Line:
    """A TCP connection to the broker, through a firewall that can forget it."""

    def __init__(self, url: str) -> None:
        broker = pika.URLParameters(url)
        self._target = (broker.host, broker.port)
        self._server = socket.create_server(("127.0.0.1", 0))
        mine = "{}:{}".format(*self._server.getsockname())
        self.url = url.replace(f"{broker.host}:{broker.port}", mine)
        self.refuse, self.hang_up = 0, True  # refuse: so many of the next attempts to connect
        Thread(target=self._serve, daemon=True).start()

    def forget(self) -> None:
        """End the connection for the broker; the client hears of it only when it speaks."""
        self._broker.shutdown(socket.SHUT_RDWR)

    def _serve(self) -> None:
        while True:
            client, _ = self._server.accept()
            if self.refuse == 0:
                self._broker = socket.create_connection(self._target)
                Thread(target=self._pump, args=(self._broker, client), daemon=True).start()
                self._pump(client, self._broker)
            else:
                self.refuse -= 1
            client.close()

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                try:
                    target.sendall(data)
                except OSError:
                    if self.hang_up:
                        raise


def naive(scene: Scene, url: str, route: Route, path: Path, stop: Stop) -> None:
    """A recipient that trusts its connection, and the order in which messages arrive."""
    settings = pika.URLParameters(f"{url}?heartbeat=0")  # the mistake: silence looks like peace
    channel, store = pika.BlockingConnection(settings).channel(), open_store(path, *SCHEMAS)
    for method, _, body in channel.consume(route.queue):
        with transaction(store) as tx:
            catalog.upsert(decode(body), tx)  # the mistake: the last to arrive wins
        channel.basic_ack(method.delivery_tag or 0)


def careful(scene: Scene, url: str, route: Route, path: Path, stop: Stop) -> None:
    """The package's recipient: it sends heartbeats, comes back, and knows what is newer."""
    inward = BrokerSettings(url=url, heartbeat=1)  # the cure: a dead connection is an error
    outward, backoff = BrokerSettings(url=scene.url), Backoff(first=scene.ms(500) / 1000)
    store = open_store(path, *SCHEMAS)
    handle = once(route, latest_only(catalog.upsert))  # the cure: the newest wins

    def work() -> None:
        with connect(inward) as connection, ConfirmedChannel(outward) as copies:
            policy, channel = park(copies, route), connection.channel()
            consume(channel, route.queue, store, handle, on_failure=policy, stop=stop)

    keep_connected(work, stop=stop, backoff=backoff)  # the cure: pause, and try again


def shown(path: Path, material: str = "m-1") -> int:
    """Return the revision that the catalog shows, 0 for none."""
    query = "SELECT max(revision) FROM catalog WHERE material_id = ?"
    return open_store(path, *SCHEMAS).execute(query, (material,)).fetchone()[0] or 0


def until(done: Callable[[], object], seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not done() and time.monotonic() < end:
        time.sleep(0.02)


def same_failure(scene: Scene, recipient: Callable[..., None], act: int, watch: float) -> Route:
    """An older revision comes late; the connection is forgotten, and two attempts are refused."""
    route, path = Route("catalog", scene.namespace), scene.folder / "catalog.sqlite3"
    line, stop = Line(scene.url), Stop()
    thread = Thread(target=recipient, args=(scene, line.url, route, path, stop), daemon=True)
    with connect(BrokerSettings(url=scene.url)) as connection:
        declare(connection, topology_of([route]) + dead_topology([route]))
        channel = connection.channel()

        def consumers() -> int:
            return channel.queue_declare(route.queue, passive=True).method.consumer_count

        def send(material: str, revision: int, title: str = "Title") -> None:
            about = {"material_id": material, "revision": revision, "title": title}
            event = material_published(
                f"{material}-{revision}-{title}", DATA.model_copy(update=about)
            )
            publish(connection.channel(), event, exchange=route.exchange)

        thread.start()
        send("m-1", 2)
        send("m-1", 2, "Other")
        send("m-1", 1)
        send("m-2", 1)
        until(lambda: shown(path, "m-2"))
        late, line.refuse = shown(path), 2
        line.forget()
        until(lambda: line.refuse < 2 or consumers() == 0)
        send("m-1", 3)
        until(lambda: shown(path) == 3, watch)
        seen = (late, thread.is_alive(), 2 - line.refuse, consumers(), shown(path))
    for (what, right), value in zip(FACTS.items(), seen, strict=True):
        scene.fact(what, value, right[act])
    stop.request()
    thread.join(10 * act)  # the naive one would never end
    return route


def broken(scene: Scene) -> None:
    """No heartbeat and no way back; and the last event to arrive wins."""
    same_failure(scene, naive, act=0, watch=scene.ms(5000) / 1000)


def fixed(scene: Scene) -> None:
    """Heartbeats, a way back with pauses; and the newest revision wins."""
    route = same_failure(scene, careful, act=1, watch=20)
    store = open_store(scene.folder / "catalog.sqlite3", *SCHEMAS)
    receipt = receipt_of(store, "catalog", "m-1-1-Title")
    scene.fact("the receipt of revision 1 says", receipt and receipt.effect.value, "stale")
    with connect(BrokerSettings(url=scene.url)) as connection:
        reasons = {dead.key: dead.reason for dead in browse(connection, route)}
    scene.fact("kept for a person, with the reason", reasons, {"m-1-2-Other": "conflict"})


def cost(scene: Scene) -> None:
    """Time how long a connection that swallows all, and never hangs up, goes unnoticed."""
    line = Line(scene.url)
    line.hang_up = False
    connection = connect(BrokerSettings(url=line.url, heartbeat=1))
    line.forget()
    begun = time.monotonic()
    with contextlib.suppress(AMQPError):
        while True:
            connection.process_data_events(time_limit=1)
    print(f"  with a heartbeat of 1 s: {time.monotonic() - begun:.0f} s")


if __name__ == "__main__":
    logging.getLogger("delivery").addHandler(logging.NullHandler())  # the facts say it
    play(broken, fixed, cost)
