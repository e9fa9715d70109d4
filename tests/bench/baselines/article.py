"""The article's way: an outbox whose rows have a status, and a "seen" key before the effect.

Written for comparison, as the usual article on the outbox pattern builds it, with its usual care:
material and outbox row in one PostgreSQL transaction; a worker that claims rows (NEW to
IN_PROGRESS, SKIP LOCKED), publishes each persistent and mandatory, waits for each confirm, and sets
SENT or FAILED; FAILED rows are tried again, up to MAX_ATTEMPTS. Each recipient sets a Redis key for
the message_id, writes its effect to PostgreSQL, and acks; on an error it takes the key back and
requeues the message. Every loop reconnects after a pause. The Idempotency-Key is ignored. Comments
that begin with "the mistake" name where events are lost, doubled, stuck or overwritten.

    python article.py api|relay|catalog|audit|facts

Settings: DELIVERY_AMQP_URL, DELIVERY_NAMESPACE, BASELINE_POSTGRES, BASELINE_REDIS, and, in seconds,
BASELINE_RETRY_AFTER (5); BASELINE_PORT is the API's (any free one). DELIVERY_DATA is not used:
everything is in a PostgreSQL schema that is named like the namespace.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import sys
import time
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pika
import psycopg
import redis
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPError
from psycopg.sql import SQL, Identifier

from delivery.codec import CONTENT_TYPE, encode
from delivery.contract import EVENT_TYPE, MaterialPublished, PublishMaterial, material_published

AMQP_URL = os.environ.get("DELIVERY_AMQP_URL", "amqp://guest:guest@127.0.0.1:5672/%2F")
NAMESPACE = os.environ.get("DELIVERY_NAMESPACE", "delivery")
POSTGRES = os.environ.get("BASELINE_POSTGRES", "postgresql://postgres@127.0.0.1:5432/postgres")
REDIS = os.environ.get("BASELINE_REDIS", "redis://127.0.0.1:6379/0")
EXCHANGE = f"{NAMESPACE}.events"
BATCH = 100  # rows claimed at once
POLL = 0.1  # seconds between two looks at an empty outbox
RETRY_AFTER = float(os.environ.get("BASELINE_RETRY_AFTER", "5"))
MAX_ATTEMPTS = 5
SEEN_FOR = 24 * 3600  # seconds
PAUSE = 0.5  # seconds before the next attempt to connect
LOST = (AMQPError, OSError, psycopg.OperationalError)  # OSError: a name that does not resolve

logging.basicConfig(
    stream=sys.stderr,
    level=logging.INFO,
    format="%(asctime)s %(levelname)s %(message)s",
    datefmt="%H:%M:%S",
)
logging.getLogger("pika").setLevel(logging.CRITICAL)
log = logging.getLogger(__name__)

TABLES = """
CREATE TABLE IF NOT EXISTS material (
    material_id text PRIMARY KEY, revision bigint NOT NULL, title text NOT NULL);
CREATE TABLE IF NOT EXISTS outbox (
    id bigserial PRIMARY KEY,
    event_id text NOT NULL,
    material_id text NOT NULL,
    revision bigint NOT NULL,
    payload text NOT NULL,
    status text NOT NULL DEFAULT 'NEW',
    attempts int NOT NULL DEFAULT 0,
    updated_at timestamptz NOT NULL DEFAULT now());
CREATE INDEX IF NOT EXISTS outbox_unsent ON outbox (id) WHERE status IN ('NEW', 'FAILED');
CREATE TABLE IF NOT EXISTS catalog (
    material_id text PRIMARY KEY, revision bigint NOT NULL, title text NOT NULL,
    event_id text NOT NULL);
CREATE TABLE IF NOT EXISTS audit (
    entry bigserial PRIMARY KEY, event_id text NOT NULL, material_id text NOT NULL,
    revision bigint NOT NULL);
