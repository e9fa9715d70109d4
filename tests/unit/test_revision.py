"""The latest revision wins, whatever order the events arrive in."""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from support.events import event
from support.recipients import store_at

from delivery import catalog
from delivery.contract import Event
from delivery.handling import Effect
from delivery.revision import RevisionConflict, latest_only
from delivery.store import savepoint, transaction


@pytest.fixture
def store(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    with closing(store_at(tmp_path / "store.db")) as opened:
        yield opened


def handle(store: sqlite3.Connection, of: Event) -> Effect:
    with transaction(store) as tx:
        return latest_only(catalog.upsert)(of, tx)


def state(store: sqlite3.Connection) -> list[tuple[str, int, str]]:
    return store.execute("SELECT material_id, revision, title FROM catalog").fetchall()


@pytest.mark.parametrize("order", list(itertools.permutations((1, 2, 3))))
def test_every_order_of_arrival_ends_in_the_same_state(
    store: sqlite3.Connection, order: tuple[int, ...]
) -> None:
    """Three revisions, six orders, one result."""
    for revision in order:
        handle(store, event("m-1", revision, title=f"title {revision}"))

    assert state(store) == [("m-1", 3, "title 3")]


def test_an_older_revision_is_stale_and_changes_nothing(store: sqlite3.Connection) -> None:
    """It is not an error: retries and several consumers reorder."""
    assert handle(store, event("m-1", 7, title="seven")) is Effect.APPLIED
    assert handle(store, event("m-1", 5, title="five")) is Effect.STALE

    assert state(store) == [("m-1", 7, "seven")]


def test_a_gap_is_no_reason_to_wait(store: sqlite3.Connection) -> None:
    """An event holds the whole state, so revision 9 needs no 8."""
    handle(store, event("m-1", 7))

    assert handle(store, event("m-1", 9, title="nine")) is Effect.APPLIED
    assert state(store) == [("m-1", 9, "nine")]


def test_the_same_revision_with_the_same_data_is_stale(store: sqlite3.Connection) -> None:
    """Another event id, the same fact: nothing to do."""
    assert handle(store, event("m-1", 7)) is Effect.APPLIED
    assert handle(store, event("m-1", 7)) is Effect.STALE


def test_the_same_revision_with_other_data_is_a_conflict(store: sqlite3.Connection) -> None:
    """To pick one in silence would hide a fault of the publisher."""
    handle(store, event("m-1", 7, title="seven"))

    with pytest.raises(RevisionConflict, match="'m-1' has revision 7 with other data") as conflict:
        handle(store, event("m-1", 7, title="another seven"))

    assert conflict.value.reason == "conflict"
    assert state(store) == [("m-1", 7, "seven")]


def test_materials_do_not_outdate_each_other(store: sqlite3.Connection) -> None:
    """A revision counts within its own material."""
    handle(store, event("m-1", 7))

    assert handle(store, event("m-2", 1)) is Effect.APPLIED
    assert [row[:2] for row in state(store)] == [("m-1", 7), ("m-2", 1)]


def test_a_revision_whose_effect_failed_does_not_count_as_seen(store: sqlite3.Connection) -> None:
    """Its retry must not find itself outdated by itself."""

    def broken(event_: Event, tx: sqlite3.Connection) -> Effect:
        raise RuntimeError

    of = event("m-1", 7)
    with transaction(store) as tx, pytest.raises(RuntimeError), savepoint(tx):
        latest_only(broken)(of, tx)

    assert handle(store, of) is Effect.APPLIED
