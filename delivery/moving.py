"""Move an exchange from classic to quorum queues while events go on being published."""

from __future__ import annotations

from dataclasses import replace

from pika.adapters.blocking_connection import BlockingConnection

from delivery.config import Config, as_it_is
from delivery.connection import connect
from delivery.lanes import parking_topology, unrouted_queue
from delivery.observe import depth
from delivery.pipeline import ConfirmedChannel
from delivery.quorum import as_quorum
from delivery.relocation import InUse, Move, aside, lock_desks, relocate
from delivery.routes import routes_of
from delivery.topology import Queue, Topology, TopologyConflict, declare
from delivery.unrouted import parking_of

__all__ = ["InUse", "Move", "move_to_quorum", "plan_move"]


def plan_move(config: Config) -> list[Move]:
    """Return what there is to move; nothing if every queue is a quorum queue already.

    Raises TopologyConflict for a queue that is neither what *config* describes nor its quorum twin.
    """
    with connect(config.named("move")) as connection:
        return _plan(connection, config)


def move_to_quorum(config: Config) -> list[Move]:
    """Make every queue of *config*, and the parking queue if there is one, a quorum queue.

    Returns what was moved.

    A queue's kind can't change, so `relocate` moves it. Events may be published all the time; the
    recipients must not run. Raises InUse, before anything or half way. After an error or a crash
    run it again. There may be second copies, which the inbox knows.

    A wait for a retry begins anew. Bindings that *config* does not describe are not kept; nor, if
    the management plugin's address is not known, is what somebody holds by basic.get.
    """
    settings = config.named("move")
    with connect(settings) as connection, ConfirmedChannel(settings) as copies:
        lock_desks(connection, routes_of(config.namespace), parking_of(config.exchange).lock)
        _, quorum = _topologies(connection, config)
        moves = _plan(connection, config)
        classic = {move.queue: move.kind for move in moves if move.kind == "classic"}
        relocate(connection, copies, config.management, moves, classic, quorum)
        return moves


def _topologies(connection: BlockingConnection, config: Config) -> tuple[Topology, Topology]:
    classic = replace(config, shape=as_it_is).topology()
    parking = unrouted_queue(config.exchange)
    if depth(connection, parking) or depth(connection, aside(parking)):
        classic += parking_topology(config.exchange)
    return classic, as_quorum(classic)


def _plan(connection: BlockingConnection, config: Config) -> list[Move]:
    # Waiting queues first: what expires there goes to a queue that is not emptied yet.
    found = []
    pairs = zip(*(each.queues for each in _topologies(connection, config)), strict=True)
    for classic, quorum in sorted(pairs, key=lambda pair: "x-message-ttl" not in pair[0].arguments):
        old, waiting = depth(connection, classic.name), depth(connection, aside(classic.name))
        kind = _kind(connection, classic, quorum) if old else "missing"
        if kind == "classic" or waiting:
            ready, readers = (old.ready, old.consumers) if old else (0, 0)
            found.append(Move(classic.name, kind, ready, waiting.ready if waiting else 0, readers))
    return found


def _kind(connection: BlockingConnection, classic: Queue, quorum: Queue) -> str:
    try:
        declare(connection, Topology(queues=(classic,)))
    except TopologyConflict:
        declare(connection, Topology(queues=(quorum,)))
        return "quorum"
    return "classic"
