"""Bound queues on purpose: the background sheds first, the critical refuses its publisher."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from pika import BasicProperties

from delivery.errors import DeliveryError
from delivery.topology import Queue, Topology

__all__ = ["Limit", "Refuse", "Shed", "bounded", "policy_steps", "shed_because"]


@dataclass(frozen=True)
class Shed:
    """At most *length* ready messages, none older than *ttl_ms*: the oldest go to queue *into*.

    For what is worth less as it ages. The broker moves it, without a confirm: one that is killed in
    the next moments can lose it.
    """

    length: int
    ttl_ms: int | None
    into: str

    def arguments(self) -> dict[str, object]:
        """Return the queue's arguments. RabbitMQ counts ready messages only, not unacked ones."""
        ttl = {} if self.ttl_ms is None else {"x-message-ttl": self.ttl_ms}
        return {
            "x-max-length": self.length,
            "x-overflow": "drop-head",
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": self.into,
            **ttl,
        }


@dataclass(frozen=True)
class Refuse:
    """At most *length* ready messages: a publisher of more gets REFUSED, and keeps its own."""

    length: int

    def arguments(self) -> dict[str, object]:
        """Return the queue's arguments."""
        return {"x-max-length": self.length, "x-overflow": "reject-publish"}


Limit = Shed | Refuse


def bounded(topology: Topology, limits: Mapping[str, Limit]) -> Topology:
    """Return *topology*, in which each queue that *limits* names has its limit.

    Raises DeliveryError for a queue that is not there; for a limit on a dead queue; and for a
    Refuse on a queue into which the broker itself moves what was shed or waited for a retry. Such
    a message has no publisher who could be refused: when the queue is full, it is lost. Also for a
    Shed into a place that leads back, where the broker drops it as a cycle; and for one that would
    take what waits for a retry elsewhere.
    """
    into = {each.into for each in limits.values() if isinstance(each, Shed)}
    if unknown := sorted({*limits, *into} - {queue.name for queue in topology.queues}):
        raise DeliveryError(f"there is no queue {unknown[0]!r} in this topology")
    moved = into | {queue.arguments.get("x-dead-letter-routing-key") for queue in topology.queues}
    for name, limit in limits.items():
        if name.endswith(".dead") or (name in moved and isinstance(limit, Refuse)):
            raise DeliveryError(
                f"{name!r} can't be bounded so: what is moved there, dead or retried, would be lost"
            )
    ways = {
        queue.name: queue.arguments.get("x-dead-letter-routing-key") for queue in topology.queues
    }
    shed = {name: each.into for name, each in limits.items() if isinstance(each, Shed)}
    for name, target in shed.items():
        if ways[name] not in (None, target):
            raise DeliveryError(f"what waits in {name!r} leads to {ways[name]!r}: it can't be shed")
        if _leads_back(name, ways | shed):
            raise DeliveryError(f"what {name!r} sheds into {target!r} leads back to it: lost")
    queues = tuple(_limited(queue, limits.get(queue.name)) for queue in topology.queues)
    return replace(topology, queues=queues)


def policy_steps(limit: Limit) -> list[dict[str, object]]:
    """Return the policies that bound a queue which exists, to be set one after the other.

    First what happens beyond the length, then the length: a classic queue that hears of both at
    once was seen to drop what was already beyond it.
    """
    whole = {name.removeprefix("x-"): value for name, value in limit.arguments().items()}
    first = {name: value for name, value in whole.items() if name not in ("max-length",)}
    return [first, whole]


def shed_because(properties: BasicProperties) -> str:
    """Return why the broker moved this message: ``maxlen`` or ``expired``; empty if it did not."""
    return str((properties.headers or {}).get("x-first-death-reason", ""))


def _leads_back(name: str, ways: Mapping[str, object]) -> bool:
    seen = {name}
    while (step := str(ways.get(name))) in ways and step not in seen:
        seen.add(step)
        name = step
    return step in seen


def _limited(queue: Queue, limit: Limit | None) -> Queue:
    if limit is None:
        return queue
    return replace(queue, arguments={**queue.arguments, **limit.arguments()})
