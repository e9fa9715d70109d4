"""Two databases, one ledger: the books are read in the same order from both, in one instant."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

from delivery import postgres_inbox, postgres_outbox
from delivery.errors import DeliveryError
from delivery.handling import Effect
from delivery.ledger import Account, Books, account
from delivery.ledger_stores import Publisher, Recipient, Shelves, sqlite_shelves
from delivery.postgres import open_postgres
from delivery.postgres_books import postgres_shelves
from delivery.stores import PUBLISHER, Stores

# By a dictionary's rules (a, A, b), by code points (A, _, a, b), or by their bytes: not the same.
IDS = ["b", "_", "A-1", "a", "A", "Z", "a-1", "0", "B"]
# A database is usually made for a language, whose order its texts have. A server may know none.
LANGUAGES = ("provider = icu, locale = 'en'", "provider = libc, locale = 'en_US.utf8'")


@dataclass
class Side:
    shelves: Shelves
    publisher: Callable[[str], Any]
    inbox: Callable[[str], Any]
    time: Callable[[float], str]
    nothing: str  # bytes

    def accept(self, *ids: str, at: float = 100.0, confirmed: bool = False) -> None:
        then = self.time(at)
        when = then if confirmed else "NULL"
        for each in ids:
            self.publisher(
                "INSERT INTO outbox"
                " (event_id, event_type, body, correlation_id, accepted_at, subject, confirmed_at)"
                f" VALUES ('{each}', 't', {self.nothing}, 'r', {then}, 'm', {when})"
            )

    def receive(self, *ids: str, at: float = 100.0, effect: str = "applied") -> None:
        for each in ids:
            self.inbox(
                "INSERT INTO receipt (recipient, message_id, effect, received_at, event_at)"
                f" VALUES ('catalog', '{each}', '{effect}', {self.time(at)}, {self.time(at)})"
            )


@pytest.fixture(params=["sqlite", "postgres"])
def side(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Side]:
    stores = Stores(tmp_path)
    plain = sqlite_shelves(stores)
    if request.param == "sqlite":
        with closing(stores.open(PUBLISHER)) as one, closing(stores.open("catalog")) as two:
            yield Side(plain, one.execute, two.execute, str, "x''")
        return
    url = request.getfixturevalue("database")
    with closing(open_postgres(url, postgres_outbox.SCHEMA, postgres_inbox.SCHEMA)) as store:
        for language in LANGUAGES:
            with suppress(psycopg.Error):
                store.execute(f"CREATE COLLATION language ({language})".encode())
                for table, column in (("outbox", "event_id"), ("receipt", "message_id")):
                    alter = f"ALTER TABLE {table} ALTER {column} TYPE text COLLATE language"
                    store.execute(alter.encode())

        def execute(query: str) -> Any:
            return store.execute(query.encode())

        shelves = postgres_shelves(url, {"catalog": url}, plain)
        yield Side(shelves, execute, execute, lambda at: f"to_timestamp({at})", "''")


def judged(side: Side) -> Account:
    nothing = Books("catalog", (), (), (), dead=(), ready=0, retry=0, unacked=0)
    with side.shelves.publisher() as sent, side.shelves.recipient("catalog") as got:
        return account(
            replace(
                nothing,
                accepted=sent.accepted(),
                pending=sent.pending(),
                receipts=got.receipts(),
                forgettable=sent.accepted_before(got.pruned),
                removed=got.of_events_before(sent.since),
            )
        )


def seen(of: Callable[[Publisher], Iterator[str]], side: Side) -> Sequence[str]:
    with side.shelves.publisher() as publisher:
        return list(of(publisher))


def received(of: Callable[[Recipient], Iterator[Any]], side: Side) -> Sequence[Any]:
    with side.shelves.recipient("catalog") as recipient:
        return list(of(recipient))


def test_ids_come_in_the_order_of_their_code_points(side: Side) -> None:
    """The ledger reads them side by side: another order would look like loss."""
    side.accept(*IDS)
    side.receive(*IDS)
    assert seen(lambda books: books.accepted(), side) == sorted(IDS)
    assert seen(lambda books: books.pending(), side) == sorted(IDS)
    assert received(lambda books: books.receipts(), side) == [
        (each, Effect.APPLIED) for each in sorted(IDS)
    ]
    found = judged(side)
    assert (found.applied, found.difference, found.never_accepted) == (len(IDS), 0, ())


def test_each_stream_gives_what_it_is_asked_for(side: Side) -> None:
    """Pending is not confirmed; before is before; effects are read."""
    side.accept("sent", confirmed=True)
    side.accept("waits")
    side.accept("late", at=200.0)
    side.receive("sent")
    side.receive("late", at=200.0, effect="stale")
    assert seen(lambda books: books.accepted(), side) == ["late", "sent", "waits"]
    assert seen(lambda books: books.pending(), side) == ["late", "waits"]
    assert seen(lambda books: books.accepted_before(200.0), side) == ["sent", "waits"]
    assert received(lambda books: books.of_events_before(200.0), side) == ["sent"]
    assert received(lambda books: books.receipts(), side) == [
        ("late", Effect.STALE),
        ("sent", Effect.APPLIED),
    ]
    found = judged(side)
    assert (found.accepted, found.applied, found.stale, found.pending) == (3, 1, 1, 1)


def test_what_was_forgotten_is_known_to_be(side: Side) -> None:
    """Pruned receipts, and removed rows, are no difference."""
    side.accept("a", confirmed=True)
    side.receive("gone", at=50.0)
    assert judged(side).difference == 1
    side.inbox(f"INSERT INTO receipts_pruned VALUES ('catalog', {side.time(150.0)})")
    side.publisher(f"INSERT INTO outbox_removed VALUES (1, 1, {side.time(60.0)})")
    found = judged(side)
    assert (found.difference, found.forgotten, found.never_accepted) == (0, 1, ())
    with side.shelves.publisher() as sent, side.shelves.recipient("catalog") as got:
        assert (sent.since, got.pruned) == (60.0, 150.0)


def test_the_books_are_of_one_instant(side: Side) -> None:
    """What is confirmed or accepted while they are read belongs to the next look."""
    side.accept("a", "b")
    with side.shelves.publisher() as publisher:
        side.accept("c")
        side.publisher(f"UPDATE outbox SET confirmed_at = {side.time(1.0)}")
        assert list(publisher.accepted()) == list(publisher.pending()) == ["a", "b"]
    with side.shelves.publisher() as publisher:
        assert next(publisher.accepted()) == "a"  # a stream may be left where it is
    gc.collect()


def test_a_recipient_that_is_not_in_postgresql_is_in_its_file(
    database: str, tmp_path: Path
) -> None:
    """They are services of their own, and may grow one by one."""
    stores = Stores(tmp_path)
    with closing(stores.open("audit")) as store:
        store.execute(
            "INSERT INTO receipt VALUES ('audit', 'a', 'applied', 1, 0, 1)",
        )
    shelves = postgres_shelves(database, {}, sqlite_shelves(stores))
    with shelves.recipient("audit") as books:
        assert list(books.receipts()) == [("a", Effect.APPLIED)]


def test_a_database_without_the_tables_is_said(database: str, tmp_path: Path) -> None:
    """The ledger creates none: it may have been shown the wrong one."""
    shelves = postgres_shelves(database, {"catalog": database}, sqlite_shelves(Stores(tmp_path)))
    with pytest.raises(DeliveryError, match='"outbox_removed" does not exist'):
        shelves.publisher().__enter__()
    with pytest.raises(DeliveryError, match='"receipts_pruned" does not exist'):
        shelves.recipient("catalog").__enter__()
