"""The course's lessons: their titles, how to run one, and which this reader has run."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from delivery.errors import DeliveryError

__all__ = ["Progress", "Title", "find", "run", "titles"]

LESSONS = Path(__file__).parents[1] / "lessons"


@dataclass(frozen=True)
class Title:
    """What a lesson is about, from its notes."""

    number: int
    title: str
    promise: str
    folder: Path


@dataclass(frozen=True)
class Progress:
    """The reader's own record, a JSON file: lesson number -> seconds of its last good run."""

    file: Path

    def seconds(self) -> dict[int, float]:
        """Return what is recorded; a file that can't be read counts as empty."""
        try:
            stored = json.loads(self.file.read_text(encoding="utf-8"))
            return {int(number): float(seconds) for number, seconds in stored.items()}
        except (FileNotFoundError, ValueError, AttributeError, TypeError):
            return {}

    def record(self, number: int, seconds: float) -> None:
        """Add a good run."""
        done = self.seconds() | {number: round(seconds, 1)}
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self.file.write_text(json.dumps(done), encoding="utf-8")

    def reset(self) -> None:
        """Forget everything."""
        self.file.unlink(missing_ok=True)


def titles() -> list[Title]:
    """Return all lessons in order. Raises DeliveryError outside a checkout."""
    if not LESSONS.is_dir():
        raise DeliveryError("the lessons are in the project's checkout: run this there")
    return [_title(notes) for notes in sorted(LESSONS.glob("[0-9][0-9]/notes.md"))]


def find(number: int) -> Title:
    """Return one lesson. Raises DeliveryError if there is none with this number."""
    known = titles()
    for title in known:
        if title.number == number:
            return title
    have = ", ".join(f"{title.number}" for title in known)
    raise DeliveryError(f"there is no lesson {number}; there are: {have}")


def run(title: Title, options: Sequence[str], progress: Progress) -> int:
    """Run the lesson's script with *options*; record a good run, and return the exit code."""
    begun = time.monotonic()
    command = [sys.executable, str(title.folder / "run.py"), *options]
    state = {
        "DELIVERY_DATA": str(progress.file.parent.absolute())
    }  # the same broker, as --data says
    code = subprocess.run(command, env=os.environ | state).returncode
    if code == 0 and "--cost" not in options:
        progress.record(title.number, time.monotonic() - begun)
    return code


def _title(notes: Path) -> Title:
    text = notes.read_text(encoding="utf-8")
    title = re.search(r"^# \d\d (.+)$", text, re.M)
    promise = re.search(r"^\*\*Promise:?\*\*:? *(.+?)\n\n", text, re.M | re.S)
    return Title(
        number=int(notes.parent.name),
        title=title[1] if title else notes.parent.name,
        promise=" ".join(promise[1].replace("*", "").split()) if promise else "",
        folder=notes.parent,
    )
