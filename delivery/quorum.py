"""Queues that outlive the loss of a node: the same topology, replicated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from delivery.topology import Queue, Topology

__all__ = ["DELIVERY_LIMIT", "NO_LIMIT", "as_quorum", "delayed_retry"]

# RabbitMQ's own default since 4.0, said so that 3.10, which has none, does the same. 4.3 counts a
# reject with requeue and a delivery that its reader left without a word, not a nack with requeue;
# 3.10 counts all three.
DELIVERY_LIMIT = 20
# Without a limit of its own a dead queue drops what was looked at 20 times: closing the channel
# counts. 4.3 also takes -1, which 3.10 does not describe.
NO_LIMIT = 1_000_000
# The source keeps what dies there until the target has confirmed it. Without reject-publish the
# broker falls back to at-most-once, and says so in its log only.
CONFIRMED: Mapping[str, object] = {
    "x-dead-letter-strategy": "at-least-once",
    "x-overflow": "reject-publish",
}


def as_quorum(topology: Topology) -> Topology:
    """Return *topology* with every queue a quorum queue; twice is once.

    What waits for a retry goes back confirmed. What was delivered more than DELIVERY_LIMIT times
    goes from a recipient's queue to its dead queue (``<queue>.dead``), if the topology has one. No
    other queue gets a limit: what exceeds one without a dead-letter exchange is dropped.
    """
    names = {queue.name for queue in topology.queues}
    return replace(topology, queues=tuple(_quorum(queue, names) for queue in topology.queues))


def _quorum(queue: Queue, names: set[str]) -> Queue:
    arguments: dict[str, object] = {}
    if (dead := f"{queue.name}.dead") in names:
        arguments = {"x-delivery-limit": DELIVERY_LIMIT, **_to(dead), **CONFIRMED}
    elif "x-dead-letter-exchange" in queue.arguments:
        arguments = {"x-delivery-limit": NO_LIMIT, **CONFIRMED}
    else:
        arguments = {"x-delivery-limit": NO_LIMIT}
    return Queue(queue.name, {**arguments, **queue.arguments}, "quorum")


def _to(queue: str) -> dict[str, object]:
    return {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": queue}


def delayed_retry(topology: Topology, *, first_ms: int, most_ms: int) -> Topology:
    """Return *topology* with the broker's own delayed retry on every queue with a delivery limit.

    A message that is rejected with requeue stays in its queue and comes back after *first_ms*
    times the number of failures, at most *most_ms* (milliseconds); past the limit it goes to the
    dead queue. RabbitMQ 4.3 and later: an older broker takes the arguments, and does not wait.
    """
    native = {
        "x-delayed-retry-type": "failed",
        "x-delayed-retry-min": first_ms,
        "x-delayed-retry-max": most_ms,
    }
    queues = tuple(
        replace(queue, arguments={**queue.arguments, **native})
        if queue.arguments.get("x-delivery-limit", NO_LIMIT) != NO_LIMIT
        else queue
        for queue in topology.queues
    )
    return replace(topology, queues=queues)
