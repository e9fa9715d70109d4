"""Put what the watchers saw into one snapshot of bounded size, each part with its age."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from delivery.listeners import Listeners
from delivery.live_counts import Counts
from delivery.live_sums import add_up
from delivery.live_watch import Seen
from delivery.management import Sample
from delivery.observe import MANAGEMENT_AGE, Waiting
from delivery.parking import Parked
from delivery.routes import RECIPIENTS

__all__ = ["PARKED", "Places", "snapshot"]

SETTLED = MANAGEMENT_AGE + 1.0  # seconds without a change, after which old counters are true
QUIET = 1.0  # the same for a queue that nobody consumes: its count needs no old counter
OLD = 2 * MANAGEMENT_AGE  # seconds; what the plugin told, MANAGEMENT_AGE late, is shown no longer
PARKED = "(parked)"  # no recipient's name: what is told of the parking queue


@dataclass(frozen=True)
class Places:
    """One look at the broker: *parked* is None if there is no parking queue."""

    recipients: Sequence[Waiting]
    parked: Parked | None = None


def snapshot(
    counts: Seen[Counts],
    places: Seen[Places],
    samples: Seen[Mapping[str, Sample]],
    *,
    listeners: Seen[Listeners | None],
    calm: float,
) -> dict[str, Any]:
    """Return what was seen last, ready for JSON; nothing has changed for *calm* seconds.

    Times are Unix seconds, ages and durations seconds. None stands for what could not be seen.
    """
    found = places.value.recipients if places.value else ()
    told, nothing = samples.value or {}, Sample(None, None)
    others, why = _listeners(listeners)
    return {
        "at": time.time(),
        "stores": _note(counts),
        "broker": _note(places),
        "management": _note(samples),
        "outbox": _outbox(counts.value),
        "recipients": [
            _recipient(name, counts.value, found, told.get(name, nothing), calm)
            for name in RECIPIENTS
        ],
        "parked": _parked(places.value, told.get(PARKED, nothing)),
        "listeners": asdict(others) if others else None,
        "listeners_why": why,  # why that is None
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


def _parked(places: Places | None, sample: Sample) -> dict[str, Any] | None:
    """Return what is parked; its age is the broker's, so that it alone is no news."""
    if places is None or places.parked is None:
        return None
    fields = asdict(places.parked) | {"kind": sample.kind}
    return {name: value for name, value in fields.items() if name != "sampled_at"}


def _listeners(seen: Seen[Listeners | None]) -> tuple[Listeners | None, str]:
    """Return who listens, or why that is not told: they were seen one by one while it *took*."""
    if seen.value is None:
        return None, seen.why or "the management plugin's address is not known"
    if time.time() - seen.at + seen.took > OLD:
        return None, "the management plugin is slow, or nobody has looked for long"
    return seen.value, ""


def _recipient(
    name: str,
    counts: Counts | None,
    places: Sequence[Waiting],
    sample: Sample,
    calm: float,
) -> dict[str, Any]:
    place = next((each for each in places if each.recipient == name), None)
    receipts = counts.receipts.get(name) if counts else None
    patience = SETTLED if place and place.consumers else QUIET
    found = add_up(
        counts.outgoing if counts else None,
        receipts,
        place,
        unacked=sample.unacked,
        moving=calm < patience,
    )
    return {
        "recipient": name,
        "ready": place.ready if place else None,
        "consumers": place.consumers if place else None,
        "retry": place.retry if place else None,
        "dead": place.dead if place else None,
        "unacked": sample.unacked,
        "kind": sample.kind,
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
