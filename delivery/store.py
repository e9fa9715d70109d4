"""A SQLite file for each participant, with transactions that are visible where they are used."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from delivery.errors import DeliveryError, TemporaryError

__all__ = [
    "Schema",
    "StoreDiffers",
    "StoreUnavailable",
    "file_of",
    "open_store",
    "reading",
    "savepoint",
    "transaction",
]

WAL_LIMIT = 16 * 1024 * 1024  # bytes that the log keeps on the disk after a peak
BUSY_TIMEOUT = 5.0  # seconds that a writer waits for another one
_UNAVAILABLE = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_NOTADB,
}
_BROKEN = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CORRUPT}


class StoreUnavailable(TemporaryError):
    """The store itself can't be used (locked, full, unreadable): no message is at fault."""

    event = "store.unavailable"


class StoreDiffers(DeliveryError):
    """The file was written by another version of the code, and this one must not touch it."""


@dataclass(frozen=True)
class Schema:
    """The tables that one module keeps in a store, and their version.

    ``steps`` lead older files here: the last one from the version before, and so on backwards.
    """

    name: str
    version: int
    sql: str
    steps: tuple[str, ...] = ()

    def steps_from(self, known: int, another: str, *, where: str = "") -> tuple[str, ...]:
        """Return the steps that lead here from version *known*.

        Raises StoreDiffers: its text begins with *where*, and says that *another* would do instead.
        """
        missing = self.version - known
        if not 0 <= missing <= len(self.steps):
            differs = "newer" if missing < 0 else "older"
            raise StoreDiffers(
                f"{where}table group {self.name!r} has version {known}, this code knows"
                f" {self.version}; use the {differs} code, or {another}"
            )
        return self.steps[len(self.steps) - missing :]


def open_store(path: str | Path, *schemas: Schema) -> sqlite3.Connection:
    """Open the file at *path*, create the tables of *schemas*, and return the connection.

    A file holds several modules' tables, so each schema keeps its own version in ``schema_version``
    (``PRAGMA user_version`` is one number for all). An older file is brought up to date where the
    schema has the steps. Raises StoreDiffers, StoreUnavailable.
    """
    with _translated():
        # One thread uses a connection at a time, but not always the one that opened it.
        store = sqlite3.connect(
            path, isolation_level=None, timeout=BUSY_TIMEOUT, check_same_thread=False
        )
        try:
            _use_wal(store)
            store.execute(f"PRAGMA journal_size_limit = {WAL_LIMIT}")
            store.execute("PRAGMA synchronous = FULL")  # a commit survives a power cut
            if not _has_all(store, schemas):  # a reader of a busy file need not wait for its writer
                _install_all(store, schemas, path)
        except BaseException:
            store.close()
            raise
    return store


@contextmanager
def transaction(store: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """Commit when the block ends; roll back when it raises. Raises StoreUnavailable."""
    with _translated():
        store.execute("BEGIN IMMEDIATE")  # a writer from the start: no upgrade that can deadlock
        try:
            yield store
            store.execute("COMMIT")
        except BaseException:
            if store.in_transaction:  # a full disk may have rolled back already
                store.execute("ROLLBACK")
            raise


@contextmanager
def savepoint(tx: sqlite3.Connection) -> Iterator[None]:
    """Undo only this block when it raises; the transaction around it goes on.

    Raises StoreUnavailable if the disk is full or broken. Other trouble can't be this file's: it is
    open, and locked by us. A handler may have met it with a file of its own.
    """
    try:  # no generator within this one: it is entered for every message
        tx.execute("SAVEPOINT part")
        try:
            yield
        except BaseException:
            if tx.in_transaction:
                tx.execute("ROLLBACK TO part")
                tx.execute("RELEASE part")
            raise
        tx.execute("RELEASE part")
    except sqlite3.DatabaseError as error:
        _raise_unavailable(error, _BROKEN)
        raise


def file_of(store: sqlite3.Connection) -> tuple[int, int] | None:
    """Return device and number of the file at the store's path now; None if there is none.

    SQLite goes on writing to a file that was deleted under it: what it "commits" is lost.
    """
    path = store.execute("PRAGMA database_list").fetchone()[2]
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


@contextmanager
def reading() -> Iterator[None]:
    """Read outside a transaction. Raises StoreUnavailable."""
    with _translated():
        yield


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except sqlite3.DatabaseError as error:
        _raise_unavailable(error, _UNAVAILABLE)
        raise


def _raise_unavailable(error: sqlite3.DatabaseError, codes: Set[int]) -> None:
    primary = (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF
    if primary in codes:
        raise StoreUnavailable(f"the store can't be used: {error}") from error


def _use_wal(store: sqlite3.Connection) -> None:
    deadline = time.monotonic() + BUSY_TIMEOUT
    while True:
        try:
            if store.execute("PRAGMA page_count").fetchone() == (0,):
                # Free pages can be given back, some at a time. Only a new file takes this.
                store.execute("PRAGMA auto_vacuum = INCREMENTAL")
            store.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError:
            # SQLite does not wait its busy timeout while two openers switch a new file to WAL.
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
        else:
            return


def _has_all(store: sqlite3.Connection, schemas: Sequence[Schema]) -> bool:
    if not store.execute("SELECT 1 FROM sqlite_schema WHERE name = 'schema_version'").fetchone():
        return False
    known = dict(store.execute("SELECT name, version FROM schema_version").fetchall())
    return all(known.get(schema.name) == schema.version for schema in schemas)


def _install_all(store: sqlite3.Connection, schemas: Sequence[Schema], path: str | Path) -> None:
    with transaction(store) as tx:
        tx.execute(
            "CREATE TABLE IF NOT EXISTS schema_version"
            " (name TEXT PRIMARY KEY, version INTEGER NOT NULL) STRICT, WITHOUT ROWID"
        )
        for schema in schemas:
            _install(tx, schema, path)


def _install(tx: sqlite3.Connection, schema: Schema, path: str | Path) -> None:
    row = tx.execute("SELECT version FROM schema_version WHERE name = ?", (schema.name,)).fetchone()
    if row is None:
        _run(tx, schema.sql)
        tx.execute("INSERT INTO schema_version VALUES (?, ?)", (schema.name, schema.version))
        return
    for step in schema.steps_from(row[0], "another file", where=f"{path}: "):
        _run(tx, step)
    tx.execute(
        "UPDATE schema_version SET version = ? WHERE name = ?", (schema.version, schema.name)
    )


def _run(tx: sqlite3.Connection, sql: str) -> None:
    for statement in sql.split(";\n"):
        tx.execute(statement.strip())
