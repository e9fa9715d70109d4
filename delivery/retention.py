"""Remove what is settled and old, a little at a time, so that no writer waits long."""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Callable, Iterator

from pika.adapters.blocking_connection import BlockingConnection

from delivery import decisions, failures, trail
from delivery.inbox import prune
from delivery.points import reach
from delivery.routes import Route
from delivery.store import StoreUnavailable, reading, transaction
from delivery.triage import DeskBusy, held

__all__ = [
    "KEEP_DAYS",
    "TRAIL_DAYS",
    "caretaker",
    "forget_sent",
    "give_back",
    "long_before",
    "oldest_dead",
    "receipts_round",
    "sent_round",
]

log = logging.getLogger(__name__)

KEEP_DAYS = 30.0
TRAIL_DAYS = 365.0  # or KEEP_DAYS, if that is more: who did what is asked later than where it is
DAY = 86_400.0  # seconds
STEP = 200  # rows in one transaction: a few milliseconds
SPARE, PAGES = 1_000, 200  # pages of 4 KiB: kept free for what comes next; given back in one step
BETWEEN_STEPS, BETWEEN_ROUNDS = 0.05, 600.0  # seconds
MOST_DEAD = 1_000  # dead messages that a receiver looks through


def forget_sent(store: sqlite3.Connection, *, before: float, after: int = 0) -> int | None:
    """Remove confirmed rows that were accepted before *before* (Unix seconds), with their requests.

    Looks at STEP rows behind position *after*, and returns where to go on; None is the end. What
    is not confirmed stays, however old it is. A request's key may be used anew afterwards.
    """
    with reading():
        rows = store.execute(
            "SELECT position, accepted_at, confirmed_at, correlation_id FROM outbox"
            " WHERE position > ? ORDER BY position LIMIT ?",
            (after, STEP),
        ).fetchall()
    old = [row for row in rows if row[1] < before]
    done = [(position, request) for position, _, confirmed, request in old if confirmed is not None]
    if done:
        with transaction(store) as tx:
            tx.executemany("DELETE FROM outbox WHERE position = ?", [each[:1] for each in done])
            tx.executemany("DELETE FROM request WHERE idempotency_key = ?", [e[1:] for e in done])
            tx.execute(
                "INSERT INTO outbox_removed VALUES (1, ?, ?) ON CONFLICT DO UPDATE"
                " SET rows = rows + excluded.rows, before = max(before, excluded.before)",
                (len(done), before),
            )
    return rows[-1][0] if len(old) == STEP else None


def oldest_dead(connection: BlockingConnection, route: Route) -> float | None:
    """Return when *route*'s oldest dead event was sent (Unix seconds); None if none is dead.

    0.0, before which there is nothing to forget, if there are too many to look through between two
    deliveries, or somebody else holds them.
    """
    try:
        with held(connection, route) as (_, messages):
            sent = []
            for seen, message in enumerate(messages):
                if seen == MOST_DEAD:
                    extra = {"recipient": route.recipient, "dead": f"more than {MOST_DEAD}"}
                    log.warning("retention.waits", extra=extra)
                    return 0.0
                if message.is_event:
                    sent.append(message.sent_at)
            return min(sent, default=None)
    except DeskBusy:
        return 0.0


def give_back(store: sqlite3.Connection) -> bool:
    """Give free pages back to the disk, all but some; True: there may be more."""
    with reading():
        (free,) = store.execute("PRAGMA freelist_count").fetchone()
        # As a script: it gives back a page at each step, and Python 3.11's execute takes one step.
        store.executescript(f"PRAGMA incremental_vacuum({min(PAGES, max(1, free - SPARE))})")
    return bool(free > SPARE + PAGES)


def sent_round(store: sqlite3.Connection, keep: float) -> Iterator[None]:
    """Remove, step by step, what the publisher sent more than *keep* seconds ago.

    The trail of the operators' acts is kept for a year.
    """
    before = time.time() - keep
    after: int | None = 0
    while after is not None:
        after = forget_sent(store, before=before, after=after)
        reach("retention.removed")
        yield
    gone = STEP
    while gone == STEP:
        gone = trail.forget(store, before=long_before(keep), most=STEP)
        reach("retention.trail_forgotten")
        yield
    while give_back(store):
        yield


def receipts_round(
    store: sqlite3.Connection, connection: BlockingConnection, route: Route, keep: float
) -> Iterator[None]:
    """Forget, step by step, *route*'s receipts and failures that are older than *keep* seconds.

    What operators decided about its messages is kept for a year.
    """
    before, long_ago = time.time() - keep, long_before(keep)
    if not _any_old(store, route, before, long_ago):
        return  # the usual case: nobody's dead messages need be held for it
    since = oldest_dead(connection, route)
    gone = STEP
    while gone == STEP:
        gone = prune(store, route.recipient, before=before, oldest_dead=since, most=STEP)
        reach("retention.forgotten")
        yield
    gone = STEP
    while gone == STEP:
        gone = failures.forget(store, route.recipient, before=before, oldest_dead=since, most=STEP)
        reach("retention.failures_forgotten")
        yield
    gone = STEP
    while gone == STEP:
        gone = decisions.forget(store, before=long_ago, oldest_dead=since, most=STEP)
        reach("retention.decisions_forgotten")
        yield
    while give_back(store):
        yield


def long_before(keep: float) -> float:
    """Return when what operators did is old (Unix seconds), where *keep* is for the rest."""
    return time.time() - max(keep, TRAIL_DAYS * DAY)


def _any_old(store: sqlite3.Connection, route: Route, before: float, long_before: float) -> bool:
    with reading():
        found = store.execute(
            "SELECT 1 FROM receipt WHERE recipient = ? AND received_at < ? UNION ALL"
            " SELECT 1 FROM failure WHERE recipient = ? AND failed_at < ? UNION ALL"
            " SELECT 1 FROM decision WHERE entry = (SELECT min(entry) FROM decision)"
            " AND decided_at < ? LIMIT 1",
            (*(route.recipient, before) * 2, long_before),
        ).fetchone()
    return found is not None


def caretaker(begin: Callable[[], Iterator[None]]) -> Callable[[], None]:
    """Return what does the next step of a round whenever it is called and it is time for one.

    A store that is locked ends the round: what others do is more urgent.
    """
    steps: Iterator[None] | None = None
    following = 0.0

    def tend() -> None:
        nonlocal steps, following
        if time.monotonic() < following:
            return
        steps = steps or begin()
        try:
            next(steps)
        except (StopIteration, StoreUnavailable):
            steps = None
        following = time.monotonic() + (BETWEEN_STEPS if steps else BETWEEN_ROUNDS)

    return tend
