"""Answer questions about the outbox: how much is where, and what became of one event."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Any

from delivery.journey import standing
from delivery.outbox import removed, sent

__all__ = [
    "KINDS",
    "MOST",
    "Inboxes",
    "Trace",
    "find_events",
    "outbox_summary",
    "row_fields",
    "row_of",
    "standings",
    "summary_of",
    "trace_with",
]

Trace = Callable[[sqlite3.Connection, str], dict[str, Any] | None]
Inboxes = Mapping[str, Callable[[], sqlite3.Connection | None]]

MOST = 100  # events of one material that are listed, the latest ones
# In this order: a word that is an event's id is not looked for elsewhere.
KINDS = {"event_id": "event_id", "request_id": "correlation_id", "material_id": "subject"}
ROW = (
    *("event_id", "type", "material_id", "request_id", "accepted_at", "attempts", "outcome"),
    *("detail", "confirmed_at", "next_attempt_at", "traceparent"),
)


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
    gone, _ = removed(store)  # counted for ever, though their rows are not kept so long
    return summary_of(sent(store) + gone, pending, oldest, time.time())


def find_events(store: sqlite3.Connection, word: str) -> tuple[str, list[str]]:
    """Return what *word* is (event_id, request_id, material_id) and its events, oldest first.

    The latest 100 at most; none, and "nothing", if the publisher knows no such word.
    """
    for kind, column in KINDS.items():
        rows = store.execute(
            f"SELECT event_id FROM outbox WHERE {column} = ?"  # noqa: S608 - one of our three
            " ORDER BY position DESC LIMIT ?",
            (word, MOST),
        ).fetchall()
        if rows:
            return kind, [event_id for (event_id,) in reversed(rows)]
    return "nothing", []


def trace_with(inboxes: Inboxes) -> Trace:
    """Return a trace that asks the publisher's row, and each recipient's store where it stands.

    The word may be an event's, a request's or a material's id (``matched_by``); of several
    ``events`` it follows the latest. A store that can't be read is said to be "not visible", which
    is not "nothing there".
    """

    def trace(store: sqlite3.Connection, word: str) -> dict[str, Any] | None:
        kind, events = find_events(store, word)
        if not events:
            return None
        found = row_of(store, events[-1])
        found["matched_by"], found["events"] = kind, events
        found["recipients"] = standings(inboxes, events[-1])
        return found

    return trace


def standings(inboxes: Inboxes, event_id: str) -> dict[str, Any]:
    """Return for each recipient where it stands with the event: journey.standing."""
    return {
        recipient: _asked(open_inbox(), recipient, event_id)
        for recipient, open_inbox in inboxes.items()
    }


def row_fields(row: Sequence[Any]) -> dict[str, Any]:
    """Return what is told of an outbox row: ROW's columns, with times in Unix seconds."""
    found = dict(zip(ROW, row[:-1], strict=True))
    if found["confirmed_at"] is not None or not found["attempts"]:
        found["next_attempt_at"] = None  # it is not waiting for one
    found["revision"] = json.loads(row[-1])["data"]["revision"]
    return found


def summary_of(
    confirmed: int, pending: Mapping[str, int], oldest: Sequence[Any] | None, now: float
) -> dict[str, Any]:
    """Return outbox_summary's answer; *oldest* is accepted_at, event_id, attempts, outcome ..."""
    names = ("event_id", "attempts", "outcome", "detail")
    return {
        "accepted": confirmed + sum(pending.values()),
        "confirmed": confirmed,
        "pending": dict(pending),
        "oldest_pending_seconds": round(max(0.0, now - oldest[0]), 3) if oldest else 0.0,
        "oldest_pending": dict(zip(names, oldest[1:], strict=True)) if oldest else None,
    }


def row_of(store: sqlite3.Connection, event_id: str) -> dict[str, Any]:
    """Return what is told of the event's row."""
    row = store.execute(
        "SELECT event_id, event_type, subject, correlation_id, accepted_at, attempts, outcome,"
        " detail, confirmed_at, next_attempt_at, traceparent, body FROM outbox WHERE event_id = ?",
        (event_id,),
    ).fetchone()
    return row_fields(row)


def _asked(inbox: sqlite3.Connection | None, recipient: str, event_id: str) -> dict[str, Any]:
    if inbox is None:
        return standing(None, recipient, event_id)
    with closing(inbox):
        return standing(inbox, recipient, event_id)
