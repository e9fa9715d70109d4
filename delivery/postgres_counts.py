"""Count for the live page what stores in PostgreSQL hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import psycopg

from delivery.errors import DeliveryError
from delivery.live_counts import (
    LATEST,
    Counts,
    Look,
    Outgoing,
    Receipts,
    counted,
    latest_of,
    look_into,
    receipts_of,
)
from delivery.postgres import Connection, one_instant, open_postgres
from delivery.postgres_feed import outbox_summary
from delivery.postgres_pool import Pool
from delivery.stores import Stores

__all__ = ["counting"]

NAME = "delivery live"
_OLDEST = (
    "SELECT extract(epoch FROM min(accepted_at))::float8 FROM outbox WHERE confirmed_at IS NULL"
)
_LATEST = """
SELECT event_id, extract(epoch FROM accepted_at)::float8, attempts, outcome,
    extract(epoch FROM confirmed_at)::float8, body
FROM outbox ORDER BY position DESC LIMIT %s
"""


def counting(url: str, inboxes: Mapping[str, str], stores: Stores) -> Callable[[], Counts]:
    """Return what counts the publisher at *url*, and each recipient at its URL in *inboxes*.

    What *inboxes* does not name is in *stores*. It keeps a connection to each database. Raises
    DeliveryError when called, if the publisher's can't be read.
    """
    publisher = _connected(url)
    looks: dict[str, Look] = {
        name: partial(_look, _connected(inboxes[name]), name)
        if name in inboxes
        else look_into(opener, name)
        for name, opener in stores.inboxes().items()
    }

    def count() -> Counts:
        with publisher.one() as store:
            outgoing, latest = _outgoing(store), _latest(store)
        return counted(outgoing, latest, looks)

    return count


def _connected(url: str) -> Pool:
    return Pool(lambda: open_postgres(url, name=NAME), most=1)


def _outgoing(store: Connection) -> Outgoing:
    found = outbox_summary(store)
    with one_instant(store) as tx:  # a time that stays the same: an age would be news at each look
        (oldest,) = tx.execute(_OLDEST).fetchone() or (None,)
    return Outgoing(found["accepted"], found["pending"], oldest)


def _latest(store: Connection) -> list[dict[str, Any]]:
    with one_instant(store) as tx:
        return latest_of(tx.execute(_LATEST, (LATEST,)).fetchall())


def _look(
    connected: Pool, recipient: str, ids: Sequence[str]
) -> tuple[Receipts, Mapping[str, str]] | None:
    try:
        with connected.one() as store, one_instant(store) as tx:
            rows = tx.execute(
                "SELECT effect, count(*), sum(duplicates)::bigint FROM receipt"
                " WHERE recipient = %s GROUP BY effect",
                (recipient,),
            ).fetchall()
            effects = tx.execute(
                "SELECT message_id, effect FROM receipt"
                " WHERE recipient = %s AND message_id = ANY(%s)",
                (recipient, list(ids)),
            ).fetchall()
    except (DeliveryError, psycopg.Error):
        return None  # not visible, not empty
    return receipts_of(rows), dict(effects)
