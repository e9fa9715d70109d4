"""Find accepted events that a recipient never settled, and send them to it again."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from delivery.inbox import pruned_before, receipt_of
from delivery.pipeline import ConfirmedChannel
from delivery.publisher import envelope
from delivery.routes import Route
from delivery.traceparent import TRACEPARENT

__all__ = ["Missing", "missing", "send_again"]


@dataclass(frozen=True)
class Missing:
    """An event that its recipient neither settled nor has among its dead messages."""

    event_id: str
    event_type: str
    correlation_id: str
    accepted_at: float  # Unix seconds
    body: bytes
    traceparent: str | None = None


def missing(
    feed: sqlite3.Connection,
    inbox: sqlite3.Connection,
    route: Route,
    *,
    dead: Collection[str],
    grace: float = 60.0,
) -> list[Missing]:
    """Return the events in *feed* (the publisher's store) without receipt in *inbox*, oldest first.

    Events confirmed less than *grace* seconds ago are left alone: they may be on their way. So may
    older ones be, in a retry queue; sending them again is safe because of the receipt. So events
    from before the last pruning are left alone, too: a missing receipt proves nothing about them.
    """
    rows = feed.execute(
        "SELECT event_id, event_type, correlation_id, accepted_at, body, traceparent FROM outbox"
        " WHERE confirmed_at < ? AND accepted_at >= ? ORDER BY position",
        (time.time() - grace, pruned_before(inbox, route.recipient)),
    )
    return [
        found
        for found in (Missing(*row) for row in rows)
        if found.event_id not in dead and receipt_of(inbox, route.recipient, found.event_id) is None
    ]


def send_again(channel: ConfirmedChannel, route: Route, events: Sequence[Missing]) -> None:
    """Send *events* to *route*'s queue under their old ids. Raises NotConfirmed."""
    for event in events:
        properties = envelope(
            event.event_id,
            event.event_type,
            timestamp=int(event.accepted_at),
            correlation_id=event.correlation_id,
            headers={TRACEPARENT: event.traceparent} if event.traceparent else None,
        )
        channel.move(event.body, properties, to_queue=route.queue)
