"""A message that kills the process again and again is refused in the end."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from pika import BasicProperties
from support.recipients import store_at

from delivery.errors import TemporaryError
from delivery.handling import Delivery
from delivery.store import StoreUnavailable, transaction
from delivery.strikes import KillerMessage, limit_deaths


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
def store(path: Path) -> Iterator[sqlite3.Connection]:
    with closing(store_at(path)) as opened:
        yield opened


def delivery(message_id: str | None = "id-1", body: bytes = b"{}") -> Delivery:
    properties = BasicProperties(message_id=message_id)
    return Delivery(queue="q", body=body, properties=properties, redelivered=True)


def die(path: Path, of: Delivery) -> None:
    """Begin to handle *of*, and lose the store in the middle of it, as a killed process does."""
    doomed = store_at(path)
    with pytest.raises(sqlite3.ProgrammingError), limit_deaths(3)(of, doomed):
        doomed.close()


def strikes(store: sqlite3.Connection) -> list[tuple[str, int]]:
    return store.execute("SELECT message, begun FROM strike").fetchall()


def test_a_message_that_was_begun_three_times_in_vain_is_refused(
    store: sqlite3.Connection, path: Path
) -> None:
    """The first begin is taken for granted; two more are written down; the next one is refused."""
    die(path, delivery())
    die(path, delivery())

    guard = limit_deaths(3)(delivery(), store)
    with pytest.raises(KillerMessage, match="begun 3 times") as refused, guard:
        pytest.fail("handled once more")

    assert refused.value.reason == "killer"


def test_the_refusal_lifts_the_strikes(store: sqlite3.Connection, path: Path) -> None:
    """A deliberate replay gets all its attempts again."""
    die(path, delivery())
    die(path, delivery())
    with pytest.raises(KillerMessage), limit_deaths(3)(delivery(), store):
        pytest.fail("handled once more")

    assert strikes(store) == []


@pytest.mark.parametrize("end", [None, TemporaryError("the store is locked")])
def test_an_orderly_end_lifts_the_strike(store: sqlite3.Connection, end: Exception | None) -> None:
    """Handled, failed (retry counts that) or put off: the process lives."""
    with contextlib.suppress(TemporaryError), limit_deaths()(delivery(), store):
        assert strikes(store) == [("id-1", 2)]
        if end:
            raise end
    assert strikes(store) == []


@pytest.mark.parametrize("end", [SystemExit(3), RuntimeError("nothing catches it")])
def test_an_end_of_the_process_by_an_error_leaves_the_strike(
    store: sqlite3.Connection, end: BaseException
) -> None:
    """A handler that ends the process is as deadly as a signal, and must be stopped as well."""
    for begun in (2, 3):
        with pytest.raises(type(end)), limit_deaths()(delivery(), store):
            raise end
        assert strikes(store) == [("id-1", begun)]
    with pytest.raises(KillerMessage), limit_deaths()(delivery(), store):
        pytest.fail("begun a fourth time")


def test_a_strike_that_this_process_could_not_lift_is_no_death(
    store: sqlite3.Connection, path: Path
) -> None:
    """A store that is locked just then says nothing about the message."""
    guard = limit_deaths()
    store.execute("PRAGMA busy_timeout = 1")
    with closing(store_at(path)) as other:
        for _ in range(5):
            with pytest.raises(StoreUnavailable), guard(delivery(), store):
                other.execute("BEGIN IMMEDIATE")
            other.execute("ROLLBACK")
    with guard(delivery(), store):
        assert strikes(store) == [("id-1", 2)]
    assert strikes(store) == []


def test_a_strike_is_committed_before_the_handling(store: sqlite3.Connection) -> None:
    """What is not committed does not outlive the process that it is about."""
    with limit_deaths()(delivery(), store):
        assert not store.in_transaction
        with transaction(store) as tx:
            assert strikes(tx) == [("id-1", 2)]


def test_messages_are_counted_apart(store: sqlite3.Connection, path: Path) -> None:
    """Without a message_id by their bytes: even such a message cannot kill for ever."""
    die(path, delivery("id-1"))
    die(path, delivery("id-2"))
    die(path, delivery(None, b"one"))
    die(path, delivery(None, b"two"))

    assert [begun for _, begun in strikes(store)] == [2, 2, 2, 2]
