"""Lesson 10: come back, and let the newest win. Run it: python lessons/10/run.py"""

from __future__ import annotations

import contextlib
import logging
import socket
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from threading import Thread

import pika
from pika.adapters.blocking_connection import BlockingConnection
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


class Line:
    """A line for one client, as through a firewall that can forget the connection."""

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
                with contextlib.suppress(*() if self.hang_up else (OSError,)):
                    target.sendall(data)


def naive(scene: Scene, url: str, route: Route, path: Path, stop: Stop) -> None:
    """A recipient that trusts its line, and the order in which messages arrive."""
    line = pika.BlockingConnection(pika.URLParameters(f"{url}?heartbeat=0"))  # the mistake
    channel, store = line.channel(), open_store(path, *SCHEMAS)
    for method, _, body in channel.consume(route.queue):
        with transaction(store) as tx:
            catalog.upsert(decode(body), tx)  # the mistake: the last to arrive wins
        channel.basic_ack(method.delivery_tag or 0)


def careful(scene: Scene, url: str, route: Route, path: Path, stop: Stop) -> None:
    """The package's recipient: it sends heartbeats, comes back, and knows what is newer."""
    store, handle = open_store(path, *SCHEMAS), once(route, latest_only(catalog.upsert))  # the cure
    line, direct = BrokerSettings(url=url, heartbeat=1), BrokerSettings(url=scene.url)  # the cure

    def work() -> None:
        with connect(line) as inbound, ConfirmedChannel(direct) as copies:
            policy = park(copies, route)
            consume(inbound.channel(), route.queue, store, handle, on_failure=policy, stop=stop)

    keep_connected(work, stop=stop, backoff=Backoff(first=scene.ms(500) / 1000))  # the cure


def send(to: BlockingConnection, route: Route, material: str, number: int, title: str) -> None:
    data = MaterialPublished(
        material_id=material, revision=number, title=title, slug="s", author="A", published_at=AT
    )
    event = material_published(f"{material}-{number}-{title}", data)
    publish(to.channel(), event, exchange=route.exchange)


def shown(path: Path, material: str = "m-1") -> int:
    query = "SELECT max(revision) FROM catalog WHERE material_id = ?"
    return open_store(path, *SCHEMAS).execute(query, (material,)).fetchone()[0] or 0


def until(connection: BlockingConnection, done: Callable[[], object], seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not done() and time.monotonic() < end:
        connection.sleep(0.02)


@contextlib.contextmanager
def same_failure(
    scene: Scene, recipient: Callable[..., None], *, late: int, tries: int, back: int, last: int
) -> Iterator[tuple[BlockingConnection, Route, Path]]:
    """An older revision comes late; then the line is forgotten, and two attempts are refused."""
    route, path = Route("catalog", scene.namespace), scene.folder / "catalog.sqlite3"
    line, stop = Line(scene.url), Stop()
    thread = Thread(target=recipient, args=(scene, line.url, route, path, stop), daemon=True)
    with connect(BrokerSettings(url=scene.url)) as connection:
        declare(connection, topology_of([route]) + dead_topology([route]))
        channel = connection.channel()

        def consumers() -> int:
            return channel.queue_declare(route.queue, passive=True).method.consumer_count

        thread.start()
        for material, number in (("m-1", 2), ("m-1", 1), ("m-2", 1)):
            send(connection, route, material, number, "Title")
        until(connection, lambda: shown(path, "m-2"))
        scene.fact("revision 2 arrived, then 1: the catalog shows revision", shown(path), late)
        line.refuse = 2
        line.forget()
        until(connection, lambda: line.refuse < 2 or consumers() == 0)
        send(connection, route, "m-1", 3, "Title")
        until(connection, lambda: shown(path) == 3, 20 if last == 3 else scene.ms(5000) / 1000)
        scene.fact("line forgotten: the recipient's thread is alive", thread.is_alive(), True)
        scene.fact("its attempts to come back that were refused", 2 - line.refuse, tries)
        scene.fact("consumers that the broker knows", consumers(), back)
        scene.fact("revision 3 was published: the catalog shows revision", shown(path), last)
        yield connection, route, path
        stop.request()
        thread.join(0 if last < 3 else 10)


def broken(scene: Scene) -> None:
    """No heartbeat and no way back; and the last event to arrive wins."""
    with same_failure(scene, naive, late=1, tries=0, back=0, last=1):
        pass


def fixed(scene: Scene) -> None:
    """Heartbeats, a way back with pauses; and the newest revision wins."""
    with same_failure(scene, careful, late=2, tries=2, back=1, last=3) as (connection, route, path):
        receipt = receipt_of(open_store(path, *SCHEMAS), "catalog", "m-1-1-Title")
        scene.fact("the receipt of the older one says", receipt and receipt.effect.value, "stale")
        send(connection, route, "m-1", 3, "Other")
        until(connection, lambda: browse(connection, route))
        reasons = [dead.reason for dead in browse(connection, route)]
        scene.fact("revision 3 with another title is dead; the reason", reasons, ["conflict"])


def cost(scene: Scene) -> None:
    """Time how long a line that swallows all, and never hangs up, goes unnoticed."""
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
