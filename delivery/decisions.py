"""Remember what an operator decided about a dead message, and why."""

from __future__ import annotations

import sqlite3
import time
from dataclasses import dataclass
from typing import Literal

from delivery.errors import DeliveryError
from delivery.handling import Effect
from delivery.store import Schema, transaction

__all__ = ["SCHEMA", "Decision", "decisions_on", "forget", "record_drop", "record_replay"]

SCHEMA = Schema(
    "decisions",
    1,
    """
CREATE TABLE decision (
    entry INTEGER PRIMARY KEY,
    decided_at REAL NOT NULL,
    action TEXT NOT NULL,
    recipient TEXT NOT NULL,
    message_id TEXT NOT NULL,
    operator TEXT NOT NULL,
    reason TEXT NOT NULL
) STRICT;
CREATE INDEX decision_message ON decision (message_id)
""",
)


@dataclass(frozen=True)
class Decision:
    """One decision; ``decided_at`` is in Unix seconds."""

    decided_at: float
    action: Literal["replay", "drop"]
    recipient: str
    message_id: str
    operator: str
    reason: str


def record_replay(
    store: sqlite3.Connection, recipient: str, message_id: str, *, operator: str, reason: str
) -> None:
    """Keep that *operator* sent the message again."""
    with transaction(store) as tx:
        _insert(tx, Decision(time.time(), "replay", recipient, message_id, operator, reason))


def record_drop(
    store: sqlite3.Connection,
    recipient: str,
    message_id: str,
    *,
    is_event: bool,
    operator: str,
    reason: str,
) -> None:
    """Keep that *operator* gave the message up; for an event with a receipt, so that books balance.

    A copy of it that turns up later then counts as a duplicate. A receipt that exists stays as it
    is. Bytes that are no event get none: the event whose id they claim may still come.
    """
    decision = Decision(time.time(), "drop", recipient, message_id, operator, reason)
    with transaction(store) as tx:
        _insert(tx, decision)
        if not is_event:
            return
        tx.execute(
            "INSERT INTO receipt (recipient, message_id, effect, received_at)"
            " VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",
            (recipient, message_id, Effect.DROPPED.value, decision.decided_at),
        )


def decisions_on(store: sqlite3.Connection, message_id: str) -> list[Decision]:
    """Return what was decided about the message, oldest first."""
    rows = store.execute(
        "SELECT decided_at, action, recipient, message_id, operator, reason FROM decision"
        " WHERE message_id = ? ORDER BY entry",
        (message_id,),
    )
    return [Decision(*row) for row in rows]


def forget(
    store: sqlite3.Connection, *, before: float, oldest_dead: float | None, most: int
) -> int:
    """Forget those of the oldest *most* decisions that are from before *before* (Unix seconds).

    Never past *oldest_dead*, when the oldest dead event was sent: whoever replays it is told of
    earlier replays. Returns how many.
    """
    limit = before if oldest_dead is None else min(before, oldest_dead)
    with transaction(store) as tx:
        gone = tx.execute(
            "DELETE FROM decision WHERE entry < (SELECT min(entry) FROM decision) + ?"
            " AND decided_at < ?",
            (most, limit),
        )
    return gone.rowcount


def _insert(tx: sqlite3.Connection, decision: Decision) -> None:
    if not decision.reason.strip():
        raise DeliveryError("say why: a decision about a dead message needs a reason")
    tx.execute(
        "INSERT INTO decision (decided_at, action, recipient, message_id, operator, reason)"
        " VALUES (?, ?, ?, ?, ?, ?)",
        (
            decision.decided_at,
            decision.action,
            decision.recipient,
            decision.message_id,
            decision.operator,
            decision.reason,
        ),
    )
