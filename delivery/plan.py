"""Say what a replay would do before it is done, and what it did afterwards."""

from __future__ import annotations

import enum
import sqlite3
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from delivery.handling import Effect
from delivery.inbox import Receipt, pruned_before, receipt_of
from delivery.routes import Route
from delivery.triage import DeadMessage

__all__ = ["Planned", "Prospect", "Result", "plan", "results"]


class Prospect(enum.Enum):
    """What to expect from a replay."""

    EFFECT = "no receipt: its effect is still owed"
    DUPLICATE = "has a receipt: would only be counted as a duplicate"
    UNSURE = "no receipt, but one may have been pruned: a replay could repeat the effect (--force)"
    NOT_AN_EVENT = "not an event that this recipient understands: would be dead again"


@dataclass(frozen=True, slots=True)
class Planned:
    """A dead message, the receipt that its recipient has for it, and what to expect."""

    message: DeadMessage
    receipt: Receipt | None
    prospect: Prospect


class Result(enum.Enum):
    """What became of a replayed message."""

    APPLIED = "applied"
    ALREADY_APPLIED = "already applied"
    STALE = "stale"
    DEAD_AGAIN = "dead again"
    GONE = "no longer dead: somebody else took it"
    WAITING = "no result yet: it waits for its recipient, or for a retry"


_RESULTS = {
    Effect.APPLIED: Result.APPLIED,
    Effect.DUPLICATE: Result.APPLIED,
    Effect.STALE: Result.STALE,
    Effect.DROPPED: Result.GONE,
}


def plan(store: sqlite3.Connection, route: Route, dead: Iterable[DeadMessage]) -> list[Planned]:
    """Return *dead* with what a replay of each would do; *store* is the recipient's."""
    pruned = pruned_before(store, route.recipient)
    return [_planned(store, route, message, pruned) for message in dead]


def results(
    store: sqlite3.Connection,
    route: Route,
    sent: Sequence[Planned],
    still_dead: Callable[[], Iterable[DeadMessage]],
    *,
    seconds: float,
) -> list[tuple[Planned, Result]]:
    """Wait up to *seconds* for what becomes of the messages *sent*, and return it for each.

    A result is read from the recipient's receipt, or from *still_dead*, which lists the dead
    queue: it is seen, not guessed.
    """
    found: dict[str, Result] = {}
    left, end = sent, time.monotonic() + seconds
    while True:
        for each in left:
            if result := _from_receipt(store, route, each):
                found[each.message.key] = result
        left = [each for each in sent if each.message.key not in found]
        if left:
            before = {each.message.key: each.message.replays for each in left}
            for message in still_dead():
                if message.replays > before.get(message.key, message.replays):
                    found[message.key] = Result.DEAD_AGAIN
        if len(found) == len({each.message.key for each in sent}) or not time.monotonic() < end:
            return [(each, found.get(each.message.key, Result.WAITING)) for each in sent]
        time.sleep(0.1)


def _planned(
    store: sqlite3.Connection, route: Route, message: DeadMessage, pruned: float
) -> Planned:
    receipt = receipt_of(store, route.recipient, message.key)
    if receipt:
        prospect = Prospect.DUPLICATE
    elif not message.is_event:
        prospect = Prospect.NOT_AN_EVENT
    elif message.sent_at < pruned:
        prospect = Prospect.UNSURE
    else:
        prospect = Prospect.EFFECT
    return Planned(message, receipt, prospect)


def _from_receipt(store: sqlite3.Connection, route: Route, sent: Planned) -> Result | None:
    now = receipt_of(store, route.recipient, sent.message.key)
    if now is None:
        return None
    if sent.receipt is None:
        return _RESULTS[now.effect]
    return Result.ALREADY_APPLIED if now.duplicates > sent.receipt.duplicates else None
