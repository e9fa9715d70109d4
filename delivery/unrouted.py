"""Look at what no queue wanted, and send it again once a queue wants it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pika.adapters.blocking_connection import BlockingChannel, BlockingConnection
from pika.exceptions import ChannelClosedByBroker

from delivery.confirms import NotConfirmed, Outcome
from delivery.connection import ACCESS_REFUSED
from delivery.copies import copy_of
from delivery.errors import DeliveryError
from delivery.handling import Delivery
from delivery.lanes import unrouted_queue
from delivery.parking import Parking
from delivery.parking_desk import held_parked
from delivery.pipeline import ConfirmedChannel
from delivery.points import reach
from delivery.publisher import Message
from delivery.routing import routed
from delivery.topology import Topology, declare
from delivery.triage import key_of
from delivery.verify import verify

__all__ = ["Unrouted", "alarm", "look", "parking_of", "replay_unrouted"]

log = logging.getLogger(__name__)

NOT_FOUND = 404  # AMQP 0-9-1, reply codes
_Held = tuple["Unrouted", Delivery]


@dataclass(frozen=True)
class Unrouted:
    """A parked message, and what it was published with; *wanted* says if a queue wants it now.

    It has no body: there may be a hundred thousand of them.
    """

    key: str  # its message_id; for a message without one, a digest of its body
    exchange: str
    routing_key: str
    wanted: bool


def alarm(connection: BlockingConnection, exchange: str) -> int:
    """Return how many messages of *exchange* no queue wanted; log ``unrouted.waiting`` if any.

    Nothing else tells: their publisher was told that they are confirmed. Raises DeliveryError if
    there is no parking queue.
    """
    queue = unrouted_queue(exchange)
    with _there(queue):
        channel = connection.channel()
        count = int(channel.queue_declare(queue, passive=True).method.message_count)
        channel.close()
    if count:
        log.warning("unrouted.waiting", extra={"queue": queue, "count": count})
    return count


def look(connection: BlockingConnection, topology: Topology, exchange: str) -> list[Unrouted]:
    """Return what is parked, oldest first, and whether *topology* has a queue for it.

    That is the plan of a replay; nothing is changed. Raises DeskBusy, DeliveryError.
    """
    with _held(connection, topology, exchange) as (_, messages):
        return [message for message, _ in messages]


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
    A user who may not declare needs not: then it is seen that all is there, but for bindings, which
    the broker tells nobody. Where one is missing, the copy is parked once more.

    Raises NotConfirmed, with the message still parked; DeskBusy, TopologyConflict, NotDeclared,
    DeliveryError.
    """
    _prepare(connection, topology, exchange)
    sent = []
    with _held(connection, topology, exchange) as (channel, messages):
        for message, delivery in messages:
            if message.key not in keys or not message.wanted:
                continue
            record(message)
            reach("unrouted.recorded")
            about, body = copy_of(delivery), delivery.body
            answer = publisher.send(Message(message.exchange, message.routing_key, about, body))
            if answer.outcome is not Outcome.CONFIRMED:
                raise NotConfirmed(answer, message.exchange)
            reach("unrouted.copied")
            channel.basic_ack(delivery.tag)
            reach("unrouted.settled")
            sent.append(message)
    return sent


def parking_of(exchange: str, command: str = "delivery") -> Parking:
    """Return where *exchange* keeps what no queue wants, for whoever counts what waits.

    *command* is how a command about these stores begins.
    """
    queue = unrouted_queue(exchange)
    return Parking(queue, f"{queue}.desk", f'{command} unrouted replay --all --reason "..."')


def _prepare(connection: BlockingConnection, topology: Topology, exchange: str) -> None:
    try:
        declare(connection, topology)
    except ChannelClosedByBroker as refusal:
        if refusal.reply_code != ACCESS_REFUSED:
            raise
        verify(connection, topology, publishes_to=exchange)


@contextmanager
def _held(
    connection: BlockingConnection, topology: Topology, exchange: str
) -> Iterator[tuple[BlockingChannel, Iterator[_Held]]]:
    """Hold what is parked now; what is not acked by the end goes back, in its old order."""
    own = parking_of(exchange)
    queue = own.queue
    with _there(queue), held_parked(connection, own) as (channel, found):

        def messages() -> Iterator[_Held]:
            for method, about, body in found:
                tag = method.delivery_tag or 0
                each = Delivery(queue=queue, body=body, properties=about, tag=tag)
                origin, key = method.exchange or "", method.routing_key or ""
                yield Unrouted(key_of(each), origin, key, routed(topology, origin, key)), each

        yield channel, messages()


@contextmanager
def _there(queue: str) -> Iterator[None]:
    try:
        yield
    except ChannelClosedByBroker as refusal:
        if refusal.reply_code == NOT_FOUND:
            missing = f"no queue {queue!r}: nothing catches what no queue wants"
            raise DeliveryError(f"{missing}; create it: delivery unrouted declare") from refusal
        raise
