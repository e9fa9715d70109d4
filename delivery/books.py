"""Read from every participant what the ledger needs."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable, Iterator
from contextlib import closing

from pika.adapters.blocking_connection import BlockingConnection

from delivery.config import Config
from delivery.connection import connect
from delivery.dead import dead_queue
from delivery.handling import Effect
from delivery.inbox import pruned_before
from delivery.ledger import Account, Books, account
from delivery.observe import Waiting, depth, waiting
from delivery.ordered import Scratch
from delivery.outbox import removed
from delivery.routes import Route, routes_of
from delivery.stores import PUBLISHER
from delivery.triage import held

__all__ = ["accounts", "settled_accounts"]


def accounts(config: Config, connection: BlockingConnection) -> list[Account]:
    """Return each recipient's account as it is now, in memory that does not grow with it.

    Read in the direction in which events move, receipts last: an event on the way is then found
    twice rather than never, and counted once.
    """
    with closing(config.stores.open(PUBLISHER)) as publisher:
        publisher.execute("BEGIN")
        _, since = removed(publisher)  # the first look fixes what the later ones see
        places = waiting(
            connection,
            routes_of(config.namespace),
            retries=len(config.retries_ms),
            management=config.management,
        )
        return [_account(config, connection, place, publisher, since) for place in places]


def settled_accounts(config: Config, *, seconds: float) -> list[Account]:
    """Return the accounts as soon as they balance at rest, or as they are after *seconds*.

    Messages on the way and management counters (5 s old) can make one reading differ.
    """
    end = time.monotonic() + seconds
    with connect(config.named("ledger")) as connection:
        while True:
            found = accounts(config, connection)
            if all(_at_rest(each) for each in found) or not time.monotonic() < end:
                return found
            connection.sleep(0.2)


def _at_rest(found: Account) -> bool:
    on_the_way = found.pending + found.ready + found.retry + found.unacked + found.copies
    return found.balanced and on_the_way == 0


def _account(
    config: Config,
    connection: BlockingConnection,
    place: Waiting,
    publisher: sqlite3.Connection,
    since: float,
) -> Account:
    recipient = place.recipient
    with (
        closing(Scratch()) as kept,  # there may be a million
        closing(config.stores.open(recipient)) as store,
    ):
        others = _keep_dead(kept, connection, config.route(recipient))
        store.execute("BEGIN")
        pruned = pruned_before(store, recipient)
        # Every stream in the order of the ids, which each table has an index for.
        books = Books(
            recipient=recipient,
            accepted=_ids(publisher, "SELECT event_id FROM outbox ORDER BY event_id"),
            forgettable=_ids(
                publisher,
                "SELECT event_id FROM outbox WHERE accepted_at < ? ORDER BY event_id",
                pruned,
            ),
            pending=_ids(
                publisher,
                "SELECT event_id FROM outbox WHERE confirmed_at IS NULL ORDER BY event_id",
            ),
            receipts=(
                (message_id, Effect(effect))
                for message_id, effect in store.execute(
                    "SELECT message_id, effect FROM receipt WHERE recipient = ?"
                    " ORDER BY message_id",
                    (recipient,),
                )
            ),
            removed=_ids(
                store,
                "SELECT message_id FROM receipt WHERE recipient = ? AND event_at < ?"
                " ORDER BY message_id",
                recipient,
                since,
            ),
            dead=kept.in_order(),
            dead_bytes=others,
            ready=place.ready or 0,
            retry=sum(count or 0 for count in place.retry),
            unacked=place.unacked,
        )
        return account(books)


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


def _ids(store: sqlite3.Connection, query: str, *given: object) -> Iterator[str]:
    rows: Iterable[tuple[str]] = store.execute(query, given)
    return (event_id for (event_id,) in rows)
