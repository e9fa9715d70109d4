"""What the tests need of a recipient: its store, questions about it, a handler that fails."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from delivery.contract import Event
from delivery.handling import Effect, Handler
from delivery.store import Schema, open_store

TABLES = ("audit", "catalog", "inbox", "revision", "strikes")


def schemas() -> list[Schema]:
    """Every table group of a recipient that the package has: a cut has not all of them."""
    modules = [f"delivery.{name}" for name in TABLES]
    return [import_module(module).SCHEMA for module in modules if find_spec(module)]


def store_at(path: Path) -> sqlite3.Connection:
    """Open a recipient's store."""
    return open_store(path, *schemas())


def effects(store: sqlite3.Connection, event_id: str | None = None) -> int:
    """Count the audit entries: no constraint hides a second effect there."""
    row = store.execute(
        "SELECT count(*) FROM audit WHERE ? IS NULL OR event_id = ?", (event_id, event_id)
    ).fetchone()
    return int(row[0])


def receipts(store: sqlite3.Connection, recipient: str) -> int:
    """Count the messages that *recipient* has a receipt for (lesson 09)."""
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
