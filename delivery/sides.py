"""What an operator asks of a publisher's and a recipient's database, and the answers of SQLite."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from delivery import decisions, feed, inbox, journey, rates, tracing, trail
from delivery.stores import PUBLISHER, Stores

__all__ = ["PublisherSide", "RecipientSide", "Sides", "sqlite_sides"]


class PublisherSide(Protocol):
    """All of it raises StoreUnavailable. Close it."""

    def summary(self) -> dict[str, Any]:
        """Return tracing.outbox_summary and rates.publisher_rates."""

    def find(self, word: str) -> tuple[str, list[str]]:
        """Return what *word* is and its events, as tracing.find_events does."""

    def row(self, event_id: str) -> dict[str, Any]:
        """Return what is told of the event's row."""

    def feed(self, *, limit: int) -> feed.Feed:
        """Return the feed that reads this store."""

    def begin(
        self,
        action: trail.Action,
        recipient: str,
        messages: Iterable[tuple[str, str]],
        *,
        operator: str,
        reason: str,
    ) -> list[int]:
        """Record acts before they are done, as trail.begin_all does."""

    def conclude(self, results: Iterable[tuple[int, str]]) -> None:
        """Keep what came of each entry."""

    def entries(self, *, recipient: str, message_id: str, limit: int) -> list[trail.Entry]:
        """Return the latest acts, as trail.entries does."""

    def close(self) -> None:
        """Close the store."""


class RecipientSide(Protocol):
    """What who acts on a recipient's dead messages needs; raises StoreUnavailable. Close it."""

    def pruned(self) -> float:
        """Return the time before which a missing receipt proves nothing; 0 if none was pruned."""

    def receipt(self, message_id: str) -> inbox.Receipt | None:
        """Return the message's receipt."""

    def decisions(self, message_id: str) -> list[decisions.Decision]:
        """Return what was decided about the message, oldest first."""

    def record_replay(self, message_id: str, *, operator: str, reason: str) -> None:
        """Keep that the message was sent again."""

    def record_drop(self, message_id: str, *, is_event: bool, operator: str, reason: str) -> None:
        """Keep that the message was given up, as decisions.record_drop does."""

    def close(self) -> None:
        """Close the store."""


@dataclass(frozen=True)
class Sides:
    """What opens the publisher's store, and a recipient's by its name; and looks at the latter.

    ``receipts`` is rates.receipts, ``standings`` where a recipient stands with each of some events:
    they change nothing, and say of a store that can't be read that it is not visible. ``command``
    is how a command about these stores begins.
    """

    publisher: Callable[[], PublisherSide]
    recipient: Callable[[str], RecipientSide]
    receipts: Callable[[str], dict[str, Any] | None]
    standings: Callable[[str, Sequence[str]], list[dict[str, Any]]]
    command: str = "delivery"


def sqlite_sides(stores: Stores) -> Sides:
    """Return those of the files in *stores*."""

    def receipts(name: str) -> dict[str, Any] | None:
        store = stores.open_to_read(name)
        with closing(store) if store else nullcontext():
            return rates.receipts(store, name)

    def standings(name: str, events: Sequence[str]) -> list[dict[str, Any]]:
        store = stores.open_to_read(name)
        with closing(store) if store else nullcontext():
            return [journey.standing(store, name, each) for each in events]

    return Sides(
        lambda: _SqlitePublisher(stores.open(PUBLISHER)),
        lambda name: _SqliteRecipient(stores.open(name), name),
        receipts,
        standings,
    )


class _SqlitePublisher:
    def __init__(self, store: sqlite3.Connection) -> None:
        self._store = store
        self.close = store.close
        self.find = partial(tracing.find_events, store)
        self.row = partial(tracing.row_of, store)
        self.feed = partial(feed.store_feed, store)
        self.entries = partial(trail.entries, store)

    def summary(self) -> dict[str, Any]:
        return tracing.outbox_summary(self._store) | rates.publisher_rates(self._store)

    def begin(
        self,
        action: trail.Action,
        recipient: str,
        messages: Iterable[tuple[str, str]],
        *,
        operator: str,
        reason: str,
    ) -> list[int]:
        why = {"operator": operator, "reason": reason}
        return trail.begin_all(self._store, action, recipient, messages, **why)

    def conclude(self, results: Iterable[tuple[int, str]]) -> None:
        trail.conclude(self._store, results)


class _SqliteRecipient:
    def __init__(self, store: sqlite3.Connection, name: str) -> None:
        self.close = store.close
        self.pruned = partial(inbox.pruned_before, store, name)
        self.receipt = partial(inbox.receipt_of, store, name)
        self.decisions = partial(decisions.decisions_on, store)
        self.record_replay = partial(decisions.record_replay, store, name)
        self.record_drop = partial(decisions.record_drop, store, name)
