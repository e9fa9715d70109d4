"""Let the latest revision win in PostgreSQL, with several consumers at once."""

from __future__ import annotations

import hashlib

from delivery.contract import Event
from delivery.handling import Effect
from delivery.postgres import Connection
from delivery.postgres_inbox import PostgresHandler
from delivery.revision import RevisionConflict
from delivery.store import Schema

__all__ = ["SCHEMA", "latest_only"]

SCHEMA = Schema(
    "revision",
    1,
    """
CREATE TABLE latest (
    subject text PRIMARY KEY,
    revision bigint NOT NULL,
    digest text NOT NULL
)
""",
)


def latest_only(handle: PostgresHandler) -> PostgresHandler:
    """Wrap *handle* as revision.latest_only does: STALE for what is not newer than the last one.

    Comparing and writing is one statement: between two, another consumer could commit a newer
    revision. The row stays locked until the commit, so that effects come in the same order. Raises
    RevisionConflict.
    """

    def apply(event: Event, tx: Connection) -> Effect:
        data = event.data
        digest = hashlib.sha256(data.model_dump_json().encode()).hexdigest()
        newer = tx.execute(
            "INSERT INTO latest VALUES (%s, %s, %s) ON CONFLICT (subject) DO UPDATE"
            " SET revision = excluded.revision, digest = excluded.digest"
            " WHERE latest.revision < excluded.revision",
            (event.subject, data.revision, digest),
        )
        if newer.rowcount == 1:
            return handle(event, tx)
        known = tx.execute(
            "SELECT revision, digest FROM latest WHERE subject = %s", (event.subject,)
        ).fetchone()
        if known and known[0] == data.revision and known[1] != digest:
            raise RevisionConflict(
                f"{event.subject!r} has revision {data.revision} with other data"
            )
        return Effect.STALE

    return apply
