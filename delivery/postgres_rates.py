"""Count what a PostgreSQL store has seen lately, and in all."""

from __future__ import annotations

from typing import Any

from delivery.postgres import Connection, one_instant
from delivery.postgres_inbox import pruned_before
from delivery.rates import MOST, WINDOW, receipts_of

__all__ = ["publisher_rates", "receipts"]


def publisher_rates(store: Connection) -> dict[str, float]:
    """Return accepted and confirmed events a second, as rates.publisher_rates does."""
    with one_instant(store) as tx:
        accepted, confirmed = tx.execute(
            "SELECT count(*) FILTER (WHERE accepted_at >= now() - make_interval(secs => %s)),"
            " count(*) FILTER (WHERE confirmed_at >= now() - make_interval(secs => %s)) FROM"
            " (SELECT accepted_at, confirmed_at FROM outbox ORDER BY position DESC LIMIT %s) AS o",
            (WINDOW, WINDOW, MOST),
        ).fetchone() or (0, 0)
    return {
        "accepted_per_second": accepted / WINDOW,
        "confirmed_per_second": confirmed / WINDOW,
    }


def receipts(store: Connection, recipient: str) -> dict[str, Any]:
    """Return *recipient*'s receipts, as rates.receipts does, all of one instant."""
    with one_instant(store) as tx:
        rows = tx.execute(
            "SELECT effect, count(*), sum(duplicates)::bigint FROM receipt WHERE recipient = %s"
            " GROUP BY effect",
            (recipient,),
        ).fetchall()
        (lately,) = tx.execute(
            "SELECT count(*) FROM receipt"
            " WHERE recipient = %s AND received_at >= now() - make_interval(secs => %s)",
            (recipient, WINDOW),
        ).fetchone() or (0,)
        return receipts_of(rows, lately, pruned=pruned_before(tx, recipient) > 0)
