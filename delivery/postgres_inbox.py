"""Apply each message once per recipient, in PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from delivery.consumer import Apply, Guard
from delivery.contract import Event
from delivery.errors import PermanentError
from delivery.handling import Delivery, Effect, Failed, Handled, apply_within
from delivery.inbox import Receipt
from delivery.postgres import Connection, savepoint, storable, transaction
from delivery.routes import Route
from delivery.store import Schema

__all__ = [
    "SCHEMA",
    "PostgresHandler",
    "applying",
    "once",
    "prune",
    "pruned_before",
    "receipt_of",
]

PostgresHandler = Callable[[Event, Connection], Effect]

SCHEMA = Schema(
    "inbox",
    1,
    """
CREATE TABLE receipt (
    recipient text NOT NULL,
    message_id text NOT NULL,
    effect text NOT NULL,
    received_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    duplicates integer NOT NULL DEFAULT 0,
    event_at timestamptz NOT NULL,
    PRIMARY KEY (recipient, message_id)
);
CREATE INDEX receipt_age ON receipt (recipient, received_at);
CREATE TABLE receipts_pruned (
    recipient text PRIMARY KEY,
    before timestamptz NOT NULL
)
""",
)


def applying(
    store: Connection, handle: PostgresHandler, guard: Guard[Connection] | None = None
) -> Apply:
    """Return what consume_with needs: *handle*, in one transaction for each batch of *store*.

    A redelivered message is handled inside *guard*, as consume does it. A handler that leaves the
    database alone for postgres.IDLE_TIMEOUT loses its session, each time.
    """

    def apply(taken: Sequence[Delivery]) -> list[Handled | Failed]:
        if guard is None or not taken[0].redelivered:
            return apply_within(transaction(store), savepoint, taken, handle)
        try:
            with guard(taken[0], store):
                return apply_within(transaction(store), savepoint, taken, handle)
        except PermanentError as refusal:
            return [Failed(taken[0], refusal)]

    return apply


def once(route: Route, handle: PostgresHandler) -> PostgresHandler:
    """Wrap *handle* as inbox.once does: what *route* has a receipt for is only counted.

    Two consumers that hold copies of one message at once take turns: the second one waits for the
    first one's commit where it writes its receipt.
    """

    def apply(event: Event, tx: Connection) -> Effect:
        key = (route.recipient, event.id)
        fresh = tx.execute(
            "INSERT INTO receipt (recipient, message_id, effect, event_at)"
            " VALUES (%s, %s, 'applied', %s) ON CONFLICT DO NOTHING",
            (*key, event.time),
        )
        if fresh.rowcount == 0:
            tx.execute(
                "UPDATE receipt SET duplicates = duplicates + 1"
                " WHERE recipient = %s AND message_id = %s",
                key,
            )
            return Effect.DUPLICATE
        effect = handle(event, tx)
        if effect is not Effect.APPLIED:
            tx.execute(
                "UPDATE receipt SET effect = %s WHERE recipient = %s AND message_id = %s",
                (effect.value, *key),
            )
        return effect

    return apply


def receipt_of(store: Connection, recipient: str, message_id: str) -> Receipt | None:
    """Return *recipient*'s receipt for the message, or None if there is none."""
    row = store.execute(
        "SELECT effect, extract(epoch FROM received_at)::float8, duplicates FROM receipt"
        " WHERE recipient = %s AND message_id = %s",
        (recipient, storable(message_id)),
    ).fetchone()
    return Receipt(Effect(row[0]), row[1], row[2]) if row else None


def prune(
    store: Connection,
    recipient: str,
    *,
    before: float,
    oldest_dead: float | None,
    most: int = 1_000_000,
) -> int:
    """Forget receipts from before *before* (Unix seconds), as inbox.prune does; return how many."""
    limit = before if oldest_dead is None else min(before, oldest_dead)
    with transaction(store) as tx:
        gone = tx.execute(
            "DELETE FROM receipt WHERE recipient = %s AND message_id IN (SELECT message_id"
            " FROM receipt WHERE recipient = %s AND received_at < to_timestamp(%s)"
            " ORDER BY received_at LIMIT %s)",
            (recipient, recipient, limit, most),
        )
        tx.execute(
            "INSERT INTO receipts_pruned AS known VALUES (%s, to_timestamp(%s))"
            " ON CONFLICT (recipient) DO UPDATE"
            " SET before = greatest(known.before, excluded.before)",
            (recipient, limit),
        )
    return gone.rowcount


def pruned_before(store: Connection, recipient: str) -> float:
    """Return the time before which a missing receipt proves nothing; 0 if none was pruned."""
    row = store.execute(
        "SELECT extract(epoch FROM before)::float8 FROM receipts_pruned WHERE recipient = %s",
        (recipient,),
    ).fetchone()
    return float(row[0]) if row else 0.0
