"""Give queues other arguments: plan what differs from the settings, and move what is in them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

from pika.adapters.blocking_connection import BlockingConnection

from delivery.config import Config
from delivery.connection import connect
from delivery.errors import DeliveryError
from delivery.management import Management
from delivery.observe import depth
from delivery.pipeline import ConfirmedChannel
from delivery.relocation import InUse, Move, aside, lock_desks, relocate
from delivery.routes import routes_of
from delivery.topology import Queue
from delivery.verify import own_queues

__all__ = ["change_queues", "plan_change"]


def plan_change(config: Config, queues: Collection[str] = ()) -> list[Move]:
    """Return which of *queues* (all of the exchange, if none is named) are not as *config* says.

    Of all, those that are missing, too: whoever uses them declares them. The management plugin
    tells what they are: OSError if it does not answer. Raises DeliveryError for a queue that is
    named and not there, and for settings that lint finds mistakes in.
    """
    with connect(config.named("change")) as connection:
        found = [move for move, _ in _plan(connection, config, queues)]
        known = {move.queue for move in found}
        others = (each.name for each in config.topology().queues if each.name not in known)
        absent = (name for name in others if not queues and not depth(connection, name))
        return found + [Move(name, "missing", 0, 0, 0) for name in absent]


def change_queues(config: Config, queues: Collection[str]) -> list[Move]:
    """Make *queues* what *config* says, and return what was moved.

    A queue's arguments can't change, so `relocate` moves it; the same rules: events may be
    published all the time, the recipients of these queues must not run. Raises InUse, before
    anything or half way; run it again then. A wait for a retry begins anew.
    """
    settings = config.named("change")
    with connect(settings) as connection, ConfirmedChannel(settings) as copies:
        lock_desks(connection, routes_of(config.namespace))
        plan = _plan(connection, config, queues)
        names = {move.queue for move, _ in plan}
        _refuse_running(connection, config, names)
        whole = config.topology()
        topology = replace(
            whole,
            queues=tuple(queue for queue in whole.queues if queue.name in names),
            bindings=tuple(binding for binding in whole.bindings if binding.queue in names),
        )
        moves, old = [move for move, _ in plan], {move.queue: kind for move, kind in plan if kind}
        relocate(connection, copies, config.management, moves, old, topology)
        return moves


def _plan(
    connection: BlockingConnection, config: Config, queues: Collection[str]
) -> list[tuple[Move, str]]:
    """Return each move with the type that the queue has now; empty if it is to be made, or new."""
    if problems := config.problems():
        # Nobody could declare them so: a service would end at its start, and this half way.
        raise DeliveryError("the topology has mistakes: " + "; ".join(map(str, problems)))
    if config.management is None:
        raise DeliveryError("what a queue is like, only the management plugin tells: it is missing")
    known = {queue.name: queue for queue in config.topology().queues}
    if unknown := sorted(set(queues) - set(known)):
        raise DeliveryError(f"this exchange has no queue {unknown[0]!r}: {', '.join(known)}")
    wanted = [known[name] for name in known if name in queues or not queues]
    found = []
    # Waiting queues first: what expires there goes to a queue that is not emptied yet.
    for queue in sorted(wanted, key=lambda each: "x-message-ttl" not in each.arguments):
        have, waiting = depth(connection, queue.name), depth(connection, aside(queue.name))
        if queues and not have and not waiting:
            raise DeliveryError(f"there is no queue {queue.name!r} yet: delivery topology declare")
        arguments = _arguments(config.management, queue.name) if have else {}
        differs = ", ".join(_differences(arguments, queue)) if have else "missing"
        if (have and differs) or waiting:
            ready, readers = (have.ready, have.consumers) if have else (0, 0)
            aside_now = waiting.ready if waiting else 0
            kind = str(arguments["x-queue-type"]) if have and differs else ""
            move = Move(queue.name, differs or "as it should be", ready, aside_now, readers)
            found.append((move, kind))
    return found


def _arguments(management: Management, queue: str) -> Mapping[str, Any]:
    told = management.queue(queue)
    if told is None:
        raise DeliveryError(f"the management plugin has not heard of {queue} yet: try again")
    return {"x-queue-type": told["type"], **told["arguments"]}


def _differences(have: Mapping[str, Any], queue: Queue) -> Iterator[str]:
    want = {"x-queue-type": queue.kind, **queue.arguments}
    for name in sorted({*have, *want}):
        if have.get(name) != want.get(name):
            yield f"{name} is {have.get(name, 'not set')}, wanted {want.get(name, 'not set')}"


def _refuse_running(connection: BlockingConnection, config: Config, names: Collection[str]) -> None:
    # A recipient that finds its retry queue gone would declare it again, as its own settings say.
    for route in routes_of(config.namespace):
        own = {queue.name for queue in own_queues(config.topology(), route).queues}
        read = depth(connection, route.queue) if own & set(names) else None
        if read and read.consumers:
            raise InUse(f"stop the recipients first: {route.queue} is being read")
