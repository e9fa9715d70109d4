"""One outbox and one inbox, asked in the same words of SQLite and of PostgreSQL."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from delivery import (
    audit,
    inbox,
    outbox,
    postgres,
    postgres_inbox,
    postgres_outbox,
    postgres_revision,
    postgres_strikes,
    revision,
    store,
    strikes,
)
from delivery.consumer import Guard
from delivery.contract import Event
from delivery.handling import Delivery, Effect, Failed, Handled, apply_batch
from delivery.routes import Route
from delivery.store import Schema

AUDIT = Schema(
    "audit",
    1,
    "CREATE TABLE audit (entry bigserial, event_id text, material_id text, revision bigint)",
)
FIELDS = "outcome, detail, attempts, confirmed_at IS NOT NULL"


def postgres_append(event: Event, tx: postgres.Connection) -> Effect:
    """The audit log's effect, in PostgreSQL."""
    tx.execute(
        "INSERT INTO audit (event_id, material_id, revision) VALUES (%s, %s, %s)",
        (event.id, event.data.material_id, event.data.revision),
    )
    return Effect.APPLIED


class Sqlite:
    """The stores of lessons 05 to 11, with a clock that the test moves."""

    append: Callable[..., Effect] = staticmethod(audit.append)
    latest_only = staticmethod(revision.latest_only)
    receipt_of = staticmethod(inbox.receipt_of)
    prune = staticmethod(inbox.prune)
    pruned_before = staticmethod(inbox.pruned_before)
    add_to = staticmethod(outbox.add)
    savepoint = staticmethod(store.savepoint)

    def __init__(self, folder: Path) -> None:
        schemas = (outbox.SCHEMA, inbox.SCHEMA, revision.SCHEMA, audit.SCHEMA, strikes.SCHEMA)
        self._open = lambda: store.open_store(folder / "store.db", *schemas)
        self.connection: Any = self._open()
        self._ahead = 0.0

    def again(self) -> Any:
        """Open the same store a second time."""
        return self._open()

    def box(self) -> outbox.Outbox:
        return outbox.SqliteOutbox(self.connection, "ns.events", clock=self._now)

    def transaction(self) -> AbstractContextManager[Any]:
        return store.transaction(self.connection)

    def pass_time(self, seconds: float) -> None:
        """Let the store's clock go on, or back."""
        self._ahead += seconds

    def guard(self, limit: int = 3) -> Guard[Any]:
        return strikes.limit_deaths(limit)

    def once(self, route: Route, handle: Callable[..., Effect]) -> Callable[..., Effect]:
        return inbox.once(route, handle, clock=self._now)

    def apply(
        self, deliveries: Sequence[Delivery], handle: Callable[..., Effect]
    ) -> Sequence[Handled | Failed]:
        return apply_batch(deliveries, self.connection, handle)

    def row(self, of: Event) -> dict[str, Any]:
        """The row's facts, and how long it is to wait."""
        query = f"SELECT {FIELDS}, next_attempt_at - ? FROM outbox WHERE event_id = ?"
        found = self.connection.execute(query, (self._now(), of.id)).fetchone()
        return dict(zip(("outcome", "detail", "attempts", "confirmed", "wait"), found, strict=True))

    def count(self, what: str) -> int:
        return int(self.connection.execute(f"SELECT count(*) FROM {what}").fetchone()[0])

    def _now(self) -> float:
        return time.time() + self._ahead


class Postgres:
    """The stores of lesson 15. The server's clock stays; the times in the rows move instead."""

    append: Callable[..., Effect] = staticmethod(postgres_append)
    latest_only = staticmethod(postgres_revision.latest_only)
    receipt_of = staticmethod(postgres_inbox.receipt_of)
    prune = staticmethod(postgres_inbox.prune)
    pruned_before = staticmethod(postgres_inbox.pruned_before)
    add_to = staticmethod(postgres_outbox.add)
    savepoint = staticmethod(postgres.savepoint)
    once = staticmethod(postgres_inbox.once)

    def __init__(self, url: str) -> None:
        schemas = (
            *(postgres_outbox.SCHEMA, postgres_inbox.SCHEMA, AUDIT),
            postgres_strikes.SCHEMA,
        )
        self._open = lambda: postgres.open_postgres(url, *schemas, postgres_revision.SCHEMA)
        self.connection: Any = self._open()

    def again(self) -> Any:
        return self._open()

    def guard(self, limit: int = 3) -> Guard[Any]:
        return postgres_strikes.limit_deaths("audit", limit)

    def box(self) -> outbox.Outbox:
        return postgres_outbox.PostgresOutbox(self.connection, "ns.events")

    def transaction(self) -> AbstractContextManager[Any]:
        return postgres.transaction(self.connection)

    def pass_time(self, seconds: float) -> None:
        for table, column in (("outbox", "next_attempt_at"), ("receipt", "received_at")):
            self.connection.execute(
                f"UPDATE {table} SET {column} = {column} - make_interval(secs => %s)", (seconds,)
            )

    def apply(
        self, deliveries: Sequence[Delivery], handle: Callable[..., Effect]
    ) -> Sequence[Handled | Failed]:
        return postgres_inbox.applying(self.connection, handle)(deliveries)

    def row(self, of: Event) -> dict[str, Any]:
        query = (
            f"SELECT {FIELDS}, extract(epoch FROM next_attempt_at - clock_timestamp())::float8"
            " FROM outbox WHERE event_id = %s"
        )
        found = self.connection.execute(query, (of.id,)).fetchone()
        return dict(zip(("outcome", "detail", "attempts", "confirmed", "wait"), found, strict=True))

    def count(self, what: str) -> int:
        return int(self.connection.execute(f"SELECT count(*) FROM {what}").fetchone()[0])
