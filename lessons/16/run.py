"""Lesson 16: a user for each service. Run it: python lessons/16/run.py"""

from __future__ import annotations

import re
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from urllib.parse import urlsplit

from pika import BasicProperties
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker

from delivery.access import Access, accesses
from delivery.books import accounts
from delivery.config import Config
from delivery.connection import AccessRefused, BrokerSettings, connect
from delivery.consumer import consume
from delivery.contract import EVENT_TYPE, Event, PublishMaterial
from delivery.dead import dead_queue
from delivery.errors import DeliveryError
from delivery.handling import Effect
from delivery.lesson import Scene, play
from delivery.materials import accept
from delivery.outbox import SqliteOutbox
from delivery.passwords import passwords_for
from delivery.pipeline import ConfirmedChannel
from delivery.relay import relay_once
from delivery.routes import routes_of
from delivery.services import handler_of, prepare
from delivery.stopping import Stop
from delivery.stores import PUBLISHER, Stores
from delivery.topology import Topology
from delivery.users import apply, remove
from delivery.verify import own_queues

COMMAND = PublishMaterial(title="Who may do what?", slug="who-may-do-what", author="Delivery")
PERSISTENT = BasicProperties(message_id="forged", type=EVENT_TYPE, delivery_mode=2)


def exchange(scene: Scene) -> Config:
    """Return the settings with the broker's one user, who may do everything."""
    return Config(
        broker=BrokerSettings(url=scene.url),
        stores=Stores(scene.folder),
        namespace=scene.namespace,
        retries_ms=(100,),
        management_url=scene.broker.management_url,
    )


def harm(config: Config) -> dict[str, Callable[[BlockingChannel], object]]:
    """What somebody could do who has the audit service's login: by mistake, or having stolen it."""
    route = config.route("catalog")
    forged = ("material.published.v1", b"forged", PERSISTENT)
    return {
        "announce what nobody accepted": lambda ch: ch.basic_publish(config.exchange, *forged),
        "take a message of the catalog": lambda ch: ch.basic_get(route.queue, auto_ack=True),
        "delete the catalog's dead messages": lambda ch: ch.queue_delete(dead_queue(route)),
    }


def answer(config: Config, login: BrokerSettings, act: Callable[[BlockingChannel], object]) -> str:
    """Do it on a channel with confirms; return what the broker says."""
    with connect(login) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        try:
            act(channel)
        except ChannelClosedByBroker as refusal:
            words = re.sub(r"(write|read|configure) access", "access", refusal.reply_text)
            what = re.sub(rf" in vhost .*|{config.namespace}\.", "", words)  # no names of this run
            return f"{refusal.reply_code} {what}"
    return "done"


def broken(scene: Scene) -> None:
    """Every service logs in as the same user, who may do everything."""
    config = exchange(scene)
    prepare(config, "lesson")
    login = config.broker  # the mistake: audit's login is everybody's
    for what, act in harm(config).items():
        scene.fact(f"audit tries to {what}", answer(config, login, act), "done")
    accepted = config.stores.open(PUBLISHER).execute("SELECT count(*) FROM outbox").fetchone()[0]
    scene.fact("events that the publisher has accepted", accepted, 0)


@contextmanager
def users(config: Config) -> Iterator[Callable[[str], Config]]:
    """Give each role a user with the least rights; return how one role sees the exchange."""
    planned = accesses(config.namespace, config.topology(), routes_of(config.namespace))
    words = passwords_for([each.role for each in planned], {}, config.stores.data, generate=True)
    if config.management is None:
        raise DeliveryError("users are created through the management plugin; this broker has none")
    by_role: dict[str, Access] = {each.role: each for each in planned}

    def seen_by(role: str) -> Config:
        parts = urlsplit(config.broker.url)
        login = f"{by_role[role].user}:{words[role]}@{parts.netloc.rpartition('@')[2]}"
        url = parts._replace(netloc=login).geturl()
        return replace(config, broker=BrokerSettings(url=url))

    apply(config.management, "/", planned, words)  # the cure
    try:
        yield seen_by
    finally:
        remove(config.management, planned)


def receive(config: Config, recipient: str) -> None:
    """One recipient handles one event, with its own user."""
    route, store, stop = config.route(recipient), config.stores.open(recipient), Stop()
    prepare(config, recipient, own_queues(config.topology(), route))

    def apply_it(event: Event, tx: sqlite3.Connection) -> Effect:
        stop.request()
        return handler_of(route)(event, tx)

    with connect(config.broker) as connection:
        consume(connection.channel(), route.queue, store, apply_it, stop=stop, idle=9)


def start_relay(config: Config) -> str:
    """Look, as a relay does when it starts, whether it may work."""
    try:
        prepare(config, "relay", Topology(), publishes_to=config.exchange)
    except ChannelClosedByBroker as refusal:
        return f"{refusal.reply_code}"
    return "ready"


def fixed(scene: Scene) -> None:
    """Each service has a user of its own, which may do its work and nothing else."""
    config = exchange(scene)
    with users(config) as seen_by:
        prepare(seen_by("declare"), "lesson")
        refused = ("exchange 'events'", "queue 'catalog'", "queue 'catalog.dead'")
        for (what, act), thing in zip(harm(config).items(), refused, strict=True):
            said = answer(config, seen_by("audit").broker, act)
            scene.fact(f"audit tries to {what}", said, f"403 ACCESS_REFUSED - access to {thing}")

        accept(config.stores.open(PUBLISHER), "m-1", COMMAND, key="request-1")
        with ConfirmedChannel(seen_by("relay").broker) as channel:
            relay_once(SqliteOutbox(config.stores.open(PUBLISHER), config.exchange), channel)
        for recipient in ("catalog", "audit"):
            receive(seen_by(recipient), recipient)
        with connect(seen_by("operator").broker) as connection:
            books = accounts(seen_by("operator"), connection)
        told = [(each.applied, each.difference) for each in books]
        scene.fact("one event, each with its own user: (applied, missing)", told, [(1, 0), (1, 0)])

        queue = config.route("catalog").queue
        straight = answer(
            config,
            seen_by("audit").broker,
            lambda channel: channel.basic_publish("", queue, b"forged", PERSISTENT),
        )
        scene.fact("and past the exchange: bytes into the catalog's queue", straight, "done")

        scene.fact("a relay with its rights", start_relay(seen_by("relay")), "ready")
        scene.fact("one with the watcher's", start_relay(seen_by("watch")), "403")
        wrong = seen_by("relay").broker.url.replace("relay:", "relay:not-")
        try:
            connect(BrokerSettings(url=wrong))
        except AccessRefused as refusal:
            said = str(refusal).partition(": ")[2]
            scene.fact("one with a wrong password", said, "unknown, or a wrong password")


def cost(scene: Scene) -> None:
    """Time the start of a process that declares, and of one that may only look."""
    config = exchange(scene)
    with users(config) as seen_by:
        prepare(config, "lesson")
        relay = seen_by("relay")
        for what, start in (
            ("declares all", lambda: prepare(config, "relay")),
            ("verifies", lambda: start_relay(relay)),
            ("only connects", lambda: connect(relay.broker).close()),
        ):
            begun = time.monotonic()
            for _ in range(20):
                start()
            print(f"  {what}: {(time.monotonic() - begun) / 20 * 1000:.0f} ms")


if __name__ == "__main__":
    play(broken, fixed, cost)
