"""Wait for what becomes of replayed messages: seen, not guessed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from delivery.acts import Acts
from delivery.handling import Effect
from delivery.inbox import Receipt
from delivery.plan import Planned, Result
from delivery.progress import told
from delivery.triage import DeadMessage

__all__ = ["await_results"]

_RESULTS = {
    Effect.APPLIED: Result.APPLIED,
    Effect.DUPLICATE: Result.APPLIED,
    Effect.STALE: Result.STALE,
    Effect.DROPPED: Result.GONE,
}


def await_results(
    acts: Acts,
    receipt_of: Callable[[str], Receipt | None],
    still_dead: Callable[[], Iterable[DeadMessage]],
    *,
    seconds: float,
    tick: Callable[[], None] = lambda: None,
) -> None:
    """Wait up to *seconds* for what becomes of the messages without a result, and note it.

    A result is read from the recipient's receipt, which *receipt_of* gives for a message, or from
    *still_dead*, which lists the dead queue. *tick* is called for each message that is asked about.
    """
    end = time.monotonic() + seconds
    while True:
        begun = time.monotonic()
        for each in told(acts.waiting(), tick):
            if result := _from_receipt(receipt_of(each.message.key), each):
                acts.settle(each.message.key, result.value)
        if acts.left():
            for message in still_dead():
                acts.died(message.key, message.replays)
        now = time.monotonic()
        if not acts.left() or now >= end:
            break
        # The dead are held while they are looked at: no more than half of the time.
        time.sleep(min(max(0.1, now - begun), end - now))
    acts.settle_rest(Result.WAITING.value)


def _from_receipt(now: Receipt | None, sent: Planned) -> Result | None:
    if now is None:
        return None
    if sent.receipt is None:
        return _RESULTS[now.effect]
    return Result.ALREADY_APPLIED if now.duplicates > sent.receipt.duplicates else None
