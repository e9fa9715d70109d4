"""What a fault is: what is done, to whom, what must come of it, and what the broker may lose."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random

from delivery.arena import API, Arena

__all__ = ["Fault", "Ground", "Limit", "Target", "await_lost", "back_again", "marks"]

# What a process logs when it gives its connection up, and opens another one after a pause.
LOST = ("connection.lost", "channel.closed", "consuming.ended", "copy.not_confirmed")

Target = tuple[str, ...]  # the processes that a fault has for itself; the first is the one it hits
Injection = Callable[[Arena, Target, Random], str]


class Ground(enum.Flag):
    """On what a fault can be injected."""

    BROKER = enum.auto()
    CLUSTER = enum.auto()
    RELAYS = enum.auto()

    def __str__(self) -> str:
        return ", ".join(GROUNDS[each] for each in Ground if self & each)


GROUNDS = {
    Ground.BROKER: "one broker",
    Ground.CLUSTER: "three nodes (--nodes 3)",
    Ground.RELAYS: "three relays on PostgreSQL (--postgres URL)",
}


class Limit(enum.Enum):
    """What the broker may lose by a fault, by its documentation or as seen: `reconcile` heals it.

    Everything else that goes missing is a loss by our own code.
    """

    NOTHING = "nothing"
    EXPIRED = "what leaves a retry queue while the broker is killed or the queue refuses"
    QUEUE = "what is in the queue that is deleted, or comes while there is none"
    UNBOUND = "what is confirmed while one recipient's queue is bound and the other is not"


@dataclass(frozen=True)
class Fault:
    """One kind of fault. *inject* returns the evidence, or raises DidNotBite.

    It leaves everything healed: the processes run and the broker is as it was.
    """

    name: str
    what: str
    end: str
    inject: Injection
    targets: tuple[Target, ...]
    limit: Limit = Limit.NOTHING
    slow: bool = False  # takes several seconds: less often in a long run
    ours: bool = False  # works on this package's stores or points, so not on a baseline
    ground: Ground = Ground.BROKER | Ground.CLUSTER


def marks(arena: Arena, target: Target) -> dict[str, int]:
    """Return where the logs of *target* end now."""
    return {process: arena.cast[process].mark() for process in target if process in arena.taps}


def await_lost(arena: Arena, since: dict[str, int]) -> None:
    """Wait until each process says that its connection is gone. Raises DidNotBite."""
    for process, mark in since.items():
        lost = partial(_said_any, arena, process, mark)
        arena.bites(lost, f"{process} says that its connection is lost")


def _said_any(arena: Arena, process: str, mark: int) -> bool:
    return any(arena.said(process, f" {event}", mark) for event in LOST)


def back_again(arena: Arena, since: dict[str, int]) -> None:
    """Wait until each process is ready again. Raises DeliveryError if one is not.

    An API that publishes by itself (a baseline's) connects again with its next request.
    """
    for process, mark in since.items():
        if process != API:
            arena.ready(process, since=mark)
