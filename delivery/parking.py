"""Count and look at what no queue wanted, where the broker keeps it aside."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from urllib.parse import quote

from pika.adapters.blocking_connection import BlockingChannel, BlockingConnection
from pika.exceptions import ChannelClosedByBroker

from delivery.handling import Delivery
from delivery.management import Management
from delivery.observe import depth, is_held
from delivery.triage import Arrived, DeskBusy, alone, arriving, is_event

__all__ = ["Parked", "Parking", "empty", "held_parked", "parked", "parked_events", "remove"]

ACCESS_REFUSED = 403  # AMQP 0-9-1, reply codes


@dataclass(frozen=True)
class Parking:
    """Where what no queue wants is kept, if somebody has given the exchange such a place.

    Whoever looks into *queue* holds the queue *lock*; *hint* is the command that empties it.
    """

    queue: str
    lock: str
    hint: str


@dataclass(frozen=True)
class Parked:
    """What waits in a parking queue. None: nobody could tell."""

    queue: str
    hint: str
    ready: int | None
    held: bool  # somebody looks at the parked messages: ``ready`` lacks what they hold
    kind: str | None  # classic or quorum, as the management plugin says
    sampled_at: float  # Unix seconds
    why: str = ""  # why ``ready`` is None


def parked(
    connection: BlockingConnection, parking: Parking | None, management: Management | None = None
) -> Parked | None:
    """Return what is parked now, None if there is no parking queue."""
    if parking is None:
        return None
    try:
        found = depth(connection, parking.queue)
        held = found is not None and is_held(connection, parking.lock)
    except ChannelClosedByBroker as refusal:
        if refusal.reply_code != ACCESS_REFUSED:
            raise
        why = "this user may not look into it"
        return Parked(parking.queue, parking.hint, None, False, None, time.time(), why)
    if found is None:
        return None
    kind = _kind(management, parking.queue)
    return Parked(parking.queue, parking.hint, found.ready, held, kind, time.time())


@contextmanager
def held_parked(
    connection: BlockingConnection, parking: Parking
) -> Iterator[tuple[BlockingChannel, Iterator[Arrived]]]:
    """Hold what is parked now; what is not acked by the end goes back, in its old order.

    Raises DeskBusy if somebody else holds it, and pika's ChannelClosedByBroker if there is no such
    queue.
    """
    with alone(connection, parking.lock, repr(parking.queue)):
        channel = connection.channel()
        try:
            found = channel.queue_declare(parking.queue, passive=True).method
            if found.consumer_count:
                busy = f"somebody reads {parking.queue!r}; try again when they are done"
                raise DeskBusy(busy)
            yield channel, arriving(channel, parking.queue, int(found.message_count))
        finally:
            if channel.is_open:
                channel.close()


def parked_events(connection: BlockingConnection, parking: Parking | None) -> Iterator[str]:
    """Give the ids of the events that are parked now; none if there is no parking queue.

    They are held until the last, so be quick. Bytes that only claim an event's id are left out.
    Raises DeskBusy.
    """
    if parking is None or depth(connection, parking.queue) is None:
        return
    with held_parked(connection, parking) as (_, messages):
        for method, about, body in messages:
            tag = method.delivery_tag or 0
            if is_event(Delivery(queue=parking.queue, body=body, properties=about, tag=tag)):
                yield str(about.message_id)


def empty(connection: BlockingConnection, parking: Parking | None) -> None:
    """Throw away what is parked, if there is a parking queue."""
    if parking is not None and depth(connection, parking.queue) is not None:
        connection.channel().queue_purge(parking.queue)


def remove(
    connection: BlockingConnection, parking: Parking | None, management: Management | None
) -> None:
    """Remove the parking queue with what is in it, its exchange and its policy, if there are any.

    The policy goes first: with a queue missing behind it, the broker would drop what it parks.
    """
    if parking is None or depth(connection, parking.queue) is None:
        return
    if management is not None:
        with suppress(OSError):  # somebody gave the exchange its alternate in another way
            management.delete(f"/api/policies/{management.vhost}/{quote(parking.queue, safe='')}")
    channel = connection.channel()
    channel.queue_delete(parking.queue)
    channel.exchange_delete(parking.queue)  # each has the other's name


def _kind(management: Management | None, queue: str) -> str | None:
    try:
        return management.sample(queue).kind if management else None
    except OSError:
        return None
