"""Read what a publisher in PostgreSQL accepted: page by page, followed, and counted."""

from __future__ import annotations

from typing import Any

from delivery.feed import PAGE_LIMIT, Page, page_of
from delivery.postgres import Connection, one_instant, reading
from delivery.postgres_outbox import removed
from delivery.postgres_turns import settled
from delivery.tracing import KINDS, MOST, row_fields, summary_of

__all__ = ["find_events", "outbox_summary", "read_page", "row_of"]


def _seconds(column: str) -> str:
    return f"extract(epoch FROM {column})::float8"


_PAGE = f"""
SELECT position, event_id, event_type, correlation_id, {_seconds("accepted_at")},
    {_seconds("confirmed_at")}, body, traceparent
FROM outbox WHERE position > %s AND position <= %s ORDER BY position LIMIT %s
"""  # noqa: S608 - put together from constants
_ROW = f"""
SELECT event_id, event_type, subject, correlation_id, {_seconds("accepted_at")}, attempts, outcome,
    detail, {_seconds("confirmed_at")},
    CASE WHEN attempts > 0 THEN {_seconds("next_attempt_at")} END, traceparent, body
FROM outbox WHERE event_id = %s
"""  # noqa: S608 - put together from constants
_OLDEST = f"""
SELECT {_seconds("accepted_at")}, event_id, attempts, outcome, detail
FROM outbox WHERE confirmed_at IS NULL ORDER BY accepted_at LIMIT 1
"""  # noqa: S608 - put together from constants


def read_page(store: Connection, *, after: int = 0, limit: int = PAGE_LIMIT) -> Page:
    """Return at most *limit* events behind position *after*, as feed.read_page does.

    Nothing turns up later behind a reader: it gets what is behind a writer's position only when
    that writer has ended.
    """
    until = settled(store)
    with reading():
        rows = store.execute(_PAGE.encode(), (after, until, limit)).fetchall()
        last, now = store.execute(
            "SELECT coalesce(max(position), 0), extract(epoch FROM clock_timestamp())::float8"
            " FROM outbox WHERE position <= %s",
            (until,),
        ).fetchone() or (0, 0.0)
    return page_of(rows, last=last, read_at=now)


def find_events(store: Connection, word: str) -> tuple[str, list[str]]:
    """Return what *word* is and its events, as tracing.find_events does."""
    if "\0" in word:  # text in PostgreSQL can't hold one
        return "nothing", []
    for kind, column in KINDS.items():
        with reading():
            rows = store.execute(
                f"SELECT event_id FROM outbox WHERE {column} = %s"  # noqa: S608 - one of our three
                " ORDER BY position DESC LIMIT %s".encode(),
                (word, MOST),
            ).fetchall()
        if rows:
            return kind, [event_id for (event_id,) in reversed(rows)]
    return "nothing", []


def row_of(store: Connection, event_id: str) -> dict[str, Any]:
    """Return what is told of the event's row."""
    with reading():
        row = store.execute(_ROW.encode(), (event_id,)).fetchone()
    assert row is not None
    return row_fields(row)


def outbox_summary(store: Connection) -> dict[str, Any]:
    """Return counts as tracing.outbox_summary does, all of one instant.

    Here the confirmed rows are counted, each time: a number that every relay keeps up to date
    would be one row for which they all wait.
    """
    with one_instant(store) as tx:
        pending = dict(
            tx.execute(
                "SELECT coalesce(outcome, 'not tried'), count(*) FROM outbox"
                " WHERE confirmed_at IS NULL GROUP BY 1 ORDER BY 1"
            ).fetchall()
        )
        confirmed, now = tx.execute(
            "SELECT count(*), extract(epoch FROM clock_timestamp())::float8 FROM outbox"
            " WHERE confirmed_at IS NOT NULL"
        ).fetchone() or (0, 0.0)
        oldest = tx.execute(_OLDEST.encode()).fetchone()
        gone, _ = removed(tx)
    return summary_of(confirmed + gone, pending, oldest, now)
