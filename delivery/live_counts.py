"""Count what the participants' stores hold, in queries whose cost does not grow with the dead."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from delivery.inbox import receipt_of
from delivery.outbox import sent

__all__ = [
    "LATEST",
    "Counts",
    "Look",
    "Opener",
    "Outgoing",
    "Receipts",
    "count",
    "counted",
    "latest_of",
    "look_into",
    "receipts_of",
]

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


# Asked for some events, it gives a recipient's receipts and the effects on those; None: unseen.
Look = Callable[[Sequence[str]], tuple[Receipts, Mapping[str, str]] | None]


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
    return counted(outgoing, latest, {name: look_into(inboxes[name], name) for name in inboxes})


def counted(
    outgoing: Outgoing | None, latest: Sequence[dict[str, Any]], looks: Mapping[str, Look]
) -> Counts:
    """Return what *looks* tell, too: they are called now, after the publisher was."""
    receipts: dict[str, Receipts | None] = {}
    for recipient, look in looks.items():
        receipts[recipient] = None
        if seen := look([event["event_id"] for event in latest]):
            receipts[recipient], effects = seen
            for event in latest:
                event["receipts"][recipient] = effects.get(event["event_id"])
    return Counts(outgoing, receipts, tuple(latest))


def look_into(open_inbox: Opener, recipient: str) -> Look:
    """Return what looks into *recipient*'s file, opened anew each time."""
    return partial(_look, open_inbox, recipient)


def _look(
    open_inbox: Opener, recipient: str, ids: Sequence[str]
) -> tuple[Receipts, Mapping[str, str]] | None:
    if (inbox := open_inbox()) is None:
        return None
    with closing(inbox), suppress(sqlite3.Error):  # as tracing does: not visible, not empty
        found = {each: receipt_of(inbox, recipient, each) for each in ids}
        effects = {each: receipt.effect.value for each, receipt in found.items() if receipt}
        return _receipts(inbox, recipient), effects
    return None


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
    return receipts_of(rows)


def receipts_of(rows: Sequence[tuple[Any, ...]]) -> Receipts:
    """Return the sums of *rows*: an effect, its receipts, and their further copies."""
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
    return latest_of(rows)


def latest_of(rows: Iterable[Sequence[Any]]) -> list[dict[str, Any]]:
    """Return what is told of *rows*: the names below, and the body."""
    names = ("event_id", "accepted_at", "attempts", "outcome", "confirmed_at")
    return [
        {**dict(zip(names, row[:-1], strict=True)), **_words(row[-1]), "receipts": {}}
        for row in rows
    ]


def _words(body: bytes) -> dict[str, Any]:
    """Return what a person knows the event by; the outbox holds only bodies that we wrote."""
    data = json.loads(body)["data"]
    return {name: data[name] for name in ("material_id", "revision", "title")}
