"""Say whether a PostgreSQL database can be written, by writing, as writable does for a file."""

from __future__ import annotations

from delivery.postgres import Connection, transaction
from delivery.store import StoreUnavailable

__all__ = ["check_writable"]


def check_writable(store: Connection) -> None:
    """Commit a write that leaves no row and needs no right. Raises StoreUnavailable.

    It goes to the server's log, as durable as any; that a table can grow is not proved.
    """
    with transaction(store) as tx:
        (read_only,) = tx.execute(
            "SELECT current_setting('transaction_read_only') = 'on'"
            " FROM pg_logical_emit_message(true, 'delivery', '')"
        ).fetchone() or (True,)
    if read_only:  # what was written needs no leave of the tables
        raise StoreUnavailable("the database can't be used: it is read-only")
