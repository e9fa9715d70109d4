"""Two stores, one contract: what SQLite keeps, PostgreSQL keeps, too."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from support.events import event
from support.stores import Postgres, Sqlite

from delivery.codec import encode
from delivery.confirms import Answer, Outcome
from delivery.contract import Event
from delivery.errors import PermanentError, TemporaryError
from delivery.handling import Delivery, Effect, Failed, Handled
from delivery.outbox import FIRST_PAUSE, LONGEST_PAUSE
from delivery.postgres import open_postgres
from delivery.publisher import properties_of
from delivery.revision import RevisionConflict
from delivery.routes import Route
from delivery.store import Schema, StoreDiffers, open_store
from delivery.strikes import KillerMessage

AUDIT, CATALOG = Route("audit", "ns"), Route("catalog", "ns")
GOOD, BAD = Answer(Outcome.CONFIRMED), Answer(Outcome.RETURNED, "312 NO_ROUTE")
Store = Sqlite | Postgres


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    if request.param == "sqlite":
        opened: Store = Sqlite(tmp_path)
    else:
        opened = Postgres(request.getfixturevalue("database"))
    with closing(opened.connection):
        yield opened


# -- the outbox


def add(store: Store, *events: Event) -> None:
    with store.transaction() as tx:
        for each in events:
            store.add_to(tx, each, correlation_id="request-1", accepted_at=1_800_000_000.9)


def due(store: Store, limit: int = 100) -> list[str]:
    with store.box().batch(limit) as batch:
        return [str(message.properties.message_id) for message in batch.messages]


def record(store: Store, *answers: Answer) -> None:
    with store.box().batch(100) as batch:
        batch.record(answers)


def several(count: int) -> list[Event]:
    return [event(f"m-{number}") for number in range(count)]


def test_the_message_is_what_was_recorded(store: Store) -> None:
    """Same bytes, same id, the request as correlation_id, persistent, to the outbox's exchange."""
    of = event(title="Ünïcödé 🐇")
    with store.transaction() as tx:
        store.add_to(
            tx, of, correlation_id="r", accepted_at=1_800_000_000.9, traceparent="00-1-2-01"
        )

    with store.box().batch(1) as batch:
        (message,) = batch.messages

    about = message.properties
    assert bytes(message.body) == encode(of)
    assert (message.exchange, message.routing_key) == ("ns.events", of.type)
    assert (about.message_id, about.correlation_id, about.type) == (of.id, "r", of.type)
    assert (about.delivery_mode, about.timestamp) == (2, 1_800_000_000)
    assert about.headers == {"traceparent": "00-1-2-01"}


def test_a_row_exists_only_if_its_transaction_commits(store: Store) -> None:
    """An event for something that did not happen is never sent."""
    with pytest.raises(RuntimeError), store.transaction() as tx:
        store.add_to(tx, event(), correlation_id="r", accepted_at=1.0)
        raise RuntimeError
    assert due(store) == []


def test_an_event_id_is_queued_once(store: Store) -> None:
    """Two rows under one id could not be told apart by their answers."""
    of = event()
    add(store, of)
    with pytest.raises(Exception, match=r"(?i)unique"):
        add(store, of)
    assert due(store) == [of.id]


def test_what_could_never_be_sent_is_refused_where_it_is_added(store: Store) -> None:
    """A row that fails for ever must not come to be: its transaction fails instead."""
    with pytest.raises(ValueError, match="255 bytes"), store.transaction() as tx:
        store.add_to(tx, event(), correlation_id="я" * 128, accepted_at=1.0)
    assert store.count("outbox") == 0


def test_the_oldest_come_first_and_only_as_many_as_asked(store: Store) -> None:
    """A batch is bounded; the rest waits its turn."""
    events = several(5)
    add(store, *events)
    assert due(store, 3) == [each.id for each in events[:3]]


def test_what_was_taken_and_not_recorded_is_there_again(store: Store) -> None:
    """A relay that fails in between spends no attempt."""
    of = event()
    add(store, of)
    with pytest.raises(RuntimeError), store.box().batch(10):
        raise RuntimeError
    assert due(store) == [of.id]
    assert store.row(of)["attempts"] == 0


def test_only_confirmed_marks_a_row(store: Store) -> None:
    """Every other outcome keeps it pending, with the outcome and its detail written down."""
    events = several(len(Outcome))
    add(store, *events)
    record(store, *(Answer(outcome, "words") for outcome in Outcome))
    for of, outcome in zip(events, Outcome, strict=True):
        found = store.row(of)
        assert (found["outcome"], found["detail"], found["attempts"]) == (outcome.value, "words", 1)
        assert bool(found["confirmed"]) == (outcome is Outcome.CONFIRMED)
    store.pass_time(LONGEST_PAUSE)
    wanted = [of.id for of, o in zip(events, Outcome, strict=True) if o is not Outcome.CONFIRMED]
    assert sorted(due(store)) == sorted(wanted)


