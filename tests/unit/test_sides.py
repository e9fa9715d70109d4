"""Two databases, one operator: the same questions, and the same acts, of SQLite and PostgreSQL."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from delivery import (
    decisions,
    failures,
    postgres_decisions,
    postgres_failures,
    postgres_inbox,
    postgres_rates,
    postgres_trail,
    trail,
)
from delivery.contract import PublishMaterial
from delivery.errors import DeliveryError
from delivery.failures import Failure
from delivery.feed import pages
from delivery.handling import Effect
from delivery.live_counts import Counts, Receipts, count
from delivery.materials import accept
from delivery.postgres import open_postgres, storable
from delivery.postgres_counts import counting
from delivery.postgres_materials import accept as accept_in_postgres
from delivery.postgres_sides import postgres_sides
from delivery.sides import PublisherSide, RecipientSide, Sides, sqlite_sides
from delivery.store import StoreUnavailable
from delivery.stores import PUBLISHER, Stores

COMMAND = PublishMaterial(title="T", slug="s", author="A")
ODD = "e-\0-1"  # a stranger's id, as the broker carries it


@dataclass
class Case:
    sides: Sides
    publisher: PublisherSide
    catalog: RecipientSide
    execute: Callable[[str], Any]  # in the recipient's store
    note: Callable[[Failure], None]
    accept: Callable[..., Any]
    forget_trail: Callable[..., int]
    forget_decisions: Callable[..., int]
    forget_failures: Callable[..., int]
    count: Callable[[], Counts]
    now: str = "unixepoch()"

    def receive(self, *ids: str, effect: str = "applied", duplicates: int = 0) -> None:
        for each in ids:
            self.execute(
                "INSERT INTO receipt (recipient, message_id, effect, received_at, duplicates,"
                f" event_at) VALUES ('catalog', '{each}', '{effect}', {self.now}, {duplicates},"
                f" {self.now})"
            )

    def state(self, event_id: str = "e-1") -> dict[str, Any]:
        (found,) = self.sides.standings("catalog", [event_id])
        return found


@pytest.fixture(params=["sqlite", "postgres"])
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Case]:
    if request.param == "sqlite":
        stores = Stores(tmp_path)
        sides = sqlite_sides(stores)
        with (
            closing(sides.publisher()) as publisher,
            closing(sides.recipient("catalog")) as catalog,
            closing(stores.open(PUBLISHER)) as sent,
            closing(stores.open("catalog")) as store,
        ):
            yield Case(
                sides,
                publisher,
                catalog,
                store.execute,
                partial(failures.note, store),
                partial(accept, sent),
                partial(trail.forget, sent),
                partial(decisions.forget, store),
                partial(failures.forget, store, "catalog"),
                partial(count, partial(stores.open_to_read, PUBLISHER), stores.inboxes()),
            )
        return
    url = request.getfixturevalue("database")
    sides = postgres_sides(url, {"catalog": url}, sqlite_sides(Stores(tmp_path)))
    with (
        closing(sides.publisher()) as publisher,
        closing(sides.recipient("catalog")) as catalog,
        closing(open_postgres(url)) as store,
    ):
        yield Case(
            sides,
            publisher,
            catalog,
            lambda query: store.execute(query.encode()),
            partial(postgres_failures.note, store),
            partial(accept_in_postgres, store),
            partial(postgres_trail.forget, store),
            partial(postgres_decisions.forget, store),
            partial(postgres_failures.forget, store, "catalog"),
            counting(url, {"catalog": url}, Stores(tmp_path)),
            now="now()",
        )


def failed(attempt: int = 1, *, wait: float | None = 60.0, reason: str | None = None) -> Failure:
    now = time.time()
    retry_at = None if wait is None else now + wait
    return Failure("catalog", "e-1", attempt, now, "it broke", retry_at, reason)


def test_the_outbox_is_counted_and_followed(case: Case) -> None:
    """Counts with rates; an event by three names; the feed with all of it."""
    first, _ = case.accept("m-1", COMMAND, key="r-1")
    second, _ = case.accept("m-1", COMMAND, key="r-2")
    found = case.publisher.summary()
    assert (found["accepted"], found["confirmed"], found["pending"]) == (2, 0, {"not tried": 2})
    assert (found["accepted_per_second"], found["confirmed_per_second"]) == (0.2, 0.0)
    both = [first.event_id, second.event_id]
    assert case.publisher.find("m-1") == ("material_id", both)
    assert case.publisher.find("r-2") == ("request_id", both[1:])
    assert case.publisher.find("nobody") == ("nothing", [])
    row = case.publisher.row(both[1])
    assert (row["event_id"], row["revision"], row["attempts"]) == (both[1], 2, 0)
    given = [each.event_id for page in pages(case.publisher.feed(limit=1)) for each in page.events]
    assert given == both


def test_an_act_is_in_the_trail_before_its_result(case: Case) -> None:
    """The entries of a page belong to its messages in their order; and can be narrowed."""
    begin = partial(case.publisher.begin, operator="rosa", reason="mended")
    first, second = begin("replay", "catalog", [("a%1", "exhausted"), ("ab1", "")])
    (third,) = begin("drop", "audit", [("a%1", "")])

    def entries(recipient: str = "", message_id: str = "", limit: int = 50) -> list[trail.Entry]:
        return case.publisher.entries(recipient=recipient, message_id=message_id, limit=limit)

    assert [each.result for each in entries()] == [None] * 3
    case.publisher.conclude(iter([(first, "applied"), (third, "dropped")]))
    found = entries()
    assert [(each.message_id, each.dead_reason, each.result) for each in found] == [
        ("a%1", "exhausted", "applied"),
        ("ab1", "", None),
        ("a%1", "", "dropped"),
    ]
    assert {(each.operator, each.reason) for each in found} == {("rosa", "mended")}
    assert abs(found[0].decided_at - time.time()) < 60
    assert [each.entry for each in entries(recipient="catalog")] == [first, second]
    assert [each.entry for each in entries(message_id="a%")] == [first, third]
    assert [each.entry for each in entries(limit=1)] == [third]


def test_an_act_needs_a_reason(case: Case) -> None:
    """Blank is none, and nothing is kept of it."""
    with pytest.raises(DeliveryError, match="say why"):
        case.publisher.begin("drop", "catalog", [("e-1", "")], operator="rosa", reason=" \n")
    for act in (case.catalog.record_replay, partial(case.catalog.record_drop, is_event=True)):
        with pytest.raises(DeliveryError, match="say why"):
            act("e-1", operator="rosa", reason="")
    assert case.publisher.entries(recipient="", message_id="", limit=9) == []
    assert (case.catalog.decisions("e-1"), case.catalog.receipt("e-1")) == ([], None)


def test_what_is_dropped_has_a_receipt_if_it_is_an_event(case: Case) -> None:
    """A receipt that is there stays as it is; decisions are kept in their order."""
    case.receive("e-2", duplicates=1)
    case.catalog.record_replay("e-1", operator="rosa", reason="mended")
    case.catalog.record_drop("e-1", is_event=True, operator="paul", reason="enough")
    case.catalog.record_drop("e-2", is_event=True, operator="paul", reason="enough")
    case.catalog.record_drop("e-3", is_event=False, operator="paul", reason="enough")
    found = case.catalog.receipt("e-1")
    assert found is not None
    assert (found.effect, found.duplicates) == (Effect.DROPPED, 0)
    kept = case.catalog.receipt("e-2")
    assert kept is not None
    assert (kept.effect, kept.duplicates) == (Effect.APPLIED, 1)
    assert case.catalog.receipt("e-3") is None
    said = [(each.action, each.operator, each.reason) for each in case.catalog.decisions("e-1")]
    assert said == [("replay", "rosa", "mended"), ("drop", "paul", "enough")]
    assert case.catalog.pruned() == 0.0


def test_a_strangers_id_is_kept_somehow(case: Case) -> None:
    """PostgreSQL's texts can't hold every one; what is written is found again."""
    (entry,) = case.publisher.begin("drop", "catalog", [(ODD, "")], operator="o", reason="r\0")
    (kept,) = case.publisher.entries(recipient="", message_id="e-", limit=9)
    assert kept.entry == entry
    case.catalog.record_drop(ODD, is_event=True, operator="o", reason="r")
    assert len(case.catalog.decisions(ODD)) == 1
    assert case.catalog.receipt(ODD) is not None
    assert storable("\0\ud800") == "\\0\\ud800"


def test_where_an_event_stands(case: Case) -> None:
    """Each state by what was kept last; a receipt ends the matter."""
    assert case.state()["state"] == "not seen"
    case.note(failed(1, wait=-1.0))
    assert case.state()["state"] == "due"
    case.note(failed(2))
    found = case.state()
    assert (found["state"], found["next_attempt"], found["error"]) == ("retry", 3, "it broke")
    assert 0 < found["retry_at"] - time.time() < 120
    assert [each["attempt"] for each in found["failures"]] == [1, 2]
    case.note(failed(3, wait=None, reason="exhausted"))
    assert (case.state()["state"], case.state()["reason"]) == ("dead", "exhausted")
    case.catalog.record_replay("e-1", operator="rosa", reason="mended")
    assert case.state()["state"] == "replayed"
    case.note(failed(1))  # an earlier life's notes give way
    assert case.state()["state"] == "retry"
    assert len(case.state()["failures"]) == 1
    case.catalog.record_drop("e-1", is_event=True, operator="rosa", reason="enough")
    assert (case.state()["state"], case.state()["effect"]) == ("settled", "dropped")
    assert len(case.state()["decisions"]) == 2


def test_receipts_are_counted(case: Case) -> None:
    """By effect, with the further copies and the rate; pruned ones are said to be missing."""
    case.receive("e-1", "e-2", duplicates=2)
    case.receive("e-3", effect="stale")
    assert case.sides.receipts("catalog") == {
        **{"applied": 2, "stale": 1, "dropped": 0, "duplicate": 4, "settled": 3},
        **{"per_second": 0.3, "pruned": False},
    }
    case.execute(f"INSERT INTO receipts_pruned VALUES ('catalog', {case.now})")
    found = case.sides.receipts("catalog")
    assert found is not None
    assert found["pruned"] is True
    assert case.catalog.pruned() > 0


def test_the_live_page_counts_the_same(case: Case) -> None:
    """Each publication with the receipts that it has; a store that is not there is None, not 0."""
    first, second = (case.accept(each, COMMAND, key=each)[0].event_id for each in ("m-1", "m-2"))
    case.receive(first, duplicates=2)
    found = case.count()
    assert found.outgoing is not None
    assert (found.outgoing.accepted, found.outgoing.pending) == (2, {"not tried": 2})
    assert abs((found.outgoing.oldest or 0) - time.time()) < 60
    assert found.outgoing == case.count().outgoing  # nothing has happened: that is no news
    assert found.receipts == {"catalog": Receipts(1, 0, 0, 2), "audit": None}
    newest, older = found.latest
    assert (newest["event_id"], newest["receipts"]) == (second, {"catalog": None})
    assert (older["title"], older["receipts"]) == ("T", {"catalog": "applied"})
    case.execute("DROP TABLE receipt")
    assert case.count().receipts == {"catalog": None, "audit": None}


def test_what_is_old_is_forgotten_a_few_at_a_time(case: Case) -> None:
    """Never past the oldest dead message; what is younger stays."""
    for number in (1, 2, 3):
        case.note(failed(number))
        case.catalog.record_replay("e-1", operator="rosa", reason="mended")
        case.publisher.begin("replay", "catalog", [("e-1", "")], operator="o", reason="r")
    later = time.time() + 60
    for forget in (case.forget_decisions, case.forget_failures):
        assert forget(before=later, oldest_dead=1.0, most=9) == 0
        assert forget(before=1.0, oldest_dead=None, most=9) == 0
        assert [forget(before=later, oldest_dead=None, most=2) for _ in range(3)] == [2, 1, 0]
    assert case.forget_trail(before=1.0, most=9) == 0
    assert [case.forget_trail(before=later, most=2) for _ in range(3)] == [2, 1, 0]


def test_a_store_that_cant_be_read_is_not_visible(tmp_path: Path, database: str) -> None:
    """Which is not empty; the one who would act hears it as an error. An older one is read."""
    gone = "postgresql://127.0.0.1:9/nothing"
    others = sqlite_sides(Stores(tmp_path))
    for sides in (others, postgres_sides(gone, {"catalog": gone}, others)):
        assert sides.receipts("catalog") is None
        one, two = sides.standings("catalog", ["e-1", "e-2"])
        assert one["state"] == two["state"] == "not visible"
    for opening in (sides.publisher, lambda: sides.recipient("catalog")):
        with pytest.raises(StoreUnavailable):
            opening()
    older = postgres_sides(database, {"catalog": database}, others)
    assert older.receipts("catalog") is None  # there are no tables
    with closing(open_postgres(database, postgres_inbox.SCHEMA)) as store:
        assert older.standings("catalog", ["e-1"])[0]["state"] == "not seen"
        assert postgres_rates.receipts(store, "catalog")["settled"] == 0


def test_a_recipient_that_is_not_in_postgresql_is_in_its_file(
    database: str, tmp_path: Path
) -> None:
    """They are services of their own, and may grow one by one."""
    stores = Stores(tmp_path)
    sides = postgres_sides(database, {}, sqlite_sides(stores))
    with closing(sides.recipient("audit")) as audit:
        audit.record_drop("e-1", is_event=True, operator="o", reason="r")
    found = sides.receipts("audit")
    assert found is not None
    assert found["dropped"] == 1
    assert sides.standings("audit", ["e-1"])[0]["effect"] == "dropped"
    with closing(stores.open("audit")) as store:
        assert len(decisions.decisions_on(store, "e-1")) == 1


def test_a_note_that_cant_be_kept_harms_nobody(
    database: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The copy is safe: the delivery must be acked all the same, and the gap is logged."""
    url = f"{database}%20-cdefault_transaction_read_only%3Don"
    open_postgres(database, postgres_failures.SCHEMA).close()
    with closing(open_postgres(url)) as store, caplog.at_level(logging.WARNING):
        postgres_failures.note(store, failed())
    assert "failure.not_noted" in caplog.text
