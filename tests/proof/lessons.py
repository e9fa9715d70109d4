"""Read what a lesson's notes claim."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = sorted((ROOT / "lessons").glob("[0-9][0-9]"))


@dataclass(frozen=True)
class Mutant:
    """A change that breaks the promise, and the test that must notice."""

    lesson: str
    number: int
    caught_by: str
    diff: str

    def __str__(self) -> str:
        return f"{self.lesson}-{self.number}"


def notes(folder: Path) -> str:
    return (folder / "notes.md").read_text(encoding="utf-8")


def blocks(text: str, kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```$", text, re.M | re.S)


def mutants(folder: Path) -> list[Mutant]:
    found = re.findall(
        r"^<!-- caught by: (\S+) -->\n```diff\n(.*?)^```$", notes(folder), re.M | re.S
    )
    return [Mutant(folder.name, n, test, diff) for n, (test, diff) in enumerate(found, start=1)]
