"""The plain way: commit, then publish and hope; being handed a message acknowledges it.

Written for comparison, as common first versions are: one kept connection in the API, and one more
attempt on a fresh one when it turns out dead; no properties on the message, so it is transient; no
confirms, not mandatory; ``auto_ack=True``; every loop reconnects after a pause. A publish that
fails is logged and the request still answered 202: the material is committed, and the broker is
"only" notified. The Idempotency-Key is ignored. Comments that begin with "the mistake" name where
events are lost or overwritten.

    python plain.py api|relay|catalog|audit|facts       (relay: there is none, it only waits)

Settings: DELIVERY_AMQP_URL, DELIVERY_NAMESPACE, DELIVERY_DATA.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import sqlite3
import sys
import threading
import time
import uuid
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pika
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPError

from delivery.codec import encode
from delivery.contract import EVENT_TYPE, MaterialPublished, PublishMaterial, material_published

AMQP_URL = os.environ.get("DELIVERY_AMQP_URL", "amqp://guest:guest@127.0.0.1:5672/%2F")
NAMESPACE = os.environ.get("DELIVERY_NAMESPACE", "delivery")
DATA = Path(os.environ.get("DELIVERY_DATA", ".delivery"))
EXCHANGE = f"{NAMESPACE}.events"
PAUSE = 0.5  # seconds before the next attempt to connect
LOST = (AMQPError, OSError)  # a name that does not resolve is an OSError

logging.basicConfig(
    stream=sys.stderr,
    level=logging.INFO,
    format="%(asctime)s %(levelname)s %(message)s",
    datefmt="%H:%M:%S",
)
logging.getLogger("pika").setLevel(logging.CRITICAL)
log = logging.getLogger(__name__)

SCHEMAS = {
    "publisher": """
        CREATE TABLE IF NOT EXISTS material (
            material_id TEXT PRIMARY KEY, revision INTEGER NOT NULL, title TEXT NOT NULL);
        CREATE TABLE IF NOT EXISTS publication (
            event_id TEXT PRIMARY KEY, material_id TEXT NOT NULL, revision INTEGER NOT NULL);
    """,
    "catalog": """
        CREATE TABLE IF NOT EXISTS catalog (
            material_id TEXT PRIMARY KEY, revision INTEGER NOT NULL, title TEXT NOT NULL,
            event_id TEXT NOT NULL);
    """,
    "audit": """
        CREATE TABLE IF NOT EXISTS audit (
            entry INTEGER PRIMARY KEY, event_id TEXT NOT NULL, material_id TEXT NOT NULL,
            revision INTEGER NOT NULL);
    """,
}


def database(name: str) -> sqlite3.Connection:
    return sqlite3.connect(DATA / f"{name}.sqlite3", timeout=30)


def create_tables(name: str) -> None:
    DATA.mkdir(parents=True, exist_ok=True)
    with closing(database(name)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.executescript(SCHEMAS[name])


# -- the API


class Publisher:
    """One connection for all requests, behind a lock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._channel: BlockingChannel | None = None

    def publish(self, body: bytes) -> None:
        with self._lock:
            try:
                self._send(body)
            except LOST as error:
                log.warning("connection.lost error=%r", error)
                self._channel = None
                self._send(body)  # a connection that was idle for long is often dead: once more

    def _send(self, body: bytes) -> None:
        if self._channel is None:
            channel = pika.BlockingConnection(pika.URLParameters(AMQP_URL)).channel()
            channel.exchange_declare(EXCHANGE, "topic", durable=True)
            self._channel = channel
        # The mistake: this returns when the bytes are handed to the socket, not when a queue has
        # them; and without delivery_mode=2 the message does not outlive the broker.
        self._channel.basic_publish(EXCHANGE, EVENT_TYPE, body)


def create_app() -> Any:
    from fastapi import FastAPI  # here, as it is slow to import and only the API needs it

    app = FastAPI()
    publisher = Publisher()
    create_tables("publisher")

    @app.post("/materials/{material_id}/publish", status_code=202)
    def publish(material_id: str, command: PublishMaterial) -> dict[str, Any]:
        event_id = str(uuid.uuid4())
        with closing(database("publisher")) as db, db:
            (revision,) = db.execute(
                "INSERT INTO material VALUES (?, 1, ?) ON CONFLICT (material_id) DO UPDATE"
                " SET revision = revision + 1, title = excluded.title RETURNING revision",
                (material_id, command.title),
            ).fetchone()
            db.execute(
                "INSERT INTO publication VALUES (?, ?, ?)", (event_id, material_id, revision)
            )
        data = MaterialPublished(
            material_id=material_id,
            revision=revision,
            title=command.title,
            slug=command.slug,
            author=command.author,
            published_at=datetime.now(UTC),
        )
        try:
            # The mistake: between the commit above and this line nothing remembers the event.
            publisher.publish(encode(material_published(event_id, data)))
        except LOST as error:
            log.error("publish.failed event_id=%s error=%r", event_id, error)
        return {"event_id": event_id, "material_id": material_id, "revision": revision}

    return app


