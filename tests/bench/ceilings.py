"""What pika and SQLite do by themselves: no loop here does more than it must."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import takewhile
from typing import Any

import pika
from pika import BasicProperties
from pika.channel import Channel

from delivery import catalog, inbox
from delivery.contract import Event
from delivery.store import open_store


def pipelined(
    url: str,
    exchange: str,
    key: str,
    bodies: Sequence[bytes],
    properties: Sequence[BasicProperties],
    window: int = 500,
) -> float:
    """Publish by SelectConnection, *window* in flight, persistent, mandatory, confirmed."""
    todo = iter(list(zip(bodies, properties, strict=True)))
    open_tags: dict[int, None] = {}
    clock: list[float] = []
    tag = 0

    def fill(channel: Channel) -> None:
        nonlocal tag
        while len(open_tags) < window:
            following = next(todo, None)
            if following is None:
                break
            tag += 1
            open_tags[tag] = None
            channel.basic_publish(exchange, key, *following, mandatory=True)
        if not open_tags:
            clock.append(time.perf_counter())
            connection.close()

    def on_channel(channel: Channel) -> None:
        def on_confirm(frame: Any) -> None:
            method = frame.method
            assert isinstance(method, pika.spec.Basic.Ack), method
            if method.multiple:
                for each in list(takewhile(lambda t: t <= method.delivery_tag, open_tags)):
                    del open_tags[each]
            else:
                del open_tags[method.delivery_tag]
            fill(channel)

        def begin(_frame: object) -> None:
            clock.append(time.perf_counter())
            fill(channel)

        channel.confirm_delivery(on_confirm, callback=begin)

    def on_closed(_connection: object, _reason: object) -> None:
        connection.ioloop.stop()

    connection = pika.SelectConnection(
        pika.URLParameters(url),
        on_open_callback=lambda opened: opened.channel(on_open_callback=on_channel),
        on_close_callback=on_closed,
    )
    connection.ioloop.start()
    return len(bodies) / (clock[1] - clock[0])


def one_by_one(
    url: str, exchange: str, key: str, bodies: Sequence[bytes], properties: Sequence[Any]
) -> float:
    """Publish by BlockingConnection and wait for each confirm."""
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        begun = time.perf_counter()
        for body, each in zip(bodies, properties, strict=True):
            channel.basic_publish(exchange, key, body, each, mandatory=True)
        return len(bodies) / (time.perf_counter() - begun)


def consumed(url: str, queue: str, count: int, per_ack: int = 100) -> float:
    """Take *count* messages by SelectConnection, one ack for each *per_ack*; do nothing."""
    seen = 0
    clock: list[float] = []

    def on_message(channel: Channel, method: Any, _properties: object, _body: bytes) -> None:
        nonlocal seen
        seen += 1
        if seen % per_ack == 0 or seen == count:
            channel.basic_ack(method.delivery_tag, multiple=True)
        if seen == count:
            clock.append(time.perf_counter())
            connection.close()

    def on_channel(channel: Channel) -> None:
        def begin(_frame: object) -> None:
            clock.append(time.perf_counter())
            channel.basic_consume(queue, on_message)

        channel.basic_qos(prefetch_count=10 * per_ack, callback=begin)

    def on_closed(_connection: object, _reason: object) -> None:
        connection.ioloop.stop()

    connection = pika.SelectConnection(
        pika.URLParameters(url),
        on_open_callback=lambda opened: opened.channel(on_open_callback=on_channel),
        on_close_callback=on_closed,
    )
    connection.ioloop.start()
    return count / (clock[1] - clock[0])


def stored(path: Any, events: Sequence[Event], per_commit: int = 100) -> float:
    """Write receipt and catalog card of *events*, *per_commit* a commit, synchronous FULL."""
    rows = [
        ((each.id, 1.0), (each.data.material_id, each.data.revision, each.data.title, each.id))
        for each in events
    ]
    store = open_store(path, inbox.SCHEMA, catalog.SCHEMA)
    begun = time.perf_counter()
    for first in range(0, len(rows), per_commit):
        store.execute("BEGIN IMMEDIATE")
        for receipt, card in rows[first : first + per_commit]:
            store.execute(
                "INSERT INTO receipt (recipient, message_id, effect, received_at)"
                " VALUES ('catalog', ?, 'applied', ?) ON CONFLICT DO NOTHING",
                receipt,
            )
            store.execute(
                "INSERT INTO catalog VALUES (?, ?, ?, 'slug', 'author', '2026-01-31', ?)"
                " ON CONFLICT (material_id) DO UPDATE SET revision = excluded.revision,"
                " title = excluded.title, event_id = excluded.event_id",
                card,
            )
        store.execute("COMMIT")
    rate = len(rows) / (time.perf_counter() - begun)
    store.close()
    return rate
