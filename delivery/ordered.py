"""Read ids side by side in ascending order: one of each in memory, however many there are."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable, Iterator
from itertools import groupby

__all__ = ["Ordered", "Scratch", "in_order"]


def in_order(ids: Iterable[str]) -> Iterator[str]:
    """Give each id once, in ascending order."""
    ordered = sorted(ids) if isinstance(ids, Collection) else ids
    return (event_id for event_id, _ in groupby(ordered))


class Ordered:
    """Ids that are asked for in ascending order: two readers side by side, neither looks back."""

    def __init__(self, ids: Iterable[str]) -> None:
        self._ids = in_order(ids)
        self._at = next(self._ids, None)
        self._passed = 0

    def has(self, event_id: str) -> bool:
        """Tell whether *event_id* is among them; greater than every id asked for before."""
        while self._at is not None and self._at < event_id:
            self._passed += 1
            self._at = next(self._ids, None)
        if found := self._at == event_id:
            self._at = next(self._ids, None)
        return found

    def others(self) -> int:
        """Count those that nobody asked for, to the end."""
        return self._passed + (self._at is not None) + sum(1 for _ in self._ids)


class Scratch:
    """Ids that come in any order, put in order in a temporary file, which goes with it."""

    def __init__(self) -> None:
        self._file = sqlite3.connect("")
        self._file.execute("CREATE TABLE ids (id TEXT PRIMARY KEY) WITHOUT ROWID")

    def add(self, event_id: str) -> None:
        """Keep *event_id*; twice is once."""
        self._file.execute("INSERT OR IGNORE INTO ids VALUES (?)", (event_id,))

    def in_order(self) -> Iterator[str]:
        """Give the ids in ascending order."""
        rows: Iterable[tuple[str]] = self._file.execute("SELECT id FROM ids ORDER BY id")
        return (event_id for (event_id,) in rows)

    def close(self) -> None:
        """Give the file up."""
        self._file.close()
