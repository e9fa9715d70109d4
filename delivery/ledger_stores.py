"""What the ledger asks of a publisher's and a recipient's database, and the answers of SQLite."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass

from delivery.handling import Effect
from delivery.inbox import pruned_before
from delivery.outbox import removed
from delivery.stores import PUBLISHER, Stores

__all__ = ["Publisher", "Recipient", "Shelves", "sqlite_shelves"]


@dataclass(frozen=True)
class Publisher:
    """One instant of a publisher's outbox; ids come in ascending order, by code points.

    What was accepted before *since* (Unix seconds) may have been removed.
    """

    since: float
    accepted: Callable[[], Iterator[str]]
    pending: Callable[[], Iterator[str]]
    accepted_before: Callable[[float], Iterator[str]]


@dataclass(frozen=True)
class Recipient:
    """One instant of a recipient's receipts, in ascending order of the message ids.

    Those from before *pruned* (Unix seconds) may have been forgotten.
    """

    pruned: float
    receipts: Callable[[], Iterator[tuple[str, Effect]]]
    of_events_before: Callable[[float], Iterator[str]]


@dataclass(frozen=True)
class Shelves:
    """Where the books are: what opens the publisher's, and those of a recipient by its name."""

    publisher: Callable[[], AbstractContextManager[Publisher]]
    recipient: Callable[[str], AbstractContextManager[Recipient]]


def sqlite_shelves(stores: Stores) -> Shelves:
    """Return the books in *stores*."""

    @contextmanager
    def publisher() -> Iterator[Publisher]:
        with closing(stores.open(PUBLISHER)) as store:
            store.execute("BEGIN")
            _, since = removed(store)  # the first look fixes what the later ones see
            yield _publisher(store, since)

    @contextmanager
    def recipient(name: str) -> Iterator[Recipient]:
        with closing(stores.open(name)) as store:
            store.execute("BEGIN")
            yield _recipient(store, name)

    return Shelves(publisher, recipient)


# Every stream in the order of the ids, which each table has an index for.


def _publisher(store: sqlite3.Connection, since: float) -> Publisher:
    return Publisher(
        since=since,
        accepted=lambda: _ids(store, "SELECT event_id FROM outbox ORDER BY event_id"),
        pending=lambda: _ids(
            store, "SELECT event_id FROM outbox WHERE confirmed_at IS NULL ORDER BY event_id"
        ),
        accepted_before=lambda moment: _ids(
            store, "SELECT event_id FROM outbox WHERE accepted_at < ? ORDER BY event_id", moment
        ),
    )


def _recipient(store: sqlite3.Connection, name: str) -> Recipient:
    query = "SELECT message_id, effect FROM receipt WHERE recipient = ? ORDER BY message_id"
    before = (
        "SELECT message_id FROM receipt WHERE recipient = ? AND event_at < ? ORDER BY message_id"
    )
    return Recipient(
        pruned=pruned_before(store, name),
        receipts=lambda: ((key, Effect(effect)) for key, effect in store.execute(query, (name,))),
        of_events_before=lambda moment: _ids(store, before, name, moment),
    )


def _ids(store: sqlite3.Connection, query: str, *given: object) -> Iterator[str]:
    rows: Iterable[tuple[str]] = store.execute(query, given)
    return (event_id for (event_id,) in rows)
