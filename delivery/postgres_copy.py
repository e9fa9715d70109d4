"""Move a publisher from SQLite to PostgreSQL: copy its outbox, as often as it takes."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

from delivery.errors import DeliveryError
from delivery.postgres import Connection, transaction
from delivery.store import reading

__all__ = ["Copied", "copy_outbox"]

_COLUMNS = (
    "position, event_id, event_type, body, correlation_id, accepted_at, attempts,"
    " next_attempt_at, outcome, detail, confirmed_at, subject, traceparent"
)
_ARRIVING = """
CREATE TEMPORARY TABLE arriving (
    position bigint PRIMARY KEY, event_id text UNIQUE, event_type text, body bytea,
    correlation_id text, accepted_at float8, attempts integer, next_attempt_at float8,
    outcome text, detail text, confirmed_at float8, subject text, traceparent text
) ON COMMIT DROP
"""
_NEW = "NOT EXISTS (SELECT FROM outbox WHERE outbox.event_id = arriving.event_id)"
_COUNT = f"""
SELECT count(*) FILTER (WHERE {_NEW} AND confirmed_at IS NULL),
    count(*) FILTER (WHERE {_NEW} AND confirmed_at IS NOT NULL),
    count(*) FILTER (WHERE confirmed_at IS NOT NULL AND EXISTS (SELECT FROM outbox
        WHERE outbox.event_id = arriving.event_id AND outbox.confirmed_at IS NULL)),
    count(*) FILTER (WHERE {_NEW} AND confirmed_at IS NULL AND EXISTS (SELECT FROM outbox
        WHERE outbox.subject = arriving.subject
            AND outbox.accepted_at > to_timestamp(arriving.accepted_at)
            AND outbox.event_id NOT IN (SELECT event_id FROM arriving))),
    count(*)
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


@dataclass(frozen=True)
class Copied:
    """How many rows a copy adds and marks; *known* are there already.

    *overtaken* pending rows would come after a newer event of their material: such a copy is
    refused.
    """

    pending: int
    confirmed: int
    marked: int
    overtaken: int
    known: int


def copy_outbox(source: sqlite3.Connection, target: Connection, *, apply: bool = False) -> Copied:
    """Copy the rows of the outbox in *source*, pending and confirmed, and return what that means.

    Without *apply* it is only planned: nothing is changed. A repeated copy adds what has come
    since, and marks what SQLite's relay has sent since; it never makes a row pending again. Nobody
    should relay *source* meanwhile (only_relay keeps others away), or after: the same events would
    be sent twice. Nor may it be repeated once PostgreSQL's relays have begun to forget what they
    sent (*keep_days*): it would look new. Raises StoreUnavailable; DeliveryError if any row is
    overtaken.
    """
    with transaction(target) as tx:
        tx.execute(_ARRIVING)
        with reading(), tx.cursor().copy(f"COPY arriving ({_COLUMNS}) FROM STDIN") as into:
            for row in source.execute(f"SELECT {_COLUMNS} FROM outbox ORDER BY position"):  # noqa: S608
                into.write_row(row)
        if apply:  # nobody adds or marks between the count and the copy
            tx.execute("LOCK TABLE outbox IN SHARE ROW EXCLUSIVE MODE")
        pending, confirmed, marked, overtaken, rows = tx.execute(_COUNT).fetchone() or (0,) * 5
        if apply and overtaken:
            raise DeliveryError(
                f"{overtaken} pending event(s) would come after a newer one of the same material:"
                " let SQLite's relay send them, and copy then"
            )
        if apply:
            tx.execute(_ADD)
            tx.execute(_MARK)
    return Copied(pending, confirmed, marked, overtaken, rows - pending - confirmed - marked)
