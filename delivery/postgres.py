"""A PostgreSQL database for a participant: its tables, its transactions, and its bad days."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import TransactionStatus

from delivery.errors import DeliveryError
from delivery.store import Schema, StoreUnavailable

__all__ = [
    "Connection",
    "one_instant",
    "open_postgres",
    "reading",
    "refused",
    "savepoint",
    "storable",
    "transaction",
]

Connection = psycopg.Connection[tuple[Any, ...]]

LOCK_TIMEOUT = 5_000  # milliseconds that a statement waits for another writer
# Milliseconds after which the server ends a session that holds a transaction and says nothing: its
# locks are free then, also if its machine is gone. More than the 10 s that a relay's broker gets
# for an answer; a batch that takes longer in all is sent again, in smaller ones.
IDLE_TIMEOUT = 60_000
_SETTINGS = {
    "lock_timeout": LOCK_TIMEOUT,
    "idle_in_transaction_session_timeout": IDLE_TIMEOUT,
    # The database may be set up otherwise: what is promised here was thought through for these.
    "default_transaction_isolation": "read committed",
    "synchronous_commit": "on",
    "timezone": "UTC",
}
_INSTALLING = 5_672_015  # an advisory lock of our own: who creates or changes tables
# Unreachable, full, out of memory, shutting down, broken disks; deadlocked, locked, read-only,
# ended for its silence, without a right that somebody may give: a later attempt may do (SQLSTATE,
# classes and codes). Not: one message's data that is too large (54000), or a statement that was
# cancelled (57014), as it would be again.
_CLASSES = {"08", "53", "57", "58"}
_CODES = {"40001", "40P01", "55P03", "25006", "25P03", "42501"}
_CANCELLED = "57014"


def open_postgres(url: str, *schemas: Schema, name: str = "delivery") -> Connection:
    """Connect to the database at *url*, create the tables of *schemas*, return the connection.

    *name* is what ``pg_stat_activity`` shows. The tables lie in the first schema of the search
    path; to use those that are there, no right to create any is needed. A database that another
    version of the code has written is handled as in open_store. Raises StoreDiffers,
    StoreUnavailable, and DeliveryError for a URL that is none and for rights that are missing.
    """
    _check(url)
    with _translated(), refused():
        store = psycopg.connect(
            url,
            autocommit=True,  # transactions are begun where they are seen
            application_name=name,
            connect_timeout=10,
            # A server that is silently gone is noticed after some 20 s, not after two hours.
            keepalives_idle=10,
            keepalives_interval=3,
            keepalives_count=3,
            tcp_user_timeout=20_000,  # milliseconds; they pause while data is on its way
        )
        try:
            for setting, value in _SETTINGS.items():
                store.execute("SELECT set_config(%s, %s, false)", (setting, str(value)))
            if not _has_all(store, schemas):
                _install_all(store, schemas)
        except BaseException:
            store.close()
            raise
    return store


@contextmanager
def transaction(store: Connection) -> Iterator[Connection]:
    """Commit when the block ends; roll back when it raises. Raises StoreUnavailable.

    A connection that is lost during the commit leaves open whether it was done.
    """
    with _translated(), store.transaction():
        yield store


@contextmanager
def one_instant(store: Connection) -> Iterator[Connection]:
    """Look, in a transaction that writes nothing, at what was there when it began.

    Raises StoreUnavailable.
    """
    with _translated():
        store.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        try:
            yield store
        finally:
            store.execute("ROLLBACK")


@contextmanager
def savepoint(tx: Connection) -> Iterator[None]:
    """Undo only this block when it raises; the transaction around it goes on.

    Raises StoreUnavailable if it is this database that can't be used: a handler may have met the
    same error with a database of its own.
    """
    with tx.transaction(), _translated(tx):
        yield


def reading() -> AbstractContextManager[None]:
    """Read outside a transaction. Raises StoreUnavailable."""
    return _translated()


def storable(text: str) -> str:
    r"""Return *text* as PostgreSQL can hold it: what it can't is written out, such as ``\0``."""
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")


def _check(url: str) -> None:
    """Raise DeliveryError, showing nothing of *url*: any part may be a piece of a password."""
    try:
        parts = conninfo_to_dict(url)
    except psycopg.ProgrammingError:
        parts = {"host": "@"}
    # A password's own @ / ? or # belongs written as %40 and so on; as it is it ends the password.
    if any("@" in str(parts.get(name, "")) for name in ("host", "port", "dbname")):
        raise DeliveryError(
            "the database's URL can't be read; expected postgresql://user:password@host/database"
        )


@contextmanager
def _translated(only: Connection | None = None) -> Iterator[None]:
    try:
        yield
    except psycopg.Error as error:
        if not _passes(error) or (only is not None and _is_well(only)):
            raise
        raise StoreUnavailable(f"the database can't be used: {_words(error)}") from error


@contextmanager
def refused() -> Iterator[None]:
    """Raise DeliveryError for a table that is not there, and for rights that are missing."""
    try:
        yield
    except psycopg.ProgrammingError as error:
        raise DeliveryError(f"the database does not do this: {_words(error)}") from error


def _words(error: Exception) -> str:
    return " ".join(str(error).split())


def _passes(error: psycopg.Error) -> bool:
    state = error.sqlstate
    if state is None:  # not from the server: the connection is lost, or was never there
        return isinstance(error, psycopg.OperationalError)
    return state != _CANCELLED and (state[:2] in _CLASSES or state in _CODES)


def _is_well(tx: Connection) -> bool:
    # An error of this connection's own leaves its transaction failed, or the connection dead.
    return tx.info.transaction_status is TransactionStatus.INTRANS


def _has_all(store: Connection, schemas: Sequence[Schema]) -> bool:
    known: dict[str, int] = {}
    if schemas and store.execute("SELECT to_regclass('schema_version')").fetchone() != (None,):
        known = dict(store.execute("SELECT name, version FROM schema_version").fetchall())
    return all(known.get(schema.name) == schema.version for schema in schemas)


def _install_all(store: Connection, schemas: Sequence[Schema]) -> None:
    with store.transaction():
        # Several processes start at once, and "IF NOT EXISTS" alone does not keep them apart.
        store.execute("SELECT pg_advisory_xact_lock(%s)", (_INSTALLING,))
        store.execute(
            "CREATE TABLE IF NOT EXISTS schema_version"
            " (name text PRIMARY KEY, version integer NOT NULL)"
        )
        for schema in schemas:
            _install(store, schema)


def _install(tx: Connection, schema: Schema) -> None:
    row = tx.execute(
        "SELECT version FROM schema_version WHERE name = %s", (schema.name,)
    ).fetchone()
    if row is None:
        tx.execute(schema.sql.encode())
        tx.execute("INSERT INTO schema_version VALUES (%s, %s)", (schema.name, schema.version))
        return
    for step in schema.steps_from(row[0], "another database"):
        tx.execute(step.encode())
    tx.execute(
        "UPDATE schema_version SET version = %s WHERE name = %s", (schema.version, schema.name)
    )
