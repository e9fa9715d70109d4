"""Count what a store has seen lately, and in all."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence
from typing import Any

from delivery.handling import Effect
from delivery.inbox import pruned_before

__all__ = ["MOST", "WINDOW", "publisher_rates", "receipts", "receipts_of"]

WINDOW = 10.0  # seconds that a rate is taken over
MOST = 50_000  # rows of the outbox that are looked at for a rate, the latest ones


def publisher_rates(store: sqlite3.Connection) -> dict[str, float]:
    """Return accepted and confirmed events a second, over the last ten seconds."""
    since = time.time() - WINDOW
    accepted, confirmed = store.execute(
        "SELECT count(*) FILTER (WHERE accepted_at >= ?), count(*) FILTER (WHERE confirmed_at >= ?)"
        " FROM (SELECT accepted_at, confirmed_at FROM outbox ORDER BY position DESC LIMIT ?)",
        (since, since, MOST),
    ).fetchone()
    return {
        "accepted_per_second": accepted / WINDOW,
        "confirmed_per_second": confirmed / WINDOW,
    }


def receipts(inbox: sqlite3.Connection | None, recipient: str) -> dict[str, Any] | None:
    """Return *recipient*'s receipts by effect, the further copies, and the rate; None: not visible.

    ``pruned`` says that there were more, once: then the counts are no whole.
    """
    if inbox is None:
        return None
    try:
        rows = inbox.execute(
            "SELECT effect, count(*), sum(duplicates) FROM receipt WHERE recipient = ?"
            " GROUP BY effect",
            (recipient,),
        ).fetchall()
        (lately,) = inbox.execute(
            "SELECT count(*) FROM receipt WHERE recipient = ? AND received_at >= ?",
            (recipient, time.time() - WINDOW),
        ).fetchone()
        pruned = pruned_before(inbox, recipient) > 0
    except sqlite3.DatabaseError:
        return None
    return receipts_of(rows, lately, pruned=pruned)


def receipts_of(rows: Sequence[tuple[Any, ...]], lately: int, *, pruned: bool) -> dict[str, Any]:
    """Return receipts's answer; *rows* are an effect, its receipts, and their further copies."""
    by_effect = {effect: count for effect, count, _ in rows}
    return {
        **{
            effect.value: by_effect.get(effect.value, 0)
            for effect in (Effect.APPLIED, Effect.STALE, Effect.DROPPED)
        },
        "duplicate": sum(copies for _, _, copies in rows),
        "settled": sum(by_effect.values()),
        "per_second": lately / WINDOW,
        "pruned": pruned,
    }
