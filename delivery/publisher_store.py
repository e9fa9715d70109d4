"""What the API asks of the publisher's database, and the answers of a SQLite file."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from delivery.feed import Page, read_page
from delivery.group_commit import GroupCommit
from delivery.materials import Accepted, Refusal, Request, accept_all
from delivery.store import StoreUnavailable, file_of
from delivery.tracing import Trace, outbox_summary
from delivery.writable import check_writable

__all__ = ["PublisherStore", "SqlitePublisher"]


class PublisherStore(Protocol):
    """All of it raises StoreUnavailable. But for accept, several threads call it at once."""

    async def accept(self, request: Request) -> tuple[Accepted, bool]:
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
        self._file: tuple[int, int] | None = None  # the first one that any thread opened
        # SQLite's own writers do not queue: each looks again after up to 0.1 s, and some wait long.
        self._accepting = GroupCommit(self._accept_all)

    async def accept(self, request: Request) -> tuple[Accepted, bool]:
        """Commit the command, together with those that others wait for."""
        return await self._accepting.submit(request)

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
        check_writable(self._store())

    def _accept_all(self, requests: Sequence[Request]) -> list[tuple[Accepted, bool] | Refusal]:
        return accept_all(self._store(), requests)

    def _store(self) -> sqlite3.Connection:
        if not hasattr(self._opened, "store"):
            self._opened.store = self._open()
        found: sqlite3.Connection = self._opened.store
        here = file_of(found)
        self._file = self._file or here
        if here != self._file:  # also where a thread has just opened a new one in its place
            raise StoreUnavailable("the store's file was removed or replaced: restart the API")
        return found
