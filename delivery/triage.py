"""Look into a dead queue without taking anything out of it."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from itertools import islice

from pika import BasicProperties
from pika.adapters.blocking_connection import BlockingChannel, BlockingConnection
from pika.exceptions import ChannelClosedByBroker
from pika.spec import Basic

from delivery.codec import ContractError
from delivery.dead import ERROR, PARKED, REASON, TRACE, dead_queue
from delivery.errors import TemporaryError
from delivery.handling import Delivery, event_of
from delivery.retry import attempt_of
from delivery.routes import Route

__all__ = [
    "REPLAYS",
    "Arrived",
    "DeadMessage",
    "DeskBusy",
    "HeldMessage",
    "alone",
    "arriving",
    "browse",
    "desk_lock",
    "held",
    "is_event",
    "key_of",
]

RESOURCE_LOCKED = 405  # AMQP 0-9-1, reply codes
PATIENCE = 5.0  # seconds to wait for somebody else to finish looking, or before the broker is asked
SILENCE = 60.0  # seconds to wait for a message that the broker says it has for us
PAGE = 500  # messages that the broker sends ahead of whoever looks at them
Arrived = tuple[Basic.Deliver, BasicProperties, bytes]
REPLAYS = "x-delivery-replays"  # how often an operator has sent this message again


class DeskBusy(TemporaryError):
    """Somebody else holds the recipient's dead messages."""


@dataclass(frozen=True, slots=True)
class DeadMessage:
    """A dead message as an operator lists it; times are Unix seconds, 0 if not known.

    It has no body: there may be a hundred thousand of them.
    """

    key: str  # its message_id; for a message without one, a digest of its body
    reason: str
    error: str
    attempts: int
    replays: int
    parked_at: int
    sent_at: int
    is_event: bool  # False: bytes that only claim an event's id, and stand for none


@dataclass(frozen=True, slots=True)
class HeldMessage(DeadMessage):
    """A dead message in full, while it is held."""

    traceback: str
    delivery: Delivery


def browse(connection: BlockingConnection, route: Route) -> list[DeadMessage]:
    """Return *route*'s dead messages, oldest first.

    They are held for a moment; somebody else who looks then waits. Raises DeskBusy if that is long.
    """
    with held(connection, route) as (_, messages):
        return [_listed(message) for message in messages]


@contextmanager
def held(
    connection: BlockingConnection, route: Route
) -> Iterator[tuple[BlockingChannel, Iterator[HeldMessage]]]:
    """Hold *route*'s dead messages, one by one; what is not acked by the end goes back.

    It is the broker that holds them: here are no more than PAGE at a time, and those that you keep.

    Gives the channel to ack on and the messages. Raises DeskBusy if somebody else holds them, and
    pika's ChannelClosedByBroker if the dead queue does not exist.
    """
    with alone(connection, desk_lock(route), f"the dead messages of {route.recipient}"):
        channel = connection.channel()
        queue = dead_queue(route)
        ready = channel.queue_declare(queue, passive=True).method.message_count
        try:
            yield channel, (_read(queue, each) for each in arriving(channel, queue, ready))
        finally:
            if channel.is_open:
                channel.close()  # the broker puts the unacked back in their old order


def arriving(channel: BlockingChannel, queue: str, ready: int) -> Iterator[Arrived]:
    """Give *ready* messages of *queue*: what comes from now on is for the next look.

    With every ack, pika reads what has come. Unlimited, that would soon be the whole queue; and
    with a limit nothing comes any more once so many are held. So each page has a consumer of its
    own, whose limit counts from 0: what an older one has received stays unacked. Raises DeskBusy if
    fewer come: who sees a part must not take it for the whole.
    """
    channel.basic_qos(prefetch_count=PAGE)
    for first in range(0, ready, PAGE):
        # To ask for each takes longer.
        arrived = channel.consume(queue, inactivity_timeout=PATIENCE)
        number, end = first, min(first + PAGE, ready)
        for each in islice(_until_silent(channel, queue, arrived), end - first):
            number += 1
            yield each
        if number < end:
            what = f"{queue}: {number} of {ready} messages came, and then no more"
            raise DeskBusy(f"{what}; try again when the broker is quick, and nobody else reads")
        channel.cancel()


def _until_silent(
    channel: BlockingChannel, queue: str, arrived: Iterable[Arrived | tuple[None, None, None]]
) -> Iterator[Arrived]:
    """Give what has *arrived*, until there is no more to expect.

    None for PATIENCE does not say so: a busy broker may be silent for longer. It is asked whether
    it has more; if not, what it sent may still be on the way, so it is asked twice.
    """
    silent, empty = 0.0, False
    for method, properties, body in arrived:
        if method is not None and properties is not None:
            silent, empty = 0.0, False
            yield method, properties, body or b""
            continue
        silent += PATIENCE
        more = channel.queue_declare(queue, passive=True).method.message_count
        if silent >= SILENCE or (empty and not more):
            return
        empty = not more


@contextmanager
def alone(connection: BlockingConnection, lock: str, what: str) -> Iterator[None]:
    """Hold the exclusive queue *lock*: two who look at *what* at once would each see only a part.

    The broker deletes it with the connection, so a crash leaves no lock behind. Raises DeskBusy.
    """
    end = time.monotonic() + PATIENCE
    while True:
        channel = connection.channel()
        try:
            channel.queue_declare(lock, exclusive=True)
            break
        except ChannelClosedByBroker as refusal:
            if refusal.reply_code != RESOURCE_LOCKED:
                raise
            if time.monotonic() > end:
                busy = f"somebody else is at {what}; try again when they are done"
                raise DeskBusy(busy) from refusal
        connection.sleep(0.1)
    try:
        yield
    finally:
        if channel.is_open:
            channel.queue_delete(lock)
            channel.close()


def _read(queue: str, arrived: Arrived) -> HeldMessage:
    method, properties, body = arrived
    tag = method.delivery_tag or 0
    delivery = Delivery(queue=queue, body=body, properties=properties, tag=tag)
    headers = properties.headers or {}
    return HeldMessage(
        key=key_of(delivery),
        reason=_text(headers.get(REASON), "not parked by us"),
        error=_text(headers.get(ERROR), ""),
        attempts=attempt_of(delivery),
        replays=_count(headers.get(REPLAYS)),
        parked_at=_count(headers.get(PARKED)),
        sent_at=_count(properties.timestamp),
        traceback=_text(headers.get(TRACE), ""),
        is_event=is_event(delivery),
        delivery=delivery,
    )


def _listed(message: HeldMessage) -> DeadMessage:
    return DeadMessage(*(getattr(message, each.name) for each in fields(DeadMessage)))


def desk_lock(route: Route) -> str:
    """Return the queue that whoever holds *route*'s dead messages holds as a lock."""
    return f"{dead_queue(route)}.desk"


def key_of(delivery: Delivery) -> str:
    """Return what names the message: its message_id, else a digest of its body."""
    return delivery.message_id or f"sha256-{hashlib.sha256(delivery.body).hexdigest()[:16]}"


def is_event(delivery: Delivery) -> bool:
    """Tell whether it is an event, and not bytes that only claim an event's id."""
    try:
        event_of(delivery)
    except ContractError:
        return False
    return True


def _count(value: object) -> int:
    return value if type(value) is int and value >= 0 else 0


def _text(value: object, otherwise: str) -> str:
    return value if isinstance(value, str) else otherwise
