"""Remember that a publisher was moved to another database, so that nobody starts it here again."""

from __future__ import annotations

import sqlite3
import time

from delivery.errors import DeliveryError
from delivery.store import Schema, reading, transaction

__all__ = ["SCHEMA", "Moved", "note_moved", "refuse_moved"]

# ``moved_at`` in Unix seconds. No row: it was not moved.
SCHEMA = Schema(
    "moved",
    1,
    "CREATE TABLE moved (place TEXT PRIMARY KEY, moved_at REAL NOT NULL) STRICT, WITHOUT ROWID",
)


class Moved(DeliveryError):
    """What this store accepted is sent from another place by now."""


def note_moved(store: sqlite3.Connection, place: str) -> None:
    """Record that what *store* keeps is sent from *place* from now on. Raises StoreUnavailable."""
    with transaction(store) as tx:
        tx.execute("INSERT OR REPLACE INTO moved VALUES (?, ?)", (place, time.time()))


def refuse_moved(store: sqlite3.Connection) -> None:
    """Raise Moved if *store* was moved: what came here now would be sent by nobody, or twice."""
    with reading():
        found = store.execute("SELECT place, moved_at FROM moved ORDER BY moved_at DESC").fetchone()
    if found:
        place, moved_at = found
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(moved_at))
        raise Moved(
            f"this publisher was moved to {place} on {since}; start it there: `delivery postgres"
            " api`, `delivery postgres relay`"
        )
