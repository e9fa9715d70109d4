"""Stop a message that kills the process each time it is handled."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from delivery.consumer import Guard
from delivery.errors import PermanentError, TemporaryError
from delivery.handling import Delivery
from delivery.points import reach
from delivery.store import Schema, transaction

__all__ = ["SCHEMA", "KillerMessage", "Strikes", "guarding", "limit_deaths"]

Store = TypeVar("Store")  # a database connection

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


@dataclass(frozen=True)
class Strikes(Generic[Store]):
    """How a database keeps the strikes: its transaction, and its two statements.

    ``begin`` is given the message and how much to add to its strikes, and returns them; ``lift`` is
    given the message, whose strikes it removes.
    """

    transaction: Callable[[Store], AbstractContextManager[Any]]
    begin: str
    lift: str


_IN_SQLITE: Strikes[sqlite3.Connection] = Strikes(
    transaction,
    "INSERT INTO strike VALUES (?, 2) ON CONFLICT DO UPDATE SET begun = begun + ? RETURNING begun",
    "DELETE FROM strike WHERE message = ?",
)


class KillerMessage(PermanentError):
    """Handling this message was begun again and again, and never came to an end."""

    reason = "killer"


def limit_deaths(limit: int = 3) -> Guard[sqlite3.Connection]:
    """Return a guard that refuses a message whose handling was begun *limit* times in vain.

    A strike is committed before the handling, and lifted when it comes to an orderly end: one that
    is left was left by a process that died, by a signal or by an error that nothing catches. Only
    redelivered messages are counted, so the usual path pays nothing; the first begin is therefore
    taken for granted. Create the guard once for a process: it knows which strikes this process
    could not lift (the store was locked, say) and does not count them.
    """
    return guarding(_IN_SQLITE, limit)


def guarding(strikes: Strikes[Store], limit: int = 3) -> Guard[Store]:
    """Return limit_deaths' guard for the database that keeps *strikes*."""
    unlifted: set[str] = set()

    @contextmanager
    def guard(delivery: Delivery, store: Store) -> Iterator[None]:
        message = delivery.message_id or hashlib.sha256(delivery.body).hexdigest()
        begun = _begin(strikes, store, message, again=message not in unlifted)
        unlifted.add(message)
        try:
            if begun > limit:
                raise KillerMessage(
                    f"handling was begun {begun - 1} times and never ended: the process died"
                )
            yield
        except (TemporaryError, KillerMessage):
            _lift(strikes, store, message)
            unlifted.discard(message)
            raise
        _lift(strikes, store, message)
        unlifted.discard(message)

    return guard


def _begin(strikes: Strikes[Store], store: Store, message: str, *, again: bool) -> int:
    with strikes.transaction(store) as tx:
        (begun,) = tx.execute(strikes.begin, (message, int(again))).fetchone()
    reach("strikes.begun")
    return int(begun)


def _lift(strikes: Strikes[Store], store: Store, message: str) -> None:
    with strikes.transaction(store) as tx:
        tx.execute(strikes.lift, (message,))
    reach("strikes.lifted")
