"""See that what a process uses is there, and may be used, where another user declares it."""

from __future__ import annotations

from pika import BasicProperties
from pika.adapters.blocking_connection import BlockingConnection
from pika.exceptions import ChannelClosedByBroker

from delivery.errors import TemporaryError
from delivery.routes import Route
from delivery.topology import NOT_FOUND, PRECONDITION_FAILED, Topology

__all__ = ["NotDeclared", "own_queues", "verify"]


class NotDeclared(TemporaryError):
    """Something is missing on the broker that this user may not declare."""

    event = "access.refused"


def own_queues(topology: Topology, route: Route) -> Topology:
    """Return the queues that *route*'s recipient uses: its own, its retry queues, its dead one."""
    own = (route.queue, f"{route.queue}.")
    return Topology(
        queues=tuple(q for q in topology.queues if q.name == own[0] or q.name.startswith(own[1]))
    )


def verify(connection: BlockingConnection, used: Topology, *, publishes_to: str) -> None:
    """Ask whether all of *used* exists, and whether this user may publish to *publishes_to*.

    Raises NotDeclared, or pika's ChannelClosedByBroker (403), which names the missing right.
    Arguments are not compared: the broker does that only for a user who may declare.
    """
    for item in used.exchanges + used.queues:
        channel = connection.channel()
        try:
            item.declare(channel, passive=True)
        except ChannelClosedByBroker as refusal:
            if refusal.reply_code != NOT_FOUND:
                raise
            raise NotDeclared(
                f"{refusal.reply_text}; this user may not declare it: delivery topology declare"
            ) from refusal
        channel.close()
    _ask_to_publish(connection, publishes_to)


def _ask_to_publish(connection: BlockingConnection, exchange: str) -> None:
    """Publish what can't be routed: the broker looks at the right first, and only then at it."""
    channel = connection.channel()
    stranger = BasicProperties(user_id="nobody")  # not our name: 406, and no queue sees it
    channel.basic_publish(exchange, "", b"", stranger)
    try:
        channel.basic_qos()  # a publish has no answer of its own
    except ChannelClosedByBroker as answer:
        if answer.reply_code != PRECONDITION_FAILED:
            raise
    else:
        channel.close()
