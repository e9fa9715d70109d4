"""A small plain model of one recipient: what its queue, its dead and its store must hold."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

__all__ = ["Copy", "Fact", "Model"]


@dataclass(frozen=True)
class Fact:
    """An accepted event."""

    event_id: str
    material: str
    revision: int


@dataclass(frozen=True)
class Copy:
    """A message of an event, and which attempt its next delivery is."""

    fact: Fact
    attempt: int = 1


@dataclass
class Model:
    """What one recipient owes; ``keeps_latest`` is the catalog's revision rule."""

    keeps_latest: bool
    attempts: int
    queue: list[Copy] = field(default_factory=list)
    dead: list[Copy] = field(default_factory=list)
    receipts: dict[str, tuple[str, int]] = field(default_factory=dict)
    forgotten: set[str] = field(default_factory=set)
    given_up: set[str] = field(default_factory=set)
    effects: Counter[str] = field(default_factory=Counter)
    card: dict[str, int] = field(default_factory=dict)

    def handle(self, fact: Fact) -> str:
        """Apply one delivery, and return the effect that it must have."""
        if fact.event_id in self.receipts:
            effect, duplicates = self.receipts[fact.event_id]
            self.receipts[fact.event_id] = (effect, duplicates + 1)
            return "duplicate"
        effect = "applied"
        if self.keeps_latest and self.card.get(fact.material, 0) >= fact.revision:
            effect = "stale"
        else:
            self.card[fact.material] = fact.revision
            self.effects[fact.event_id] += 1
        self.receipts[fact.event_id] = (effect, 0)
        return effect

    def fail(self, copy: Copy, *, for_good: bool) -> None:
        """Put a copy where a failed delivery goes."""
        if for_good or copy.attempt >= self.attempts:
            self.dead.append(copy)
        else:
            self.queue.append(Copy(copy.fact, copy.attempt + 1))

    def take_dead(self, event_id: str) -> list[Copy]:
        """Take every dead copy of the event."""
        taken = [copy for copy in self.dead if copy.fact.event_id == event_id]
        self.dead = [copy for copy in self.dead if copy.fact.event_id != event_id]
        return taken

    def drop(self, event_id: str) -> None:
        """Give up every dead copy; an event without a receipt gets one that says so."""
        self.take_dead(event_id)
        if event_id not in self.receipts:
            self.receipts[event_id] = ("dropped", 0)
            self.given_up.add(event_id)

    def settled(self, event_id: str) -> bool:
        """Tell whether the event was ever applied, found stale, or dropped."""
        return event_id in self.receipts or event_id in self.forgotten
