"""Move an exchange from classic to quorum queues while events go on being published."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, replace

from pika.adapters.blocking_connection import BlockingConnection
from pika.exceptions import ChannelClosedByBroker

from delivery.config import Config, as_it_is
from delivery.connection import connect
from delivery.errors import DeliveryError
from delivery.management import Management
from delivery.observe import depth
from delivery.pipeline import ConfirmedChannel
from delivery.points import reach
from delivery.pouring import pour
from delivery.quorum import NO_LIMIT, as_quorum
from delivery.routes import routes_of
from delivery.topology import Binding, Queue, Topology, TopologyConflict, declare
from delivery.triage import RESOURCE_LOCKED, DeskBusy, desk_lock

__all__ = ["InUse", "Move", "move_to_quorum", "plan_move"]

PRECONDITION_FAILED = 406  # AMQP 0-9-1, reply codes
GRACE = 1.0  # seconds; each node routes by its own copy of the bindings
HELD = 15.0  # seconds; the management plugin may still count what was settled 5 s ago


class InUse(DeliveryError):
    """Somebody uses a queue that is to be moved: stop the recipients, then run it again."""


@dataclass(frozen=True)
class Move:
    """One queue that is still to be moved, or whose move was interrupted."""

    queue: str
    kind: str  # classic; or missing or quorum, after an interruption
    ready: int
    set_aside: int  # messages that wait elsewhere for its new self
    consumers: int


def plan_move(config: Config) -> list[Move]:
    """Return what there is to move; nothing if every queue is a quorum queue already.

    Raises TopologyConflict for a queue that is neither what *config* describes nor its quorum twin.
    """
    with connect(config.named("move")) as connection:
        return _plan(connection, config)


def move_to_quorum(config: Config) -> list[Move]:
    """Make every queue of *config* a quorum queue, and return what was moved.

    A queue's kind can't change: its messages are set aside in a quorum queue that takes over its
    bindings, the empty queue is deleted and declared anew, and they come back. Events may be
    published all the time; the recipients must not run. Raises InUse, before anything or half way.
    After an error or a crash run it again: a message is acked in one place when its copy in the
    next is confirmed. There may be second copies, which the inbox knows.

    A wait for a retry begins anew. Bindings that *config* does not describe are not kept; nor, if
    the management plugin's address is not known, is what somebody holds by basic.get.
    """
    settings = config.named("move")
    _, quorum = _topologies(config)
    with connect(settings) as connection, ConfirmedChannel(settings) as copies:
        for route in routes_of(config.namespace):
            _lock(connection, desk_lock(route))  # what an operator looks at can't be moved
        moves = _plan(connection, config)
        classic = [move for move in moves if move.kind == "classic"]
        if read := [move.queue for move in classic if move.consumers]:
            raise InUse(f"stop the recipients first: {', '.join(read)} is being read")
        for move in classic:
            _divert(connection, quorum, move.queue)
        connection.sleep(GRACE)
        for move in classic:
            pour(connection.channel(), copies, move.queue, _aside(move.queue))
        reach("move.set_aside")
        for move in classic:
            _await_settled(connection, config.management, move.queue)
            _delete(connection, move.queue)
        reach("move.deleted")
        declare(connection, quorum)
        for move in moves:
            bound = _bindings(quorum, move.queue)
            _unbind(connection, (replace(each, queue=_aside(move.queue)) for each in bound))
        reach("move.unbound")
        connection.sleep(GRACE)  # what still comes to a queue aside comes nowhere else
        for move in moves:
            pour(connection.channel(), copies, _aside(move.queue), move.queue)
            # Nobody else knows it, and what was routed there since is in the new queue, too.
            connection.channel().queue_delete(_aside(move.queue))
        return moves


def _topologies(config: Config) -> tuple[Topology, Topology]:
    classic = replace(config, shape=as_it_is).topology()
    return classic, as_quorum(classic)


def _plan(connection: BlockingConnection, config: Config) -> list[Move]:
    # Waiting queues first: what expires there goes to a queue that is not emptied yet.
    found = []
    pairs = zip(*(each.queues for each in _topologies(config)), strict=True)
    for classic, quorum in sorted(pairs, key=lambda pair: "x-message-ttl" not in pair[0].arguments):
        old, aside = depth(connection, classic.name), depth(connection, _aside(classic.name))
        kind = _kind(connection, classic, quorum) if old else "missing"
        if kind == "classic" or aside:
            ready, readers = (old.ready, old.consumers) if old else (0, 0)
            found.append(Move(classic.name, kind, ready, aside.ready if aside else 0, readers))
    return found


def _kind(connection: BlockingConnection, classic: Queue, quorum: Queue) -> str:
    try:
        declare(connection, Topology(queues=(classic,)))
    except TopologyConflict:
        declare(connection, Topology(queues=(quorum,)))
        return "quorum"
    return "classic"


def _aside(queue: str) -> str:
    return f"{queue}.moving"


def _bindings(topology: Topology, queue: str) -> Iterable[Binding]:
    return (binding for binding in topology.bindings if binding.queue == queue)


def _divert(connection: BlockingConnection, topology: Topology, queue: str) -> None:
    """Let new events go to the queue aside: to both first, so that none finds no queue."""
    bindings = tuple(replace(b, queue=_aside(queue)) for b in _bindings(topology, queue))
    exchanges = tuple(x for x in topology.exchanges if x.name in {b.exchange for b in bindings})
    aside = Queue(_aside(queue), {"x-delivery-limit": NO_LIMIT}, "quorum")
    declare(connection, Topology(exchanges, (aside,), bindings))
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


def _delete(connection: BlockingConnection, queue: str) -> None:
    try:
        connection.channel().queue_delete(queue, if_unused=True, if_empty=True)
    except ChannelClosedByBroker as refusal:
        if refusal.reply_code != PRECONDITION_FAILED:
            raise
        raise InUse(f"somebody uses {queue} ({refusal.reply_text}): run it again") from refusal


def _lock(connection: BlockingConnection, name: str) -> None:
    try:
        connection.channel().queue_declare(name, exclusive=True)
    except ChannelClosedByBroker as refusal:
        if refusal.reply_code != RESOURCE_LOCKED:
            raise
        raise DeskBusy("somebody looks at dead messages; try again when they are done") from refusal
