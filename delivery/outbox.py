"""Record what must be published in the transaction that made it true."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from pika import BasicProperties

from delivery.codec import encode
from delivery.confirms import Answer, Outcome
from delivery.contract import Event
from delivery.publisher import Message, envelope
from delivery.recovery import Backoff
from delivery.store import Schema, reading, transaction
from delivery.traceparent import TRACEPARENT

__all__ = ["SCHEMA", "Batch", "Outbox", "SqliteOutbox", "add", "removed", "sent"]

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0  # seconds
BACKOFF = Backoff(FIRST_PAUSE, LONGEST_PAUSE)
_Row = tuple[int, str, str, bytes, str, float, str | None, int]

# How many rows are confirmed, kept with every change of any of them: to count a million takes long.
_SENT = """
CREATE TABLE outbox_sent (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    rows INTEGER NOT NULL
) STRICT;
INSERT INTO outbox_sent SELECT 1, count(confirmed_at) FROM outbox;
CREATE TRIGGER outbox_sent_insert AFTER INSERT ON outbox WHEN NEW.confirmed_at IS NOT NULL
    BEGIN UPDATE outbox_sent SET rows = rows + 1; END;
CREATE TRIGGER outbox_sent_update AFTER UPDATE OF confirmed_at ON outbox
    WHEN (OLD.confirmed_at IS NULL) <> (NEW.confirmed_at IS NULL)
    BEGIN UPDATE outbox_sent SET rows = rows + iif(NEW.confirmed_at IS NULL, -1, 1); END;
CREATE TRIGGER outbox_sent_delete AFTER DELETE ON outbox WHEN OLD.confirmed_at IS NOT NULL
    BEGIN UPDATE outbox_sent SET rows = rows - 1; END
"""

# Times are Unix seconds. A row's state follows from facts: there is no IN_PROGRESS that a crash
# could leave behind.
SCHEMA = Schema(
    "outbox",
    5,
    """
CREATE TABLE outbox (
    position INTEGER PRIMARY KEY AUTOINCREMENT,
    event_id TEXT NOT NULL UNIQUE,
    event_type TEXT NOT NULL,
    body BLOB NOT NULL,
    correlation_id TEXT NOT NULL,
    accepted_at REAL NOT NULL,
    attempts INTEGER NOT NULL DEFAULT 0,
    next_attempt_at REAL NOT NULL DEFAULT 0,
    outcome TEXT,
    detail TEXT,
    confirmed_at REAL,
    subject TEXT NOT NULL DEFAULT '',
    traceparent TEXT
) STRICT;
CREATE INDEX outbox_due ON outbox (next_attempt_at, position) WHERE confirmed_at IS NULL;
CREATE INDEX outbox_request ON outbox (correlation_id);
CREATE INDEX outbox_subject ON outbox (subject);
CREATE TABLE outbox_removed (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    rows INTEGER NOT NULL,
    before REAL NOT NULL
) STRICT;
"""
    + _SENT,
    steps=(
        # From 1: find events by the request or by the material, too.
        """
ALTER TABLE outbox ADD COLUMN subject TEXT NOT NULL DEFAULT '';
UPDATE outbox SET subject = coalesce(json_extract(CAST(body AS TEXT), '$.subject'), '')
    WHERE json_valid(CAST(body AS TEXT));
CREATE INDEX outbox_request ON outbox (correlation_id);
CREATE INDEX outbox_subject ON outbox (subject)
""",
        # From 2: the trace that the request belongs to.
        "ALTER TABLE outbox ADD COLUMN traceparent TEXT",
        # From 3: what is left of rows that were removed.
        """
