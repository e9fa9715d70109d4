"""Read from every participant what the ledger needs."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable, Mapping

from pika.adapters.blocking_connection import BlockingConnection

from delivery.config import Config
from delivery.connection import connect
from delivery.dead import dead_queue
from delivery.handling import Effect
from delivery.inbox import pruned_before
from delivery.ledger import Account, Books, account
from delivery.observe import Waiting, depth, waiting
from delivery.routes import routes_of
from delivery.stores import PUBLISHER
from delivery.triage import DeadMessage, browse

__all__ = ["accounts", "settled_accounts"]


def accounts(config: Config, connection: BlockingConnection) -> list[Account]:
    """Return each recipient's account as it is now.

    Read in the direction in which events move, receipts last: an event on the way is then found
    twice rather than never, and counted once.
    """
    publisher = config.stores.open(PUBLISHER)
    accepted = dict(publisher.execute("SELECT event_id, accepted_at FROM outbox").fetchall())
    pending = _ids(publisher, "SELECT event_id FROM outbox WHERE confirmed_at IS NULL")
    publisher.close()
    places = waiting(
        connection,
        routes_of(config.namespace),
        retries=len(config.retries_ms),
        management=config.management,
    )
    return [account(_books(config, connection, place, accepted, pending)) for place in places]


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


def _books(
    config: Config,
    connection: BlockingConnection,
    place: Waiting,
    accepted: Mapping[str, float],
    pending: set[str],
) -> Books:
    route = config.route(place.recipient)
    dead: list[DeadMessage] = []
    if depth(connection, dead_queue(route)) is not None:
        # Not by its count: while somebody looks at the dead messages, none of them is ready.
        dead = browse(connection, route)
    store = config.stores.open(place.recipient)
    receipts = {
        message_id: Effect(effect)
        for message_id, effect in store.execute(
            "SELECT message_id, effect FROM receipt WHERE recipient = ?", (place.recipient,)
        )
    }
    pruned = pruned_before(store, place.recipient)
    store.close()
    return Books(
        recipient=place.recipient,
        accepted=accepted.keys(),
        forgettable={event for event, at in accepted.items() if at < pruned},
        pending=pending,
        receipts=receipts,
        dead={message.key for message in dead if message.is_event},
        dead_bytes=sum(not message.is_event for message in dead),
        ready=place.ready or 0,
        retry=sum(count or 0 for count in place.retry),
        unacked=place.unacked,
    )


def _ids(store: sqlite3.Connection, query: str) -> set[str]:
    rows: Iterable[tuple[str]] = store.execute(query)
    return {event_id for (event_id,) in rows}
