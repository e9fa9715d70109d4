"""Which participant keeps which tables, each in a file of its own."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import quote

from delivery import (
    audit,
    catalog,
    decisions,
    failures,
    inbox,
    materials,
    moved,
    outbox,
    revision,
    strikes,
    trail,
)
from delivery.routes import RECIPIENTS
from delivery.store import Schema, StoreUnavailable, open_store

__all__ = ["PUBLISHER", "Stores"]

PUBLISHER = "publisher"

_EVERY_RECIPIENT = (inbox.SCHEMA, strikes.SCHEMA, decisions.SCHEMA, failures.SCHEMA)
_SCHEMAS: Mapping[str, tuple[Schema, ...]] = {
    PUBLISHER: (materials.SCHEMA, outbox.SCHEMA, trail.SCHEMA, moved.SCHEMA),
    "catalog": (*_EVERY_RECIPIENT, revision.SCHEMA, catalog.SCHEMA),
    "audit": (*_EVERY_RECIPIENT, audit.SCHEMA),
}


@dataclass(frozen=True)
class Stores:
    """The participants' SQLite files in the folder *data*: they are separate services."""

    data: Path

    def path(self, participant: str) -> Path:
        """Return where *participant* keeps its file."""
        return self.data / f"{participant}.sqlite3"

    def open(self, participant: str) -> sqlite3.Connection:
        """Open *participant*'s file, creating it if need be. Raises what open_store raises."""
        try:
            self.data.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreUnavailable(f"can't use the folder {self.data}: {error}") from error
        return open_store(self.path(participant), *_SCHEMAS[participant])

    def inboxes(self) -> dict[str, Callable[[], sqlite3.Connection | None]]:
        """Return for each recipient how to open its file to read."""
        return {recipient: partial(self.open_to_read, recipient) for recipient in RECIPIENTS}

    def open_to_read(self, participant: str) -> sqlite3.Connection | None:
        """Open another service's file without touching it; None if that is not possible."""
        try:
            return sqlite3.connect(
                f"file:{quote(str(self.path(participant)))}?mode=ro",
                uri=True,
                isolation_level=None,
                check_same_thread=False,
            )
        except sqlite3.OperationalError:
            return None
