"""What the API asks of the publisher's database, and the answers of a SQLite file."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from typing import Any, Protocol

from delivery.contract import PublishMaterial
from delivery.feed import Page, read_page
from delivery.materials import Accepted, accept
from delivery.store import BUSY_TIMEOUT, StoreUnavailable, file_of, transaction
from delivery.tracing import Trace, outbox_summary

__all__ = ["PublisherStore", "SqlitePublisher"]


class PublisherStore(Protocol):
    """Called by several threads at once. Everything here raises StoreUnavailable."""

    def accept(
        self, material_id: str, command: PublishMaterial, *, key: str, traceparent: str
    ) -> tuple[Accepted, bool]:
        """Commit the command, as materials.accept does."""

    def page(self, *, after: int, limit: int) -> Page:
        """Return the events behind a position, as feed.read_page does."""

    def trace(self, word: str) -> dict[str, Any] | None:
        """Follow one event, as tracing.trace_with does."""

    def summary(self) -> dict[str, Any]:
        """Count what is where, as tracing.outbox_summary does."""

    def check(self) -> None:
        """Return if a command could be committed now."""


class SqlitePublisher:
    """The publisher's file; *open_publisher* opens it, once for each thread."""

    def __init__(self, open_publisher: Callable[[], sqlite3.Connection], trace: Trace) -> None:
        self._open = open_publisher
        self._trace = trace
        self._opened = threading.local()
        self._writing = threading.Lock()

    def accept(
        self, material_id: str, command: PublishMaterial, *, key: str, traceparent: str
    ) -> tuple[Accepted, bool]:
        """Commit the command, when it is its turn."""
        # SQLite's own writers do not queue: each looks again after up to 0.1 s, and some wait long.
        if not self._writing.acquire(timeout=BUSY_TIMEOUT):
            raise StoreUnavailable("the store can't be used: it has been locked for too long")
        try:
            return accept(self._store(), material_id, command, key=key, traceparent=traceparent)
        finally:
            self._writing.release()

    def page(self, *, after: int, limit: int) -> Page:
        """Return the events behind a position."""
        return read_page(self._store(), after=after, limit=limit)

    def trace(self, word: str) -> dict[str, Any] | None:
        """Follow one event."""
        return self._trace(self._store(), word)

    def summary(self) -> dict[str, Any]:
        """Count what is where."""
        return outbox_summary(self._store())

    def check(self) -> None:
        """Write, and see."""
        with transaction(self._store()) as tx:
            # A number that SQLite keeps and we do not use: only a real write meets a full disk.
            (last,) = tx.execute("PRAGMA user_version").fetchone()
            tx.execute(f"PRAGMA user_version = {(last + 1) % 1_000_000}")

    def _store(self) -> sqlite3.Connection:
        if not hasattr(self._opened, "store"):
            self._opened.store = self._open()
            self._opened.file = file_of(self._opened.store)
        found: sqlite3.Connection = self._opened.store
        if file_of(found) != self._opened.file:
            raise StoreUnavailable("the store's file was removed or replaced: restart the API")
        return found
