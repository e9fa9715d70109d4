"""What a recipient notes about failed attempts, and where it then says that an event stands."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from pika import BasicProperties

from delivery import decisions, failures, inbox
from delivery.codec import ContractError
from delivery.consumer import Settlement
from delivery.decisions import record_drop, record_replay
from delivery.errors import PermanentError
from delivery.failures import Failure, Watched, failures_of, forget, note
from delivery.handling import Delivery
from delivery.inbox import receipt_of
from delivery.journey import standing
from delivery.retry import ATTEMPT_HEADER
from delivery.routes import Route
from delivery.store import open_store

ROUTE = Route("catalog", "ns")
DELAYS = (1_000, 10_000)
NOW = 4_000_000_000.0  # a delay from now is not over


@pytest.fixture
def store(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    with closing(
        open_store(tmp_path / "x.db", inbox.SCHEMA, decisions.SCHEMA, failures.SCHEMA)
    ) as own:
        yield own


def delivered(attempt: int = 1, message_id: str = "e-1") -> Delivery:
    headers = {ATTEMPT_HEADER: attempt}
    properties = BasicProperties(message_id=message_id, headers=headers)
    return Delivery(queue="q", body=b"{", properties=properties)


def failed(attempt: int = 1, **more: object) -> Failure:
    made = Failure("catalog", "e-1", attempt, NOW, "it broke", NOW + attempt, None)
    return replace(made, **more)  # type: ignore[arg-type]


def moved(_delivery: Delivery, _error: Exception) -> Settlement:
    return Settlement.ELSEWHERE


def refused(_delivery: Delivery, _error: Exception) -> Settlement:
    raise ConnectionError("the copy is not safe")


def test_each_failure_is_told_once_with_where_its_message_waits() -> None:
    """A retry says until when, a dead one why; what was parked is not told as a retry, too."""
    told: list[Failure] = []
    watched = Watched(ROUTE, DELAYS, told.append, clock=lambda: NOW)
    parking = watched.parking(moved)

    def whole(delivery: Delivery, error: Exception) -> Settlement:
        return moved(delivery, error) if type(error) is ValueError else parking(delivery, error)

    policy = watched.retrying(whole)
    for delivery, error in (
        (delivered(1), ValueError("first")),
        (delivered(2), ValueError("second")),
        (delivered(2, ""), ContractError("not_json", "no")),
        (delivered(3), PermanentError("never")),
    ):
        assert policy(delivery, error) is Settlement.ELSEWHERE
    assert [(each.attempt, each.retry_at, each.reason) for each in told] == [
        (1, NOW + 1, None),
        (2, NOW + 10, None),
        (2, None, "incompatible"),
        (3, None, "rejected"),
    ]
    assert [each.error for each in told] == ["first", "second", "not_json: no", "never"]
    assert told[2].message_id.startswith("sha256-")


def test_a_copy_that_is_not_safe_is_no_failure_that_was_dealt_with() -> None:
    """The original stays, and comes again: nothing is told."""
    told: list[Failure] = []
    watched = Watched(ROUTE, DELAYS, told.append)
    for policy in (watched.retrying(refused), watched.retrying(watched.parking(refused))):
        with pytest.raises(ConnectionError):
            policy(delivered(), ValueError())
    assert told == []


def test_notes_are_bounded(store: sqlite3.Connection) -> None:
    """One a message and attempt; a new life replaces the earlier one's."""
    note(store, failed(1))
    note(store, failed(2))
    note(store, failed(3, reason="exhausted", retry_at=None))
    note(store, failed(1, message_id="e-2"))
    assert [each.attempt for each in failures_of(store, "catalog", "e-1")] == [1, 2, 3]
    note(store, failed(1, error="again"))
    assert [each.error for each in failures_of(store, "catalog", "e-1")] == ["again"]


