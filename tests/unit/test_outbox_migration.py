"""A publisher's file of the first version is taken over as it is, and works on."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from support.events import event

from delivery import outbox
from delivery.codec import encode
from delivery.contract import Event
from delivery.outbox import SqliteOutbox
from delivery.store import open_store
from delivery.tracing import find_events, outbox_summary

VERSION_1 = """
CREATE TABLE schema_version (name TEXT PRIMARY KEY, version INTEGER NOT NULL)
    STRICT, WITHOUT ROWID;
INSERT INTO schema_version VALUES ('outbox', 1);
CREATE TABLE outbox (
    position INTEGER PRIMARY KEY AUTOINCREMENT,
    event_id TEXT NOT NULL UNIQUE,
    event_type TEXT NOT NULL,
    body BLOB NOT NULL,
    correlation_id TEXT NOT NULL,
    accepted_at REAL NOT NULL,
    attempts INTEGER NOT NULL DEFAULT 0,
    next_attempt_at REAL NOT NULL DEFAULT 0,
    outcome TEXT,
    detail TEXT,
    confirmed_at REAL
) STRICT;
CREATE INDEX outbox_due ON outbox (next_attempt_at, position) WHERE confirmed_at IS NULL;
"""
INSERT = (
    "INSERT INTO outbox (event_id, event_type, body, correlation_id, accepted_at, confirmed_at)"
    " VALUES (?, ?, ?, ?, ?, ?)"
)


def version_1(path: Path, *events: Event) -> None:
    """Write a file as the first version of the code did; the first event is confirmed."""
    with closing(sqlite3.connect(path)) as file:
        file.executescript(VERSION_1)
        for n, each in enumerate(events):
            row = (each.id, each.type, encode(each), f"request-{n}", 1.0, None if n else 2.0)
            file.execute(INSERT, row)
        file.execute(INSERT, ("odd", "t", b"no JSON \xff", "request-x", 1.0, 2.0))
        file.commit()


def test_a_file_of_version_1_keeps_its_rows_and_can_be_asked_by_material(tmp_path: Path) -> None:
    """What waited still waits, what was confirmed stays so; a body that is no JSON does no harm."""
    first, second = event("m-1"), event("m-2")
    version_1(tmp_path / "old.db", first, second)
    with closing(open_store(tmp_path / "old.db", outbox.SCHEMA)) as store:
        with SqliteOutbox(store, "x").batch(10) as batch:
            assert [message.properties.message_id for message in batch.messages] == [second.id]
        assert find_events(store, "m-1") == ("material_id", [first.id])
        assert find_events(store, "request-1") == ("request_id", [second.id])
        assert find_events(store, "odd") == ("event_id", ["odd"])
        found = outbox_summary(store)
        assert (found["accepted"], found["confirmed"]) == (3, 2)


def test_an_old_file_ends_up_like_a_new_one(tmp_path: Path) -> None:
    """The same columns in the same order, the same indexes and triggers."""
    version_1(tmp_path / "old.db", event("m-1"))
    shapes = []
    for name in ("old.db", "new.db"):
        with closing(open_store(tmp_path / name, outbox.SCHEMA)) as store:
            columns = store.execute("PRAGMA table_xinfo(outbox)").fetchall()
            indexes = store.execute(
                "SELECT name, sql FROM sqlite_schema WHERE type IN ('index', 'trigger')"
                " ORDER BY name"
            ).fetchall()
            versions = store.execute("SELECT * FROM schema_version").fetchall()
            shapes.append((columns, indexes, versions))
    assert shapes[0] == shapes[1]
