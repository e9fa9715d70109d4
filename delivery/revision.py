"""Let the latest revision win, whatever order the events arrive in."""

from __future__ import annotations

import hashlib
import sqlite3

from delivery.contract import Event
from delivery.errors import PermanentError
from delivery.handling import Effect, Handler
from delivery.store import Schema

__all__ = ["SCHEMA", "RevisionConflict", "latest_only"]

SCHEMA = Schema(
    "revision",
    1,
    """
CREATE TABLE latest (
    subject TEXT PRIMARY KEY,
    revision INTEGER NOT NULL,
    digest TEXT NOT NULL
) STRICT, WITHOUT ROWID
""",
)


class RevisionConflict(PermanentError):
    """Two events claim the same revision with different data: a person must decide."""

    reason = "conflict"


def latest_only(handle: Handler) -> Handler:
    """Wrap *handle* so that an event which is not newer than the last one changes nothing.

    Returns STALE for it. Raises RevisionConflict for the same revision with other data: to pick
    one in silence would hide a fault of the publisher.
    """

    def apply(event: Event, tx: sqlite3.Connection) -> Effect:
        data = event.data
        digest = hashlib.sha256(data.model_dump_json().encode()).hexdigest()
        known = tx.execute(
            "SELECT revision, digest FROM latest WHERE subject = ?", (event.subject,)
        ).fetchone()
        if known and known[0] == data.revision and known[1] != digest:
            raise RevisionConflict(
                f"{event.subject!r} has revision {data.revision} with other data"
            )
        if known and known[0] >= data.revision:
            return Effect.STALE
        tx.execute(
            "INSERT INTO latest VALUES (?, ?, ?) ON CONFLICT (subject) DO UPDATE"
            " SET revision = excluded.revision, digest = excluded.digest",
            (event.subject, data.revision, digest),
        )
        return handle(event, tx)

    return apply
