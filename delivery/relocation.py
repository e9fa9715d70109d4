"""Declare queues anew under the same name, messages and all, while events are published."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from pika.adapters.blocking_connection import BlockingConnection
from pika.exceptions import ChannelClosedByBroker

from delivery.errors import DeliveryError
from delivery.management import Management
from delivery.observe import depth
from delivery.pipeline import ConfirmedChannel
from delivery.points import reach
from delivery.pouring import pour
from delivery.quorum import NO_LIMIT
from delivery.routes import Route
from delivery.topology import PRECONDITION_FAILED, Binding, Queue, Topology, declare
from delivery.triage import RESOURCE_LOCKED, DeskBusy, desk_lock

__all__ = ["InUse", "Move", "aside", "lock_desks", "relocate"]

GRACE = 1.0  # seconds; each node routes by its own copy of the bindings
HELD = 15.0  # seconds; the management plugin may still count what was settled 5 s ago


class InUse(DeliveryError):
    """Somebody uses a queue that is to be moved: stop the recipients, then run it again."""


@dataclass(frozen=True)
class Move:
    """One queue that is still to be moved, or whose move was interrupted."""

    queue: str
    kind: str  # what it is now, in a word or two; missing, after an interruption
    ready: int
    set_aside: int  # messages that wait elsewhere for its new self
    consumers: int


def aside(queue: str) -> str:
    """Return the name of the queue in which *queue*'s messages wait for its new self."""
    return f"{queue}.moving"


def lock_desks(connection: BlockingConnection, routes: Iterable[Route], *others: str) -> None:
    """Keep the operators' desks, and the locks *others*, for this connection. Raises DeskBusy.

    What somebody looks at can't be moved, and nobody replays into a queue that is on its way.
    """
    for lock in (*map(desk_lock, routes), *others):
        try:
            connection.channel().queue_declare(lock, exclusive=True)
        except ChannelClosedByBroker as refusal:
            if refusal.reply_code != RESOURCE_LOCKED:
                raise
            raise DeskBusy(
                f"somebody looks at dead or parked messages, or moves queues ({lock});"
                " try again when they are done"
            ) from refusal


def relocate(
    connection: BlockingConnection,
    copies: ConfirmedChannel,
    management: Management | None,
    moves: Sequence[Move],
    old: Mapping[str, str],
    topology: Topology,
) -> None:
    """Make the queues of *moves* what *topology* says; *old* are those that are not so yet.

    *old* names each with its type (classic, quorum), waiting queues first. Their messages are set
    aside in a quorum queue that takes over the bindings, the empty queue is deleted and declared
    anew, and they come back. Raises InUse, before anything or half way; run it again then, with
    what is still to be done: a message is acked in one place when its copy in the next is
    confirmed. Bindings that *topology* does not describe are not kept. Raises DeliveryError, before
    anything, for a policy that would overrule what a new queue does beyond its length; without the
    management plugin's address nobody sees it.
    """
    if read := [move.queue for move in moves if move.queue in old and move.consumers]:
        raise InUse(f"stop the recipients first: {', '.join(read)} is being read")
    if management:
        _refuse_overruled(management, (queue for queue in topology.queues if queue.name in old))
    for queue in old:
        _divert(connection, topology, queue)
    connection.sleep(GRACE)
    for queue in old:
        pour(connection.channel(), copies, queue, aside(queue))
    reach("move.set_aside")
    for queue, kind in old.items():
        _await_settled(connection, management, queue)
        _delete(connection, queue, kind)
    reach("move.deleted")
    declare(connection, topology)
    for move in moves:
        bound = _bindings(topology, move.queue)
        _unbind(connection, (replace(each, queue=aside(move.queue)) for each in bound))
    reach("move.unbound")
    connection.sleep(GRACE)  # what still comes to a queue aside comes nowhere else
    for move in moves:
        pour(connection.channel(), copies, aside(move.queue), move.queue)
        # Nobody else knows it, and what was routed there since is in the new queue, too.
        connection.channel().queue_delete(aside(move.queue))


def _refuse_overruled(management: Management, queues: Iterable[Queue]) -> None:
    # On a classic queue the declaration holds; on a quorum queue the policy does (seen), and then
    # the broker no longer confirms its own moves out of it.
    for queue in queues:
        told = management.queue(queue.name) or {}
        wanted = queue.arguments.get("x-overflow")
        ruled = (told.get("effective_policy_definition") or {}).get("overflow", wanted)
        if queue.kind == "quorum" and wanted and ruled != wanted:
            raise DeliveryError(
                f"{queue.name} has the policy {told.get('policy')!r} (overflow = {ruled}), which"
                f" would overrule its new {wanted}: unlimit it first"
                f" (delivery queues unlimit {queue.name})"
            )


def _bindings(topology: Topology, queue: str) -> Iterable[Binding]:
    return (binding for binding in topology.bindings if binding.queue == queue)


def _divert(connection: BlockingConnection, topology: Topology, queue: str) -> None:
    """Let new events go to the queue aside: to both first, so that none finds no queue."""
    bindings = tuple(replace(b, queue=aside(queue)) for b in _bindings(topology, queue))
    exchanges = tuple(x for x in topology.exchanges if x.name in {b.exchange for b in bindings})
    waiting = Queue(aside(queue), {"x-delivery-limit": NO_LIMIT}, "quorum")
    declare(connection, Topology(exchanges, (waiting,), bindings))
    _unbind(connection, _bindings(topology, queue))


def _unbind(connection: BlockingConnection, bindings: Iterable[Binding]) -> None:
    channel = connection.channel()
    for binding in bindings:
        channel.queue_unbind(binding.queue, binding.exchange, binding.key)
    channel.close()


def _await_settled(
    connection: BlockingConnection, management: Management | None, queue: str
) -> None:
    """Raise InUse if somebody holds messages: a queue that looks empty would be deleted with them.

    AMQP tells of consumers only, and not of who has fetched one by one.
    """
    end = time.monotonic() + HELD
    while management and (held := management.unacked(queue)):
        if time.monotonic() > end:
            raise InUse(
                f"somebody holds {held} message(s) of {queue}: run it again when they are done"
            )
        connection.sleep(0.5)


def _delete(connection: BlockingConnection, queue: str, kind: str) -> None:
    # A quorum queue can't be deleted on a condition (540, which ends the connection): look first.
    conditional = kind == "classic"
    found = None if conditional else depth(connection, queue)
    if found and (found.ready or found.consumers):
        raise InUse(f"somebody uses {queue} ({found}): run it again")
    try:
        connection.channel().queue_delete(queue, if_unused=conditional, if_empty=conditional)
    except ChannelClosedByBroker as refusal:
        if refusal.reply_code != PRECONDITION_FAILED:
            raise
        raise InUse(f"somebody uses {queue} ({refusal.reply_text}): run it again") from refusal
