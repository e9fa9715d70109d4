"""Find accepted events that a recipient never settled, and send them to it again."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Sequence
from functools import partial

from pika import BasicProperties

from delivery.confirms import Answer, NotConfirmed, Outcome
from delivery.feed import Page, Published
from delivery.inbox import Receipt, pruned_before, receipt_of
from delivery.pipeline import ConfirmedChannel
from delivery.points import reach
from delivery.publisher import Message, envelope
from delivery.routes import Route
from delivery.traceparent import TRACEPARENT

__all__ = ["missing", "missing_with", "send_again"]


def missing(
    page: Page,
    inbox: sqlite3.Connection,
    route: Route,
    *,
    dead: Collection[str],
    grace: float = 60.0,
) -> list[Published]:
    """Return the events of *page* that have no receipt in *inbox* and are not *dead*.

    Events confirmed less than *grace* seconds ago are left alone: they may be on their way. So may
    older ones be, in a retry queue; sending them again is safe because of the receipt. So events
    from before the last pruning are left alone, too: a missing receipt proves nothing about them.
    """
    recipient = route.recipient
    receipts, pruned = partial(receipt_of, inbox, recipient), pruned_before(inbox, recipient)
    return missing_with(page, receipts, pruned=pruned, dead=dead, grace=grace)


def missing_with(
    page: Page,
    receipt_of: Callable[[str], Receipt | None],
    *,
    pruned: float,
    dead: Collection[str],
    grace: float,
) -> list[Published]:
    """Do what missing does, with the receipts of whatever store: see plan.plan."""
    return [
        each
        for each in page.events
        if each.confirmed_at is not None
        and each.confirmed_at < page.read_at - grace
        and each.accepted_at >= pruned
        and each.event_id not in dead
        and receipt_of(each.event_id) is None
    ]


def send_again(channel: ConfirmedChannel, route: Route, events: Sequence[Published]) -> None:
    """Send *events* to *route*'s queue under their old ids.

    Raises NotConfirmed for the first one that the broker did not take over; whoever repeats this
    sends those again that have no receipt then.
    """
    messages = [Message("", route.queue, _envelope(each), each.body.encode()) for each in events]
    answers = channel.send_all(messages)
    reach("reconcile.sent")
    if len(answers) < len(messages):
        answers.append(Answer(Outcome.UNKNOWN, "the connection was lost"))
    for answer in answers:
        if answer.outcome is not Outcome.CONFIRMED:
            raise NotConfirmed(answer, route.queue)


def _envelope(event: Published) -> BasicProperties:
    return envelope(
        event.event_id,
        event.event_type,
        timestamp=int(event.accepted_at),
        correlation_id=event.correlation_id,
        headers={TRACEPARENT: event.traceparent} if event.traceparent else None,
    )