"""


Database = psycopg.Connection[tuple[Any, ...]]


def database(role: str) -> Database:
    """Connect, each statement a transaction of its own unless it is in one that is opened."""
    name, path = f"{NAMESPACE} {role}", f'-c search_path="{NAMESPACE}"'
    return psycopg.connect(POSTGRES, application_name=name, options=path, autocommit=True)


def create_tables() -> None:
    with database("schema") as db, db.transaction():
        db.execute("SELECT pg_advisory_xact_lock(1)")  # four processes start at once
        db.execute(SQL("CREATE SCHEMA IF NOT EXISTS {}").format(Identifier(NAMESPACE)))
        db.execute(TABLES)


# -- the API


def create_app() -> Any:
    from fastapi import FastAPI  # here, as it is slow to import and only the API needs it

    app = FastAPI()

    @app.post("/materials/{material_id}/publish", status_code=202)
    def publish(material_id: str, command: PublishMaterial) -> dict[str, Any]:
        event_id = str(uuid.uuid4())
        with database("api") as db, db.transaction():
            (revision,) = db.execute(
                "INSERT INTO material VALUES (%s, 1, %s) ON CONFLICT (material_id) DO UPDATE"
                " SET revision = material.revision + 1, title = excluded.title RETURNING revision",
                (material_id, command.title),
            ).fetchone() or (0,)
            data = MaterialPublished(
                material_id=material_id,
                revision=revision,
                title=command.title,
                slug=command.slug,
                author=command.author,
                published_at=datetime.now(UTC),
            )
            body = encode(material_published(event_id, data)).decode()
            db.execute(
                "INSERT INTO outbox (event_id, material_id, revision, payload)"
                " VALUES (%s, %s, %s, %s)",
                (event_id, material_id, revision, body),
            )
        return {"event_id": event_id, "material_id": material_id, "revision": revision}

    return app


def run_api() -> None:
    import uvicorn

    app = create_app()
    listener = socket.create_server(("127.0.0.1", int(os.environ.get("BASELINE_PORT", "0"))))
    log.info("api.ready url=http://127.0.0.1:%d", listener.getsockname()[1])
    config = uvicorn.Config(app, log_config=None, access_log=False, timeout_graceful_shutdown=5)
    uvicorn.Server(config).run(sockets=[listener])


# -- the relay


def run_relay() -> None:
    while not stopping.is_set():
        try:
            with database("relay") as db:
                relay(db)
        except LOST as error:
            log.warning("connection.lost error=%r", error)
            stopping.wait(PAUSE)


def relay(db: Database) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(AMQP_URL))
    channel = connection.channel()
    channel.exchange_declare(EXCHANGE, "topic", durable=True)
    channel.confirm_delivery()
    log.info("relay.ready")
    while not stopping.is_set():
        rows = claim(db)
        for row in rows:
            send(db, channel, *row)
        if not channel.is_open:
            raise ConnectionError("the channel is closed")
        if not rows:
            connection.sleep(POLL)
    connection.close()


def claim(db: Database) -> Sequence[tuple[Any, ...]]:
    # The mistake: a relay that dies now leaves rows IN_PROGRESS that nobody looks at again. And a
    # FAILED row goes out after newer ones, so an older revision comes last.
    rows = db.execute(
        "UPDATE outbox SET status = 'IN_PROGRESS', attempts = attempts + 1, updated_at = now()"
        " WHERE id IN (SELECT id FROM outbox WHERE status = 'NEW' OR (status = 'FAILED'"
        " AND attempts < %s AND updated_at < now() - make_interval(secs => %s))"
        " ORDER BY id LIMIT %s FOR UPDATE SKIP LOCKED) RETURNING id, payload",
        (MAX_ATTEMPTS, RETRY_AFTER, BATCH),
    ).fetchall()
    return sorted(rows)


def send(db: Database, channel: BlockingChannel, row: int, payload: str) -> None:
    properties = pika.BasicProperties(
        # The mistake: an attempt whose confirm was lost and the next one look like two messages.
        message_id=str(uuid.uuid4()),
        content_type=CONTENT_TYPE,
        delivery_mode=pika.DeliveryMode.Persistent,
    )
    try:
        channel.basic_publish(EXCHANGE, EVENT_TYPE, payload.encode(), properties, mandatory=True)
    except LOST as error:
        log.error("publish.failed row=%d error=%r", row, error)
        status = "FAILED"
    else:
        status = "SENT"
    db.execute("UPDATE outbox SET status = %s, updated_at = now() WHERE id = %s", (status, row))


# -- the recipients


def to_catalog(db: Database, event_id: str, data: dict[str, Any]) -> None:
    db.execute(
        # The mistake: whichever message comes last wins, not whichever revision is the latest.
        "INSERT INTO catalog VALUES (%s, %s, %s, %s) ON CONFLICT (material_id) DO UPDATE SET"
        " revision = excluded.revision, title = excluded.title, event_id = excluded.event_id",
        (data["material_id"], data["revision"], data["title"], event_id),
    )


def to_audit(db: Database, event_id: str, data: dict[str, Any]) -> None:
    db.execute(
        "INSERT INTO audit (event_id, material_id, revision) VALUES (%s, %s, %s)",
        (event_id, data["material_id"], data["revision"]),
    )


def run_recipient(recipient: str) -> None:
    while not stopping.is_set():
        try:
            with database(recipient) as db:
                consume(db, recipient)
        except LOST as error:
            log.warning("connection.lost error=%r", error)
            stopping.wait(PAUSE)


def consume(db: Database, recipient: str) -> None:
    apply = {"catalog": to_catalog, "audit": to_audit}[recipient]
    cache = redis.Redis.from_url(REDIS)

    def on_message(
        channel: BlockingChannel, method: Any, properties: pika.BasicProperties, body: bytes
    ) -> None:
        key = f"{NAMESPACE}:{recipient}:seen:{properties.message_id}"
        try:
            # The mistake: who dies between this line and the effect's commit has "seen" a message
            # that did nothing; when it is delivered again, it is skipped.
            if cache.set(key, 1, nx=True, ex=SEEN_FOR):
                try:
                    event = json.loads(body)
                    with db.transaction():
                        apply(db, event["id"], event["data"])
                except Exception:
                    cache.delete(key)
                    raise
        except Exception as error:  # whatever it is: try again
            log.error("message.failed error=%r", error)
            time.sleep(0.1)  # the mistake: what can never succeed goes round for ever
            channel.basic_nack(method.delivery_tag, requeue=True)
            if db.closed:
                raise ConnectionError("PostgreSQL is gone") from error
        else:
            channel.basic_ack(method.delivery_tag)

    connection = pika.BlockingConnection(pika.URLParameters(AMQP_URL))
    channel = connection.channel()
    declare(channel, recipient)
    channel.basic_qos(prefetch_count=10)
    channel.basic_consume(f"{NAMESPACE}.{recipient}", on_message)
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
    """Tell what is stored; a row is stuck if no relay that lives will look at it again."""
    with database("facts") as db, db.transaction():
        accepted = db.execute("SELECT event_id, material_id, revision FROM outbox").fetchall()
        unsent = db.execute(
            "SELECT event_id, CASE status WHEN 'FAILED' THEN attempts >= %s"
            " WHEN 'IN_PROGRESS' THEN NOT EXISTS (SELECT FROM pg_stat_activity"
            " WHERE application_name = %s AND backend_start < outbox.updated_at)"
            " ELSE false END FROM outbox WHERE status <> 'SENT' ORDER BY id",
            (MAX_ATTEMPTS, f"{NAMESPACE} relay"),
        ).fetchall()
        cards = db.execute("SELECT material_id, revision, title, event_id FROM catalog").fetchall()
        entries = db.execute("SELECT event_id FROM audit ORDER BY entry").fetchall()
    return {
        "accepted": {event_id: [material, n] for event_id, material, n in accepted},
        "pending": [event_id for event_id, stuck in unsent if not stuck],
        "stuck": [event_id for event_id, stuck in unsent if stuck],
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
    create_tables()
    if role == "facts":
        print(json.dumps(facts()))
        return
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stopping.set)
    if role == "api":
        run_api()
    elif role == "relay":
        run_relay()
    else:
        run_recipient(role)


if __name__ == "__main__":
    main(sys.argv[1])
