"""Count what no queue wanted, where the broker keeps it aside."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import quote

from pika.adapters.blocking_connection import BlockingConnection
from pika.exceptions import ChannelClosedByBroker

from delivery.connection import ACCESS_REFUSED
from delivery.management import Management
from delivery.observe import depth, is_held

__all__ = ["Parked", "Parking", "empty", "parked", "remove"]


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
