"""Say where one recipient stands with one event, by what that recipient has kept."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from delivery.decisions import Decision, decisions_on
from delivery.failures import Failure, failures_of
from delivery.inbox import Receipt, receipt_of

__all__ = ["NOT_VISIBLE", "standing", "standing_by"]

NOT_VISIBLE = "not visible"


def standing(inbox: sqlite3.Connection | None, recipient: str, event_id: str) -> dict[str, Any]:
    """Return ``state`` and what belongs to it, read from *recipient*'s store *inbox*.

    ``settled`` (effect, received_at, duplicates); ``retry`` (waits for attempt ``next_attempt``
    until ``retry_at``); ``due`` (that time is over: it is in the queue or in somebody's hands);
    ``dead`` (reason, since); ``replayed`` and ``dropped`` (an operator's decision, and nothing
    after it); ``not seen`` (nothing of all this); ``not visible`` (the store can't be read).
    ``failures`` are the failed attempts, ``decisions`` the operators'. Times are Unix seconds.
    """
    if inbox is None:
        return {"state": NOT_VISIBLE}
    try:
        return _standing(inbox, recipient, event_id)
    except sqlite3.DatabaseError as error:
        return {"state": NOT_VISIBLE, "error": str(error)}


def _standing(inbox: sqlite3.Connection, recipient: str, event_id: str) -> dict[str, Any]:
    tables = {name for (name,) in inbox.execute("SELECT name FROM sqlite_schema")}
    receipt = receipt_of(inbox, recipient, event_id)
    failures = failures_of(inbox, recipient, event_id) if "failure" in tables else []
    decisions = [
        each
        for each in (decisions_on(inbox, event_id) if "decision" in tables else [])
        if each.recipient == recipient
    ]
    return standing_by(receipt, failures, decisions, now=time.time())


def standing_by(
    receipt: Receipt | None,
    failures: Sequence[Failure],
    decisions: Sequence[Decision],
    *,
    now: float,
) -> dict[str, Any]:
    """Return standing's answer, by what is kept about the event; *now* is in Unix seconds."""
    found: dict[str, Any] = {"state": "not seen"}
    if failures:
        last = failures[-1]
        if last.reason is not None:
            found = {"state": "dead", "reason": last.reason, "since": last.failed_at}
        else:
            over = (last.retry_at or 0) <= now
            found = {
                "state": "due" if over else "retry",
                "next_attempt": last.attempt + 1,
                "retry_at": last.retry_at,
            }
        found["error"] = last.error
    if decisions and (not failures or decisions[-1].decided_at > failures[-1].failed_at):
        done = "replayed" if decisions[-1].action == "replay" else "dropped"
        found = {"state": done, "since": decisions[-1].decided_at}
    if receipt:
        found = {
            "state": "settled",
            "effect": receipt.effect.value,
            "received_at": receipt.received_at,
            "duplicates": receipt.duplicates,
        }
    found["failures"] = [asdict(each) for each in failures]
    found["decisions"] = [asdict(each) for each in decisions]
    return found
