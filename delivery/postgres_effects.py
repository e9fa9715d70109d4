"""The two effects in PostgreSQL: the catalog's card, and the audit log's entry."""

from __future__ import annotations

from delivery.contract import Event
from delivery.handling import Effect
from delivery.postgres import Connection
from delivery.store import Schema

__all__ = ["AUDIT", "CATALOG", "append", "upsert"]

CATALOG = Schema(
    "catalog",
    1,
    """
CREATE TABLE catalog (
    material_id text PRIMARY KEY,
    revision bigint NOT NULL,
    title text NOT NULL,
    slug text NOT NULL,
    author text NOT NULL,
    published_at timestamptz NOT NULL,
    event_id text NOT NULL
)
""",
)
# No UNIQUE on event_id, as in SQLite: it could not prove that there was no second effect.
AUDIT = Schema(
    "audit",
    1,
    """
CREATE TABLE audit (
    entry bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    event_id text NOT NULL,
    material_id text NOT NULL,
    revision bigint NOT NULL,
    title text NOT NULL,
    published_at timestamptz NOT NULL
)
""",
)


def upsert(event: Event, tx: Connection) -> Effect:
    """Write the material's card, as catalog.upsert does."""
    data = event.data
    tx.execute(
        "INSERT INTO catalog VALUES (%s, %s, %s, %s, %s, %s, %s) ON CONFLICT (material_id)"
        " DO UPDATE SET revision = excluded.revision, title = excluded.title,"
        " slug = excluded.slug, author = excluded.author,"
        " published_at = excluded.published_at, event_id = excluded.event_id",
        (
            *(data.material_id, data.revision, data.title, data.slug, data.author),
            *(data.published_at, event.id),
        ),
    )
    return Effect.APPLIED


def append(event: Event, tx: Connection) -> Effect:
    """Add one entry, as audit.append does."""
    data = event.data
    tx.execute(
        "INSERT INTO audit (event_id, material_id, revision, title, published_at)"
        " VALUES (%s, %s, %s, %s, %s)",
        (event.id, data.material_id, data.revision, data.title, data.published_at),
    )
    return Effect.APPLIED
