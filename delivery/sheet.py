"""Keep any number of dead messages, and what is done with each, in a temporary file."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields
from typing import Any

from delivery.handling import Effect
from delivery.inbox import Receipt
from delivery.plan import Planned, Prospect
from delivery.triage import DeadMessage

__all__ = ["Sheet"]

PAGE = 500  # rows that are in memory at a time
LARGEST = 2**63 - 1  # of SQLite's whole numbers; a stranger's count may be larger
PLANNED = "message, receipt, prospect"
NAMES = [each.name for each in fields(DeadMessage)]
_SCHEMA = """
PRAGMA journal_mode = OFF;  -- nothing is ever taken back
CREATE TABLE dead (
    position INTEGER PRIMARY KEY,
    key TEXT NOT NULL,
    reason TEXT NOT NULL,
    replays INTEGER NOT NULL,
    message TEXT NOT NULL,
    receipt TEXT,
    prospect TEXT,
    result TEXT
);
CREATE INDEX dead_key ON dead (key);
CREATE TABLE act (entry INTEGER PRIMARY KEY, key TEXT NOT NULL);
CREATE INDEX act_key ON act (key);
"""


class Sheet:
    """Dead messages in their order; as a collection, their keys. Close it.

    There may be a million of them: SQLite writes them to a file that goes with its process.
    """

    def __init__(self) -> None:
        self._file = sqlite3.connect("")
        self._file.executescript(_SCHEMA)

    def write(self, messages: Iterable[DeadMessage]) -> None:
        """Write the messages down, one by one."""
        self._file.executemany(
            "INSERT INTO dead (key, reason, replays, message) VALUES (?, ?, ?, ?)",
            ((m.key, m.reason, min(m.replays, LARGEST), _written(m)) for m in messages),
        )

    def close(self) -> None:
        """Give the file up."""
        self._file.close()

    def __len__(self) -> int:
        return int(self._one("SELECT count(*) FROM dead"))

    def __iter__(self) -> Iterator[str]:
        return (key for page in self._pages("key") for _, key in page)

    def __contains__(self, key: object) -> bool:
        return bool(self._one("SELECT EXISTS (SELECT 1 FROM dead WHERE key = ?)", key))

    def messages(self) -> Iterator[DeadMessage]:
        """Give the messages."""
        return (_read(text) for page in self._pages("message") for _, text in page)

    def keep(self, chosen: Callable[[DeadMessage], bool]) -> None:
        """Cross out every message that is not *chosen*."""
        for page in self._pages("message"):
            gone = [(position,) for position, text in page if not chosen(_read(text))]
            self._file.executemany("DELETE FROM dead WHERE position = ?", gone)

    def reasons(self) -> dict[str, int]:
        """Count the messages by reason, the most frequent first."""
        return self._counts("reason")

    def plan(self, plan: Callable[[Sequence[DeadMessage]], Iterable[Planned]]) -> None:
        """Note what *plan* says of the messages; it is given a page of them at a time."""
        for page in self._pages("message"):
            planned = plan([_read(text) for _, text in page])
            self._file.executemany(
                "UPDATE dead SET receipt = ?, prospect = ? WHERE position = ?",
                [(*_noted(each), at) for (at, _), each in zip(page, planned, strict=True)],
            )

    def planned(self) -> Iterator[Planned]:
        """Give the messages with what was planned."""
        return (planned_of(*row) for page in self._pages(PLANNED) for _, *row in page)

    def prospects(self) -> dict[Prospect, int]:
        """Count the planned by what to expect, the most frequent first."""
        return {Prospect[name]: count for name, count in self._counts("prospect").items()}

    def _pages(self, columns: str, where: str = "TRUE") -> Iterator[list[Any]]:
        """Give rows, a page at a time: whoever reads them may change them."""
        ask = (
            f"SELECT position, {columns} FROM dead WHERE position > ? AND {where}"  # noqa: S608
            f" ORDER BY position LIMIT {PAGE}"
        )
        last = 0
        while page := self._file.execute(ask, (last,)).fetchall():
            last = page[-1][0]
            yield page

    def _counts(self, column: str) -> dict[str, int]:
        ask = f"SELECT {column}, count(*) AS n FROM dead GROUP BY 1"  # noqa: S608
        return dict(self._file.execute(f"{ask} ORDER BY n DESC, 1").fetchall())

    def _one(self, ask: str, *given: object) -> Any:
        return self._file.execute(ask, given).fetchone()[0]


def _written(message: DeadMessage) -> str:
    return json.dumps([getattr(message, name) for name in NAMES])


def _read(text: str) -> DeadMessage:
    return DeadMessage(*json.loads(text))


def _noted(planned: Planned) -> tuple[str | None, str]:
    """Return the columns *receipt* and *prospect*."""
    about, found = None, planned.receipt
    if found:
        about = json.dumps([found.effect.value, found.received_at, found.duplicates])
    return about, planned.prospect.name


def planned_of(message: str, receipt: str | None, prospect: str) -> Planned:
    """Return what the columns of PLANNED say."""
    found = None
    if receipt:
        effect, *rest = json.loads(receipt)
        found = Receipt(Effect(effect), *rest)
    return Planned(_read(message), found, Prospect[prospect])
