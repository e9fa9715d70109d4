"""Stop a message that kills the process each time it is handled."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from delivery.consumer import Guard
from delivery.errors import PermanentError, TemporaryError
from delivery.handling import Delivery
from delivery.points import reach
from delivery.store import Schema, transaction

__all__ = ["SCHEMA", "KillerMessage", "limit_deaths"]

SCHEMA = Schema(
    "strikes",
    1,
    """
CREATE TABLE strike (
    message TEXT PRIMARY KEY,
    begun INTEGER NOT NULL
) STRICT, WITHOUT ROWID
""",
)


class KillerMessage(PermanentError):
    """Handling this message was begun again and again, and never came to an end."""

    reason = "killer"


def limit_deaths(limit: int = 3) -> Guard:
    """Return a guard that refuses a message whose handling was begun *limit* times in vain.

    A strike is committed before the handling, and lifted when it comes to an orderly end: one that
    is left was left by a process that died, by a signal or by an error that nothing catches. Only
    redelivered messages are counted, so the usual path pays nothing; the first begin is therefore
    taken for granted. Create the guard once for a process: it knows which strikes this process
    could not lift (the store was locked, say) and does not count them.
    """
    unlifted: set[str] = set()

    @contextmanager
    def guard(delivery: Delivery, store: sqlite3.Connection) -> Iterator[None]:
        message = delivery.message_id or hashlib.sha256(delivery.body).hexdigest()
        begun = _begin(store, message, again=message not in unlifted)
        unlifted.add(message)
        try:
            if begun > limit:
                raise KillerMessage(
                    f"handling was begun {begun - 1} times and never ended: the process died"
                )
            yield
        except (TemporaryError, KillerMessage):
            _lift(store, message)
            unlifted.discard(message)
            raise
        _lift(store, message)
        unlifted.discard(message)

    return guard


def _begin(store: sqlite3.Connection, message: str, *, again: bool) -> int:
    with transaction(store) as tx:
        (begun,) = tx.execute(
            "INSERT INTO strike VALUES (?, 2)"
            " ON CONFLICT DO UPDATE SET begun = begun + ? RETURNING begun",
            (message, int(again)),
        ).fetchone()
    reach("strikes.begun")
    return int(begun)


def _lift(store: sqlite3.Connection, message: str) -> None:
    with transaction(store) as tx:
        tx.execute("DELETE FROM strike WHERE message = ?", (message,))
    reach("strikes.lifted")
