"""Stop a message that kills the process each time it is handled."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from delivery.consumer import Guard
from delivery.errors import PermanentError
from delivery.handling import Delivery
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

    A strike is committed before the handling, and lifted after it, however it ended: one that is
    left was left by a process that died. Only redelivered messages are counted, so the usual path
    pays nothing; the first begin is therefore taken for granted.
    """

    @contextmanager
    def guard(delivery: Delivery, store: sqlite3.Connection) -> Iterator[None]:
        message = delivery.message_id or hashlib.sha256(delivery.body).hexdigest()
        with transaction(store) as tx:
            (begun,) = tx.execute(
                "INSERT INTO strike VALUES (?, 2)"
                " ON CONFLICT DO UPDATE SET begun = begun + 1 RETURNING begun",
                (message,),
            ).fetchone()
        try:
            if begun > limit:
                raise KillerMessage(
                    f"handling was begun {begun - 1} times and never ended: the process died"
                )
            yield
        finally:
            with transaction(store) as tx:
                tx.execute("DELETE FROM strike WHERE message = ?", (message,))

    return guard
