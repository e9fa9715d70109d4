"""FastStream, a well-known framework on aio-pika: its publisher and its subscriber, timed.

As its documentation recommends: confirms on (its default), persistent, mandatory (its default);
publishes awaited 500 at a time, which asyncio makes concurrent; a subscriber with a prefetch count
of 100, which acks each message after its handler has returned. The handler does what ours does for
one message: decode, then receipt and card in one SQLite transaction.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from bench.load import Place
from bench.ours import SCHEMAS
from faststream.rabbit import Channel, ExchangeType, RabbitBroker, RabbitExchange, RabbitQueue

from delivery import catalog
from delivery.codec import CONTENT_TYPE, decode, encode
from delivery.contract import Event
from delivery.inbox import once
from delivery.store import open_store, transaction

AT_ONCE = 500


def published(place: Place, made: Sequence[Event]) -> float:
    """Publish *made*; return the messages a second."""
    return asyncio.run(_publish(place, made))


def received(place: Place, path: Path, count: int) -> float:
    """Apply *count* messages of *place*'s queue; return those a second."""
    return asyncio.run(_receive(place, path, count))


async def _publish(place: Place, made: Sequence[Event]) -> float:
    bodies = [encode(each) for each in made]
    exchange = RabbitExchange(place.route.exchange, type=ExchangeType.TOPIC, durable=True)
    async with RabbitBroker(place.url, logger=None) as broker:
        await broker.declare_exchange(exchange)
        begun = time.perf_counter()
        for first in range(0, len(made), AT_ONCE):
            several = range(first, min(first + AT_ONCE, len(made)))
            await asyncio.gather(
                *(
                    broker.publish(
                        bodies[n],
                        exchange=exchange,
                        routing_key=made[n].type,
                        persist=True,
                        message_id=made[n].id,
                        content_type=CONTENT_TYPE,
                    )
                    for n in several
                )
            )
        return len(made) / (time.perf_counter() - begun)


async def _receive(place: Place, path: Path, count: int) -> float:
    broker = RabbitBroker(place.url, logger=None, default_channel=Channel(prefetch_count=100))
    handle, left, done = once(place.route, catalog.upsert), count, asyncio.Event()
    queue = RabbitQueue(place.route.queue, declare=False)

    with closing(open_store(path, *SCHEMAS)) as store:

        @broker.subscriber(queue)
        async def apply(body: bytes) -> None:
            nonlocal left
            with transaction(store) as tx:
                handle(decode(body), tx)
            left -= 1
            if left == 0:
                done.set()

        begun = time.perf_counter()
        await broker.start()
        await done.wait()
        rate = count / (time.perf_counter() - begun)
        await broker.stop()
    return rate
