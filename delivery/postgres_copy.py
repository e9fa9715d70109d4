"""Move a publisher from SQLite to PostgreSQL: all of it at once, as often as it takes."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

from delivery.errors import DeliveryError
from delivery.moved import note_moved
from delivery.points import reach
from delivery.postgres import Connection, transaction
from delivery.postgres_turns import hold_writers
from delivery.store import reading

__all__ = ["Copied", "copy_publisher"]

_EVENTS = (
    "position, event_id, event_type, body, correlation_id, accepted_at, attempts,"
    " next_attempt_at, outcome, detail, confirmed_at, subject, traceparent"
)
_MATERIAL = "material_id, revision, title, slug, author, summary, published_at"
_REQUEST = "idempotency_key, digest, answer, accepted_at"
# What is read from SQLite, and the temporary table that it comes into.
_ARRIVING = {
    f"SELECT {_EVENTS} FROM outbox ORDER BY position": (  # noqa: S608 - constants
        "arriving",
        "position bigint PRIMARY KEY, event_id text UNIQUE, event_type text, body bytea,"
        " correlation_id text, accepted_at float8, attempts integer, next_attempt_at float8,"
        " outcome text, detail text, confirmed_at float8, subject text, traceparent text",
    ),
    f"SELECT {_MATERIAL} FROM material": (  # noqa: S608
        "arriving_material",
        "material_id text PRIMARY KEY, revision bigint, title text, slug text, author text,"
        " summary text, published_at timestamptz",
    ),
    f"SELECT {_REQUEST} FROM request": (  # noqa: S608
        "arriving_request",
        "idempotency_key text PRIMARY KEY, digest text, answer text, accepted_at float8",
    ),
    "SELECT rows, before FROM outbox_removed": ("arriving_removed", "rows bigint, before float8"),
}
_NEW = "NOT EXISTS (SELECT FROM outbox WHERE outbox.event_id = arriving.event_id)"
# A row of the same material that only PostgreSQL has.
_OWN = """FROM outbox WHERE outbox.subject = arriving.subject
    AND NOT EXISTS (SELECT FROM arriving AS a WHERE a.event_id = outbox.event_id)"""
_COUNT = f"""
SELECT count(*) FILTER (WHERE {_NEW} AND confirmed_at IS NULL),
    count(*) FILTER (WHERE {_NEW} AND confirmed_at IS NOT NULL),
    count(*) FILTER (WHERE confirmed_at IS NOT NULL AND EXISTS (SELECT FROM outbox
        WHERE outbox.event_id = arriving.event_id AND outbox.confirmed_at IS NULL)),
    count(*),
    (SELECT count(*) FROM arriving_material AS one WHERE NOT EXISTS (SELECT FROM material
        WHERE material.material_id = one.material_id AND material.revision >= one.revision)),
    (SELECT count(*) FROM arriving_request AS one WHERE NOT EXISTS (SELECT FROM request
        WHERE request.idempotency_key = one.idempotency_key)),
    count(*) FILTER (WHERE {_NEW} AND confirmed_at IS NULL AND EXISTS (SELECT {_OWN}
        AND outbox.accepted_at > to_timestamp(arriving.accepted_at))),
    count(*) FILTER (WHERE {_NEW} AND EXISTS (SELECT {_OWN})
        AND EXISTS (SELECT FROM material WHERE material_id = arriving.subject)),
    count(*) FILTER (WHERE {_NEW} AND to_timestamp(arriving.accepted_at) <
        (SELECT before FROM outbox_removed))
FROM arriving
"""  # noqa: S608 - put together from constants
_ADD = f"""
INSERT INTO outbox (event_id, event_type, body, correlation_id, accepted_at, attempts,
    next_attempt_at, outcome, detail, confirmed_at, subject, traceparent)
SELECT event_id, event_type, body, correlation_id, to_timestamp(accepted_at), attempts,
    to_timestamp(next_attempt_at), outcome, detail, to_timestamp(confirmed_at), subject, traceparent
FROM arriving WHERE {_NEW} ORDER BY position
"""  # noqa: S608 - put together from constants
_MARK = """
UPDATE outbox SET confirmed_at = to_timestamp(arriving.confirmed_at), outcome = arriving.outcome,
    detail = arriving.detail, attempts = arriving.attempts
