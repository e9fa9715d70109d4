"""Remember each failed attempt in a recipient's PostgreSQL: why, and where its message waits."""

from __future__ import annotations

import logging

from delivery.connection import describe
from delivery.failures import Failure
from delivery.postgres import Connection, storable, transaction
from delivery.store import Schema, StoreUnavailable

__all__ = ["SCHEMA", "failures_of", "forget", "note"]

log = logging.getLogger(__name__)

# No retry_at: the message is dead, with that reason.
SCHEMA = Schema(
    "failures",
    1,
    """
CREATE TABLE failure (
    recipient text NOT NULL,
    message_id text NOT NULL,
    attempt bigint NOT NULL,
    failed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    error text NOT NULL,
    retry_at timestamptz,
    reason text,
    PRIMARY KEY (recipient, message_id, attempt)
);
CREATE INDEX failure_age ON failure (recipient, failed_at)
""",
)


def note(store: Connection, failure: Failure) -> None:
    """Keep *failure*, as failures.note does, with the time by the server's clock."""
    message_id = storable(failure.message_id)
    key = (failure.recipient, message_id, failure.attempt)
    wait = None if failure.retry_at is None else failure.retry_at - failure.failed_at
    try:
        with transaction(store) as tx:
            tx.execute(
                "DELETE FROM failure WHERE recipient = %s AND message_id = %s AND attempt >= %s",
                key,
            )
            tx.execute(
                "INSERT INTO failure (recipient, message_id, attempt, error, reason, retry_at)"
                " VALUES (%s, %s, %s, %s, %s, clock_timestamp() + make_interval(secs => %s))",
                (*key, storable(failure.error), failure.reason, wait),
            )
    except StoreUnavailable as error:
        log.warning("failure.not_noted", extra={"message_id": message_id, "error": describe(error)})


def failures_of(store: Connection, recipient: str, message_id: str) -> list[Failure]:
    """Return the message's failed attempts, the first one first."""
    rows = store.execute(
        "SELECT recipient, message_id, attempt, extract(epoch FROM failed_at)::float8, error,"
        " extract(epoch FROM retry_at)::float8, reason FROM failure"
        " WHERE recipient = %s AND message_id = %s ORDER BY attempt",
        (recipient, storable(message_id)),
    )
    return [Failure(*row) for row in rows]


def forget(
    store: Connection, recipient: str, *, before: float, oldest_dead: float | None, most: int
) -> int:
    """Forget failures from before *before* (Unix seconds), as failures.forget does."""
    limit = before if oldest_dead is None else min(before, oldest_dead)
    with transaction(store) as tx:
        gone = tx.execute(
            "DELETE FROM failure WHERE recipient = %s AND (message_id, attempt) IN"
            " (SELECT message_id, attempt FROM failure"
            " WHERE recipient = %s AND failed_at < to_timestamp(%s) ORDER BY failed_at LIMIT %s)",
            (recipient, recipient, limit, most),
        )
    return gone.rowcount
