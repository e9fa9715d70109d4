"""Look at what no queue wanted: it is held meanwhile, and goes back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pika.adapters.blocking_connection import BlockingChannel, BlockingConnection
from pika.exceptions import ChannelClosedByBroker

from delivery.connection import ACCESS_REFUSED
from delivery.errors import DeliveryError
from delivery.handling import Delivery
from delivery.observe import depth
from delivery.parking import Parking
from delivery.triage import Arrived, DeskBusy, alone, arriving, is_event

__all__ = ["held_parked", "parked_events"]


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
    Raises DeskBusy, and DeliveryError if the user may not look.
    """
    if parking is None:
        return
    with _allowed(parking.queue):
        if depth(connection, parking.queue) is None:
            return
        yield from _events(connection, parking)


def _events(connection: BlockingConnection, parking: Parking) -> Iterator[str]:
    with held_parked(connection, parking) as (_, messages):
        for method, about, body in messages:
            tag = method.delivery_tag or 0
            if is_event(Delivery(queue=parking.queue, body=body, properties=about, tag=tag)):
                yield str(about.message_id)


@contextmanager
def _allowed(queue: str) -> Iterator[None]:
    try:
        yield
    except ChannelClosedByBroker as refusal:
        if refusal.reply_code != ACCESS_REFUSED:
            raise
        raise DeliveryError(
            f"this user may not look into {queue!r}, where it may be parked ({refusal.reply_text});"
            " give it the rights that it needs by now: delivery access apply"
        ) from refusal
