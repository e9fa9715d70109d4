"""Apply each message once per recipient, however often it is delivered."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass

from delivery.contract import Event
from delivery.handling import Effect, Handler
from delivery.routes import Route
from delivery.store import Schema, transaction

__all__ = ["SCHEMA", "Receipt", "once", "prune", "pruned_before", "receipt_of"]

# Times are Unix seconds. Receipts outlive the ack: after a crash, the broker may deliver again what
# had been acked half a second before.
SCHEMA = Schema(
    "inbox",
    2,
    """
CREATE TABLE receipt (
    recipient TEXT NOT NULL,
    message_id TEXT NOT NULL,
    effect TEXT NOT NULL,
    received_at REAL NOT NULL,
    duplicates INTEGER NOT NULL DEFAULT 0,
    event_at REAL NOT NULL DEFAULT 0,
    PRIMARY KEY (recipient, message_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX receipt_age ON receipt (recipient, received_at);
CREATE TABLE receipts_pruned (
    recipient TEXT PRIMARY KEY,
    before REAL NOT NULL
) STRICT, WITHOUT ROWID
""",
    # From 1: when the event happened, by its publisher's clock; 0 is not known.
    steps=("ALTER TABLE receipt ADD COLUMN event_at REAL NOT NULL DEFAULT 0",),
)


@dataclass(frozen=True)
class Receipt:
    """What a recipient did with a message, when, and how many more copies came."""

    effect: Effect
    received_at: float
    duplicates: int


def once(route: Route, handle: Handler, *, clock: Callable[[], float] = time.time) -> Handler:
    """Wrap *handle* so that a message already handled on *route* is only counted.

    The receipt commits or rolls back together with the effect. Its key holds the recipient: two
    recipients may share a store, and each owes its own effect.
    """

    def apply(event: Event, tx: sqlite3.Connection) -> Effect:
        key = (route.recipient, event.id)
        fresh = tx.execute(
            "INSERT INTO receipt (recipient, message_id, effect, received_at, event_at)"
            " VALUES (?, ?, 'applied', ?, ?) ON CONFLICT DO NOTHING",
            (*key, clock(), event.time.timestamp()),
        )
        if fresh.rowcount == 0:
            tx.execute(
                "UPDATE receipt SET duplicates = duplicates + 1"
                " WHERE recipient = ? AND message_id = ?",
                key,
            )
            return Effect.DUPLICATE
        effect = handle(event, tx)
        if effect is not Effect.APPLIED:
            tx.execute(
                "UPDATE receipt SET effect = ? WHERE recipient = ? AND message_id = ?",
                (effect.value, *key),
            )
        return effect

    return apply


def receipt_of(store: sqlite3.Connection, recipient: str, message_id: str) -> Receipt | None:
    """Return *recipient*'s receipt for the message, or None if there is none."""
    row = store.execute(
        "SELECT effect, received_at, duplicates FROM receipt"
        " WHERE recipient = ? AND message_id = ?",
        (recipient, message_id),
    ).fetchone()
    return Receipt(Effect(row[0]), row[1], row[2]) if row else None


def prune(
    store: sqlite3.Connection,
    recipient: str,
    *,
    before: float,
    oldest_dead: float | None,
    most: int = 1_000_000,
) -> int:
    """Forget receipts from before *before* (Unix seconds), and return how many were forgotten.

    Never past *oldest_dead*, the time of the oldest dead message: its replay must find its receipt.
    The oldest *most* of them in one transaction, in which no other writer can do anything.
    """
    limit = before if oldest_dead is None else min(before, oldest_dead)
    with transaction(store) as tx:
        gone = tx.execute(
            "DELETE FROM receipt WHERE recipient = ? AND message_id IN (SELECT message_id"
            " FROM receipt WHERE recipient = ? AND received_at < ? ORDER BY received_at LIMIT ?)",
            (recipient, recipient, limit, most),
        )
        tx.execute(
            "INSERT INTO receipts_pruned VALUES (?, ?)"
            " ON CONFLICT DO UPDATE SET before = max(before, excluded.before)",
            (recipient, limit),
        )
    return gone.rowcount


def pruned_before(store: sqlite3.Connection, recipient: str) -> float:
    """Return the time before which a missing receipt proves nothing; 0 if none was pruned."""
    row = store.execute(
        "SELECT before FROM receipts_pruned WHERE recipient = ?", (recipient,)
    ).fetchone()
    return float(row[0]) if row else 0.0