FROM arriving WHERE outbox.event_id = arriving.event_id
    AND outbox.confirmed_at IS NULL AND arriving.confirmed_at IS NOT NULL
"""
_ADD_MATERIALS = f"""
INSERT INTO material ({_MATERIAL}) SELECT {_MATERIAL} FROM arriving_material
ON CONFLICT (material_id) DO UPDATE SET revision = excluded.revision, title = excluded.title,
    slug = excluded.slug, author = excluded.author, summary = excluded.summary,
    published_at = excluded.published_at
WHERE material.revision < excluded.revision
"""  # noqa: S608 - put together from constants
_ADD_REQUESTS = f"""
INSERT INTO request ({_REQUEST}, event_id)
SELECT idempotency_key, digest, answer, to_timestamp(accepted_at), answer::json ->> 'event_id'
FROM arriving_request WHERE answer::json ->> 'event_id' IN (SELECT event_id FROM arriving)
ON CONFLICT (idempotency_key) DO NOTHING
"""  # noqa: S608 - put together from constants
_ADD_REMOVED = """
INSERT INTO outbox_removed AS known SELECT 1, rows, to_timestamp(before) FROM arriving_removed
ON CONFLICT (one) DO UPDATE SET before = greatest(known.before, excluded.before)
"""


@dataclass(frozen=True)
class Copied:
    """How much a copy adds (of materials: or renews) and marks; *known* rows are there already.

    It is refused for pending rows that would be *overtaken* by a newer event of their material; for
    rows of materials that were *forked*, published on both sides; and for rows that are so *old*
    that PostgreSQL's relays may have sent and removed them.
    """

    pending: int
    confirmed: int
    marked: int
    known: int
    materials: int = 0
    requests: int = 0
    overtaken: int = 0
    forked: int = 0
    old: int = 0

    def refusal(self) -> str:
        """Say why this copy is refused; empty if it is not."""
        if self.forked:
            return f"{self.forked} event(s) are of materials that were published on both sides"
        if self.overtaken:
            return (
                f"{self.overtaken} pending event(s) would come after a newer one of the same"
                " material: let SQLite's relay send them, and copy then"
            )
        if self.old:
            return f"{self.old} event(s) are so old that PostgreSQL's relays may have removed them"
        return ""


def copy_publisher(
    source: sqlite3.Connection, target: Connection, *, apply: bool = False
) -> Copied:
    """Copy what the publisher in *source* keeps, and return what that means.

    Without *apply* it is only planned: nothing is changed. With it, everything is copied in one
    transaction; relays and readers in PostgreSQL go on, writers wait for its end. A repeated copy
    adds what has come since, and marks what SQLite's relay has sent since; it never makes a row
    pending again. Nobody should accept into *source* or relay it meanwhile (unserved and only_relay
    keep others away), or after: what came would never be sent, or twice. So it is noted in *source*
    last of all (refuse_moved). Raises StoreUnavailable; DeliveryError if it is refused.
    """
    with transaction(target) as tx:
        _fetch(source, tx)
        if apply:  # nobody adds between the count and the copy
            hold_writers(tx)
        pending, confirmed, marked, rows, *rest = tx.execute(_COUNT.encode()).fetchone() or ()
        found = Copied(pending, confirmed, marked, rows - pending - confirmed - marked, *rest)
        if apply and found.refusal():
            raise DeliveryError(found.refusal())
        if apply:
            for each in (_ADD, _MARK, _ADD_MATERIALS, _ADD_REQUESTS, _ADD_REMOVED):
                tx.execute(each.encode())
            reach("copy.written")
    if apply:
        reach("copy.committed")
        note_moved(source, _place(target))
    return found


def _place(target: Connection) -> str:
    return f"the database {target.info.dbname} on {target.info.host}"


def _fetch(source: sqlite3.Connection, tx: Connection) -> None:
    """Bring everything into temporary tables, as it was in one instant."""
    with reading():
        source.execute("BEGIN")
        try:
            for query, (table, columns) in _ARRIVING.items():
                tx.execute(f"CREATE TEMPORARY TABLE {table} ({columns}) ON COMMIT DROP".encode())
                with tx.cursor().copy(f"COPY {table} FROM STDIN".encode()) as into:
                    for row in source.execute(query):
                        into.write_row(row)
                tx.execute(f"ANALYZE {table}".encode())
        finally:
            source.execute("ROLLBACK")
