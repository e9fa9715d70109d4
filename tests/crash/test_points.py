"""SIGKILL between any two durable steps; after a restart, everything adds up, each effect once."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.exchange import KILLED, Exchange, exchange_on
from support.waiting import wait_for

from delivery.broker import Broker
from delivery.client import post
from delivery.errors import DeliveryError
from delivery.handling import Effect
from delivery.stores import PUBLISHER

COMMAND = {"material_id": "m-1", "title": "Title", "slug": "a-title", "author": "An Author"}


@pytest.fixture
def exchange(broker: Broker, tmp_path: Path, namespace: str) -> Iterator[Exchange]:
    with exchange_on(broker, tmp_path, namespace) as opened:
        yield opened


@pytest.mark.parametrize("point", ["materials.written", "materials.committed"])
def test_an_api_killed_at_any_point_of_a_command(exchange: Exchange, point: str) -> None:
    """The client hears nothing and repeats its request: one revision, one event, one effect."""
    exchange.start("api", DELIVERY_KILL_AT=point)
    with pytest.raises(DeliveryError):
        post(exchange.url, COMMAND, "the-key")
    exchange.await_death("api")
    written = exchange.select(PUBLISHER, "SELECT count(*) FROM outbox") == [1]
    assert written is (point == "materials.committed")

    exchange.start("api", "relay", "catalog", "audit")
    status, answer, repeated = post(exchange.url, COMMAND, "the-key")

    assert (status, answer["revision"], repeated) == (202, 1, written)
    exchange.assert_all_applied()
    assert exchange.receipt("audit", answer["event_id"]).duplicates == 0


@pytest.mark.parametrize(("point", "again"), [("relay.confirmed", 1), ("relay.marked", 0)])
def test_a_relay_killed_at_any_point_of_a_cycle(exchange: Exchange, point: str, again: int) -> None:
    """Confirmed but not marked: the same messages go out again, and are recognised.

    A relay that has just connected sends one message alone; the second cycle is the one to kill.
    """
    events = exchange.accept("m-1", "m-2", "m-3")
    exchange.cast.start("relay", ["relay"], DELIVERY_KILL_AT=f"{point}:2")
    exchange.await_death("relay")
    unmarked = exchange.select(PUBLISHER, "SELECT event_id FROM outbox WHERE confirmed_at IS NULL")
    assert len(unmarked) == 2 * again

    exchange.start("relay", "catalog", "audit")
    for event_id in events:
        for recipient in ("catalog", "audit"):
            sent_again = again if (event_id,) in unmarked or event_id in unmarked else 0
            exchange.await_receipt(recipient, event_id, duplicates=sent_again)
    exchange.assert_all_applied()


@pytest.mark.parametrize(
    ("point", "duplicates"),
    [("consumer.applied", {0}), ("consumer.committed", {1}), ("consumer.settled", {0, 1})],
)
def test_a_recipient_killed_at_any_point_of_a_message(
    exchange: Exchange, point: str, duplicates: set[int]
) -> None:
    """Before the commit nothing happened; after it, the redelivery is recognised.

    Killed right after the ack was handed over, the broker may have it, or not.
    """
    (event_id,) = exchange.accept("m-1")
    exchange.start("relay", "catalog")
    exchange.start("audit", DELIVERY_KILL_AT=point)
    exchange.await_death("audit")
    committed = exchange.receipt("audit", event_id) is not None
    assert committed is (point != "consumer.applied")

    exchange.start("audit")
    exchange.await_receipt("audit", event_id, duplicates=min(duplicates))
    exchange.assert_all_applied()
    assert exchange.receipt("audit", event_id).duplicates in duplicates


def test_a_recipient_killed_after_the_retry_copy(exchange: Exchange) -> None:
    """The copy waits and the original comes back: two messages, one effect."""
    with exchange.refusing("m-1"):
        (event_id,) = exchange.accept("m-1")
        exchange.start("relay", "audit")
        exchange.start("catalog", DELIVERY_KILL_AT="retry.copied")
        exchange.await_death("catalog")
    exchange.start("catalog")

    exchange.await_receipt("catalog", event_id, duplicates=1)
    exchange.assert_all_applied()


def test_a_recipient_killed_after_the_copy_to_the_dead(exchange: Exchange) -> None:
    """The dead copy is kept, the original tries again; a replay of the copy adds nothing."""
    with exchange.refusing("m-1"):
        (event_id,) = exchange.accept("m-1")
        exchange.start("relay", "audit")
        exchange.start("catalog", DELIVERY_KILL_AT="park.copied")
        exchange.await_death("catalog")
    assert exchange.place("catalog").dead == 1

    exchange.start("catalog")
    exchange.await_receipt("catalog", event_id)
    replayed = exchange.run("dead", "replay", "catalog", "--all", "--reason", "a left-over copy")

    assert (replayed.returncode, replayed.stdout) == (0, f"{event_id}  already applied\n")
    exchange.assert_all_applied()
    assert exchange.receipt("catalog", event_id).duplicates == 1
    assert exchange.place("catalog").dead == 0


@contextlib.contextmanager
def one_dead(exchange: Exchange) -> Iterator[str]:
    """One event that audit has applied and that is dead for the catalog."""
    exchange.start("relay", "catalog", "audit")
    with exchange.refusing("m-1"):
        (event_id,) = exchange.accept("m-1")
        exchange.await_dead("catalog")
    exchange.await_receipt("audit", event_id)
    yield event_id


def test_an_operator_killed_after_the_replay_copy(exchange: Exchange) -> None:
    """The message is sent and still dead: the second replay says that it was applied already."""
    with one_dead(exchange) as event_id:
        replay = ("dead", "replay", "catalog", "--id", event_id, "--reason", "index is back")
        killed = exchange.run(*replay, DELIVERY_KILL_AT="replay.copied")
        assert killed.returncode == KILLED
        exchange.await_receipt("catalog", event_id)
        wait_for(lambda: exchange.place("catalog").dead == 1, "the broker has it back")

        again = exchange.run(*replay)

        assert (again.returncode, again.stdout) == (0, f"{event_id}  already applied\n")
        exchange.assert_all_applied()
        assert exchange.receipt("catalog", event_id).duplicates == 1
        assert exchange.place("catalog").dead == 0


def test_an_operator_killed_after_the_drop_was_recorded(exchange: Exchange) -> None:
    """Recorded and still dead: counted as dropped, once; the second drop deletes the message."""
    with one_dead(exchange) as event_id:
        drop = ("dead", "drop", "catalog", "--id", event_id, "--reason", "test data")
        assert exchange.run(*drop, DELIVERY_KILL_AT="drop.recorded").returncode == KILLED
        wait_for(lambda: exchange.place("catalog").dead == 1, "the broker has it back")
        assert exchange.accounts()["catalog"].dropped == 1

        assert exchange.run(*drop).returncode == 0

        assert exchange.place("catalog").dead == 0
        account = exchange.accounts()["catalog"]
        assert (account.dropped, account.applied, account.difference) == (1, 0, 0)
        assert exchange.receipt("catalog", event_id).effect is Effect.DROPPED
        assert exchange.select("catalog", "SELECT count(*) FROM catalog") == [0]
