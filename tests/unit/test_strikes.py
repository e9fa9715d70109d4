"""A message that kills the process again and again is refused in the end."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from pika import BasicProperties
from support.recipients import store_at

from delivery.handling import Delivery
from delivery.store import transaction
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


def test_an_end_lifts_the_strike_whatever_the_end_was(store: sqlite3.Connection) -> None:
    """A handler that raises has ended: retry counts that, not the strikes."""
    with limit_deaths()(delivery(), store):
        assert strikes(store) == [("id-1", 2)]
    assert strikes(store) == []

    with pytest.raises(RuntimeError), limit_deaths()(delivery(), store):
        raise RuntimeError
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
