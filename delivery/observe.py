"""Count what waits on the broker, and say how old each count is."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

from pika.adapters.blocking_connection import BlockingConnection
from pika.exceptions import ChannelClosedByBroker

from delivery.connection import describe
from delivery.dead import dead_queue
from delivery.management import Management, Sample
from delivery.retry import retry_queue
from delivery.routes import Route
from delivery.triage import RESOURCE_LOCKED, desk_lock

__all__ = ["Depth", "Waiting", "depth", "is_held", "waiting"]

MANAGEMENT_AGE = 5.0  # seconds; RabbitMQ's collect_statistics_interval


@dataclass(frozen=True)
class Depth:
    """What AMQP tells about one queue at this instant; unacked messages are not in it."""

    ready: int
    consumers: int


@dataclass(frozen=True)
class Waiting:
    """Where one recipient's messages wait. None: there is no such queue, or nobody could tell."""

    recipient: str
    ready: int | None
    consumers: int | None
    retry: tuple[int | None, ...]
    dead: int | None
    unacked: int | None
    unacked_age: float  # seconds that ``unacked`` may be old; the other counts are exact
    sampled_at: float  # Unix seconds
    unacked_why: str = ""  # why ``unacked`` is None
    dead_held: bool = False  # somebody looks at the dead messages: ``dead`` lacks what they hold
    kind: str | None = None  # of its queue: classic, quorum; only the management plugin tells


def depth(connection: BlockingConnection, queue: str) -> Depth | None:
    """Return the queue's depth now, or None if there is no such queue."""
    channel = connection.channel()
    try:
        method = channel.queue_declare(queue, passive=True).method
    except ChannelClosedByBroker as refusal:
        if refusal.reply_code == 404:
            return None
        raise
    channel.close()
    return Depth(method.message_count, method.consumer_count)


def waiting(
    connection: BlockingConnection,
    routes: Iterable[Route],
    *,
    retries: int,
    management: Management | None = None,
) -> list[Waiting]:
    """Count, for each route, what waits in its queue, its *retries* retry queues and its dead one.

    Read in the direction in which messages move, so that one on the way is counted rather twice
    than never.
    """
    counted = []
    trouble = "" if management else "the management plugin's address is not known"
    for route in routes:
        own = depth(connection, route.queue)
        sample = Sample(None, None)
        if management and not trouble:  # one that does not answer is not asked again
            try:
                sample = management.sample(route.queue)
            except OSError as error:
                trouble = f"the management plugin does not answer: {describe(error)}"
        retry = [depth(connection, retry_queue(route, n + 1)) for n in range(retries)]
        held = is_held(connection, desk_lock(route))
        dead = depth(connection, dead_queue(route))
        counted.append(
            Waiting(
                recipient=route.recipient,
                ready=own.ready if own else None,
                consumers=own.consumers if own else None,
                retry=tuple(each.ready if each else None for each in retry),
                dead=dead.ready if dead else None,
                unacked=sample.unacked,
                unacked_age=MANAGEMENT_AGE,
                sampled_at=time.time(),
                unacked_why="" if sample.unacked is not None else trouble or "no sample yet",
                dead_held=held,
                kind=sample.kind,
            )
        )
    return counted


def is_held(connection: BlockingConnection, lock: str) -> bool:
    """Tell whether another connection holds the exclusive queue *lock*."""
    try:
        depth(connection, lock)
    except ChannelClosedByBroker as refusal:
        if refusal.reply_code == RESOURCE_LOCKED:  # it exists, and is another connection's own
            return True
        raise
    return False
