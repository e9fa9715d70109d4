"""An outbox in PostgreSQL that several relays empty at once, each material in its order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from delivery.codec import encode
from delivery.confirms import Answer, Outcome
from delivery.contract import Event
from delivery.outbox import BACKOFF, LONGEST_PAUSE
from delivery.postgres import Connection, transaction
from delivery.postgres_turns import begin_adding, take_turn
from delivery.publisher import Message, envelope
from delivery.store import Schema
from delivery.traceparent import TRACEPARENT

__all__ = ["CHANNEL", "SCHEMA", "PostgresOutbox", "add", "forget_sent", "removed"]

CHANNEL = "delivery_outbox"  # notified when rows were committed

# Events are found by the request and by the material, too; and what is left of rows that were
# removed.
_FOUND = """
CREATE INDEX outbox_request ON outbox (correlation_id);
CREATE INDEX outbox_subject ON outbox (subject, position);
CREATE TABLE outbox_removed (
    one integer PRIMARY KEY CHECK (one = 1),
    rows bigint NOT NULL,
    before timestamptz NOT NULL
)
"""

# A row's state follows from facts, as in SQLite. Two indexes hold pending rows only: what was sent
# costs nothing to pass by.
SCHEMA = Schema(
    "outbox",
    2,
    """
CREATE TABLE outbox (
    position bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    event_id text NOT NULL UNIQUE,
    event_type text NOT NULL,
    body bytea NOT NULL,
    correlation_id text NOT NULL,
    accepted_at timestamptz NOT NULL,
    attempts integer NOT NULL DEFAULT 0,
    next_attempt_at timestamptz NOT NULL DEFAULT '-infinity',
    outcome text,
    detail text,
    confirmed_at timestamptz,
    subject text NOT NULL,
    traceparent text
);
CREATE INDEX outbox_due ON outbox (next_attempt_at, position) WHERE confirmed_at IS NULL;
CREATE INDEX outbox_first ON outbox (subject, position) WHERE confirmed_at IS NULL;
CREATE INDEX outbox_sent ON outbox (confirmed_at) WHERE confirmed_at IS NOT NULL;
"""
    + _FOUND,
    steps=(_FOUND,),
)

# Only a material's first pending row can be taken. That one stays the first: rows are never pending
# again, and add() gives none a lower position later. So it does not matter how old this statement's
# picture of the *other* rows is when it gets the lock; the taken row itself is looked at again then
# (READ COMMITTED), and left out if it was marked or paused meanwhile.
_TAKE = """
SELECT position, event_id, event_type, body, correlation_id,
    floor(extract(epoch FROM accepted_at))::bigint, traceparent, attempts