def test_messages_that_were_not_tried_stay_as_they_were(store: Store) -> None:
    """Answers cover the first messages; a lost connection spends no attempt of the others."""
    first, second = several(2)
    add(store, first, second)
    record(store, Answer(Outcome.UNKNOWN, "cable"))
    assert (store.row(first)["attempts"], store.row(second)["attempts"]) == (1, 0)
    assert due(store) == [second.id]


def test_no_answers_at_all_change_nothing(store: Store) -> None:
    """The connection was gone before the first message."""
    of = event()
    add(store, of)
    record(store)
    assert due(store) == [of.id]


def test_a_confirmed_row_never_comes_back(store: Store) -> None:
    """Not even when the clock jumps, in either direction."""
    add(store, event())
    record(store, GOOD)
    for seconds in (0, 1e6, -2e6):
        store.pass_time(seconds)
        assert due(store) == []


def test_a_failed_row_goes_behind_those_never_tried(store: Store) -> None:
    """One bad row at the head does not take the place of good ones for ever."""
    bad, good = several(2)
    add(store, bad)
    record(store, BAD)
    add(store, good)
    store.pass_time(LONGEST_PAUSE)
    assert due(store) == [good.id, bad.id]
    assert due(store, 1) == [good.id]


def test_pauses_grow_and_are_capped(store: Store) -> None:
    """Each full pause is the double of the one before, and never more than the longest."""
    of = event()
    add(store, of)
    for n in range(10):
        record(store, BAD)
        full, wait = min(LONGEST_PAUSE, FIRST_PAUSE * 2**n), store.row(of)["wait"]
        # The server's clock has gone on since, by less than 5 s.
        assert full / 2 - 5 <= wait <= full + 1e-3, n
        assert store.row(of)["attempts"] == n + 1
        store.pass_time(full)


def test_pauses_are_jittered(store: Store) -> None:
    """Rows that failed together do not all come back in the same instant."""
    events = several(50)
    add(store, *events)
    record(store, *[BAD] * 50)
    assert store.count("(SELECT DISTINCT next_attempt_at FROM outbox) AS each") == 50


def test_a_row_is_not_due_before_its_time(store: Store) -> None:
    """A failed row waits, then comes."""
    of = event()
    add(store, of)
    for _ in range(6):  # the pause is 8 to 16 s
        record(store, BAD)
        store.pass_time(LONGEST_PAUSE)
    store.pass_time(-LONGEST_PAUSE)
    assert due(store) == []
    store.pass_time(LONGEST_PAUSE)
    assert due(store) == [of.id]


def test_a_clock_set_back_holds_no_row_longer_than_the_longest_pause(store: Store) -> None:
    """After ten minutes back, a failed row does not wait ten minutes more."""
    of = event()
    add(store, of)
    record(store, BAD)
    store.pass_time(-600)
    assert due(store) == [of.id]


# -- the inbox


def handle(store: Store, of: Event) -> Effect:
    with store.transaction() as tx:
        return store.once(AUDIT, store.append)(of, tx)


def delivery(of: Event) -> Delivery:
    return Delivery(queue="q", body=encode(of), properties=properties_of(of))


def failing_for(title: str, store: Store) -> Callable[..., Effect]:
    def apply(of: Event, tx: Any) -> Effect:
        store.append(of, tx)
        if of.data.title == title:
            raise PermanentError(title)
        return Effect.APPLIED

    return apply


def test_the_second_copy_has_no_second_effect_and_is_counted(store: Store) -> None:
    """However often a message is delivered, its effect happens once."""
    of = event()
    assert handle(store, of) is Effect.APPLIED
    assert handle(store, of) is Effect.DUPLICATE
    assert handle(store, of) is Effect.DUPLICATE
    assert store.count("audit") == 1
    receipt = store.receipt_of(store.connection, "audit", of.id)
    assert receipt is not None
    assert (receipt.effect, receipt.duplicates) == (Effect.APPLIED, 2)
    assert abs(receipt.received_at - time.time()) < 60


