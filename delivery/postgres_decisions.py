"""Remember in a recipient's PostgreSQL what an operator decided about a dead message, and why."""

from __future__ import annotations

from delivery.decisions import Decision
from delivery.handling import Effect
from delivery.postgres import Connection, storable, transaction
from delivery.store import Schema
from delivery.trail import check_reason

__all__ = ["SCHEMA", "decisions_on", "forget", "record_drop", "record_replay"]

SCHEMA = Schema(
    "decisions",
    1,
    """
CREATE TABLE decision (
    entry bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    decided_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    action text NOT NULL,
    recipient text NOT NULL,
    message_id text NOT NULL,
    operator text NOT NULL,
    reason text NOT NULL
);
CREATE INDEX decision_message ON decision (message_id)
""",
)


def record_replay(
    store: Connection, recipient: str, message_id: str, *, operator: str, reason: str
) -> None:
    """Keep that *operator* sent the message again."""
    with transaction(store) as tx:
        _insert(tx, "replay", recipient, message_id, operator, reason)


def record_drop(
    store: Connection,
    recipient: str,
    message_id: str,
    *,
    is_event: bool,
    operator: str,
    reason: str,
) -> None:
    """Keep that *operator* gave the message up, as decisions.record_drop does."""
    with transaction(store) as tx:
        _insert(tx, "drop", recipient, message_id, operator, reason)
        if not is_event:
            return
        tx.execute(  # when the event happened is not known: 0, as in SQLite
            "INSERT INTO receipt (recipient, message_id, effect, event_at)"
            " VALUES (%s, %s, %s, to_timestamp(0)) ON CONFLICT DO NOTHING",
            (recipient, storable(message_id), Effect.DROPPED.value),
        )


def decisions_on(store: Connection, message_id: str) -> list[Decision]:
    """Return what was decided about the message, oldest first."""
    rows = store.execute(
        "SELECT extract(epoch FROM decided_at)::float8, action, recipient, message_id, operator,"
        " reason FROM decision WHERE message_id = %s ORDER BY entry",
        (storable(message_id),),
    )
    return [Decision(*row) for row in rows]


def forget(store: Connection, *, before: float, oldest_dead: float | None, most: int) -> int:
    """Forget decisions from before *before* (Unix seconds), as decisions.forget does."""
    limit = before if oldest_dead is None else min(before, oldest_dead)
    with transaction(store) as tx:
        gone = tx.execute(
            "DELETE FROM decision WHERE entry < (SELECT min(entry) FROM decision) + %s"
            " AND decided_at < to_timestamp(%s)",
            (most, limit),
        )
    return gone.rowcount


def _insert(
    tx: Connection, action: str, recipient: str, message_id: str, operator: str, reason: str
) -> None:
    check_reason(reason)
    tx.execute(
        "INSERT INTO decision (action, recipient, message_id, operator, reason)"
        " VALUES (%s, %s, %s, %s, %s)",
        (action, recipient, storable(message_id), storable(operator), storable(reason)),
    )
