"""What the tests need of a recipient: its store, its handler, and questions about both."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

from delivery import audit, catalog, inbox, revision, strikes
from delivery.contract import Event
from delivery.handling import Effect, Handler
from delivery.inbox import once
from delivery.retry import attempt_of
from delivery.revision import latest_only
from delivery.routes import Route
from delivery.store import Schema, open_store

SCHEMAS: tuple[Schema, ...] = (
    audit.SCHEMA,
    catalog.SCHEMA,
    inbox.SCHEMA,
    revision.SCHEMA,
    strikes.SCHEMA,
)

__all__ = ["SCHEMAS", "attempt_of", "effects", "failing", "handler", "receipts", "store_at"]


def store_at(path: Path) -> sqlite3.Connection:
    """Open a recipient's store with every table group that the tests use."""
    return open_store(path, *SCHEMAS)


def handler(route: Route) -> Handler:
    """Return the recipient's whole handler, as the package composes it."""
    if route.recipient == "catalog":
        return once(route, latest_only(catalog.upsert))
    return once(route, audit.append)


def effects(store: sqlite3.Connection, event_id: str | None = None) -> int:
    """Count the audit entries: no constraint hides a second effect there."""
    row = store.execute(
        "SELECT count(*) FROM audit WHERE ? IS NULL OR event_id = ?", (event_id, event_id)
    ).fetchone()
    return int(row[0])


def receipts(store: sqlite3.Connection, recipient: str) -> int:
    """Count the messages that *recipient* has a receipt for."""
    row = store.execute("SELECT count(*) FROM receipt WHERE recipient = ?", (recipient,)).fetchone()
    return int(row[0])


def failing(times: int, handle: Handler, error: Callable[[], Exception]) -> Handler:
    """Return a handler that does its work, then raises *error*, the first *times* times."""
    left = times

    def apply(event: Event, tx: sqlite3.Connection) -> Effect:
        nonlocal left
        effect = handle(event, tx)
        if left > 0:
            left -= 1
            raise error()
        return effect

    return apply
