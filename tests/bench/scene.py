"""What a measurement needs, and what it tells: one row beside its peer, and its curves."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

Contestant = Callable[[], float]


@dataclass(frozen=True)
class Scene:
    """Where a measurement happens: *size* scales how much is moved, 1.0 in a full run."""

    url: str
    folder: Path
    postgres: str
    size: float = 1.0
    rounds: int = 5
    say: Callable[[str], None] = print

    def many(self, count: int) -> int:
        """Return how much of *count* this run moves."""
        return max(100, int(count * self.size))


@dataclass(frozen=True)
class Row:
    """One line of the table: *ratio* is ours to theirs, in the direction in which more is better.

    A *target* is a limit, >= or <=, of the ratio if it ends in x, otherwise of ours.
    """

    work: str
    ours: float
    unit: str
    beside: str = ""
    theirs: float | None = None
    target: str = ""
    spread: str = ""

    @property
    def ratio(self) -> float | None:
        return self.ours / self.theirs if self.theirs else None

    @property
    def met(self) -> bool | None:
        """Whether the target is met; None if there is none."""
        if not self.target:
            return None
        sign, number, unit = self.target.split()
        measured = self.ratio if unit == "x" else self.ours
        if measured is None:
            return False  # a ratio to nothing
        return measured >= float(number) if sign == ">=" else measured <= float(number)


@dataclass
class Curve:
    """Points to plot: *lines* maps a name to (x, y)."""

    title: str
    x: str
    y: str
    lines: dict[str, list[tuple[float, float]]] = field(default_factory=dict)


def interleaved(scene: Scene, contestants: Mapping[str, Contestant]) -> dict[str, list[float]]:
    """Run all contestants in turn, once a round, so that what slows the machine slows each."""
    found: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(scene.rounds):
        begun = time.monotonic()
        for name, contestant in contestants.items():
            found[name].append(contestant())
        scene.say(f"  round {number + 1}: {time.monotonic() - begun:.0f} s")
    return found


def beside(
    work: str,
    found: Mapping[str, Sequence[float]],
    ours: str,
    theirs: str,
    *,
    target: str = "",
    unit: str = "/s",
) -> Row:
    """Return the row that sets *ours* beside *theirs*: medians of all rounds."""
    mine = found[ours]
    return Row(
        work,
        median(mine),
        unit,
        theirs,
        median(found[theirs]),
        target,
        f"{min(mine):,.0f} to {max(mine):,.0f}",
    )
