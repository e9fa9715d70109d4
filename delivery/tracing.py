"""Answer questions about the outbox: how much is where, and what became of one event."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Mapping
from typing import Any

from delivery.inbox import receipt_of

__all__ = ["Trace", "outbox_summary", "trace_with"]

Trace = Callable[[sqlite3.Connection, str], dict[str, Any] | None]


def outbox_summary(store: sqlite3.Connection) -> dict[str, Any]:
    """Return counts of accepted, confirmed and pending, the latter by the last outcome."""
    (accepted, confirmed) = store.execute(
        "SELECT count(*), count(confirmed_at) FROM outbox"
    ).fetchone()
    pending = dict(
        store.execute(
            "SELECT coalesce(outcome, 'not tried'), count(*) FROM outbox"
            " WHERE confirmed_at IS NULL GROUP BY 1 ORDER BY 1"
        ).fetchall()
    )
    (oldest,) = store.execute(
        "SELECT min(accepted_at) FROM outbox WHERE confirmed_at IS NULL"
    ).fetchone()
    age = max(0.0, time.time() - oldest) if oldest is not None else 0.0
    return {
        "accepted": accepted,
        "confirmed": confirmed,
        "pending": pending,
        "oldest_pending_seconds": round(age, 3),
    }


def trace_with(inboxes: Mapping[str, Callable[[], sqlite3.Connection | None]]) -> Trace:
    """Return a trace that asks the publisher's row, and each recipient's inbox for its receipt.

    An inbox that can't be read is said to be "not visible", which is not "nothing there".
    """

    def trace(store: sqlite3.Connection, event_id: str) -> dict[str, Any] | None:
        row = store.execute(
            "SELECT event_id, correlation_id, accepted_at, attempts, outcome, detail, confirmed_at"
            " FROM outbox WHERE event_id = ?",
            (event_id,),
        ).fetchone()
        if row is None:
            return None
        names = ("event_id", "request_id", "accepted_at", "attempts", "outcome", "detail")
        found = dict(zip((*names, "confirmed_at"), row, strict=True))
        found["recipients"] = {
            recipient: _receipt(open_inbox(), recipient, event_id)
            for recipient, open_inbox in inboxes.items()
        }
        return found

    return trace


def _receipt(
    inbox: sqlite3.Connection | None, recipient: str, event_id: str
) -> dict[str, Any] | str:
    if inbox is None:
        return "not visible"
    try:
        receipt = receipt_of(inbox, recipient, event_id)
    except sqlite3.DatabaseError:
        return "not visible"
    finally:
        inbox.close()
    if receipt is None:
        return "no receipt yet"
    return {
        "effect": receipt.effect.value,
        "received_at": receipt.received_at,
        "duplicates": receipt.duplicates,
    }