def test_two_copies_in_one_transaction_have_one_effect(store: Store) -> None:
    """A batch may hold a message and its copy: the receipt counts before it is committed."""
    of = event()
    results = store.apply([delivery(of)] * 2, store.once(AUDIT, store.append))
    effects = [each.effect for each in results if isinstance(each, Handled)]
    assert effects == [Effect.APPLIED, Effect.DUPLICATE]
    assert store.count("audit") == 1


def test_a_handler_that_fails_leaves_neither_effect_nor_receipt(store: Store) -> None:
    """A receipt without its effect would lose the message at its next delivery."""
    of = event(title="bad")
    (result,) = store.apply([delivery(of)], store.once(AUDIT, failing_for("bad", store)))
    assert isinstance(result, Failed)
    assert (store.count("audit"), store.count("receipt")) == (0, 0)
    assert handle(store, of) is Effect.APPLIED


def test_one_that_fails_undoes_only_itself(store: Store) -> None:
    """A savepoint for each message: the others of its batch are committed."""
    events = [event("m-1"), event("m-2", title="bad"), event("m-3")]
    results = store.apply(
        [delivery(each) for each in events], store.once(AUDIT, failing_for("bad", store))
    )
    assert [isinstance(each, Handled) for each in results] == [True, False, True]
    with closing(store.again()) as other:
        found = other.execute("SELECT event_id FROM audit ORDER BY entry").fetchall()
        assert found == [(events[0].id,), (events[2].id,)]
        assert store.receipt_of(other, "audit", events[1].id) is None


def test_a_broken_statement_fails_its_message_alone(store: Store) -> None:
    """What the database refuses is that message's fault."""
    good, bad = event("m-1"), event("m-2", title="bad")

    def apply(of: Event, tx: Any) -> Effect:
        if of.data.title == "bad":
            tx.execute("INSERT INTO audit (no_such_column) VALUES (1)")
        return store.append(of, tx)

    results = store.apply([delivery(bad), delivery(good)], store.once(AUDIT, apply))
    assert [type(each) for each in results] == [Failed, Handled]
    assert (store.count("audit"), store.count("receipt")) == (1, 1)


def test_two_recipients_in_one_store_owe_an_effect_each(store: Store) -> None:
    """The key of a receipt holds the recipient."""
    of = event()
    with store.transaction() as tx:
        assert store.once(AUDIT, store.append)(of, tx) is Effect.APPLIED
        assert store.once(CATALOG, store.append)(of, tx) is Effect.APPLIED
    assert store.count("audit") == 2


def test_an_older_revision_is_stale_and_the_receipt_says_so(store: Store) -> None:
    """Whatever order they come in, the latest revision wins."""
    apply = store.once(CATALOG, store.latest_only(store.append))
    second, first, third = (event("m-1", revision) for revision in (2, 1, 3))
    with store.transaction() as tx:
        effects = [apply(each, tx) for each in (second, first, third)]
    assert effects == [Effect.APPLIED, Effect.STALE, Effect.APPLIED]
    receipt = store.receipt_of(store.connection, "catalog", first.id)
    assert receipt is not None
    assert receipt.effect is Effect.STALE
    assert store.count("audit") == 2


def test_the_same_revision_with_other_data_is_a_conflict(store: Store) -> None:
    """And with the same data under another id it is only stale."""
    apply = store.once(CATALOG, store.latest_only(store.append))
    one, same, other = event(title="A"), event(title="A"), event(title="B")
    results = store.apply([delivery(each) for each in (one, same, other)], apply)
    assert [each.effect for each in results if isinstance(each, Handled)] == [
        Effect.APPLIED,
        Effect.STALE,
    ]
    assert isinstance(results[2], Failed)
    assert isinstance(results[2].error, RevisionConflict)
    assert store.receipt_of(store.connection, "catalog", other.id) is None


def test_a_handler_that_fails_does_not_use_up_the_revision(store: Store) -> None:
    """The next attempt is not stale."""
    apply = store.once(CATALOG, store.latest_only(failing_for("bad", store)))
    of = event(title="bad")
    store.apply([delivery(of)], apply)
    (again,) = store.apply([delivery(of)], store.once(CATALOG, store.latest_only(store.append)))
    assert isinstance(again, Handled)
    assert again.effect is Effect.APPLIED


def test_pruning_forgets_what_is_old_and_remembers_that_it_did(store: Store) -> None:
    """After it, a missing receipt from before that time proves nothing."""
    old, new = event("m-1"), event("m-2")
    handle(store, old)
    store.pass_time(1_000)
    handle(store, new)
    assert store.pruned_before(store.connection, "audit") == 0.0
    receipt = store.receipt_of(store.connection, "audit", new.id)
    assert receipt is not None
    before = receipt.received_at - 500

    assert store.prune(store.connection, "audit", before=before, oldest_dead=None) == 1

    assert store.receipt_of(store.connection, "audit", old.id) is None
    assert store.receipt_of(store.connection, "audit", new.id) is not None
    assert store.pruned_before(store.connection, "audit") == pytest.approx(before, abs=1e-3)


