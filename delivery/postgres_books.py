"""The ledger's books in PostgreSQL, read in one instant, in memory that does not grow with them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from itertools import count

from delivery.handling import Effect
from delivery.ledger_stores import Publisher, Recipient, Shelves
from delivery.postgres import Connection, open_postgres, refused, transaction
from delivery.postgres_inbox import pruned_before
from delivery.postgres_outbox import removed

__all__ = ["postgres_shelves"]

_OUTBOX = 'SELECT event_id FROM outbox {where} ORDER BY event_id COLLATE "C"'
_RECEIPTS = (
    "SELECT message_id, effect FROM receipt WHERE recipient = %s {where}"
    ' ORDER BY message_id COLLATE "C"'
)
_numbers = count()


def postgres_shelves(url: str, inboxes: Mapping[str, str], others: Shelves) -> Shelves:
    """Return the publisher's books at *url*, each recipient's at its URL in *inboxes*.

    What *inboxes* does not name is in *others*.
    """

    def recipient(name: str) -> AbstractContextManager[Recipient]:
        return _recipient(inboxes[name], name) if name in inboxes else others.recipient(name)

    return Shelves(lambda: _publisher(url), recipient)


@contextmanager
def _publisher(url: str) -> Iterator[Publisher]:
    with _one_instant(url) as tx:
        _, since = removed(tx)  # the first look fixes what the later ones see
        yield Publisher(
            since=since,
            accepted=lambda: _ids(tx, _OUTBOX.format(where="")),
            pending=lambda: _ids(tx, _OUTBOX.format(where="WHERE confirmed_at IS NULL")),
            accepted_before=lambda moment: _ids(
                tx, _OUTBOX.format(where="WHERE accepted_at < to_timestamp(%s)"), moment
            ),
        )


@contextmanager
def _recipient(url: str, name: str) -> Iterator[Recipient]:
    before = _RECEIPTS.format(where="AND event_at < to_timestamp(%s)")
    with _one_instant(url) as tx:
        yield Recipient(
            pruned=pruned_before(tx, name),
            receipts=lambda: (
                (key, Effect(effect)) for key, effect in _rows(tx, _RECEIPTS.format(where=""), name)
            ),
            of_events_before=lambda moment: _ids(tx, before, name, moment),
        )


@contextmanager
def _one_instant(url: str) -> Iterator[Connection]:
    with (
        closing(open_postgres(url, name="delivery ledger")) as store,
        refused(),  # it creates no tables: another database has none
        transaction(store) as tx,
    ):
        tx.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        # It locks nothing, and it is silent while the broker's dead messages are looked at.
        tx.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
        yield tx


def _ids(tx: Connection, query: str, *given: object) -> Iterator[str]:
    return (row[0] for row in _rows(tx, query, *given))


def _rows(tx: Connection, query: str, *given: object) -> Iterator[tuple[str, ...]]:
    # A cursor with a name is the server's: it hands over some rows at a time.
    with tx.cursor(f"ledger_{next(_numbers)}") as cursor:
        cursor.itersize = 2_000
        yield from cursor.execute(query.encode(), given)
