"""Put what the watchers saw into one snapshot of bounded size, each part with its age."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from delivery.live_counts import Counts
from delivery.live_sums import add_up
from delivery.live_watch import Seen
from delivery.observe import MANAGEMENT_AGE, Waiting
from delivery.routes import RECIPIENTS

__all__ = ["snapshot"]

SETTLED = MANAGEMENT_AGE + 1.0  # seconds without a change, after which old counters are true
QUIET = 1.0  # the same for a queue that nobody consumes: its count needs no old counter


def snapshot(
    counts: Seen[Counts],
    places: Seen[list[Waiting]],
    unacked: Seen[Mapping[str, int | None]],
    *,
    calm: float,
) -> dict[str, Any]:
    """Return what was seen last, ready for JSON; nothing has changed for *calm* seconds.

    Times are Unix seconds, ages and durations seconds. None stands for what could not be seen.
    """
    return {
        "at": time.time(),
        "stores": _note(counts),
        "broker": _note(places),
        "management": _note(unacked),
        "outbox": _outbox(counts.value),
        "recipients": [
            _recipient(name, counts.value, places.value, (unacked.value or {}).get(name), calm)
            for name in RECIPIENTS
        ],
        "latest": list(counts.value.latest) if counts.value else [],
    }


def _outbox(counts: Counts | None) -> dict[str, Any] | None:
    if counts is None or counts.outgoing is None:
        return None
    found = counts.outgoing
    return {
        "accepted": found.accepted,
        "confirmed": found.accepted - found.waiting,
        "pending": found.pending,
        "oldest_age": max(0.0, time.time() - found.oldest) if found.oldest else None,
    }


def _recipient(
    name: str,
    counts: Counts | None,
    places: Sequence[Waiting] | None,
    unacked: int | None,
    calm: float,
) -> dict[str, Any]:
    place = next((each for each in places or () if each.recipient == name), None)
    receipts = counts.receipts.get(name) if counts else None
    patience = SETTLED if place and place.consumers else QUIET
    found = add_up(
        counts.outgoing if counts else None,
        receipts,
        place,
        unacked=unacked,
        moving=calm < patience,
    )
    return {
        "recipient": name,
        "ready": place.ready if place else None,
        "consumers": place.consumers if place else None,
        "retry": place.retry if place else None,
        "dead": place.dead if place else None,
        "unacked": unacked,
        "receipts": asdict(receipts) if receipts else None,
        "sum": asdict(found) if found else None,
    }


def _note(seen: Seen[Any]) -> dict[str, Any]:
    return {
        "seen": seen.value is not None,
        "why": seen.why,
        "age": round(time.time() - seen.at, 2),
        "took": round(seen.took, 4),
    }
