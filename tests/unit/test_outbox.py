"""A row is due by facts alone, and waits longer after each failure, within bounds."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from support.events import event

from delivery import outbox
from delivery.codec import encode
from delivery.confirms import Answer, Outcome
from delivery.contract import Event
from delivery.outbox import FIRST_PAUSE, LONGEST_PAUSE, SqliteOutbox, removed, sent
from delivery.store import open_store, transaction

NOW = 1_800_000_000.0
BAD = Answer(Outcome.RETURNED, "312 NO_ROUTE")


class Clock:
    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    with closing(open_store(tmp_path / "publisher.db", outbox.SCHEMA)) as opened:
        yield opened


@pytest.fixture
def box(store: sqlite3.Connection, clock: Clock) -> SqliteOutbox:
    return SqliteOutbox(store, "ns.events", clock=clock)


def add(store: sqlite3.Connection, *events: Event) -> None:
    with transaction(store) as tx:
        for each in events:
            outbox.add(tx, each, correlation_id="request-1", accepted_at=NOW)


def due(box: SqliteOutbox, limit: int = 100) -> list[str]:
    with box.batch(limit) as batch:
        return [str(message.properties.message_id) for message in batch.messages]


def record(box: SqliteOutbox, *answers: Answer) -> None:
    with box.batch(100) as batch:
        batch.record(answers)


def row(store: sqlite3.Connection, of: Event) -> dict[str, object]:
    store.row_factory = sqlite3.Row
    return dict(store.execute("SELECT * FROM outbox WHERE event_id = ?", (of.id,)).fetchone())


def test_a_row_exists_only_if_its_transaction_commits(
    store: sqlite3.Connection, box: SqliteOutbox
) -> None:
    """An event for something that did not happen is never sent."""
    with pytest.raises(RuntimeError), transaction(store) as tx:
        outbox.add(tx, event(), correlation_id="r", accepted_at=NOW)
        raise RuntimeError

    assert due(box) == []


def test_the_message_is_what_was_recorded(store: sqlite3.Connection, box: SqliteOutbox) -> None:
    """Same bytes, same id, the request as correlation_id, persistent, to the outbox's exchange."""
    of = event(title="Ünïcödé 🐇")
    add(store, of)

    with box.batch(1) as batch:
        (message,) = batch.messages

    assert message.body == encode(of)
    assert (message.exchange, message.routing_key) == ("ns.events", of.type)
    assert message.properties.message_id == of.id
    assert message.properties.correlation_id == "request-1"
    assert message.properties.delivery_mode == 2
    assert message.properties.timestamp == int(NOW)


def test_the_trace_of_the_request_is_the_only_header(
    store: sqlite3.Connection, box: SqliteOutbox
) -> None:
    """A request that belongs to no trace leaves no header behind."""
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    with transaction(store) as tx:
        for traceparent in (trace, None):
            outbox.add(tx, event(), correlation_id="r", accepted_at=NOW, traceparent=traceparent)

    with box.batch(2) as batch:
        headers = [message.properties.headers for message in batch.messages]

    assert headers == [{"traceparent": trace}, {}]


def test_rows_come_in_the_order_they_were_added_and_only_as_many_as_asked(
    store: sqlite3.Connection, box: SqliteOutbox
) -> None:
    """A batch is bounded; the rest waits its turn."""
    events = [event() for _ in range(5)]
    add(store, *events)

    assert due(box, 3) == [each.id for each in events[:3]]


def test_only_confirmed_marks_a_row(store: sqlite3.Connection, box: SqliteOutbox) -> None:
    """Every other outcome keeps it pending, with the outcome and its detail written down."""
    events = [event() for _ in Outcome]
    add(store, *events)

    record(box, *(Answer(outcome, "words") for outcome in Outcome))

    for of, outcome in zip(events, Outcome, strict=True):
        found = row(store, of)
        assert (found["outcome"], found["detail"]) == (outcome.value, "words")
        assert found["attempts"] == 1
        assert (found["confirmed_at"] is not None) == (outcome is Outcome.CONFIRMED)


def test_a_confirmed_row_never_comes_back(
    store: sqlite3.Connection, box: SqliteOutbox, clock: Clock
) -> None:
    """Not even when the clock jumps, in either direction."""
    add(store, event())
    record(box, Answer(Outcome.CONFIRMED))

    for clock.now in (NOW, NOW + 1e6, NOW - 1e6):
        assert due(box) == []


def test_messages_that_were_not_tried_stay_as_they_were(
    store: sqlite3.Connection, box: SqliteOutbox
) -> None:
    """Answers cover the first messages; a lost connection spends no attempt of the others."""
    first, second = event(), event()
    add(store, first, second)

    record(box, Answer(Outcome.UNKNOWN, "cable"))

    assert row(store, first)["attempts"] == 1
    assert row(store, second)["attempts"] == 0
    assert due(box) == [second.id]


def test_a_failed_row_goes_behind_those_never_tried(
    store: sqlite3.Connection, box: SqliteOutbox, clock: Clock
) -> None:
    """One bad row at the head does not take the place of good ones for ever."""
    bad = event()
    add(store, bad)
    record(box, BAD)
    good = event()
    add(store, good)
    clock.now += LONGEST_PAUSE

    assert due(box) == [good.id, bad.id]
    assert due(box, 1) == [good.id]


