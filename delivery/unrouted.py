"""Look at what no queue wanted, and send it again once a queue wants it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice

from pika.adapters.blocking_connection import BlockingChannel, BlockingConnection
from pika.exceptions import ChannelClosedByBroker

from delivery.confirms import NotConfirmed, Outcome
from delivery.copies import copy_of
from delivery.errors import DeliveryError
from delivery.handling import Delivery
from delivery.lanes import unrouted_queue
from delivery.pipeline import ConfirmedChannel
from delivery.points import reach
from delivery.publisher import Message
from delivery.routing import routed
from delivery.topology import Topology, declare
from delivery.triage import PATIENCE, DeskBusy, key_of

__all__ = ["Unrouted", "alarm", "look", "replay_unrouted"]

log = logging.getLogger(__name__)

ACCESS_REFUSED, NOT_FOUND = 403, 404  # AMQP 0-9-1, reply codes


@dataclass(frozen=True)
class Unrouted:
    """A parked message, and what it was published with; *wanted* says if a queue wants it now."""

    key: str  # its message_id; for a message without one, a digest of its body
    exchange: str
    routing_key: str
    wanted: bool
    delivery: Delivery


def alarm(connection: BlockingConnection, exchange: str) -> int:
    """Return how many messages of *exchange* no queue wanted; log ``unrouted.waiting`` if any.

    Nothing else tells: their publisher was told that they are confirmed. Raises DeliveryError if
    there is no parking queue.
    """
    queue = unrouted_queue(exchange)
    with _there(connection, queue) as channel:
        count = int(channel.queue_declare(queue, passive=True).method.message_count)
    if count:
        log.warning("unrouted.waiting", extra={"queue": queue, "count": count})
    return count


def look(connection: BlockingConnection, topology: Topology, exchange: str) -> list[Unrouted]:
    """Return what is parked, oldest first, and whether *topology* has a queue for it.

    That is the plan of a replay; nothing is changed. Raises DeskBusy, DeliveryError.
    """
    with _held(connection, topology, exchange) as (_, messages):
        return list(messages)


def replay_unrouted(
    connection: BlockingConnection,
    publisher: ConfirmedChannel,
    topology: Topology,
    exchange: str,
    keys: Collection[str],
    *,
    record: Callable[[Unrouted], None] = lambda message: None,
) -> list[Unrouted]:
    """Publish the parked messages named by *keys* again, as they were, and return those sent.

    Through the exchange: no recipient had them. *topology* is declared first, so that what it
    routes, the broker routes; what it does not stays parked. *record* keeps the decision on each,
    before it is sent. A crash between copy and ack sends it twice; receipts know the second one.

    Raises NotConfirmed, with the message still parked; DeskBusy, TopologyConflict, DeliveryError.
    """
    declare(connection, topology)
    sent = []
    with _held(connection, topology, exchange) as (channel, messages):
        for message in messages:
            if message.key not in keys or not message.wanted:
                continue
            record(message)
            reach("unrouted.recorded")
            about, body = copy_of(message.delivery), message.delivery.body
            answer = publisher.send(Message(message.exchange, message.routing_key, about, body))
            if answer.outcome is not Outcome.CONFIRMED:
                raise NotConfirmed(answer, message.exchange)
            reach("unrouted.copied")
            channel.basic_ack(message.delivery.tag)
            reach("unrouted.settled")
            sent.append(message)
    return sent


@contextmanager
def _held(
    connection: BlockingConnection, topology: Topology, exchange: str
) -> Iterator[tuple[BlockingChannel, Iterator[Unrouted]]]:
    """Hold what is parked now; what is not acked by the end goes back, in its old order."""
    queue = unrouted_queue(exchange)
    with _there(connection, queue) as channel:
        found = channel.queue_declare(queue, passive=True).method
        if found.consumer_count:
            raise DeskBusy(_busy(queue))
        ready = int(found.message_count)

        def messages() -> Iterator[Unrouted]:
            # Exclusive: two who began in the same instant would each see only a part.
            arrived = channel.consume(queue, exclusive=True, inactivity_timeout=PATIENCE)
            for method, about, body in islice(arrived, ready):
                if method is None or about is None:
                    return
                tag = method.delivery_tag or 0
                each = Delivery(queue=queue, body=body or b"", properties=about, tag=tag)
                origin, key = method.exchange or "", method.routing_key or ""
                wanted = routed(topology, origin, key)
                yield Unrouted(key_of(each), origin, key, wanted, each)

        yield channel, messages()


@contextmanager
def _there(connection: BlockingConnection, queue: str) -> Iterator[BlockingChannel]:
    channel = connection.channel()
    try:
        yield channel
    except ChannelClosedByBroker as refusal:
        if refusal.reply_code == NOT_FOUND:
            missing = f"no queue {queue!r}: nothing catches what no queue wants"
            raise DeliveryError(f"{missing}; create it: delivery unrouted declare") from refusal
        if refusal.reply_code == ACCESS_REFUSED and "exclusive" in refusal.reply_text:
            raise DeskBusy(_busy(queue)) from refusal
        raise
    finally:
        if channel.is_open:
            channel.close()


def _busy(queue: str) -> str:
    return f"somebody else is at {queue!r}; try again when they are done"
