"""The publisher's database for the API, in PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from starlette.concurrency import run_in_threadpool

from delivery import postgres_feed, postgres_materials, postgres_outbox, postgres_trail
from delivery.feed import Page
from delivery.materials import Accepted, Request
from delivery.postgres import open_postgres, transaction
from delivery.postgres_pool import Pool

__all__ = ["SCHEMAS", "PostgresPublisher"]

SCHEMAS = (postgres_outbox.SCHEMA, postgres_materials.SCHEMA, postgres_trail.SCHEMA)


class PostgresPublisher:
    """What publisher_store.PublisherStore asks for, of the database at *url*.

    *standings* says where each recipient stands with an event. Raises what open_postgres raises, at
    once: a database that can't be used is said now, not at a request.
    """

    def __init__(self, url: str, standings: Callable[[str], dict[str, Any]]) -> None:
        self._pool = Pool(lambda: open_postgres(url, *SCHEMAS, name="delivery api"))
        self._standings = standings
        with self._pool.one():
            pass

    async def accept(self, request: Request) -> tuple[Accepted, bool]:
        """Commit the command, while others commit theirs."""
        return await run_in_threadpool(self._accept, request)

    def _accept(self, request: Request) -> tuple[Accepted, bool]:
        with self._pool.one() as store:
            return postgres_materials.accept(
                store,
                request.material_id,
                request.command,
                key=request.key,
                traceparent=request.traceparent,
            )

    def page(self, *, after: int, limit: int) -> Page:
        """Return the events behind a position."""
        with self._pool.one() as store:
            return postgres_feed.read_page(store, after=after, limit=limit)

    def trace(self, word: str) -> dict[str, Any] | None:
        """Follow one event."""
        with self._pool.one() as store:
            kind, events = postgres_feed.find_events(store, word)
            if not events:
                return None
            found = postgres_feed.row_of(store, events[-1])
        found["matched_by"], found["events"] = kind, events
        found["recipients"] = self._standings(events[-1])
        return found

    def summary(self) -> dict[str, Any]:
        """Count what is where."""
        with self._pool.one() as store:
            return postgres_feed.outbox_summary(store)

    def check(self) -> None:
        """Write, and see."""
        with self._pool.one() as store, transaction(store) as tx:
            # As it is: only a real write meets a full disk, or a server that takes none.
            tx.execute("UPDATE schema_version SET version = version WHERE name = 'outbox'")

    def close(self) -> None:
        """Close the connections."""
        self._pool.close()
