"""Take chosen messages out of a dead queue: back to their own recipient, or dropped."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator

from pika.adapters.blocking_connection import BlockingConnection

from delivery.copies import copy_of, cut
from delivery.dead import HEADERS
from delivery.pipeline import ConfirmedChannel
from delivery.points import reach
from delivery.routes import Route
from delivery.triage import REPLAYS, DeadMessage, held

__all__ = ["drop", "dropping", "replay", "replaying"]

REPLAYED_BY, REPLAY_REASON = "x-delivery-replayed-by", "x-delivery-replay-reason"


def replay(
    connection: BlockingConnection,
    publisher: ConfirmedChannel,
    route: Route,
    keys: Container[str],
    *,
    operator: str,
    reason: str,
    record: Callable[[DeadMessage], None],
) -> list[str]:
    """Do what replaying says, to the end, and return the keys of those sent."""
    about = {"operator": operator, "reason": reason}
    return list(replaying(connection, publisher, route, keys, **about, record=record))


def replaying(
    connection: BlockingConnection,
    publisher: ConfirmedChannel,
    route: Route,
    keys: Container[str],
    *,
    operator: str,
    reason: str,
    record: Callable[[DeadMessage], None],
) -> Iterator[str]:
    """Send the dead messages named by *keys* to *route*'s queue again; give the key of each then.

    *record* keeps the decision about each, before it is sent.

    They go to that queue, not through the exchange: no other recipient has anything to repair. The
    attempts start anew. A crash between copy and ack leaves the message in both places; its receipt
    makes the second one harmless. Raises NotConfirmed, with the message still dead.
    """
    with held(connection, route) as (channel, messages):
        for message in messages:
            if message.key not in keys:
                continue
            headers: dict[str, object] = dict.fromkeys(HEADERS)
            headers |= {
                REPLAYS: message.replays + 1,
                REPLAYED_BY: cut(operator, 100),
                REPLAY_REASON: cut(reason, 500),
            }
            record(message)
            reach("replay.recorded")
            properties = copy_of(message.delivery, **headers)
            publisher.move(message.delivery.body, properties, to_queue=route.queue)
            reach("replay.copied")
            channel.basic_ack(message.delivery.tag)
            reach("replay.settled")
            yield message.key


def drop(
    connection: BlockingConnection,
    route: Route,
    keys: Container[str],
    *,
    record: Callable[[DeadMessage], None],
) -> list[str]:
    """Do what dropping says, to the end, and return the keys of those deleted."""
    return list(dropping(connection, route, keys, record=record))


def dropping(
    connection: BlockingConnection,
    route: Route,
    keys: Container[str],
    *,
    record: Callable[[DeadMessage], None],
) -> Iterator[str]:
    """Delete the dead messages named by *keys*, each after *record* has kept why; give its key."""
    with held(connection, route) as (channel, messages):
        for message in messages:
            if message.key in keys:
                record(message)
                reach("drop.recorded")
                channel.basic_ack(message.delivery.tag)
                reach("drop.settled")
                yield message.key
