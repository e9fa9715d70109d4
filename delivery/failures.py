"""Remember each failed attempt: why it failed, and where its message waits since."""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from delivery.connection import describe
from delivery.consumer import FailurePolicy, Settlement
from delivery.copies import cut
from delivery.dead import reason_of
from delivery.handling import Delivery
from delivery.retry import attempt_of
from delivery.routes import Route
from delivery.store import Schema, StoreUnavailable, transaction
from delivery.triage import key_of

__all__ = ["SCHEMA", "Failure", "Watched", "failures_of", "forget", "note"]

log = logging.getLogger(__name__)

# Times are Unix seconds. No retry_at: the message is dead, with that reason.
SCHEMA = Schema(
    "failures",
    2,
    """
CREATE TABLE failure (
    recipient TEXT NOT NULL,
    message_id TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    failed_at REAL NOT NULL,
    error TEXT NOT NULL,
    retry_at REAL,
    reason TEXT,
    PRIMARY KEY (recipient, message_id, attempt)
) STRICT, WITHOUT ROWID;
CREATE INDEX failure_age ON failure (recipient, failed_at)
""",
    # From 1: notes about the dead are forgotten, too.
    steps=(
        """
DROP INDEX failure_age;
CREATE INDEX failure_age ON failure (recipient, failed_at)
""",
    ),
)


@dataclass(frozen=True)
class Failure:
    """One failed attempt, whose message is safe elsewhere by now; times are Unix seconds."""

    recipient: str
    message_id: str
    attempt: int
    failed_at: float
    error: str
    retry_at: float | None  # when its delay is over; None: it is dead
    reason: str | None  # why it is dead; None: it will be tried again


class Watched:
    """Wrap the two ends of a failure policy, so that *tell* hears of each failure.

    It is told when the copy is safe, and can't undo that. Wrap what parks with ``parking``, and the
    whole policy with ``retrying``.
    """

    def __init__(
        self,
        route: Route,
        delays_ms: Sequence[int],
        tell: Callable[[Failure], None],
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._route = route
        self._delays_ms = delays_ms
        self._tell = tell
        self._clock = clock
        self._parked = False

    def parking(self, policy: FailurePolicy) -> FailurePolicy:
        """Wrap the policy that keeps what is dead."""

        def parked(delivery: Delivery, error: Exception) -> Settlement:
            settlement = policy(delivery, error)
            self._parked = True
            self._tell(self._failure(delivery, error, dead=True))
            return settlement

        return parked

    def retrying(self, policy: FailurePolicy) -> FailurePolicy:
        """Wrap the whole policy; what it has parked is not told twice."""

        def retried(delivery: Delivery, error: Exception) -> Settlement:
            self._parked = False
            settlement = policy(delivery, error)
            if not self._parked:
                self._tell(self._failure(delivery, error, dead=False))
            return settlement

        return retried

    def _failure(self, delivery: Delivery, error: Exception, *, dead: bool) -> Failure:
        now, attempt = self._clock(), attempt_of(delivery)
        return Failure(
            self._route.recipient,
            key_of(delivery),
            attempt,
            now,
            cut(describe(error)),
            None if dead else now + self._delays_ms[attempt - 1] / 1000,
            reason_of(error) if dead else None,
        )


def note(store: sqlite3.Connection, failure: Failure) -> None:
    """Keep *failure*; those of earlier lives of its message, before a replay, give way.

    A store that can't be used is logged and not raised: the message itself is safe.
    """
    key = (failure.recipient, failure.message_id, failure.attempt)
    rest = (failure.failed_at, failure.error, failure.retry_at, failure.reason)
    try:
        with transaction(store) as tx:
            tx.execute(
                "DELETE FROM failure WHERE recipient = ? AND message_id = ? AND attempt >= ?", key
            )
            tx.execute("INSERT INTO failure VALUES (?, ?, ?, ?, ?, ?, ?)", (*key, *rest))
    except StoreUnavailable as error:
        log.warning("failure.not_noted", extra={"message_id": key[1], "error": describe(error)})


def forget(
    store: sqlite3.Connection,
    recipient: str,
    *,
    before: float,
    oldest_dead: float | None,
    most: int,
) -> int:
    """Forget the oldest *most* failures from before *before* (Unix seconds); return how many.

    Never past *oldest_dead*, when the oldest dead event was sent: it can have failed only later.
    """
    limit = before if oldest_dead is None else min(before, oldest_dead)
    with transaction(store) as tx:
        gone = tx.execute(
            "DELETE FROM failure WHERE recipient = ? AND (message_id, attempt) IN"
            " (SELECT message_id, attempt FROM failure WHERE recipient = ? AND failed_at < ?"
            " ORDER BY failed_at LIMIT ?)",
            (recipient, recipient, limit, most),
        )
    return gone.rowcount


def failures_of(store: sqlite3.Connection, recipient: str, message_id: str) -> list[Failure]:
    """Return the message's failed attempts, the first one first."""
    rows = store.execute(
        "SELECT recipient, message_id, attempt, failed_at, error, retry_at, reason FROM failure"
        " WHERE recipient = ? AND message_id = ? ORDER BY attempt",
        (recipient, message_id),
    )
    return [Failure(*row) for row in rows]
