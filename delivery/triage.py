"""Look into a dead queue without taking anything out of it."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice

from pika import BasicProperties
from pika.adapters.blocking_connection import BlockingChannel, BlockingConnection
from pika.exceptions import ChannelClosedByBroker

from delivery.codec import ContractError
from delivery.dead import ERROR, PARKED, REASON, TRACE, dead_queue
from delivery.errors import TemporaryError
from delivery.handling import Delivery, event_of
from delivery.retry import attempt_of
from delivery.routes import Route

__all__ = ["REPLAYS", "DeadMessage", "DeskBusy", "browse", "desk_lock", "held", "key_of"]

RESOURCE_LOCKED = 405  # AMQP 0-9-1, reply codes
PATIENCE = 5.0  # seconds to wait for somebody else to finish looking
REPLAYS = "x-delivery-replays"  # how often an operator has sent this message again


class DeskBusy(TemporaryError):
    """Somebody else holds the recipient's dead messages."""


@dataclass(frozen=True)
class DeadMessage:
    """A dead message as an operator sees it; times are Unix seconds, 0 if not known."""

    key: str  # its message_id; for a message without one, a digest of its body
    reason: str
    error: str
    attempts: int
    replays: int
    parked_at: int
    sent_at: int
    traceback: str
    is_event: bool  # False: bytes that only claim an event's id, and stand for none
    delivery: Delivery


def browse(connection: BlockingConnection, route: Route) -> list[DeadMessage]:
    """Return *route*'s dead messages, oldest first.

    They are held for a moment; somebody else who looks then waits. Raises DeskBusy if that is long.
    """
    with held(connection, route) as (_, messages):
        return list(messages)


@contextmanager
def held(
    connection: BlockingConnection, route: Route
) -> Iterator[tuple[BlockingChannel, Iterator[DeadMessage]]]:
    """Hold *route*'s dead messages, one by one; what is not acked by the end goes back.

    Gives the channel to ack on and the messages. Raises DeskBusy if somebody else holds them, and
    pika's ChannelClosedByBroker if the dead queue does not exist.
    """
    with _alone(connection, route):
        channel = connection.channel()
        ready = channel.queue_declare(dead_queue(route), passive=True).method.message_count

        def messages() -> Iterator[DeadMessage]:
            # To ask for each takes longer. What dies from now on is for the next look.
            arrived = channel.consume(dead_queue(route), inactivity_timeout=PATIENCE)
            for method, properties, body in islice(arrived, ready):
                if method is None or properties is None:
                    return
                yield _read(route, method.delivery_tag or 0, properties, body or b"")

        try:
            yield channel, messages()
        finally:
            if channel.is_open:
                channel.close()  # the broker puts the unacked back in their old order


@contextmanager
def _alone(connection: BlockingConnection, route: Route) -> Iterator[None]:
    """Hold an exclusive queue as a lock: two who look at once would each see only a part.

    The broker deletes it with the connection, so a crash leaves no lock behind.
    """
    lock = desk_lock(route)
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
                who = f"somebody else is at the dead messages of {route.recipient}"
                raise DeskBusy(f"{who}; try again when they are done") from refusal
        connection.sleep(0.1)
    try:
        yield
    finally:
        if channel.is_open:
            channel.queue_delete(lock)
            channel.close()


def _read(route: Route, tag: int, properties: BasicProperties, body: bytes) -> DeadMessage:
    delivery = Delivery(queue=dead_queue(route), body=body, properties=properties, tag=tag)
    headers = properties.headers or {}
    return DeadMessage(
        key=key_of(delivery),
        reason=_text(headers.get(REASON), "not parked by us"),
        error=_text(headers.get(ERROR), ""),
        attempts=attempt_of(delivery),
        replays=_count(headers.get(REPLAYS)),
        parked_at=_count(headers.get(PARKED)),
        sent_at=_count(properties.timestamp),
        traceback=_text(headers.get(TRACE), ""),
        is_event=_is_event(delivery),
        delivery=delivery,
    )


def desk_lock(route: Route) -> str:
    """Return the queue that whoever holds *route*'s dead messages holds as a lock."""
    return f"{dead_queue(route)}.desk"


def key_of(delivery: Delivery) -> str:
    """Return what names the message: its message_id, else a digest of its body."""
    return delivery.message_id or f"sha256-{hashlib.sha256(delivery.body).hexdigest()[:16]}"


def _is_event(delivery: Delivery) -> bool:
    try:
        event_of(delivery)
    except ContractError:
        return False
    return True


def _count(value: object) -> int:
    return value if type(value) is int and value >= 0 else 0


def _text(value: object, otherwise: str) -> str:
    return value if isinstance(value, str) else otherwise