def test_pruning_stops_at_the_oldest_dead_message(store: Store) -> None:
    """The replay of a dead message must find its receipt."""
    handle(store, event())
    now = time.time()
    assert store.prune(store.connection, "audit", before=now + 9, oldest_dead=now - 99) == 0
    assert store.count("receipt") == 1
    assert store.pruned_before(store.connection, "audit") == pytest.approx(now - 99, abs=1e-3)


def test_pruning_goes_in_steps_and_leaves_other_recipients_alone(store: Store) -> None:
    """And the pruned time never goes back."""
    for number in range(3):
        handle(store, event(f"m-{number}"))
    future = time.time() + 9
    assert store.prune(store.connection, "catalog", before=future, oldest_dead=None) == 0
    assert store.prune(store.connection, "audit", before=future, oldest_dead=None, most=2) == 2
    assert store.prune(store.connection, "audit", before=5.0, oldest_dead=None) == 0
    assert store.count("receipt") == 1
    assert store.pruned_before(store.connection, "audit") == pytest.approx(future, abs=1e-3)


# -- the strikes


def begun(store: Store) -> list[tuple[str, int]]:
    query = "SELECT message, begun FROM strike ORDER BY message"
    return [tuple(row) for row in store.connection.execute(query).fetchall()]


def die(store: Store, of: Event) -> None:
    """Begin to handle *of*, and lose the connection in the middle of it, as a dead process does."""
    doomed = store.again()
    with pytest.raises(Exception, match="closed"), store.guard()(delivery(of), doomed):
        doomed.close()


def test_a_message_that_was_begun_three_times_in_vain_is_refused(store: Store) -> None:
    """By whoever takes it next; the refusal lifts the strikes, so a replay has all its attempts."""
    of, other = event("m-1"), event("m-2")
    die(store, of)
    die(store, of)
    die(store, other)
    assert sorted(begun(store)) == sorted([(of.id, 3), (other.id, 2)])

    guard = store.guard()(delivery(of), store.connection)
    with pytest.raises(KillerMessage, match="begun 3 times"), guard:
        pytest.fail("handled once more")

    assert begun(store) == [(other.id, 2)]
    with store.guard()(delivery(of), store.connection):
        assert (of.id, 2) in begun(store)


@pytest.mark.parametrize("end", [None, TemporaryError("the store is locked")])
def test_an_orderly_end_lifts_the_strike(store: Store, end: Exception | None) -> None:
    """It is committed before the handling: in between, others see it."""
    of = event()
    with closing(store.again()) as other:
        with suppress(TemporaryError), store.guard()(delivery(of), store.connection):
            assert other.execute("SELECT begun FROM strike").fetchall() == [(2,)]
            if end:
                raise end
        assert other.execute("SELECT begun FROM strike").fetchall() == []


def test_an_error_that_nothing_catches_leaves_the_strike(store: Store) -> None:
    """The process ends by it, as by a signal."""
    of = event()
    with pytest.raises(RuntimeError), store.guard()(delivery(of), store.connection):
        raise RuntimeError
    assert begun(store) == [(of.id, 2)]


# -- the tables


def test_tables_of_another_version_are_refused(store: Store) -> None:
    """Newer than the code: nothing is touched."""
    with store.transaction() as tx:
        tx.execute("UPDATE schema_version SET version = 99 WHERE name = 'inbox'")
    with pytest.raises(StoreDiffers, match=r"version 99.*newer"):
        store.again()


def test_older_tables_are_brought_up_to_date(store: Store, request: Any, tmp_path: Path) -> None:
    """By the schema's steps."""

    def opened(schema: Schema) -> Any:
        if isinstance(store, Sqlite):
            return open_store(tmp_path / "other.db", schema)
        return open_postgres(request.getfixturevalue("database"), schema)

    opened(Schema("own", 1, "CREATE TABLE own (a integer)")).close()
    step = "ALTER TABLE own ADD COLUMN b integer"
    with closing(opened(Schema("own", 2, "never", steps=(step,)))) as found:
        assert found.execute("SELECT a, b FROM own").fetchall() == []
        (version,) = found.execute(
            "SELECT version FROM schema_version WHERE name = 'own'"
        ).fetchone()
        assert version == 2
