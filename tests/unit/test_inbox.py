"""A receipt stands for an effect: both commit, or neither does."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from support.events import event
from support.recipients import effects, receipts, store_at

from delivery import audit
from delivery.contract import Event
from delivery.handling import Effect
from delivery.inbox import Receipt, once, prune, pruned_before, receipt_of
from delivery.routes import Route
from delivery.store import savepoint, transaction

AUDIT, CATALOG = Route("audit", "ns"), Route("catalog", "ns")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    with closing(store_at(tmp_path / "store.db")) as opened:
        yield opened


def handle(store: sqlite3.Connection, of: Event, *, at: float = 100.0) -> Effect:
    with transaction(store) as tx:
        return once(AUDIT, audit.append, clock=lambda: at)(of, tx)


def test_the_second_copy_has_no_second_effect_and_is_counted(store: sqlite3.Connection) -> None:
    """However often a message is delivered, its effect happens once."""
    of = event()

    assert handle(store, of, at=100.0) is Effect.APPLIED
    assert handle(store, of, at=200.0) is Effect.DUPLICATE
    assert handle(store, of, at=300.0) is Effect.DUPLICATE

    assert effects(store, of.id) == 1
    assert receipt_of(store, "audit", of.id) == Receipt(Effect.APPLIED, 100.0, 2)


def test_two_copies_in_one_transaction_have_one_effect(store: sqlite3.Connection) -> None:
    """A batch may hold a message and its copy: the receipt counts before it is committed."""
    of = event()

    with transaction(store) as tx:
        apply = once(AUDIT, audit.append)
        assert [apply(of, tx), apply(of, tx)] == [Effect.APPLIED, Effect.DUPLICATE]

    assert effects(store, of.id) == 1


def test_a_handler_that_fails_leaves_no_receipt(store: sqlite3.Connection) -> None:
    """A receipt without its effect would lose the message at its next delivery."""
    of = event()

    def broken(event_: Event, tx: sqlite3.Connection) -> Effect:
        audit.append(event_, tx)
        raise RuntimeError

    with transaction(store) as tx, pytest.raises(RuntimeError), savepoint(tx):
        once(AUDIT, broken)(of, tx)

    assert receipt_of(store, "audit", of.id) is None
    assert effects(store) == 0
    assert handle(store, of) is Effect.APPLIED


def test_two_recipients_in_one_store_owe_an_effect_each(store: sqlite3.Connection) -> None:
    """The key of a receipt holds the recipient."""
    of = event()

    with transaction(store) as tx:
        assert once(AUDIT, audit.append)(of, tx) is Effect.APPLIED
        assert once(CATALOG, audit.append)(of, tx) is Effect.APPLIED

    assert effects(store, of.id) == 2


def test_the_receipt_keeps_what_the_handler_did(store: sqlite3.Connection) -> None:
    """Effects are counted, not guessed: a stale event is a receipt of its own kind."""
    of = event()

    with transaction(store) as tx:
        assert once(AUDIT, lambda *_: Effect.STALE)(of, tx) is Effect.STALE

    receipt = receipt_of(store, "audit", of.id)
    assert receipt is not None
    assert receipt.effect is Effect.STALE


def test_pruning_forgets_what_is_old_and_remembers_that_it_did(store: sqlite3.Connection) -> None:
    """After it, a missing receipt from before that time proves nothing."""
    old, new = event(), event()
    handle(store, old, at=100.0)
    handle(store, new, at=200.0)
    assert pruned_before(store, "audit") == 0.0

    assert prune(store, "audit", before=150.0, oldest_dead=None) == 1

    assert receipt_of(store, "audit", old.id) is None
    assert receipt_of(store, "audit", new.id) is not None
    assert pruned_before(store, "audit") == 150.0


def test_pruning_stops_at_the_oldest_dead_message(store: sqlite3.Connection) -> None:
    """The replay of a dead message must find its receipt."""
    of = event()
    handle(store, of, at=100.0)

    assert prune(store, "audit", before=1_000.0, oldest_dead=90.0) == 0

    assert receipts(store, "audit") == 1
    assert pruned_before(store, "audit") == 90.0


def test_the_pruned_time_never_goes_back(store: sqlite3.Connection) -> None:
    """What is forgotten stays forgotten, whatever a later call asks for."""
    prune(store, "audit", before=500.0, oldest_dead=None)
    prune(store, "audit", before=100.0, oldest_dead=None)

    assert pruned_before(store, "audit") == 500.0


def test_pruning_one_recipient_leaves_the_others(store: sqlite3.Connection) -> None:
    """Two recipients may share a store."""
    handle(store, event(), at=100.0)

    assert prune(store, "catalog", before=1_000.0, oldest_dead=None) == 0

    assert receipts(store, "audit") == 1
    assert pruned_before(store, "audit") == 0.0