CREATE TABLE outbox_removed (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    rows INTEGER NOT NULL,
    before REAL NOT NULL
) STRICT
""",
        # From 4: how many are confirmed.
        _SENT,
    ),
)


class Batch(Protocol):
    """Messages that are due and held by one relay, oldest attempt first."""

    @property
    def messages(self) -> Sequence[Message]:
        """The messages to publish."""

    def record(self, answers: Sequence[Answer]) -> None:
        """Keep the answers to the first ``len(answers)`` messages; the others were not tried."""


class Outbox(Protocol):
    """What a relay needs from a database."""

    def batch(self, limit: int) -> AbstractContextManager[Batch]:
        """Hold at most *limit* due messages until the block ends."""


def add(
    tx: sqlite3.Connection,
    event: Event,
    *,
    correlation_id: str,
    accepted_at: float,
    traceparent: str | None = None,
) -> None:
    """Queue *event* for publishing, if and only if *tx* commits; *traceparent* becomes a header.

    Raises ValueError for what could never be sent: such a row would fail for ever.
    """
    envelope(event.id, event.type, timestamp=int(accepted_at), correlation_id=correlation_id)
    tx.execute(
        "INSERT INTO outbox"
        " (event_id, event_type, body, correlation_id, accepted_at, subject, traceparent)"
        " VALUES (?, ?, ?, ?, ?, ?, ?)",
        (
            *(event.id, event.type, encode(event), correlation_id, accepted_at),
            *(event.subject, traceparent),
        ),
    )


def removed(store: sqlite3.Connection) -> tuple[int, float]:
    """Return how many rows were removed, and the time before which a missing one is no sign.

    The time is in Unix seconds; (0, 0.0) if none was.
    """
    row = store.execute("SELECT rows, before FROM outbox_removed").fetchone()
    return (int(row[0]), float(row[1])) if row else (0, 0.0)


def sent(store: sqlite3.Connection) -> int:
    """Return how many rows that are still there are confirmed, without counting them."""
    return int(store.execute("SELECT rows FROM outbox_sent").fetchone()[0])


class SqliteOutbox:
    """An outbox with one relay, for *exchange*: no lock is held while the broker is asked."""

    def __init__(
        self, store: sqlite3.Connection, exchange: str, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._store = store
        self._exchange = exchange
        self._clock = clock

    @contextmanager
    def batch(self, limit: int) -> Iterator[_SqliteBatch]:
        """Read the due messages: never tried first, then by the time of their next attempt."""
        now = self._clock()
        with reading():
            rows = self._pending("<=", now, limit)
            # A next attempt that is further away than any pause comes from a clock set back.
            rows += self._pending(">", now + LONGEST_PAUSE, limit - len(rows))
        yield _SqliteBatch(self._store, self._exchange, rows, self._clock)

    def _pending(self, compares: str, moment: float, limit: int) -> list[_Row]:
        # One comparison each: with OR between them, every row that waits would be looked at.
        return self._store.execute(
            "SELECT position, event_id, event_type, body, correlation_id, accepted_at,"  # noqa: S608
            " traceparent, attempts FROM outbox"
            f" WHERE confirmed_at IS NULL AND next_attempt_at {compares} ?"
            " ORDER BY next_attempt_at, position LIMIT ?",
            (moment, limit),
        ).fetchall()


class _SqliteBatch:
    def __init__(
        self,
        store: sqlite3.Connection,
        exchange: str,
        rows: Sequence[_Row],
        clock: Callable[[], float],
    ) -> None:
        self._store = store
        self._rows = rows
        self._clock = clock
        self.messages = [
            Message(
                exchange,
                event_type,
                _properties(event_id, event_type, at, request, trace),
                body,
            )
            for _, event_id, event_type, body, request, at, trace, _ in rows
        ]

    def record(self, answers: Sequence[Answer]) -> None:
        now = self._clock()
        facts: list[tuple[object, ...]] = []
        for row, answer in zip(self._rows, answers, strict=False):
            confirmed = answer.outcome is Outcome.CONFIRMED
            at = now if confirmed else None
            again = now + BACKOFF.pause(row[-1] + 1)
            facts.append((answer.outcome.value, answer.detail, at, again, row[0]))
        with transaction(self._store) as tx:
            tx.executemany(
                "UPDATE outbox SET attempts = attempts + 1, outcome = ?, detail = ?,"
                " confirmed_at = ?, next_attempt_at = ? WHERE position = ?",
                facts,
            )


def _properties(
    event_id: str, event_type: str, accepted_at: float, request: str, trace: str | None
) -> BasicProperties:
    return envelope(
        event_id,
        event_type,
        timestamp=int(accepted_at),
        correlation_id=request,
        headers={TRACEPARENT: trace} if trace else None,
    )