FROM outbox AS mine
WHERE confirmed_at IS NULL AND {due} AND NOT EXISTS (
    SELECT FROM outbox AS before
    WHERE before.subject = mine.subject AND before.confirmed_at IS NULL
        AND before.position < mine.position
)
ORDER BY next_attempt_at, position LIMIT %(limit)s
FOR UPDATE OF mine SKIP LOCKED
"""
_DUE = _TAKE.format(due="next_attempt_at <= now()").encode()
# A next attempt that is further away than any pause comes from a clock set back.
_FAR = _TAKE.format(due="next_attempt_at > now() + make_interval(secs => %(longest)s)").encode()


def add(
    tx: Connection,
    event: Event,
    *,
    correlation_id: str,
    accepted_at: float,
    traceparent: str | None = None,
) -> None:
    """Queue *event* for publishing, if and only if *tx* commits, as outbox.add does.

    Until then nobody else adds for the same material, so positions grow in the order of commits.
    Raises ValueError for what could never be sent, and outside of a transaction.
    """
    envelope(event.id, event.type, timestamp=int(accepted_at), correlation_id=correlation_id)
    take_turn(tx, event.subject)
    begin_adding(tx)
    tx.execute(
        "WITH added AS (INSERT INTO outbox"
        " (event_id, event_type, body, correlation_id, accepted_at, subject, traceparent)"
        " VALUES (%s, %s, %s, %s, to_timestamp(%s), %s, %s) RETURNING position)"
        " SELECT pg_notify(%s, '') FROM added",  # heard when tx commits, once
        (
            *(event.id, event.type, encode(event), correlation_id, accepted_at),
            *(event.subject, traceparent, CHANNEL),
        ),
    )


class PostgresOutbox:
    """An outbox for any number of relays, for *exchange*; the server's clock is the only one.

    What a relay has taken is locked until its batch ends: a relay that dies gives it back.
    """

    def __init__(self, store: Connection, exchange: str) -> None:
        self._store = store
        self._exchange = exchange

    @contextmanager
    def batch(self, limit: int) -> Iterator[_PostgresBatch]:
        """Take the due rows that nobody holds: never tried first, then by their next attempt."""
        with transaction(self._store) as tx:
            rows = tx.execute(_DUE, {"limit": limit}).fetchall()
            if len(rows) < limit:
                rest = {"limit": limit - len(rows), "longest": LONGEST_PAUSE}
                rows += tx.execute(_FAR, rest).fetchall()
            yield _PostgresBatch(tx, self._exchange, rows)


class _PostgresBatch:
    def __init__(self, tx: Connection, exchange: str, rows: Sequence[tuple[Any, ...]]) -> None:
        self._tx = tx
        self._rows = rows
        self.messages = [
            Message(
                exchange,
                event_type,
                envelope(
                    event_id,
                    event_type,
                    timestamp=at,
                    correlation_id=request,
                    headers={TRACEPARENT: trace} if trace else None,
                ),
                body,
            )
            for _, event_id, event_type, body, request, at, trace, _ in rows
        ]

    def record(self, answers: Sequence[Answer]) -> None:
        facts = [
            (row[0], answer.outcome.value, answer.detail, BACKOFF.pause(row[-1] + 1))
            for row, answer in zip(self._rows, answers, strict=False)
        ]
        tx = self._tx
        tx.execute(
            "UPDATE outbox SET attempts = attempts + 1, outcome = answer.outcome,"
            " detail = answer.detail,"
            " confirmed_at = CASE WHEN answer.outcome = %s THEN clock_timestamp() END,"
            " next_attempt_at = clock_timestamp() + make_interval(secs => answer.pause)"
            " FROM unnest(%s::bigint[], %s::text[], %s::text[], %s::float8[])"
            " AS answer (position, outcome, detail, pause)"
            " WHERE outbox.position = answer.position",
            (Outcome.CONFIRMED.value, *([fact[n] for fact in facts] for n in range(4))),
        )


def forget_sent(store: Connection, *, keep: float, most: int = 1_000) -> int:
    """Remove the *most* oldest rows that were confirmed over *keep* seconds ago; return how many.

    What is not confirmed stays, however old it is. A request goes with its row.
    """
    with transaction(store) as tx:
        gone = tx.execute(
            "DELETE FROM outbox WHERE position IN (SELECT position FROM outbox"
            " WHERE confirmed_at < now() - make_interval(secs => %s)"
            " ORDER BY confirmed_at LIMIT %s FOR UPDATE SKIP LOCKED)",
            (keep, most),
        ).rowcount
        if gone:
            tx.execute(
                "INSERT INTO outbox_removed AS known VALUES"
                " (1, %s, now() - make_interval(secs => %s)) ON CONFLICT (one) DO UPDATE"
                " SET rows = known.rows + excluded.rows,"
                " before = greatest(known.before, excluded.before)",
                (gone, keep),
            )
    return gone


def removed(store: Connection) -> tuple[int, float]:
    """Return how many rows were removed, and before which time, as outbox.removed does."""
    row = store.execute(
        "SELECT rows, extract(epoch FROM before)::float8 FROM outbox_removed"
    ).fetchone()
    return (int(row[0]), float(row[1])) if row else (0, 0.0)
