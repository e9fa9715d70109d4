"""Lesson 18: the runbook. Run it: python lessons/18/run.py"""

from __future__ import annotations

import sqlite3
import time
from dataclasses import replace

from delivery.books import accounts
from delivery.changing import change_queues
from delivery.config import Config
from delivery.connection import BrokerSettings, connect
from delivery.consumer import consume
from delivery.contract import EVENT_TYPE, Event, PublishMaterial
from delivery.dead import dead_queue, park
from delivery.desk import Desk
from delivery.handling import Effect
from delivery.inbox import prune, receipt_of
from delivery.lesson import Scene, play
from delivery.materials import accept
from delivery.observe import depth
from delivery.outbox import SqliteOutbox
from delivery.pipeline import ConfirmedChannel
from delivery.publisher import Message, envelope
from delivery.relay import relay_once
from delivery.retention import KEEP_DAYS, receipts_round
from delivery.retry import retry_queue
from delivery.services import handler_of, prepare
from delivery.stopping import Stop
from delivery.stores import PUBLISHER, Stores
from delivery.trail import entries

COMMAND = PublishMaterial(title="Что делать, когда?", slug="what-to-do-when", author="Delivery")
DAY = 86_400.0  # seconds
WHO, WHY = "Ann", "the material was withdrawn"


def exchange(scene: Scene) -> Config:
    config = Config(
        broker=BrokerSettings(url=scene.url),
        stores=Stores(scene.folder),
        namespace=scene.namespace,
        retries_ms=(60_000,),
        management_url=scene.broker.management_url,
    )
    prepare(config, "lesson")
    return config


def publish(config: Config, material: str, *, dies_before_mark: bool = False) -> str:
    """Accept a publication and relay it; return its event's id."""
    store = config.stores.open(PUBLISHER)
    accepted, _ = accept(store, material, COMMAND, key=f"request-{material}")
    relay(config, dies_before_mark=dies_before_mark)
    return accepted.event_id


def relay(config: Config, *, dies_before_mark: bool = False) -> None:
    outbox = SqliteOutbox(config.stores.open(PUBLISHER), config.exchange)
    with ConfirmedChannel(config.broker) as channel:
        if not dies_before_mark:
            relay_once(outbox, channel)
            return
        with outbox.batch(10) as batch:  # what a kill between confirm and mark leaves behind
            channel.send_all(batch.messages)


def receive(config: Config, *, sick: bool = False) -> None:
    """Both recipients handle what is in their queues; a sick catalog has all of it dead."""
    for name in ("catalog", "audit"):
        work(config, name, fails=sick and name == "catalog")


def work(config: Config, recipient: str, *, fails: bool) -> None:
    route, store, stop = config.route(recipient), config.stores.open(recipient), Stop()

    def handle(event: Event, tx: sqlite3.Connection) -> Effect:
        left.pop()
        if not left:
            stop.request()
        if fails:
            raise RuntimeError("the catalog can't do this today")
        return handler_of(route)(event, tx)

    with connect(config.broker) as inbound, ConfirmedChannel(config.broker) as copies:
        found = depth(inbound, route.queue)
        left = [None] * (found.ready if found else 0)
        if left:
            policy, channel = park(copies, route), inbound.channel()
            consume(channel, route.queue, store, handle, on_failure=policy, stop=stop, idle=9)


def ledger(config: Config, recipient: str) -> str:
    with connect(config.broker) as connection:
        each = next(a for a in accounts(config, connection) if a.recipient == recipient)
    places = ("applied", "dropped", "dead", "forgotten")
    found = [f"{getattr(each, place)} {place}" for place in places if getattr(each, place)]
    return f"{each.accepted} = {' + '.join([*found, f'{each.difference} missing'])}"


def copies_too_many(config: Config, event_id: str) -> int:
    receipt = receipt_of(config.stores.open("audit"), "audit", event_id)
    return receipt.duplicates if receipt else 0


def audited(config: Config, event_id: str) -> int:
    """Count what audit did for one event: its log has no constraint that could hide a second."""
    query = "SELECT count(*) FROM audit WHERE event_id = ?"
    return int(config.stores.open("audit").execute(query, (event_id,)).fetchone()[0])


