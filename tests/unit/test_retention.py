"""What is settled and old goes, in small steps; what is not settled stays; the file stays small."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
from support.events import event

from delivery import retention
from delivery.contract import PublishMaterial
from delivery.handling import Effect
from delivery.inbox import once, prune, pruned_before
from delivery.materials import accept
from delivery.outbox import removed
from delivery.retention import STEP, caretaker, forget_sent, give_back, sent_round
from delivery.routes import Route
from delivery.store import transaction
from delivery.stores import PUBLISHER, Stores
from delivery.tracing import outbox_summary

NOW = 1_800_000_000.0
COMMAND = PublishMaterial(title="T" * 300, slug="a-slug", author="A")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    with closing(Stores(tmp_path).open(PUBLISHER)) as opened:
        yield opened


def publish(store: sqlite3.Connection, count: int, *, at: float, confirmed: bool = True) -> None:
    (first,) = store.execute("SELECT coalesce(max(position), 0) FROM outbox").fetchone()
    for number in range(count):
        accept(store, f"m-{number}", COMMAND, key=f"{at}-{first + number}", clock=lambda: at)
    if confirmed:
        with transaction(store) as tx:
            tx.execute("UPDATE outbox SET confirmed_at = ? WHERE position > ?", (at, first))


def count(store: sqlite3.Connection, table: str) -> int:
    return int(store.execute(f"SELECT count(*) FROM {table}").fetchone()[0])


def test_what_was_sent_long_ago_goes_with_its_request(store: sqlite3.Connection) -> None:
    """Younger rows stay, and so does what was never confirmed, however old it is."""
    publish(store, 3, at=NOW - 100)
    publish(store, 2, at=NOW - 100, confirmed=False)
    publish(store, 4, at=NOW)

    assert forget_sent(store, before=NOW - 50) is None

    assert (count(store, "outbox"), count(store, "request")) == (6, 6)
    assert count(store, "outbox WHERE confirmed_at IS NULL") == 2
    assert removed(store) == (3, NOW - 50)


def test_counts_do_not_go_back(store: sqlite3.Connection) -> None:
    """What was removed was accepted and confirmed all the same: a counter never falls."""
    publish(store, 3, at=NOW - 100)
    before = outbox_summary(store)
    forget_sent(store, before=NOW)
    after = outbox_summary(store)
    assert (before["accepted"], before["confirmed"]) == (after["accepted"], after["confirmed"])
    assert after["accepted"] == 3


def test_the_counts_are_those_of_the_rows_whatever_is_done_to_them(
    store: sqlite3.Connection,
) -> None:
    """Confirmed, not confirmed after all, added as confirmed, deleted, undone: never off by one."""
    counted = "SELECT count(*), count(confirmed_at) FROM outbox"

    def holds() -> None:
        found = outbox_summary(store)
        assert (found["accepted"], found["confirmed"]) == store.execute(counted).fetchone()

    publish(store, 5, at=NOW - 100)
    publish(store, 3, at=NOW - 50, confirmed=False)
    holds()
    for statement in (
        "UPDATE outbox SET confirmed_at = 7.0 WHERE position IN (1, 6)",  # one of them is already
        "UPDATE outbox SET confirmed_at = NULL WHERE position IN (2, 7)",
        "INSERT INTO outbox (event_id, event_type, body, correlation_id, accepted_at, confirmed_at)"
        " VALUES ('a', 't', x'', 'c', 1.0, 2.0), ('b', 't', x'', 'c', 1.0, NULL)",
        "DELETE FROM outbox WHERE position IN (1, 8)",
    ):
        with suppress(LookupError), transaction(store) as tx:
            tx.execute(statement)
            raise LookupError  # rolled back
        holds()
        store.execute(statement)
        holds()


def test_a_step_touches_a_bounded_number_of_rows(store: sqlite3.Connection) -> None:
    """So many deletes in one transaction and no more; pending rows in the way end no round."""
    publish(store, STEP, at=NOW - 100, confirmed=False)
    publish(store, 2 * STEP + 10, at=NOW - 100)
    changes = []
    last = store.total_changes
    for _ in sent_round(store, time.time() - NOW):
        changes.append(store.total_changes - last)
        last = store.total_changes

    # A row, its request, and that there is one less; and the count of those that were removed.
    assert max(changes) <= 3 * STEP + 1
    assert (count(store, "outbox"), removed(store)[0]) == (STEP, 2 * STEP + 10)


def test_receipts_are_forgotten_oldest_first_and_as_many_as_asked(tmp_path: Path) -> None:
    """What is forgotten so far is remembered as a time, so that a missing receipt is no sign."""
    route = Route("audit")
    with closing(Stores(tmp_path).open("audit")) as store:
        for n in range(10):
            with transaction(store) as tx:
                once(route, lambda _e, _tx: Effect.APPLIED, clock=lambda n=n: NOW + n)(event(), tx)

        assert prune(store, "audit", before=NOW + 8, oldest_dead=None, most=3) == 3
        (oldest,) = store.execute("SELECT min(received_at) FROM receipt").fetchone()
        assert oldest == NOW + 3
        assert pruned_before(store, "audit") == NOW + 8
        assert prune(store, "audit", before=NOW + 8, oldest_dead=None, most=100) == 5
        assert count(store, "receipt") == 2


def test_the_file_does_not_grow_under_steady_traffic_and_shrinks_after_a_peak(
    store: sqlite3.Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same pages are used again; what a peak needed is given back, some pages at a time."""
    monkeypatch.setattr(retention, "SPARE", 20)
    monkeypatch.setattr(retention, "PAGES", 10)
    path = Stores(tmp_path).path(PUBLISHER)

    def size() -> int:
        store.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        return path.stat().st_size

    sizes = []
    for cycle in range(5):
        publish(store, 300, at=NOW + cycle)
        while forget_sent(store, before=NOW + cycle + 1) is not None:
            pass
        sizes.append(size())
    assert max(sizes) <= sizes[0] * 1.1

    (pages,) = store.execute("PRAGMA page_count").fetchone()
    assert give_back(store)
    assert store.execute("PRAGMA page_count").fetchone()[0] == pages - 10
    while give_back(store):
        pass
    assert size() < sizes[-1] * 0.6


def test_a_locked_store_is_left_alone(store: sqlite3.Connection, tmp_path: Path) -> None:
    """Others go first: the step is given up at once, and a later round does it."""
    publish(store, 2, at=NOW)
    aside = Stores(tmp_path).open(PUBLISHER)
    aside.execute("PRAGMA busy_timeout = 0")
    begun: list[int] = []

    def begin() -> Iterator[None]:
        begun.append(1)
        return sent_round(aside, time.time() - NOW - 1)

    tend: Callable[[], None] = caretaker(begin)
    with closing(aside), transaction(store):
        at = time.monotonic()
        tend()
        tend()
        assert time.monotonic() - at < 1.0
    assert begun == [1]  # the next round is not due
    assert count(store, "outbox") == 2