def pauses(store: sqlite3.Connection, box: SqliteOutbox, clock: Clock, count: int) -> list[float]:
    of = event()
    add(store, of)
    found = []
    for _ in range(count):
        record(box, BAD)
        next_attempt = row(store, of)["next_attempt_at"]
        assert isinstance(next_attempt, float)
        found.append(next_attempt - clock.now)
        clock.now = next_attempt
    return found


def test_pauses_grow_and_are_capped(
    store: sqlite3.Connection, box: SqliteOutbox, clock: Clock
) -> None:
    """Each full pause is the double of the one before, and never more than the longest."""
    for n, pause in enumerate(pauses(store, box, clock, 12)):
        full = min(LONGEST_PAUSE, FIRST_PAUSE * 2**n)
        assert full / 2 - 1e-3 <= pause <= full + 1e-3, n


def test_pauses_are_jittered(store: sqlite3.Connection, box: SqliteOutbox) -> None:
    """Rows that failed together do not all come back in the same instant."""
    events = [event() for _ in range(50)]
    add(store, *events)

    record(box, *[BAD] * 50)

    nexts = {row(store, each)["next_attempt_at"] for each in events}
    assert len(nexts) == 50


def test_a_row_is_not_due_before_its_time(
    store: sqlite3.Connection, box: SqliteOutbox, clock: Clock
) -> None:
    """A failed row waits, then comes."""
    of = event()
    add(store, of)
    record(box, BAD)

    assert due(box) == []
    clock.now += FIRST_PAUSE
    assert due(box) == [of.id]


def test_a_clock_set_back_holds_no_row_longer_than_the_longest_pause(
    store: sqlite3.Connection, box: SqliteOutbox, clock: Clock
) -> None:
    """After ten minutes back, a failed row does not wait ten minutes more."""
    of = event()
    add(store, of)
    record(box, BAD)

    clock.now -= 600

    assert due(box) == [of.id]


def test_rows_from_before_the_clock_was_set_back_do_not_make_a_batch_longer(
    store: sqlite3.Connection, box: SqliteOutbox, clock: Clock
) -> None:
    """What is due comes first; they get the places that are left."""
    add(store, *(event() for _ in range(3)))
    record(box, *[BAD] * 3)
    clock.now -= 600
    good = event()
    add(store, good)

    found = due(box, 2)
    assert (found[0], len(found)) == (good.id, 2)


def test_an_attempt_after_the_clock_was_set_back_is_paused_by_the_new_clock(
    store: sqlite3.Connection, box: SqliteOutbox, clock: Clock
) -> None:
    """The row does not become a busy loop either."""
    of = event()
    add(store, of)
    record(box, BAD)
    clock.now -= 600
    record(box, BAD)

    assert due(box) == []
    clock.now += 2 * FIRST_PAUSE
    assert due(box) == [of.id]


def test_finding_the_due_rows_uses_the_index(
    store: sqlite3.Connection, box: SqliteOutbox, clock: Clock
) -> None:
    """A million rows, confirmed or waiting, do not slow the relay down: it never scans them."""
    statements: list[str] = []
    store.set_trace_callback(statements.append)
    due(box)
    store.set_trace_callback(None)
    queries = [each for each in statements if each.startswith("SELECT")]
    assert queries

    for query in queries:
        plan = [step[3] for step in store.execute(f"EXPLAIN QUERY PLAN {query}")]
        assert any(step.startswith("SEARCH") and "outbox_due" in step for step in plan), plan
        assert not any(step.startswith("SCAN") or "TEMP B-TREE" in step for step in plan), plan


def test_an_event_id_is_queued_once(store: sqlite3.Connection) -> None:
    """Two rows under one id could not be told apart by their answers."""
    of = event()
    add(store, of)

    with pytest.raises(sqlite3.IntegrityError):
        add(store, of)


def test_what_could_never_be_sent_is_refused_where_it_is_added(store: sqlite3.Connection) -> None:
    """A row that fails for ever must not come to be: its transaction fails instead."""
    with pytest.raises(ValueError, match="255 bytes"), transaction(store) as tx:
        outbox.add(tx, event(), correlation_id="я" * 128, accepted_at=1.0)
    assert store.execute("SELECT count(*) FROM outbox").fetchone() == (0,)


def test_the_rows_that_are_sent_are_told_without_those_that_wait(
    store: sqlite3.Connection, box: SqliteOutbox
) -> None:
    """The count follows each mark."""
    assert sent(store) == 0
    add(store, *(event() for _ in range(3)))

    record(box, Answer(Outcome.CONFIRMED), BAD, Answer(Outcome.CONFIRMED))

    assert sent(store) == 2


def test_what_was_removed_is_told_with_its_time(store: sqlite3.Connection) -> None:
    """None was, and so no row is missing; or so many, all from before that time."""
    assert removed(store) == (0, 0.0)

    store.execute("INSERT INTO outbox_removed VALUES (1, 7, 12.5)")

    assert removed(store) == (7, 12.5)
