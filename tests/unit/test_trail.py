"""The audit trail of the operators' acts, in the publisher's store."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from delivery.errors import DeliveryError
from delivery.store import open_store
from delivery.trail import SCHEMA, begin, begin_all, conclude, entries, forget


@pytest.fixture
def store(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    with closing(open_store(tmp_path / "x.db", SCHEMA)) as own:
        yield own


def test_an_act_is_there_before_its_result(store: sqlite3.Connection) -> None:
    """A program that died in between leaves an act without a result, not a result without one."""
    first = begin(store, "replay", "catalog", "e-1", operator="rosa", reason="mended")
    second = begin(
        store, "drop", "audit", "e-2", operator="paul", reason="test", dead_reason="rejected"
    )
    assert [each.result for each in entries(store)] == [None, None]
    conclude(store, [(first, "applied")])
    found = entries(store)
    assert [each.entry for each in found] == [first, second]
    assert [each.result for each in found] == ["applied", None]
    assert (found[1].action, found[1].operator, found[1].reason) == ("drop", "paul", "test")
    assert found[1].dead_reason == "rejected"


def test_the_trail_can_be_narrowed(store: sqlite3.Connection) -> None:
    """By recipient, by how an id begins (% and _ stand for themselves), to the latest."""
    for recipient, message_id in (("catalog", "a%1"), ("audit", "a%1"), ("catalog", "ab1")):
        begin(store, "replay", recipient, message_id, operator="o", reason="r")

    def ids(**narrow: object) -> list[int]:
        return [each.entry for each in entries(store, **narrow)]  # type: ignore[arg-type]

    assert ids() == [1, 2, 3]
    assert ids(recipient="catalog") == [1, 3]
    assert ids(message_id="a%") == [1, 2]
    assert ids(limit=2) == [2, 3]


def test_an_act_without_a_reason_is_not_begun(store: sqlite3.Connection) -> None:
    """Blank is none."""
    with pytest.raises(DeliveryError, match="say why"):
        begin(store, "drop", "catalog", "e-1", operator="rosa", reason=" \n")
    assert entries(store) == []


def test_old_acts_are_forgotten_a_few_at_a_time(store: sqlite3.Connection) -> None:
    """The oldest first; a younger one stays, and numbers are not used again."""
    assert forget(store, before=1.0, most=10) == 0
    ids = [(f"e-{n}", "") for n in range(5)]
    begin_all(store, "replay", "catalog", ids, operator="o", reason="r")
    store.execute("UPDATE trail SET decided_at = entry")
    assert forget(store, before=5.0, most=3) == 3
    assert forget(store, before=5.0, most=3) == 1
    assert [each.message_id for each in entries(store)] == ["e-4"]
    store.execute("DELETE FROM trail")
    assert begin(store, "drop", "catalog", "e-6", operator="o", reason="r") == 6
