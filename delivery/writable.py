"""Say whether a store can be written, by writing: a process with nothing to do learns it so."""

from __future__ import annotations

import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from delivery.store import BUSY_TIMEOUT, StoreUnavailable, reading, transaction

__all__ = ["check_at_once", "check_writable", "proving"]

EVERY = 3.0  # seconds between two proofs
AGAIN = 0.1  # seconds until the next one after a failure
# Bytes that must be free beside the store: more than a transaction of ours writes. SQLite itself
# meets a full disk late: its log takes new pages in the place of old ones.
ROOM = 1024 * 1024


def check_writable(store: sqlite3.Connection) -> None:
    """Commit a write, and see that the disk has room for more. Raises StoreUnavailable."""
    with transaction(store) as tx:
        # A number that SQLite keeps and we do not use: a real write, as durable as any.
        (last,) = tx.execute("PRAGMA user_version").fetchone()
        tx.execute(f"PRAGMA user_version = {(last + 1) % 1_000_000}")
        path = tx.execute("PRAGMA database_list").fetchone()[2]
    try:
        # Nameless, so that no crash leaves it behind; never synced, so seldom on the disk itself.
        with tempfile.TemporaryFile(dir=Path(path).parent) as file:
            file.write(bytes(ROOM))
    except OSError as error:
        text = f"no {ROOM // 1024} KiB can be written beside the store: {error.strerror}"
        raise StoreUnavailable(text) from error


def check_at_once(store: sqlite3.Connection) -> None:
    """Do what check_writable does, and wait for no other writer."""
    with _impatient(store):
        check_writable(store)


def proving(
    check: Callable[[], None], in_use: Callable[[], bool] = lambda: False
) -> Callable[[], None]:
    """Return what calls *check* when it is time for a proof; call it in the loop of the work.

    It raises *check*'s StoreUnavailable if there was nothing else for as long as a writer waits
    for another one. No proof is made while we ourselves are writing (*in_use*).
    """
    due, failing_since = time.monotonic() + EVERY, None

    def prove() -> None:
        nonlocal due, failing_since
        now = time.monotonic()
        if now < due:
            return
        if in_use():
            failing_since = None
            return
        try:
            check()
        except StoreUnavailable:
            # Our own writer may have begun in this moment.
            failing_since = None if in_use() else failing_since or now
            due = now + AGAIN
            if failing_since is not None and now - failing_since > BUSY_TIMEOUT:
                failing_since = None
                raise
        else:
            due, failing_since = now + EVERY, None

    return prove


@contextmanager
def _impatient(store: sqlite3.Connection) -> Iterator[None]:
    with reading():
        (before,) = store.execute("PRAGMA busy_timeout").fetchone()
        store.execute("PRAGMA busy_timeout = 0")
    try:
        yield
    finally:
        store.execute(f"PRAGMA busy_timeout = {before}")
