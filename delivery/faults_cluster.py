"""Faults of a cluster: one node of three is killed, or cut off from the other two."""

from __future__ import annotations

import contextlib
from random import Random
from typing import Any

from delivery.arena import PROCESSES, Arena, DidNotBite
from delivery.broker import Broker, Kind
from delivery.cluster import Cluster
from delivery.faults import Fault, Ground, Target, back_again
from delivery.management import Management
from delivery.ready import NotReady

__all__ = ["FAULTS"]

NOTICED = 60.0  # seconds for the other two to miss a node; it is silent for 10 at least
PROGRESS = 3  # events that each recipient settles
GOES_ON = 180.0  # seconds: after a partition of 20 s it took up to 27, on a busy machine over 60


def _kill_node(arena: Arena, target: Target, random: Random) -> str:
    cluster = _whole(arena)
    node = random.choice([n for n in cluster.nodes if _connected_to(arena, n) or _led_by(arena, n)])
    name, led = _name(arena, node), len(_led_by(arena, node))
    since = {process: arena.cast[process].mark() for process in _connected_to(arena, node)}
    node.kill()
    try:
        arena.bites(lambda: _missed(cluster, node, name), f"{name} is missed", NOTICED)
        # All of it while the node is dead: two of three are enough. One that was just looking for
        # a node says nothing of a loss; ready it must be again.
        back_again(arena, since)
        _await_progress(arena, f"the others go on without {name}")
    finally:
        with contextlib.suppress(NotReady):  # slow: the next line has the last word
            node.start()
        cluster.await_formed()
    moved = f"{', '.join(since)} moved to another node" if since else "nobody was connected to it"
    return f"SIGKILL of {name}, which led {led} queues; {moved}; it is back"


def _partition(arena: Arena, target: Target, random: Random) -> str:
    cluster = _whole(arena)
    node = random.choice(cluster.nodes)
    if node.kind is Kind.NODE:
        raise DidNotBite("only Docker can cut a node off: these three share a machine's loopback")
    name, caught = _name(arena, node), _connected_to(arena, node)
    before = arena.settled()
    cluster.partition(node)
    try:
        arena.bites(lambda: _missed(cluster, node, name), f"{name} is missed", NOTICED)
        settled = min(count - before[each] for each, count in arena.settled().items())
    finally:
        cluster.heal(node)
    cluster.await_formed()
    _await_progress(arena, f"everybody goes on when {name} is back")
    had = f", who had {', '.join(caught)} as clients" if caught else ""
    return (
        f"the other two missed {name}{had}; meanwhile each recipient settled {settled} or more;"
        " it joined again"
    )


def _whole(arena: Arena) -> Cluster:
    """Return the cluster once it can do without any of its nodes."""
    assert arena.cluster is not None, "the schedule has these faults for a cluster only"
    arena.cluster.await_formed()
    return arena.cluster


def _connected_to(arena: Arena, node: Broker) -> list[str]:
    assert arena.cluster is not None
    number = arena.cluster.nodes.index(node)
    return [process for process, lines in arena.taps.items() if lines.taps[number].open]


def _management(node: Broker) -> Management:
    assert node.management_url is not None, "a cluster of our own has the plugin"
    return Management(node.management_url, node.amqp_url)


def _name(arena: Arena, node: Broker) -> str:
    return str(_ask(arena, node, "/api/overview")["node"])


def _led_by(arena: Arena, node: Broker) -> list[str]:
    """Return the quorum queues whose leader is on *node*, as of some seconds ago."""
    name = _name(arena, node)
    return [q["name"] for q in _ask(arena, node, "/api/queues/%2F") if q.get("leader") == name]


def _ask(arena: Arena, node: Broker, path: str) -> Any:
    """Ask a node that runs, again if it is too busy to answer."""
    answers: list[Any] = []

    def answered() -> bool:
        with contextlib.suppress(OSError):
            answers.append(_management(node).get(path)[0])
        return bool(answers)

    arena.recovers(answered, f"{node.address} answers {path}")
    return answers[0]


def _missed(cluster: Cluster, node: Broker, name: str) -> bool:
    """Say whether another node knows that this one is gone."""
    other = next(each for each in cluster.nodes if each is not node)
    try:
        nodes = _management(other).get("/api/nodes")[0]
    except OSError:
        return False  # it still waits for the other's answer
    return not any(each["name"] == name and each.get("running") for each in nodes)


def _await_progress(arena: Arena, what: str) -> None:
    """Wait until each recipient has settled some more. Raises DeliveryError."""
    before = arena.settled()
    arena.recovers(
        lambda: all(n >= before[each] + PROGRESS for each, n in arena.settled().items()),
        what,
        GOES_ON,
    )


FAULTS = (
    Fault(
        "kill-node",
        "one node of three is killed (SIGKILL) and started again",
        "who was connected to it moves to another one; events are confirmed and settled while it"
        " is dead; nothing is lost",
        _kill_node,
        (PROCESSES,),
        slow=True,
        ground=Ground.CLUSTER,
    ),
    Fault(
        "partition",
        "one node of three is cut off from the other two, and not from its clients (Docker only)",
        "what it can't replicate it does not confirm; when it is back, everything goes out and"
        " is settled once",
        _partition,
        (PROCESSES,),
        slow=True,
        ground=Ground.CLUSTER,
    ),
)
