"""Keep who did what to which message, why, and what came of it: the operators' audit trail."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from delivery.errors import DeliveryError
from delivery.store import Schema, reading, transaction

__all__ = [
    "SCHEMA",
    "Action",
    "Entry",
    "begin",
    "begin_all",
    "check_reason",
    "conclude",
    "entries",
    "forget",
]

Action = Literal["replay", "drop", "send again"]

# In the publisher's store: one trail for all recipients. Times are Unix seconds. No result: the
# operator's program did not live to record one.
SCHEMA = Schema(
    "trail",
    1,
    """
CREATE TABLE trail (
    entry INTEGER PRIMARY KEY AUTOINCREMENT,
    decided_at REAL NOT NULL,
    action TEXT NOT NULL,
    recipient TEXT NOT NULL,
    message_id TEXT NOT NULL,
    dead_reason TEXT NOT NULL,
    operator TEXT NOT NULL,
    reason TEXT NOT NULL,
    result TEXT
) STRICT;
CREATE INDEX trail_message ON trail (message_id)
""",
)


@dataclass(frozen=True)
class Entry:
    """One act on one message; ``dead_reason`` is why it was dead, empty if it was not."""

    entry: int
    decided_at: float
    action: str
    recipient: str
    message_id: str
    dead_reason: str
    operator: str
    reason: str
    result: str | None


def check_reason(reason: str) -> None:
    """Raise DeliveryError for a reason that says nothing."""
    if not reason.strip():
        raise DeliveryError("say why: what is done to a message needs a reason")


def begin(
    store: sqlite3.Connection,
    action: Action,
    recipient: str,
    message_id: str,
    *,
    operator: str,
    reason: str,
    dead_reason: str = "",
) -> int:
    """Record the act before it is done, and return its entry. Raises DeliveryError for no reason.

    Done and not recorded is worse than recorded and not done.
    """
    messages = [(message_id, dead_reason)]
    return begin_all(store, action, recipient, messages, operator=operator, reason=reason)[0]


def begin_all(
    store: sqlite3.Connection,
    action: Action,
    recipient: str,
    messages: Iterable[tuple[str, str]],
    *,
    operator: str,
    reason: str,
) -> list[int]:
    """Record one act on many *messages* (ids, and why each is dead) in one commit."""
    check_reason(reason)
    made = []
    with transaction(store) as tx:
        for message_id, dead_reason in messages:
            row = tx.execute(
                "INSERT INTO trail"
                " (decided_at, action, recipient, message_id, dead_reason, operator, reason)"
                " VALUES (?, ?, ?, ?, ?, ?, ?)",
                (time.time(), action, recipient, message_id, dead_reason, operator, reason),
            )
            made.append(int(row.lastrowid or 0))
    return made


def conclude(store: sqlite3.Connection, results: Iterable[tuple[int, str]]) -> None:
    """Keep what came of each entry."""
    with transaction(store) as tx:
        tx.executemany(
            "UPDATE trail SET result = ? WHERE entry = ?",
            ((result, entry) for entry, result in results),
        )


def forget(store: sqlite3.Connection, *, before: float, most: int) -> int:
    """Forget those of the oldest *most* acts that are from before *before* (Unix seconds).

    Returns how many.
    """
    with transaction(store) as tx:
        gone = tx.execute(
            "DELETE FROM trail WHERE entry < (SELECT min(entry) FROM trail) + ? AND decided_at < ?",
            (most, before),
        )
    return gone.rowcount


def entries(
    store: sqlite3.Connection, *, recipient: str = "", message_id: str = "", limit: int = 50
) -> list[Entry]:
    """Return the latest *limit* entries, oldest first; a message may be named by how it begins."""
    with reading():
        rows = store.execute(
            "SELECT entry, decided_at, action, recipient, message_id, dead_reason, operator,"
            " reason, result FROM trail WHERE (? = '' OR recipient = ?)"
            " AND substr(message_id, 1, length(?)) = ? ORDER BY entry DESC LIMIT ?",
            (recipient, recipient, message_id, message_id, limit),
        ).fetchall()
    return [Entry(*row) for row in reversed(rows)]