def run_api() -> None:
    import uvicorn

    app = create_app()
    listener = socket.create_server(("127.0.0.1", int(os.environ.get("BASELINE_PORT", "0"))))
    log.info("api.ready url=http://127.0.0.1:%d", listener.getsockname()[1])
    config = uvicorn.Config(app, log_config=None, access_log=False, timeout_graceful_shutdown=5)
    uvicorn.Server(config).run(sockets=[listener])


# -- the recipients


def to_catalog(db: sqlite3.Connection, event_id: str, data: dict[str, Any]) -> None:
    db.execute(
        # The mistake: whichever message comes last wins, not whichever revision is the latest.
        "INSERT INTO catalog VALUES (?, ?, ?, ?) ON CONFLICT (material_id) DO UPDATE SET"
        " revision = excluded.revision, title = excluded.title, event_id = excluded.event_id",
        (data["material_id"], data["revision"], data["title"], event_id),
    )


def to_audit(db: sqlite3.Connection, event_id: str, data: dict[str, Any]) -> None:
    db.execute(
        "INSERT INTO audit (event_id, material_id, revision) VALUES (?, ?, ?)",
        (event_id, data["material_id"], data["revision"]),
    )


def run_recipient(recipient: str) -> None:
    create_tables(recipient)
    while not stopping.is_set():
        try:
            consume(database(recipient), recipient)
        except LOST as error:
            log.warning("connection.lost error=%r", error)
            stopping.wait(PAUSE)


def consume(db: sqlite3.Connection, recipient: str) -> None:
    apply = {"catalog": to_catalog, "audit": to_audit}[recipient]

    def on_message(_channel: Any, _method: Any, _properties: Any, body: bytes) -> None:
        try:
            event = json.loads(body)
            with db:
                apply(db, event["id"], event["data"])
        except (ValueError, KeyError, TypeError, sqlite3.Error) as error:
            log.error("message.failed error=%r", error)  # the mistake: it is acknowledged already

    connection = pika.BlockingConnection(pika.URLParameters(AMQP_URL))
    channel = connection.channel()
    declare(channel, recipient)
    # The mistake: the broker forgets a message as soon as it has sent it.
    channel.basic_consume(f"{NAMESPACE}.{recipient}", on_message, auto_ack=True)
    log.info("%s.ready", recipient)
    while not stopping.is_set():
        connection.process_data_events(time_limit=0.2)
        if not (channel.is_open and channel.consumer_tags):
            raise ConnectionError("the broker has cancelled the consumer")
    connection.close()


def declare(channel: BlockingChannel, recipient: str) -> None:
    queue = f"{NAMESPACE}.{recipient}"
    channel.exchange_declare(EXCHANGE, "topic", durable=True)
    channel.queue_declare(queue, durable=True, arguments={"x-queue-type": "classic"})
    channel.queue_bind(queue, EXCHANGE, "material.published.*")


# -- what there is


def facts() -> dict[str, Any]:
    for name in SCHEMAS:
        create_tables(name)
    with (
        closing(database("publisher")) as publisher,
        closing(database("catalog")) as catalog,
        closing(database("audit")) as audit,
    ):
        accepted = publisher.execute("SELECT event_id, material_id, revision FROM publication")
        cards = catalog.execute("SELECT material_id, revision, title, event_id FROM catalog")
        entries = audit.execute("SELECT event_id FROM audit ORDER BY entry")
        return {
            "accepted": {event_id: [material, n] for event_id, material, n in accepted},
            "pending": [],
            "stuck": [],
            "audit": [event_id for (event_id,) in entries],
            "catalog": {material: [n, title, event] for material, n, title, event in cards},
        }


class Stopping:
    """Set by SIGTERM and Ctrl-C; asked by every loop."""

    def __init__(self) -> None:
        self._set = False

    def set(self, *_signal: object) -> None:
        self._set = True

    def is_set(self) -> bool:
        return self._set

    def wait(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while not self._set and time.monotonic() < end:
            time.sleep(0.05)


stopping = Stopping()


def main(role: str) -> None:
    if role == "facts":
        print(json.dumps(facts()))
        return
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stopping.set)
    if role == "api":
        run_api()
    elif role == "relay":
        log.info("relay.ready")
        while not stopping.is_set():
            stopping.wait(60)
    else:
        run_recipient(role)


if __name__ == "__main__":
    main(sys.argv[1])
