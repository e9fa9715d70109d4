"""What the machine was, and how busy others kept it."""

from __future__ import annotations

import os
import platform
import sqlite3
import time
from dataclasses import dataclass
from pathlib import Path

import pika

LOOK = 2.0  # seconds


@dataclass(frozen=True)
class Machine:
    """*busy* is the share of all cores that others used before the run; None: not known here."""

    cores: int
    busy: float | None
    load: tuple[float, float, float]
    python: str
    sqlite: str
    pika: str

    def __str__(self) -> str:
        busy = "busy: not known here" if self.busy is None else f"{self.busy:.0%} busy with others"
        load = " ".join(f"{each:.1f}" for each in self.load)
        warning = "" if (self.busy or 0) < 0.1 else "; NOT QUIET: trust the ratios only"
        return (
            f"{self.cores} cores, {busy}, load {load}; Python {self.python},"
            f" SQLite {self.sqlite}, pika {self.pika}{warning}"
        )


def look() -> Machine:
    """Watch the machine for two seconds while we do nothing."""
    return Machine(
        cores=os.cpu_count() or 1,
        busy=_busy(),
        load=os.getloadavg(),
        python=platform.python_version(),
        sqlite=sqlite3.sqlite_version,
        pika=pika.__version__,
    )


def _busy() -> float | None:
    stat = Path("/proc/stat")
    if not stat.exists():
        return None
    before = _ticks(stat)
    time.sleep(LOOK)
    after = _ticks(stat)
    total = sum(after) - sum(before)
    idle = sum(after[3:5]) - sum(before[3:5])
    return 1 - idle / total if total else None


def _ticks(stat: Path) -> list[int]:
    return [int(each) for each in stat.read_text().splitlines()[0].split()[1:]]
