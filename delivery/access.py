"""A user for each role, with the least rights that its work needs, read off the topology."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from delivery.dead import dead_queue
from delivery.routes import Route
from delivery.topology import Topology
from delivery.triage import desk_lock
from delivery.unrouted import parking_of
from delivery.verify import own_queues

__all__ = ["DEFAULT_EXCHANGE", "Access", "accesses"]

DEFAULT_EXCHANGE = "amq.default"  # as the rights name it (RabbitMQ, "Access Control")


Rights = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Access:
    """One user: what it may configure, write to and read from, each name in full.

    To write to a queue is to bind it, which needs read on the exchange, too. So whoever reads no
    exchange may with it only see that the queue is there, and how much is in it. A right is on a
    name, and the parking queue's exchange has the queue's: who reads the one may bind to the other.
    """

    role: str
    namespace: str
    configure: tuple[str, ...] = ()
    write: tuple[str, ...] = ()
    read: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()

    @property
    def user(self) -> str:
        """The user's name on the broker."""
        return f"{self.namespace}.{self.role}"

    @property
    def patterns(self) -> dict[str, str]:
        """Return the three regular expressions that the broker takes."""
        return {
            "configure": _pattern(self.configure),
            "write": _pattern(self.write),
            "read": _pattern(self.read),
        }


def accesses(namespace: str, topology: Topology, routes: Sequence[Route]) -> list[Access]:
    """Return a user for each role: declare, relay, each recipient, operator, reconcile, watch."""
    queues = tuple(queue.name for queue in topology.queues)
    locks = tuple(desk_lock(route) for route in routes)
    dead = tuple(dead_queue(route) for route in routes)
    exchanges = _once_each(route.exchange for route in routes)
    parkings = [parking_of(exchange) for exchange in exchanges]
    parked = tuple(each.queue for each in parkings)
    parking_locks = tuple(each.lock for each in parkings)
    role = partial(Access, namespace=namespace)
    return [
        role(role="declare", **_to_declare(topology)),
        role(role="relay", write=exchanges),
        *(role(role=route.recipient, **_to_receive(topology, route)) for route in routes),
        # Looks into the dead queues and the parking queue, counts all others; sends again what is
        # dead through the default exchange, what is parked through the one it came by; asks the
        # management plugin for what is unacked.
        role(
            role="operator",
            configure=(*locks, *parking_locks),
            write=(DEFAULT_EXCHANGE, *exchanges, *queues),
            read=(*dead, *parked),
            tags=("management",),
        ),
        role(
            role="reconcile",
            configure=(*locks, *parking_locks),
            write=(DEFAULT_EXCHANGE,),
            read=(*dead, *parked),
        ),
        # The API's page and `status`: they count, and take nothing.
        role(role="watch", write=(*queues, *locks, *parked, *parking_locks), tags=("management",)),
    ]


def _to_declare(topology: Topology) -> Rights:
    """Return also what is checked at the declare alone: where a queue or exchange leads on to."""
    write, read = [], []
    for queue in topology.queues:
        if "x-dead-letter-exchange" in queue.arguments:
            read.append(queue.name)
            write.append(str(queue.arguments["x-dead-letter-exchange"]) or DEFAULT_EXCHANGE)
    for exchange in topology.exchanges:
        if "alternate-exchange" in exchange.arguments:
            read.append(exchange.name)
            write.append(str(exchange.arguments["alternate-exchange"]))
    for binding in topology.bindings:
        read.append(binding.exchange)
        write.append(binding.queue)
    names = [each.name for each in topology.exchanges + topology.queues]
    return {
        "configure": _once_each(names),
        "write": _once_each(write),
        "read": _once_each(read),
    }


def _to_receive(topology: Topology, route: Route) -> Rights:
    queues = (queue.name for queue in own_queues(topology, route).queues)
    return {
        # Before it forgets old receipts it looks how old the oldest dead message is.
        "configure": (desk_lock(route),),
        "read": (route.queue, dead_queue(route)),
        # It copies to its retry and dead queues through the default exchange.
        "write": (DEFAULT_EXCHANGE, *(name for name in queues if name != route.queue)),
    }


def _pattern(names: tuple[str, ...]) -> str:
    """Match these names and nothing else; an expression without anchors would match within."""
    return f"^({'|'.join(map(re.escape, names))})$" if names else "^$"


def _once_each(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))
