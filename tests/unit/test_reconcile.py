"""What reconcile may call missing: a receipt proves, its absence may not."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from support.events import event

from delivery import outbox
from delivery.decisions import record_drop
from delivery.feed import read_page
from delivery.handling import Effect
from delivery.inbox import once, prune, receipt_of
from delivery.reconcile import missing
from delivery.routes import Route
from delivery.store import transaction
from delivery.stores import PUBLISHER, Stores

AUDIT = Route("audit")


@pytest.fixture
def feed(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    with closing(Stores(tmp_path).open(PUBLISHER)) as opened:
        yield opened


@pytest.fixture
def inbox(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    with closing(Stores(tmp_path).open("audit")) as opened:
        yield opened


def accepted(feed: sqlite3.Connection, *, ago: float) -> str:
    """Accept and confirm an event *ago* seconds ago; return its id."""
    of, at = event(), time.time() - ago
    with transaction(feed) as tx:
        outbox.add(tx, of, correlation_id="request", accepted_at=at)
        tx.execute("UPDATE outbox SET confirmed_at = ? WHERE event_id = ?", (at, of.id))
    return of.id


def ids(feed: sqlite3.Connection, inbox: sqlite3.Connection) -> list[str]:
    return [each.event_id for each in missing(read_page(feed), inbox, AUDIT, dead=(), grace=10)]


def test_an_event_without_receipt_is_missing_after_its_grace(feed, inbox) -> None:
    """Confirmed long enough ago, and neither settled nor dead."""
    old, fresh = accepted(feed, ago=60), accepted(feed, ago=1)
    assert ids(feed, inbox) == [old]
    assert fresh not in ids(feed, inbox)


def test_what_waits_for_its_relay_or_is_dead_is_not_missing(feed, inbox) -> None:
    lost, dead, pending = (accepted(feed, ago=60) for _ in range(3))
    with transaction(feed) as tx:
        tx.execute("UPDATE outbox SET confirmed_at = NULL WHERE event_id = ?", (pending,))
    found = missing(read_page(feed), inbox, AUDIT, dead={dead}, grace=10)
    assert [each.event_id for each in found] == [lost]


def test_what_was_accepted_before_a_pruning_is_never_sent_again(feed, inbox) -> None:
    """A pruned receipt is no proof that there was none: sending again would do it twice."""
    settled = accepted(feed, ago=3_600)
    handle = once(AUDIT, lambda _event, _tx: Effect.APPLIED, clock=lambda: time.time() - 3_600)
    with transaction(inbox) as tx:
        handle(event(event_id=settled), tx)
    assert ids(feed, inbox) == []

    assert prune(inbox, "audit", before=time.time() - 1_800, oldest_dead=None) == 1

    assert receipt_of(inbox, "audit", settled) is None
    assert ids(feed, inbox) == []
    younger = accepted(feed, ago=60)
    assert ids(feed, inbox) == [younger]


@pytest.mark.parametrize(("is_event", "effect"), [(True, Effect.DROPPED), (False, None)])
def test_only_an_event_is_settled_by_a_drop(inbox, is_event: bool, effect: Effect | None) -> None:
    """Bytes that merely claim an event's id are given up without settling the event itself."""
    record_drop(inbox, "audit", "an-id", is_event=is_event, operator="me", reason="broken copy")

    receipt = receipt_of(inbox, "audit", "an-id")
    assert (receipt.effect if receipt else None) == effect