def broken(scene: Scene) -> None:
    """Three things that an operator does in a hurry: purge, publish again, tidy up."""
    config = exchange(scene)
    dead = dead_queue(config.route("catalog"))
    publish(config, "m-1")
    receive(config, sick=True)
    with connect(config.broker) as connection:
        purged = connection.channel().queue_purge(dead).method.message_count  # the mistake
    scene.fact("dead at the catalog, and purged", purged, 1)
    scene.fact(
        "the ledger",
        ledger(config, "catalog"),
        "1 = 1 missing",
    )

    replayed = publish(config, "m-2")
    receive(config, sick=True)
    with connect(config.broker) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        method, about, body = channel.basic_get(dead)
        assert method and body
        channel.basic_publish(config.exchange, EVENT_TYPE, body, about)  # the mistake
        channel.basic_ack(method.delivery_tag or 0)
    receive(config)
    scene.fact(
        "sent again to the exchange; audit's copies too many", copies_too_many(config, replayed), 1
    )

    repeated = publish(config, "m-3", dies_before_mark=True)
    receive(config)
    gone = prune(
        config.stores.open("audit"), "audit", before=time.time(), oldest_dead=None
    )  # the mistake
    scene.fact("receipts that audit forgets on the same day", gone, 3)
    relay(config)
    receive(config)
    scene.fact(
        "the relay comes back; audit's entries for the one event", audited(config, repeated), 2
    )
    scene.fact(
        "the ledger",
        ledger(config, "audit"),
        "3 = 1 applied + 2 forgotten + 0 missing",
    )


def fixed(scene: Scene) -> None:
    """The same three, by the runbook; the ledger is asked after each."""
    config = exchange(scene)
    given_up = publish(config, "m-1")
    receive(config, sick=True)
    with Desk(config, "catalog") as desk:
        dropped = desk.drop([given_up], operator=WHO, reason=WHY)  # the cure
    scene.fact("dead at the catalog, and given up with a reason", len(dropped), 1)
    kept = [(act.action, act.reason) for act in entries(config.stores.open(PUBLISHER))]
    scene.fact("the trail", kept, [("drop", WHY)])
    scene.fact(
        "the ledger",
        ledger(config, "catalog"),
        "1 = 1 dropped + 0 missing",
    )

    replayed = publish(config, "m-2")
    receive(config, sick=True)
    with Desk(config, "catalog") as desk:
        desk.replay([replayed], operator=WHO, reason="it is well again", seconds=0)  # the cure
    receive(config)
    scene.fact("sent again to one; audit's copies too many", copies_too_many(config, replayed), 0)
    scene.fact(
        "the ledger",
        ledger(config, "catalog"),
        "2 = 1 applied + 1 dropped + 0 missing",
    )

    repeated = publish(config, "m-3", dies_before_mark=True)
    receive(config)
    make_older(config, given_up)
    scene.fact("of three receipts, as old as 40 days and forgotten", forget(config), 1)
    relay(config)
    receive(config)
    scene.fact(
        "the relay comes back; audit's entries for the one event", audited(config, repeated), 1
    )
    scene.fact("audit's copies too many, recognised", copies_too_many(config, repeated), 1)
    scene.fact(
        "the ledger",
        ledger(config, "audit"),
        "3 = 2 applied + 1 forgotten + 0 missing",
    )


def make_older(config: Config, event_id: str) -> None:
    """Let 40 days pass for one event."""
    for store, table, column, key in (
        (PUBLISHER, "outbox", "accepted_at", "event_id"),
        ("audit", "receipt", "received_at", "message_id"),
    ):
        change = f"UPDATE {table} SET {column} = {column} - ? WHERE {key} = ?"
        config.stores.open(store).execute(change, (40 * DAY, event_id))


def forget(config: Config) -> int:
    """Do audit's retention, as its receiver does it now and then; return how many are forgotten."""
    store, route = config.stores.open("audit"), config.route("audit")
    count = "SELECT count(*) FROM receipt"
    before = store.execute(count).fetchone()[0]
    with connect(config.broker) as connection:
        for _ in receipts_round(store, connection, route, KEEP_DAYS * DAY):  # the cure
            pass
    return int(before - store.execute(count).fetchone()[0])


def cost(scene: Scene) -> None:
    """Give a queue with 10,000 messages another argument; give up 1,000 dead messages."""
    config = exchange(scene)
    route = config.route("catalog")
    with ConfirmedChannel(config.broker, window=500) as channel:
        for queue, count in ((retry_queue(route, 1), 10_000), (dead_queue(route), 1_000)):
            about = [envelope(f"e-{n}", EVENT_TYPE, timestamp=1) for n in range(count)]
            channel.send_all([Message("", queue, each, b"{}") for each in about])
    later = replace(config, retries_ms=(90_000,))
    begun = time.monotonic()
    change_queues(later, [retry_queue(route, 1)])
    print(f"  10,000 messages wait in a queue with another delay: {time.monotonic() - begun:.1f} s")
    with Desk(later, "catalog") as desk:
        begun = time.monotonic()
        keys = {each.key for each in desk.browse()}
        desk.drop(keys, operator=WHO, reason=WHY)
    print(f"  {len(keys):,} dead messages given up, on record: {time.monotonic() - begun:.1f} s")


if __name__ == "__main__":
    play(broken, fixed, cost)