def test_old_notes_are_forgotten_but_not_those_of_what_may_be_dead(
    store: sqlite3.Connection,
) -> None:
    """The oldest first, as many as asked; what failed after the oldest dead was sent stays."""
    for n in range(6):
        note(store, failed(1, message_id=f"e-{n}", failed_at=NOW + n))
    note(store, failed(1, message_id="e-0", recipient="audit", failed_at=NOW))

    def left() -> list[str]:
        rows = store.execute("SELECT message_id FROM failure WHERE recipient = 'catalog'")
        return sorted(message_id for (message_id,) in rows)

    assert forget(store, "catalog", before=NOW + 5, oldest_dead=None, most=2) == 2
    assert left() == ["e-2", "e-3", "e-4", "e-5"]
    assert forget(store, "catalog", before=NOW + 5, oldest_dead=NOW + 3, most=9) == 1
    assert forget(store, "catalog", before=NOW + 5, oldest_dead=None, most=9) == 2
    assert left() == ["e-5"]
    assert len(failures_of(store, "audit", "e-0")) == 1


def test_old_decisions_are_forgotten_but_not_on_what_may_still_be_dead(
    store: sqlite3.Connection,
) -> None:
    for n in range(6):
        record_replay(store, "catalog", f"e-{n}", operator="rosa", reason="healed")
    store.execute("UPDATE decision SET decided_at = ? + entry", (NOW,))

    def left() -> list[int]:
        return [entry for (entry,) in store.execute("SELECT entry FROM decision ORDER BY entry")]

    assert decisions.forget(store, before=NOW + 6, oldest_dead=None, most=2) == 2
    assert left() == [3, 4, 5, 6]
    assert decisions.forget(store, before=NOW + 6, oldest_dead=NOW + 4, most=9) == 1
    assert decisions.forget(store, before=NOW + 6, oldest_dead=None, most=9) == 2
    assert left() == [6]


def test_a_store_that_cannot_be_used_does_not_undo_the_settlement(
    store: sqlite3.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    """The copy is safe: the delivery must be acked all the same, and the gap is logged."""
    store.execute("PRAGMA query_only = ON")
    note(store, failed())
    assert "failure.not_noted" in caplog.text


def test_where_an_event_stands(store: sqlite3.Connection) -> None:
    """Each state by what was kept last; a receipt ends the matter."""

    def state() -> str:
        return str(standing(store, "catalog", "e-1")["state"])

    assert state() == "not seen"
    note(store, failed(1, retry_at=1.0))
    assert state() == "due"
    note(store, failed(2))
    found = standing(store, "catalog", "e-1")
    assert (found["state"], found["next_attempt"], found["error"]) == ("retry", 3, "it broke")
    assert [each["attempt"] for each in found["failures"]] == [1, 2]
    note(store, failed(3, retry_at=None, reason="exhausted", failed_at=2.0))
    found = standing(store, "catalog", "e-1")
    assert (found["state"], found["reason"], found["since"]) == ("dead", "exhausted", 2.0)

    record_replay(store, "catalog", "e-1", operator="rosa", reason="mended")
    assert state() == "replayed"
    note(store, failed(1))
    assert state() == "retry"
    assert standing(store, "audit", "e-1")["state"] == "not seen"  # two may share a store

    record_drop(store, "catalog", "e-1", is_event=True, operator="rosa", reason="enough")
    found = standing(store, "catalog", "e-1")
    assert (found["state"], found["effect"]) == ("settled", "dropped")
    assert [each["operator"] for each in found["decisions"]] == ["rosa", "rosa"]
    assert receipt_of(store, "catalog", "e-1") is not None


def test_a_file_of_older_code_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    """The API reads the recipients' files as they are: one without the new table is no error."""
    with closing(open_store(tmp_path / "old.db", inbox.SCHEMA)) as old:
        assert standing(old, "catalog", "e-1")["state"] == "not seen"
    with closing(sqlite3.connect(tmp_path / "empty.db")) as other:
        assert standing(other, "catalog", "e-1")["state"] == "not visible"
