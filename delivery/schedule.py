"""Which fault comes when, and to whom: the same seed gives the same schedule."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from random import Random

from delivery import (
    faults_broker,
    faults_cluster,
    faults_handler,
    faults_message,
    faults_process,
    faults_relays,
    faults_store,
    faults_wire,
)
from delivery.errors import DeliveryError
from delivery.faults import Fault, Ground, Target

__all__ = ["KINDS", "Planned", "chosen_kinds", "schedule"]

KINDS: dict[str, Fault] = {
    fault.name: fault
    for module in (
        faults_process,
        faults_handler,
        faults_wire,
        faults_store,
        faults_message,
        faults_broker,
        faults_cluster,
        faults_relays,
    )
    for fault in module.FAULTS
}
SLOW_ROUNDS = 2  # a slow fault comes once in so many rounds


@dataclass(frozen=True)
class Planned:
    """One fault of a run: its number, its kind, whom it hits, and the seed of its own choices."""

    number: int
    kind: str
    target: Target
    seed: int

    @property
    def fault(self) -> Fault:
        """The kind of fault."""
        return KINDS[self.kind]


def chosen_kinds(
    only: Collection[str], without: Collection[str], ground: Ground | None = None
) -> list[str]:
    """Return the kinds to take: those that *ground* allows, all without one.

    Raises DeliveryError for a kind that does not exist, or is not for *ground*, and for none.
    """
    for name in (*only, *without):
        if name not in KINDS:
            raise DeliveryError(f"there is no fault {name!r}; see: delivery chaos --list")
        if name in only and ground and not KINDS[name].ground & ground:
            raise DeliveryError(f"{name} is a fault of {KINDS[name].ground}")
    kinds = [
        name
        for name, fault in KINDS.items()
        if (not only or name in only)
        and name not in without
        and (ground is None or fault.ground & ground)
    ]
    if not kinds:
        raise DeliveryError("no kind of fault is left to inject")
    return kinds


def schedule(seed: int, count: int, kinds: Collection[str]) -> list[Planned]:
    """Return *count* faults in rounds: each round has every kind once, slow ones in every second.

    The targets of a kind take turns.
    """
    random = Random(seed)  # noqa: S311 - repeatable on purpose
    turns = {kind: random.randrange(len(KINDS[kind].targets)) for kind in kinds}
    planned = []
    for number, kind in zip(range(1, count + 1), _rounds(random, kinds), strict=False):
        targets = KINDS[kind].targets
        target = targets[turns[kind] % len(targets)]
        turns[kind] += 1
        planned.append(Planned(number, kind, target, random.randrange(2**32)))
    return planned


def _rounds(random: Random, kinds: Collection[str]) -> Iterator[str]:
    number = 0
    while True:
        slow_too = number % SLOW_ROUNDS == 0
        this = [kind for kind in kinds if slow_too or not KINDS[kind].slow]
        random.shuffle(this)
        yield from this
        number += 1
