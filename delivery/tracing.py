"""Answer questions about the outbox: how much is where, and what became of one event."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any

from delivery.journey import standing
from delivery.outbox import removed, sent

__all__ = ["Trace", "find_events", "outbox_summary", "trace_with"]

Trace = Callable[[sqlite3.Connection, str], dict[str, Any] | None]

MOST = 100  # events of one material that are listed, the latest ones
# In this order: a word that is an event's id is not looked for elsewhere.
_COLUMNS = {"event_id": "event_id", "request_id": "correlation_id", "material_id": "subject"}


def outbox_summary(store: sqlite3.Connection) -> dict[str, Any]:
    """Return counts of accepted, confirmed and pending, the latter by the last outcome.

    All of one instant; only the pending rows are read.
    """
    store.execute("BEGIN")  # without, a row confirmed between two looks would be counted twice
    try:
        return _summary(store)
    finally:
        store.execute("ROLLBACK")


def _summary(store: sqlite3.Connection) -> dict[str, Any]:
    pending = dict(
        store.execute(
            "SELECT coalesce(outcome, 'not tried'), count(*) FROM outbox"
            " WHERE confirmed_at IS NULL GROUP BY 1 ORDER BY 1"
        ).fetchall()
    )
    oldest = store.execute(
        "SELECT accepted_at, event_id, attempts, outcome, detail FROM outbox"
        " WHERE confirmed_at IS NULL ORDER BY accepted_at LIMIT 1"
    ).fetchone()
    age = max(0.0, time.time() - oldest[0]) if oldest else 0.0
    gone, _ = removed(store)  # counted for ever, though their rows are not kept so long
    confirmed = sent(store) + gone
    names = ("event_id", "attempts", "outcome", "detail")
    return {
        "accepted": confirmed + sum(pending.values()),
        "confirmed": confirmed,
        "pending": pending,
        "oldest_pending_seconds": round(age, 3),
        "oldest_pending": dict(zip(names, oldest[1:], strict=True)) if oldest else None,
    }


def find_events(store: sqlite3.Connection, word: str) -> tuple[str, list[str]]:
    """Return what *word* is (event_id, request_id, material_id) and its events, oldest first.

    The latest 100 at most; none, and "nothing", if the publisher knows no such word.
    """
    for kind, column in _COLUMNS.items():
        rows = store.execute(
            f"SELECT event_id FROM outbox WHERE {column} = ?"  # noqa: S608 - one of our three
            " ORDER BY position DESC LIMIT ?",
            (word, MOST),
        ).fetchall()
        if rows:
            return kind, [event_id for (event_id,) in reversed(rows)]
    return "nothing", []


def trace_with(inboxes: Mapping[str, Callable[[], sqlite3.Connection | None]]) -> Trace:
    """Return a trace that asks the publisher's row, and each recipient's store where it stands.

    The word may be an event's, a request's or a material's id (``matched_by``); of several
    ``events`` it follows the latest. A store that can't be read is said to be "not visible", which
    is not "nothing there".
    """

    def trace(store: sqlite3.Connection, word: str) -> dict[str, Any] | None:
        kind, events = find_events(store, word)
        if not events:
            return None
        found = _row(store, events[-1])
        found["matched_by"], found["events"] = kind, events
        found["recipients"] = {
            recipient: _asked(open_inbox(), recipient, events[-1])
            for recipient, open_inbox in inboxes.items()
        }
        return found

    return trace


def _row(store: sqlite3.Connection, event_id: str) -> dict[str, Any]:
    *row, body = store.execute(
        "SELECT event_id, event_type, subject, correlation_id, accepted_at, attempts, outcome,"
        " detail, confirmed_at, next_attempt_at, traceparent, body FROM outbox WHERE event_id = ?",
        (event_id,),
    ).fetchone()
    names = (
        *("event_id", "type", "material_id", "request_id", "accepted_at", "attempts", "outcome"),
        *("detail", "confirmed_at", "next_attempt_at", "traceparent"),
    )
    found = dict(zip(names, row, strict=True))
    if found["confirmed_at"] is not None or not found["attempts"]:
        found["next_attempt_at"] = None  # it is not waiting for one
    found["revision"] = json.loads(body)["data"]["revision"]
    return found


def _asked(inbox: sqlite3.Connection | None, recipient: str, event_id: str) -> dict[str, Any]:
    if inbox is None:
        return standing(None, recipient, event_id)
    with closing(inbox):
        return standing(inbox, recipient, event_id)
