"""Count what the participants' stores hold, in queries whose cost does not grow with the dead."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any

from delivery.inbox import receipt_of
from delivery.outbox import sent

__all__ = ["LATEST", "Counts", "Opener", "Outgoing", "Receipts", "count"]

LATEST = 12  # publications that are shown one by one

Opener = Callable[[], sqlite3.Connection | None]


@dataclass(frozen=True)
class Outgoing:
    """The publisher's outbox; *pending* counts by the last outcome, *oldest* is in Unix seconds."""

    accepted: int
    pending: Mapping[str, int]
    oldest: float | None

    @property
    def waiting(self) -> int:
        """How many are not confirmed yet."""
        return sum(self.pending.values())


@dataclass(frozen=True)
class Receipts:
    """What one recipient has settled."""

    applied: int
    stale: int
    dropped: int
    duplicates: int

    @property
    def settled(self) -> int:
        """How many messages have a receipt; a duplicate adds none."""
        return self.applied + self.stale + self.dropped


@dataclass(frozen=True)
class Counts:
    """One look into the stores. None: that store can't be seen from here."""

    outgoing: Outgoing | None
    receipts: Mapping[str, Receipts | None]
    latest: tuple[Mapping[str, Any], ...]


def count(publisher: Opener, inboxes: Mapping[str, Opener]) -> Counts:
    """Look into every store, in the direction in which events move.

    Each look opens the files anew: they may have been replaced since. Raises sqlite3.Error if the
    publisher's is there and can't be read.
    """
    outgoing, latest = None, []
    if (store := publisher()) is not None:
        with closing(store):
            store.execute("BEGIN")  # all of one instant
            outgoing, latest = _outgoing(store), _latest(store)
    receipts: dict[str, Receipts | None] = {}
    for recipient, open_inbox in inboxes.items():
        receipts[recipient] = None
        if (inbox := open_inbox()) is None:
            continue
        with closing(inbox), suppress(sqlite3.Error):  # as tracing does: not visible, not empty
            receipts[recipient] = _receipts(inbox, recipient)
            for event in latest:
                found = receipt_of(inbox, recipient, event["event_id"])
                event["receipts"][recipient] = found.effect.value if found else None
    return Counts(outgoing, receipts, tuple(latest))


def _outgoing(store: sqlite3.Connection) -> Outgoing:
    # Only the pending rows are read.
    confirmed = sent(store)
    pending = store.execute(
        "SELECT coalesce(outcome, 'not tried'), count(*) FROM outbox"
        " WHERE confirmed_at IS NULL GROUP BY 1"
    )
    by_outcome = dict(pending.fetchall())
    (oldest,) = store.execute(
        "SELECT min(accepted_at) FROM outbox WHERE confirmed_at IS NULL"
    ).fetchone()
    return Outgoing(confirmed + sum(by_outcome.values()), by_outcome, oldest)


def _receipts(inbox: sqlite3.Connection, recipient: str) -> Receipts:
    rows = inbox.execute(
        "SELECT effect, count(*), sum(duplicates) FROM receipt WHERE recipient = ? GROUP BY effect",
        (recipient,),
    ).fetchall()
    kinds = {effect: number for effect, number, _ in rows}
    return Receipts(
        applied=kinds.get("applied", 0),
        stale=kinds.get("stale", 0),
        dropped=kinds.get("dropped", 0),
        duplicates=sum(more for _, _, more in rows),
    )


def _latest(store: sqlite3.Connection) -> list[dict[str, Any]]:
    rows = store.execute(
        "SELECT event_id, accepted_at, attempts, outcome, confirmed_at, body FROM outbox"
        " ORDER BY position DESC LIMIT ?",
        (LATEST,),
    )
    names = ("event_id", "accepted_at", "attempts", "outcome", "confirmed_at")
    return [
        {**dict(zip(names, row[:-1], strict=True)), **_words(row[-1]), "receipts": {}}
        for row in rows
    ]


def _words(body: bytes) -> dict[str, Any]:
    """Return what a person knows the event by; the outbox holds only bodies that we wrote."""
    data = json.loads(body)["data"]
    return {name: data[name] for name in ("material_id", "revision", "title")}
