"""The processes remove what is old, but nothing that is dead, unsent, or still to be counted."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from support.events import AT, event
from support.exchange import Exchange, exchange_on
from support.waiting import wait_for
from support.world import World

from delivery import retention, triage
from delivery.broker import Broker
from delivery.codec import encode
from delivery.connection import connect
from delivery.dead import dead_queue
from delivery.publisher import Message, properties_of
from delivery.retention import oldest_dead
from delivery.routes import Route
from delivery.stores import PUBLISHER
from delivery.triage import held


@pytest.fixture
def exchange(broker: Broker, tmp_path: Path, namespace: str) -> Iterator[Exchange]:
    with exchange_on(broker, tmp_path, namespace) as opened:
        yield opened


def put_dead(world: World, route: Route, *days_ago: int) -> None:
    """Put an event of so many days ago into the dead queue, for each."""
    for days in days_ago:
        of = event()
        of = of.model_copy(update={"time": AT - timedelta(days=days)})
        world.send(Message("", dead_queue(route), properties_of(of), encode(of)))


def test_the_oldest_dead_event_is_found_wherever_it_lies(world: World) -> None:
    """By when it was sent, not by when it died; bytes that are no event hold nothing up."""
    world.declare(routes=[world.audit])
    assert oldest_dead(world.connection, world.audit) is None

    put_dead(world, world.audit, 3, 9, 5)
    strange = properties_of(event())
    strange.timestamp = 1
    world.send(Message("", dead_queue(world.audit), strange, b"strange"))

    expected = (AT - timedelta(days=9)).timestamp()
    assert oldest_dead(world.connection, world.audit) == expected
    assert len(world.dead(world.audit)) == 4  # and none was taken


def test_nothing_is_forgotten_when_the_dead_can_not_be_looked_through(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Too many for a moment between two deliveries, or in somebody else's hands."""
    world.declare(routes=[world.audit])
    put_dead(world, world.audit, 1, 1, 1)
    monkeypatch.setattr(retention, "MOST_DEAD", 2)
    assert oldest_dead(world.connection, world.audit) == 0.0

    monkeypatch.setattr(retention, "MOST_DEAD", 10)
    monkeypatch.setattr(triage, "PATIENCE", 0.2)
    with connect(world.settings) as other, held(other, world.audit):
        assert oldest_dead(world.connection, world.audit) == 0.0


def test_processes_remove_what_is_old_and_the_ledger_still_adds_up(exchange: Exchange) -> None:
    """Rows, requests, receipts and failures of 90 days ago go; acts stay for a year."""
    exchange.start("relay", "catalog", "audit")
    old = exchange.accept(*(f"m-{n}" for n in range(5)))
    for event_id in old:
        for recipient in ("catalog", "audit"):
            exchange.await_receipt(recipient, event_id)
    for name in ("relay", "catalog", "audit"):
        exchange.cast[name].stop()
    ago = 90 * 86_400
    moved = f"accepted_at = accepted_at - {ago}"
    exchange.execute(PUBLISHER, f"UPDATE outbox SET {moved}, confirmed_at = confirmed_at - {ago}")
    for recipient in ("catalog", "audit"):
        times = f"received_at = received_at - {ago}, event_at = event_at - {ago}"
        # The audit's queue was long: it took the events late.
        late = "" if recipient == "catalog" else f"event_at = event_at - {ago}"
        exchange.execute(recipient, f"UPDATE receipt SET {late or times}")
    (young,) = exchange.accept("m-young")
    for days in (90, 1):
        note = f"'catalog', 'e-{days}', 1, {time.time() - days * 86_400}, 'it broke', NULL, 'r'"
        exchange.execute("catalog", f"INSERT INTO failure VALUES ({note})")
    for entry, days in enumerate((400, 90)):
        act = f"{entry}, {time.time() - days * 86_400}, 'drop', 'audit', 'e', '', 'o', 'r', NULL"
        exchange.execute(PUBLISHER, f"INSERT INTO trail VALUES ({act})")
        kept = f"{entry}, {time.time() - days * 86_400}, 'replay', 'audit', 'e', 'o', 'r'"
        exchange.execute("audit", f"INSERT INTO decision VALUES ({kept})")

    exchange.start("relay", "catalog", "audit")

    wait_for(
        lambda: exchange.select(PUBLISHER, "SELECT event_id FROM outbox") == [young], "rows gone"
    )
    wait_for(
        lambda: exchange.select("catalog", "SELECT message_id FROM receipt") == [young],
        "receipts gone",
    )
    wait_for(
        lambda: exchange.select("catalog", "SELECT message_id FROM failure") == ["e-1"],
        "failures gone",
    )
    wait_for(
        lambda: exchange.select(PUBLISHER, "SELECT entry FROM trail") == [1],
        "acts of a year ago gone",
    )
    wait_for(
        lambda: exchange.select("audit", "SELECT entry FROM decision") == [1],
        "decisions of a year ago gone",
    )
    exchange.await_receipt("audit", young)
    assert len(exchange.select("audit", "SELECT message_id FROM receipt")) == 6
    assert exchange.select(PUBLISHER, "SELECT count(*) FROM request") == [1]
    for account in exchange.accounts().values():
        assert (account.accepted, account.applied, account.difference) == (1, 1, 0)
        assert account.never_accepted == ()


def test_a_receipt_is_kept_as_long_as_an_older_event_is_dead(exchange: Exchange) -> None:
    """Its replay must find it: receipts from after the oldest dead event was sent stay."""
    exchange.start("relay", "catalog", "audit")
    (kept,) = exchange.accept("m-1")
    exchange.await_receipt("audit", kept)
    exchange.cast["audit"].stop()
    exchange.execute("audit", f"UPDATE receipt SET received_at = received_at - {90 * 86_400}")
    sent = datetime.now(UTC) - timedelta(days=91)
    dead = event().model_copy(update={"time": sent})
    with connect(exchange.config.broker) as connection:
        connection.channel().basic_publish(
            "", exchange.dead_queue("audit"), encode(dead), properties_of(dead)
        )
    exchange.await_dead("audit")

    exchange.start("audit")
    pruned = "SELECT before FROM receipts_pruned"
    wait_for(lambda: exchange.select("audit", pruned), "a round of the retention")

    assert exchange.select("audit", pruned) == [int(sent.timestamp())]
    assert exchange.receipt("audit", kept) is not None
