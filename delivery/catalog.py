"""The catalog's effect: keep each material as its latest event describes it."""

from __future__ import annotations

import sqlite3

from delivery.contract import Event
from delivery.handling import Effect
from delivery.store import Schema

__all__ = ["SCHEMA", "upsert"]

SCHEMA = Schema(
    "catalog",
    1,
    """
CREATE TABLE catalog (
    material_id TEXT PRIMARY KEY,
    revision INTEGER NOT NULL,
    title TEXT NOT NULL,
    slug TEXT NOT NULL,
    author TEXT NOT NULL,
    published_at TEXT NOT NULL,
    event_id TEXT NOT NULL
) STRICT, WITHOUT ROWID
""",
)


def upsert(event: Event, tx: sqlite3.Connection) -> Effect:
    """Write the material's card. Which event is the latest is somebody else's decision."""
    data = event.data
    tx.execute(
        "INSERT INTO catalog VALUES (?, ?, ?, ?, ?, ?, ?)"
        " ON CONFLICT (material_id) DO UPDATE SET revision = excluded.revision,"
        " title = excluded.title, slug = excluded.slug, author = excluded.author,"
        " published_at = excluded.published_at, event_id = excluded.event_id",
        (
            data.material_id,
            data.revision,
            data.title,
            data.slug,
            data.author,
            data.published_at.isoformat(),
            event.id,
        ),
    )
    return Effect.APPLIED
