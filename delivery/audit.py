"""The audit log's effect: write down every event, in the order of arrival."""

from __future__ import annotations

import sqlite3

from delivery.contract import Event
from delivery.handling import Effect
from delivery.store import Schema

__all__ = ["SCHEMA", "append"]

# No UNIQUE on event_id: an audit log that hid a second effect could not prove there was none.
SCHEMA = Schema(
    "audit",
    1,
    """
CREATE TABLE audit (
    entry INTEGER PRIMARY KEY,
    event_id TEXT NOT NULL,
    material_id TEXT NOT NULL,
    revision INTEGER NOT NULL,
    title TEXT NOT NULL,
    published_at TEXT NOT NULL
) STRICT
""",
)


def append(event: Event, tx: sqlite3.Connection) -> Effect:
    """Add one entry; an older revision is an entry like any other."""
    data = event.data
    tx.execute(
        "INSERT INTO audit (event_id, material_id, revision, title, published_at)"
        " VALUES (?, ?, ?, ?, ?)",
        (
            event.id,
            data.material_id,
            data.revision,
            data.title,
            data.published_at.isoformat(),
        ),
    )
    return Effect.APPLIED
