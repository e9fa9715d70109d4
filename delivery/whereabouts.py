"""Follow one word through every participant's store, and look into the dead queues."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import Any

from pika.adapters.blocking_connection import BlockingConnection

from delivery.config import Config
from delivery.dead import dead_queue
from delivery.journey import NOT_VISIBLE
from delivery.observe import depth
from delivery.parking_desk import parked_events
from delivery.routes import RECIPIENTS
from delivery.sides import Sides
from delivery.triage import DeadMessage, browse

__all__ = ["confirm_dead", "confirm_parked", "follow"]


def follow(sides: Sides, word: str) -> list[dict[str, Any]]:
    """Return the trace of each event that *word* names, oldest first; empty if it names none."""
    with closing(sides.publisher()) as publisher:
        kind, events = publisher.find(word)
        found = [
            {**publisher.row(event_id), "matched_by": kind, "events": events, "recipients": {}}
            for event_id in events
        ]
    for recipient in RECIPIENTS:
        standings = sides.standings(recipient, events)
        for each, standing in zip(found, standings, strict=True):
            each["recipients"][recipient] = standing
    return found


def confirm_dead(
    config: Config, connection: BlockingConnection, traces: list[dict[str, Any]]
) -> None:
    """Correct *traces* by what the dead queues hold now.

    A message that died before failures were noted is found there; one that is noted as dead and is
    not there any more (purged by hand, say) gets ``"in_dead_queue": False``.
    """
    for recipient in traces[0]["recipients"] if traces else ():
        standings = {each["event_id"]: each["recipients"][recipient] for each in traces}
        if all(each["state"] in ("settled", "dropped") for each in standings.values()):
            continue
        route = config.route(recipient)
        dead: Mapping[str, DeadMessage] = {}
        if depth(connection, dead_queue(route)) is not None:
            dead = {m.key: m for m in browse(connection, route) if m.key in standings}
        for event_id, standing in standings.items():
            _correct(standing, dead.get(event_id))


def confirm_parked(
    config: Config, connection: BlockingConnection, traces: list[dict[str, Any]]
) -> None:
    """Say ``parked`` where a recipient has seen nothing of an event that no queue wanted.

    What is parked is looked at and put back, as the dead messages are. Raises DeskBusy.
    """
    unseen = {
        each["event_id"]: [s for s in each["recipients"].values() if s["state"] == "not seen"]
        for each in traces
    }
    if config.parking is None or not any(unseen.values()):
        return
    for event_id in parked_events(connection, config.parking):
        for standing in unseen.get(event_id, ()):
            standing.update(state="parked", queue=config.parking.queue)


def _correct(standing: dict[str, Any], message: DeadMessage | None) -> None:
    if standing["state"] == "settled":
        return
    if message is None:
        if standing["state"] == "dead":
            standing["in_dead_queue"] = False
        return
    unseen = standing["state"] == NOT_VISIBLE
    standing.update(
        state="dead",
        reason=message.reason,
        error=message.error,
        since=message.parked_at,
        in_dead_queue=True,
    )
    if unseen:
        standing.update(failures=[], decisions=[])
