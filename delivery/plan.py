"""Say what a replay would do before it is done, and what it can do."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from delivery.inbox import Receipt
from delivery.triage import DeadMessage

__all__ = ["Planned", "Prospect", "Result", "plan"]


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


def plan(
    receipt_of: Callable[[str], Receipt | None], pruned: float, dead: Iterable[DeadMessage]
) -> list[Planned]:
    """Return *dead* with what a replay of each would do.

    *receipt_of* gives the recipient's receipt for a message; those from before *pruned* (Unix
    seconds) may have been forgotten.
    """
    return [_planned(message, receipt_of(message.key), pruned) for message in dead]


def _planned(message: DeadMessage, receipt: Receipt | None, pruned: float) -> Planned:
    if receipt:
        prospect = Prospect.DUPLICATE
    elif not message.is_event:
        prospect = Prospect.NOT_AN_EVENT
    elif message.sent_at < pruned:
        prospect = Prospect.UNSURE
    else:
        prospect = Prospect.EFFECT
    return Planned(message, receipt, prospect)
