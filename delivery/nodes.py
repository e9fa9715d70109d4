"""Say of each node of a cluster whether it could go now, and which queues would miss it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from delivery.errors import DeliveryError
from delivery.management import Management

__all__ = ["NodeState", "node_states", "trouble"]


@dataclass(frozen=True)
class NodeState:
    """One node, and what it is to the queues that were asked about."""

    name: str
    running: bool
    drained: bool  # in maintenance: no clients, no leaders (rabbitmq-upgrade drain)
    leads: int  # quorum queues whose leader is there
    only_here: tuple[str, ...]  # classic queues: away with the node
    needed_by: tuple[str, ...]  # quorum queues that have no majority without it


def node_states(management: Management, prefix: str) -> list[NodeState]:
    """Return all nodes, seen with the virtual host's queues whose names begin with *prefix*.

    Raises OSError, and DeliveryError if there is no such queue: nobody knows what would be missed.
    As one node's management plugin tells it, which must not be the node that goes: a drained one
    does not answer. That a node is drained it hears some seconds late, and on 3.10 never.
    """
    told, _ = management.get(f"/api/queues/{management.vhost}")
    queues = [each for each in told if _counts(each, prefix)]
    if not queues:
        raise DeliveryError(f"the broker has no queue whose name begins with {prefix!r}")
    return [_state(each, queues) for each in management.get("/api/nodes")[0]]


def trouble(states: list[NodeState]) -> list[str]:
    """Return a sentence for whatever speaks against taking any one node away; empty: none."""
    return [sentence for state in states for sentence in _of(state)]


def _of(state: NodeState) -> Iterator[str]:
    if not state.running:
        yield f"{state.name} is not running"
    if state.drained:
        yield f"{state.name} is drained: rabbitmq-upgrade revive"
    for queue in state.only_here:
        yield f"{queue} lives on {state.name} alone"
    for queue in state.needed_by:
        yield f"{queue} would stop without {state.name}"


def _counts(queue: dict[str, Any], prefix: str) -> bool:
    # An exclusive one goes with its connection anyway.
    return str(queue["name"]).startswith(prefix) and not queue.get("exclusive")


def _state(node: dict[str, Any], queues: list[dict[str, Any]]) -> NodeState:
    name = str(node["name"])
    quorum = [each for each in queues if each.get("type") == "quorum"]
    return NodeState(
        name=name,
        running=bool(node.get("running")),
        drained=bool(node.get("being_drained")),
        leads=sum(each.get("leader") == name for each in quorum),
        only_here=tuple(
            each["name"] for each in queues if each not in quorum and each.get("node") == name
        ),
        needed_by=tuple(each["name"] for each in quorum if _is_needed(name, each)),
    )


def _is_needed(node: str, queue: dict[str, Any]) -> bool:
    members = queue.get("members", [])
    left = [each for each in queue.get("online", []) if each != node]
    return node in members and len(left) * 2 <= len(members)
