"""Find what was lost in a run, say which fault's known limit explains it, and send it again."""

from __future__ import annotations

import re
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass

from delivery.arena import Arena, Deleted, Skew
from delivery.campaign import Record
from delivery.faults import Limit
from delivery.faults_process import WRONG_BY
from delivery.feed import Published, pages, store_feed
from delivery.pipeline import ConfirmedChannel
from delivery.reconcile import missing, send_again
from delivery.routes import RECIPIENTS
from delivery.stores import PUBLISHER
from delivery.triage import browse

__all__ = ["Healed", "explanation", "failures_in", "heal", "right_times"]

# Seconds around a fault within which its limit explains a loss. FACTS 2d: a message that expires
# up to 2 s before a kill may be gone.
EXPIRY_BEFORE, AFTER = 3.0, 1.0
DAY = 86_400.0


@dataclass(frozen=True)
class Healed:
    """An event that *recipient* never settled, sent to it again; *fault* explains the loss.

    *fault* is empty if none does: then it was lost by our own code.
    """

    recipient: str
    event_id: str
    fault: str


def heal(arena: Arena, records: Sequence[Record]) -> list[Healed]:
    """Send what each recipient lacks to it again, and return it with its explanations."""
    lost = {recipient: _lost(arena, recipient) for recipient in RECIPIENTS}
    times = Counter(event.event_id for found in lost.values() for event in found)
    healed: list[Healed] = []
    for recipient, found in lost.items():
        if not found:
            continue
        failures = failures_in(arena.cast[recipient].log(), records[0].begun)
        for event in found:
            expired = [
                at + arena.config.retries_ms[n] / 1000
                for n, at in enumerate(failures.get(event.event_id, ()))
                if n < len(arena.config.retries_ms)
            ]
            fault = explanation(
                recipient,
                event.event_id,
                confirmed=[*right_times(event.confirmed_at or 0, "relay", arena.skews)],
                expired=[
                    right for at in expired for right in right_times(at, recipient, arena.skews)
                ],
                records=records,
                deleted=arena.deleted,
                alone=times[event.event_id] == 1,
            )
            healed.append(Healed(recipient, event.event_id, fault))
        with ConfirmedChannel(arena.config.named("reconcile")) as channel:
            send_again(channel, arena.config.route(recipient), found)
    return healed


def _lost(arena: Arena, recipient: str) -> list[Published]:
    """Return what *recipient* has no receipt for, and no dead message."""
    route = arena.config.route(recipient)
    with arena.connection() as connection:
        dead = {message.key for message in browse(connection, route) if message.is_event}
    with (
        closing(arena.config.stores.open(PUBLISHER)) as publisher,
        closing(arena.config.stores.open(recipient)) as inbox,
    ):
        return [
            event
            for page in pages(store_feed(publisher))
            # A relay whose clock was ahead confirmed in the future.
            for event in missing(page, inbox, route, dead=dead, grace=-2.0 * WRONG_BY)
        ]


def explanation(
    recipient: str,
    event_id: str,
    *,
    confirmed: Iterable[float],
    expired: Iterable[float],
    records: Iterable[Record],
    deleted: Iterable[Deleted] = (),
    alone: bool = True,
) -> str:
    """Return the kind of the fault that explains a loss, or nothing if none does.

    *confirmed* are the times at which the event may have reached the exchange, *expired* those at
    which it may have left a retry queue (Unix seconds). *alone*: every other recipient has it; if
    not, it came to no queue, and the broker returned it: then nothing excuses a confirmed row.
    """
    confirmed, expired = [*confirmed], [*expired]
    for queue in deleted:
        came = _within(confirmed + expired, queue.since, queue.until + AFTER)
        was_there = event_id in queue.unsettled or (
            event_id in queue.unmarked and min(confirmed, default=queue.since) < queue.since
        )
        if queue.recipient == recipient and (came or was_there):
            return "delete-queue"
    for record in records:
        limit, end = record.planned.fault.limit, record.ended + AFTER
        hit = recipient in record.target
        begun = record.begun
        if limit is Limit.EXPIRED and hit and _within(expired, begun - EXPIRY_BEFORE, end):
            return record.planned.kind
        if limit is Limit.UNBOUND and alone and _within(confirmed, begun - AFTER, end):
            return record.planned.kind
    return ""


def failures_in(log: str, begun: float) -> Mapping[str, list[float]]:
    """Return when each message failed (Unix seconds), by its id; the log says the time of day."""
    found: dict[str, list[float]] = defaultdict(list)
    line = re.compile(
        r"^(\d\d):(\d\d):(\d\d) \w+ delivery\.settled .*?message_id=(\S+) effect=failed", re.M
    )
    local = time.localtime(begun)
    midnight = begun - (local.tm_hour * 3600 + local.tm_min * 60 + local.tm_sec)
    for hours, minutes, seconds, message_id in line.findall(log):
        at = midnight + int(hours) * 3600 + int(minutes) * 60 + int(seconds)
        found[message_id].append(at if at > begun - DAY / 2 else at + DAY)
    return found


def right_times(at: float, process: str, skews: Iterable[Skew]) -> Iterator[float]:
    """Return what time it may have been when *process* said *at*."""
    yield at
    for skew in skews:
        right = at - skew.seconds
        if skew.process == process and skew.begun - 1 <= right <= skew.ended + 1:
            yield right


def _within(times: Iterable[float], begin: float, end: float) -> bool:
    return any(begin <= at <= end for at in times)
