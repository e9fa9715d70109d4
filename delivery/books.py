"""Read from every participant what the ledger needs."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import replace

from pika.adapters.blocking_connection import BlockingConnection

from delivery.config import Config
from delivery.connection import connect
from delivery.dead import dead_queue
from delivery.ledger import SHOWN, Account, Books, account
from delivery.ledger_stores import Publisher, Recipient, Shelves, sqlite_shelves
from delivery.observe import Waiting, depth, waiting
from delivery.ordered import Scratch
from delivery.parking_desk import parked_events
from delivery.routes import Route, routes_of
from delivery.triage import held

__all__ = ["accounts", "settled_accounts"]


def accounts(
    config: Config, connection: BlockingConnection, shelves: Shelves | None = None
) -> list[Account]:
    """Return each recipient's account as it is now, in memory that does not grow with it.

    The books are in SQLite's files, if *shelves* does not say otherwise. Read in the direction in
    which events move, receipts last: an event on the way is then found twice rather than never,
    and counted once. What is parked is looked at, and put back, if *config* names a place for it.
    """
    shelves = shelves or sqlite_shelves(config.stores)
    with shelves.publisher() as publisher, closing(Scratch()) as parked:
        for event_id in parked_events(connection, config.parking):
            parked.add(event_id)
        places = waiting(
            connection,
            routes_of(config.namespace),
            retries=len(config.retries_ms),
            management=config.management,
        )
        found = []
        for place in places:
            with closing(Scratch()) as dead:  # there may be a million
                others = _keep_dead(dead, connection, config.route(place.recipient))
                with shelves.recipient(place.recipient) as recipient:
                    books = _books(place, publisher, recipient, dead, others)
                    found.append(account(replace(books, parked=parked.in_order())))
    return [_without_newer(each, shelves) for each in found]


def settled_accounts(
    config: Config, *, seconds: float, shelves: Shelves | None = None
) -> list[Account]:
    """Return the accounts as soon as they balance at rest, or as they are after *seconds*.

    Messages on the way and management counters (5 s old) can make one reading differ.
    """
    end = time.monotonic() + seconds
    with connect(config.named("ledger")) as connection:
        while True:
            found = accounts(config, connection, shelves)
            if all(_at_rest(each) for each in found) or not time.monotonic() < end:
                return found
            connection.sleep(0.2)


def _at_rest(found: Account) -> bool:
    on_the_way = found.pending + found.ready + found.retry + found.unacked + found.copies
    return found.balanced and on_the_way == 0


def _without_newer(found: Account, shelves: Shelves) -> Account:
    """Take what was accepted while the receipts were read out of what nobody accepted."""
    strangers = found.never_accepted
    if not strangers or len(strangers) == SHOWN:  # there may be more, which would be overlooked
        return found
    with shelves.publisher() as publisher:
        known = set(strangers).intersection(publisher.accepted())
    return replace(found, never_accepted=tuple(each for each in strangers if each not in known))


def _books(
    place: Waiting, publisher: Publisher, recipient: Recipient, dead: Scratch, others: int
) -> Books:
    return Books(
        recipient=place.recipient,
        accepted=publisher.accepted(),
        forgettable=publisher.accepted_before(recipient.pruned),
        pending=publisher.pending(),
        receipts=recipient.receipts(),
        removed=recipient.of_events_before(publisher.since),
        dead=dead.in_order(),
        dead_bytes=others,
        ready=place.ready or 0,
        retry=sum(count or 0 for count in place.retry),
        unacked=place.unacked,
    )


def _keep_dead(kept: Scratch, connection: BlockingConnection, route: Route) -> int:
    """Write the keys of *route*'s dead events to *kept*; return how many dead are no event."""
    others = 0
    # Not by its count: while somebody looks at the dead messages, none of them is ready.
    if depth(connection, dead_queue(route)) is None:
        return others
    with held(connection, route) as (_, messages):
        for message in messages:
            if message.is_event:
                kept.add(message.key)
            else:
                others += 1
    return others
