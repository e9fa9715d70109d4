"""Lesson 12: is everything done? Run it: python lessons/12/run.py"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Mapping

import pika
from pika.adapters.blocking_connection import BlockingConnection

from delivery.books import accounts
from delivery.codec import decode
from delivery.config import Config
from delivery.connection import BrokerSettings, connect
from delivery.consumer import consume
from delivery.contract import Event, PublishMaterial
from delivery.dead import park
from delivery.errors import PermanentError
from delivery.feed import read_page
from delivery.handling import Effect
from delivery.ledger import Account
from delivery.lesson import Scene, play
from delivery.management import Management
from delivery.materials import accept
from delivery.outbox import SqliteOutbox
from delivery.pipeline import ConfirmedChannel
from delivery.reconcile import missing, send_again
from delivery.relay import relay_once
from delivery.retry import retry_later, retry_queue
from delivery.services import handler_of, prepare
from delivery.stopping import Stop
from delivery.stores import PUBLISHER, Stores
from delivery.triage import browse

COMMAND = PublishMaterial(title="Does it add up?", slug="does-it-add-up", author="Delivery")
TROUBLE = {"m-2": RuntimeError("try again"), "m-3": PermanentError("never")}


def relay(config: Config, most: int) -> None:
    with ConfirmedChannel(config.broker) as channel:
        relay_once(
            SqliteOutbox(config.stores.open(PUBLISHER), config.exchange), channel, limit=most
        )


def recipient(config: Config, count: int, trouble: Mapping[str, Exception]) -> None:
    """The catalog handles so many messages, and some of them fail."""
    route, store, left = config.route("catalog"), config.stores.open("catalog"), [None] * count
    stop = Stop()

    def apply(event: Event, tx: sqlite3.Connection) -> Effect:
        left.pop()
        if not left:
            stop.request()
        if error := trouble.get(event.subject):
            raise error
        return handler_of(route)(event, tx)

    with connect(config.broker) as inbound, ConfirmedChannel(config.broker) as copies:
        policy = retry_later(copies, route, config.retries_ms, exhausted=park(copies, route))
        channel = inbound.channel()
        consume(
            channel, route.queue, store, apply, on_failure=policy, prefetch=1, stop=stop, idle=9
        )


def five_events(scene: Scene) -> Config:
    """Accept five; one is applied, one waits for a retry, one is dead, one ready, one pending."""
    broker, stores, delays = BrokerSettings(url=scene.url), Stores(scene.folder), (60_000,)
    config = Config(broker=broker, stores=stores, namespace=scene.namespace, retries_ms=delays)
    prepare(config, "lesson")
    for number in range(1, 6):
        accept(stores.open(PUBLISHER), f"m-{number}", COMMAND, key=f"request-{number}")
    relay(config, 4)
    recipient(config, 3, TROUBLE)
    return config


def count(config: Config, store: str, table: str) -> int:
    rows = config.stores.open(store).execute(f"SELECT count(*) FROM {table}").fetchone()
    return int(rows[0])


def broken(scene: Scene) -> None:
    """The check asks whether the queue is empty."""
    config = five_events(scene)
    queue = config.route("catalog").queue
    with pika.BlockingConnection(pika.URLParameters(scene.url)) as connection:
        channel = connection.channel()
        held, _, _ = channel.basic_get(queue)  # the recipient is at work on the fourth
        ready = channel.queue_declare(queue, passive=True).method.message_count
        scene.fact("nothing is ready, so all is done", ready == 0, True)  # the mistake
        scene.fact("events accepted", count(config, PUBLISHER, "outbox"), 5)
        scene.fact("events applied", count(config, "catalog", "catalog"), 1)
        plugin = Management(scene.broker.management_url or "", scene.url)
        answers = [plugin.unacked(queue)]
        assert held is not None
        channel.basic_nack(held.delivery_tag or 0)
        answers.append(plugin.unacked(queue))
        both = answers == [1, 0]
        scene.fact("one in hand, then given back; the plugin saw both at once", both, False)


def books(config: Config, connection: BlockingConnection) -> Account:
    found = accounts(config, connection)  # the cure: every place is asked
    return next(each for each in found if each.recipient == "catalog")


def text(found: Account) -> str:
    return (
        f"{found.accepted} = {found.applied} applied, {found.retry} retry, {found.dead} dead,"
        f" {found.pending} pending, {found.ready} ready, {found.difference} not found"
    )


def fixed(scene: Scene) -> None:
    """The ledger looks into every place, and what is in none is a difference with a name."""
    config = five_events(scene)
    route, waits = config.route("catalog"), retry_queue(config.route("catalog"), 1)
    with connect(config.broker) as connection, ConfirmedChannel(config.broker) as operator:
        busy = connection.channel()
        busy.basic_get(route.queue)  # the recipient is at work on the fourth
        right = "5 = 1 applied, 1 retry, 1 dead, 1 pending, 0 ready, 1 not found"
        scene.fact("one is being worked on", text(books(config, connection)), right)
        busy.close()
        right = "5 = 1 applied, 1 retry, 1 dead, 1 pending, 1 ready, 0 not found"
        scene.fact("it is given back", text(books(config, connection)), right)
        relay(config, 4)
        recipient(config, 2, {})
        right = "5 = 3 applied, 1 retry, 1 dead, 0 pending, 0 ready, 0 not found"
        scene.fact("the rest is done", text(books(config, connection)), right)
        lost = connection.channel().queue_purge(waits).method.message_count
        scene.fact("messages that the broker loses", lost, 1)
        found = books(config, connection)
        right = "5 = 3 applied, 0 retry, 1 dead, 0 pending, 0 ready, 1 not found"
        scene.fact("the loss is seen", text(found), right)
        feed, inbox = config.stores.open(PUBLISHER), config.stores.open("catalog")
        dead = [message.key for message in browse(connection, route)]
        page = read_page(feed)
        gone = missing(page, inbox, route, dead=dead, grace=0)  # the cure: a loss has an id
        same = [each.event_id for each in gone] == [*found.missing]
        scene.fact("the ledger and reconcile name the same one", same, True)
        scene.fact("it is the event of", decode(gone[0].body.encode()).subject, "m-2")
        send_again(operator, route, gone)
        recipient(config, 1, {})
        right = "5 = 4 applied, 0 retry, 1 dead, 0 pending, 0 ready, 0 not found"
        scene.fact("sent again", text(books(config, connection)), right)


def cost(scene: Scene) -> None:
    """Time the ledger over 10,000 events, and how old the management plugin's count gets."""
    config = five_events(scene)
    store = config.stores.open(PUBLISHER)
    for number in range(6, 10_001):
        accept(store, f"m-{number}", COMMAND, key=f"request-{number}")
    with connect(config.broker) as connection:
        begun = time.monotonic()
        found = books(config, connection)
        print(f"  {found.accepted} events: {time.monotonic() - begun:.2f} s")
        queue = config.route("catalog").queue
        connection.channel().basic_get(queue)
        plugin, begun = Management(scene.broker.management_url or "", scene.url), time.monotonic()
        while plugin.unacked(queue) != 1 and time.monotonic() - begun < 30:
            connection.sleep(0.05)
        print(f"  the plugin counts an unacked message after {time.monotonic() - begun:.1f} s")


if __name__ == "__main__":
    play(broken, fixed, cost)
