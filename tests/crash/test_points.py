"""SIGKILL between any two durable steps; after a restart, everything adds up, each effect once.

``tests/map/test_steps.py`` finds the gaps in the code, and holds the points tested here to them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from support.exchange import KILLED, Exchange, exchange_on
from support.waiting import wait_for

from delivery.broker import Broker
from delivery.client import post
from delivery.errors import DeliveryError
from delivery.handling import Effect
from delivery.store import transaction
from delivery.stores import PUBLISHER

COMMAND = {"material_id": "m-1", "title": "Title", "slug": "a-title", "author": "An Author"}


@pytest.fixture
def exchange(broker: Broker, tmp_path: Path, namespace: str) -> Iterator[Exchange]:
    with exchange_on(broker, tmp_path, namespace) as opened:
        yield opened


def at(*points: str) -> pytest.MarkDecorator:
    """Run the test once for each point; it kills a process there."""
    return pytest.mark.parametrize("point", points)


@at("materials.written", "materials.committed")
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


@at("relay.confirmed", "relay.marked")
def test_a_relay_killed_at_any_point_of_a_cycle(exchange: Exchange, point: str) -> None:
    """Confirmed but not marked: the same messages go out again, and are recognised.

    A relay that has just connected sends one message alone; the second cycle is the one to kill.
    """
    again = int(point == "relay.confirmed")
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


DUPLICATES = {
    "consumer.handled": {0},
    "consumer.applied": {0},
    "consumer.committed": {1},
    "consumer.settled": {0, 1},
}


@at("consumer.handled", "consumer.applied", "consumer.committed", "consumer.settled")
def test_a_recipient_killed_at_any_point_of_a_message(exchange: Exchange, point: str) -> None:
    """Before the commit nothing happened; after it, the redelivery is recognised.

    Killed right after the ack was handed over, the broker may have it, or not.
    """
    (event_id,) = exchange.accept("m-1")
    exchange.start("relay", "catalog")
    exchange.start("audit", DELIVERY_KILL_AT=point)
    exchange.await_death("audit")
    committed = exchange.receipt("audit", event_id) is not None
    assert committed is (point not in ("consumer.handled", "consumer.applied"))

    exchange.start("audit")
    exchange.await_receipt("audit", event_id, duplicates=min(DUPLICATES[point]))
    exchange.assert_all_applied()
    assert exchange.receipt("audit", event_id).duplicates in DUPLICATES[point]


@at("strikes.begun", "strikes.lifted")
def test_a_recipient_killed_at_any_point_of_a_second_delivery(
    exchange: Exchange, point: str
) -> None:
    """The strike is committed first and lifted last: one death more, and no effect more."""
    (event_id,) = exchange.accept("m-1")
    exchange.start("relay", "catalog")
    exchange.start("audit", DELIVERY_KILL_AT="consumer.applied")
    exchange.await_death("audit")
    exchange.start("audit", DELIVERY_KILL_AT=point)
    exchange.await_death("audit")
    committed = point == "strikes.lifted"
    assert exchange.select("audit", "SELECT begun FROM strike") == ([] if committed else [2])
    assert exchange.select("audit", "SELECT count(*) FROM audit") == [int(committed)]

    exchange.start("audit")
    exchange.await_receipt("audit", event_id, duplicates=int(committed))
    exchange.assert_all_applied()
    assert exchange.select("audit", "SELECT begun FROM strike") == []


@at("consumer.settled_one")
def test_a_recipient_killed_within_a_batch_that_failed(exchange: Exchange, point: str) -> None:
    """One of three is copied to its retry and acked; the two behind it come again."""
    with exchange.refusing("m-1"):
        first, *others = exchange.accept("m-1", "m-1", "m-1")
        exchange.start("relay", "audit")
        for event_id in (first, *others):
            exchange.await_receipt("audit", event_id)
        exchange.cast.start(
            "catalog", ["receive", "catalog", "--batch", "3"], DELIVERY_KILL_AT=point
        )
        exchange.await_death("catalog")

    def on_the_broker() -> int:
        place = exchange.place("catalog")
        return sum(place.retry) + place.ready

    wait_for(lambda: on_the_broker() >= 3, "the broker has all three")

    exchange.start("catalog")
    exchange.assert_all_applied()
    assert [exchange.receipt("catalog", each).duplicates for each in others] == [0, 0]
    assert exchange.receipt("catalog", first).duplicates in (0, 1)


@at("reader.given_back")
def test_a_recipient_killed_while_it_gives_back_what_it_only_held(
    exchange: Exchange, point: str
) -> None:
    """Asked to stop, it finishes the one at work, returns four, and dies at the first of them."""
    exchange.start("relay", "audit")
    exchange.start("catalog", DELIVERY_KILL_AT=point)
    with closing(exchange.config.stores.open("catalog")) as store, transaction(store):
        for event_id in exchange.accept("m-1", "m-2", "m-3", "m-4", "m-5"):
            exchange.await_receipt("audit", event_id)
        wait_for(lambda: exchange.place("catalog").ready == 0, "all five are held")
        exchange.cast["catalog"].process.terminate()
    exchange.await_death("catalog")
    assert exchange.select("catalog", "SELECT count(*) FROM receipt") == [1]
    wait_for(lambda: exchange.place("catalog").ready == 4, "the broker has four")

    exchange.start("catalog")
    exchange.assert_all_applied()


@at("retry.copied")
def test_a_recipient_killed_after_the_retry_copy(exchange: Exchange, point: str) -> None:
    """The copy waits and the original comes back: two messages, one effect."""
    with exchange.refusing("m-1"):
        (event_id,) = exchange.accept("m-1")
        exchange.start("relay", "audit")
        exchange.start("catalog", DELIVERY_KILL_AT=point)
        exchange.await_death("catalog")
    exchange.start("catalog")

    exchange.await_receipt("catalog", event_id, duplicates=1)
    exchange.assert_all_applied()


@at("park.copied")
def test_a_recipient_killed_after_the_copy_to_the_dead(exchange: Exchange, point: str) -> None:
    """The dead copy is kept, the original tries again; a replay of the copy adds nothing."""
    with exchange.refusing("m-1"):
        (event_id,) = exchange.accept("m-1")
        exchange.start("relay", "audit")
        exchange.start("catalog", DELIVERY_KILL_AT=point)
        exchange.await_death("catalog")
    assert exchange.place("catalog").dead == 1

    exchange.start("catalog")
    exchange.await_receipt("catalog", event_id)
    replayed = exchange.run("dead", "replay", "catalog", "--all", "--reason", "a left-over copy")

    assert (replayed.returncode, replayed.stdout) == (0, f"{event_id}  already applied\n")
    exchange.assert_all_applied()
    assert exchange.receipt("catalog", event_id).duplicates == 1
    assert exchange.place("catalog").dead == 0


def dead_ones(exchange: Exchange, count: int) -> list[str]:
    """Events that audit has applied and that are dead for the catalog; all processes run."""
    exchange.start("relay", "catalog", "audit")
    with exchange.refusing("m-1"):
        events = exchange.accept(*["m-1"] * count)
        exchange.await_dead("catalog", count)
    for event_id in events:
        exchange.await_receipt("audit", event_id)
    return events


@at("replay.recorded", "replay.copied")
def test_an_operator_killed_within_a_replay(exchange: Exchange, point: str) -> None:
    """Sent and still dead, or decided and not yet sent: the second replay says which it was."""
    (event_id,) = dead_ones(exchange, 1)
    replay = ("dead", "replay", "catalog", "--id", event_id, "--reason", "index is back")
    copied = point == "replay.copied"
    assert exchange.run(*replay, DELIVERY_KILL_AT=point).returncode == KILLED
    assert exchange.select("catalog", "SELECT action FROM decision") == ["replay"]
    if copied:
        exchange.await_receipt("catalog", event_id)
    wait_for(lambda: exchange.place("catalog").dead == 1, "the broker has it back")

    again = exchange.run(*replay)

    result = "already applied" if copied else "applied"
    assert (again.returncode, again.stdout) == (0, f"{event_id}  {result}\n")
    exchange.assert_all_applied()
    assert exchange.receipt("catalog", event_id).duplicates == int(copied)
    assert exchange.place("catalog").dead == 0


@at("replay.settled")
def test_an_operator_killed_between_two_replays(exchange: Exchange, point: str) -> None:
    """The first one is sent, the second one still dead: replaying all completes the rest."""
    first, second = dead_ones(exchange, 2)
    replay = ("dead", "replay", "catalog", "--all", "--reason", "index is back")
    assert exchange.run(*replay, DELIVERY_KILL_AT=point).returncode == KILLED
    exchange.await_receipt("catalog", first)
    assert exchange.receipt("catalog", second) is None
    wait_for(lambda: exchange.place("catalog").dead in (1, 2), "the broker has the second back")

    assert exchange.run(*replay).returncode == 0

    exchange.assert_all_applied()
    assert exchange.receipt("catalog", first).duplicates in (0, 1)  # its ack may have been lost
    assert exchange.receipt("catalog", second).duplicates == 0
    assert exchange.place("catalog").dead == 0


@at("trail.begun")
@pytest.mark.parametrize("action", ["replay", "drop"])
def test_an_operator_killed_when_the_act_was_announced(
    exchange: Exchange, action: str, point: str
) -> None:
    """The trail says who was about to do it, and no result; nothing was done; again does it."""
    (event_id,) = dead_ones(exchange, 1)
    act = ("dead", action, "catalog", "--id", event_id, "--reason", "index is back")
    assert exchange.run(*act, DELIVERY_KILL_AT=point).returncode == KILLED
    wait_for(lambda: exchange.place("catalog").dead == 1, "the broker has it back")
    assert exchange.select("catalog", "SELECT count(*) FROM decision") == [0]

    assert exchange.run(*act).returncode == 0

    results = exchange.select(PUBLISHER, "SELECT result FROM trail ORDER BY entry")
    assert results == [None, "applied" if action == "replay" else "dropped"]
    assert exchange.place("catalog").dead == 0
    assert exchange.accounts()["catalog"].difference == 0


@at("trail.concluded")
def test_an_operator_killed_when_all_is_done(exchange: Exchange, point: str) -> None:
    """The drop is complete, and the trail has its result."""
    (event_id,) = dead_ones(exchange, 1)
    drop = ("dead", "drop", "catalog", "--id", event_id, "--reason", "test data")
    assert exchange.run(*drop, DELIVERY_KILL_AT=point).returncode == KILLED
    assert exchange.select(PUBLISHER, "SELECT result FROM trail") == ["dropped"]
    assert exchange.place("catalog").dead == 0
    assert exchange.accounts()["catalog"].dropped == 1


@at("drop.recorded")
def test_an_operator_killed_after_the_drop_was_recorded(exchange: Exchange, point: str) -> None:
    """Recorded and still dead: counted as dropped, once; the second drop deletes the message."""
    (event_id,) = dead_ones(exchange, 1)
    drop = ("dead", "drop", "catalog", "--id", event_id, "--reason", "test data")
    assert exchange.run(*drop, DELIVERY_KILL_AT=point).returncode == KILLED
    wait_for(lambda: exchange.place("catalog").dead == 1, "the broker has it back")
    assert exchange.accounts()["catalog"].dropped == 1

    assert exchange.run(*drop).returncode == 0

    assert exchange.place("catalog").dead == 0
    account = exchange.accounts()["catalog"]
    assert (account.dropped, account.applied, account.difference) == (1, 0, 0)
    assert exchange.receipt("catalog", event_id).effect is Effect.DROPPED
    assert exchange.select("catalog", "SELECT count(*) FROM catalog") == [0]


@at("drop.settled")
def test_an_operator_killed_between_two_drops(exchange: Exchange, point: str) -> None:
    """The first is given up, nothing is known of the second: dropping all completes the rest."""
    first, second = dead_ones(exchange, 2)
    drop = ("dead", "drop", "catalog", "--all", "--reason", "test data")
    assert exchange.run(*drop, DELIVERY_KILL_AT=point).returncode == KILLED
    assert exchange.receipt("catalog", first).effect is Effect.DROPPED
    assert exchange.receipt("catalog", second) is None
    wait_for(lambda: exchange.place("catalog").dead in (1, 2), "the broker has the second back")

    assert exchange.run(*drop).returncode == 0

    account = exchange.accounts()["catalog"]
    assert (account.dropped, account.applied, account.difference) == (2, 0, 0)
    assert exchange.place("catalog").dead == 0


@at("reconcile.announced")
def test_an_operator_killed_when_a_reconciliation_was_announced(
    exchange: Exchange, point: str
) -> None:
    """The trail says who was about to send it again; nothing was sent; the next run does it."""
    exchange.start("relay", "audit")
    (event_id,) = exchange.accept("m-1")
    exchange.await_receipt("audit", event_id)
    assert exchange.purge("catalog") == 1
    exchange.start("catalog")
    reconcile = ("reconcile", "catalog", "--grace", "0", "--apply")
    assert exchange.run(*reconcile, DELIVERY_KILL_AT=point).returncode == KILLED
    assert exchange.select(PUBLISHER, "SELECT result FROM trail") == [None]

    assert exchange.run(*reconcile).returncode == 0

    exchange.await_receipt("catalog", event_id)
    assert exchange.select(PUBLISHER, "SELECT result FROM trail ORDER BY entry") == [None, "sent"]
    exchange.assert_all_applied()
    assert exchange.receipt("catalog", event_id).duplicates == 0


@at("reconcile.sent", "reconcile.concluded")
def test_an_operator_killed_within_a_reconciliation(exchange: Exchange, point: str) -> None:
    """One of two lost events is sent again: the second run finds the other one only."""
    exchange.start("relay", "audit")
    first, second = exchange.accept("m-1", "m-2")
    for event_id in (first, second):
        exchange.await_receipt("audit", event_id)
    assert exchange.purge("catalog") == 2
    exchange.start("catalog")
    reconcile = ("reconcile", "catalog", "--grace", "0", "--page", "1", "--apply")
    assert exchange.run(*reconcile, DELIVERY_KILL_AT=point).returncode == KILLED
    exchange.await_receipt("catalog", first)
    assert exchange.receipt("catalog", second) is None

    again = exchange.run(*reconcile)

    assert (again.returncode, again.stdout) == (0, f"{second}\n")
    exchange.await_receipt("catalog", second)
    exchange.assert_all_applied()
    assert exchange.receipt("catalog", first).duplicates == 0


@at(
    "retention.removed",
    "retention.trail_forgotten",
    "retention.forgotten",
    "retention.failures_forgotten",
    "retention.decisions_forgotten",
)
def test_a_process_killed_while_it_removes_what_is_old(exchange: Exchange, point: str) -> None:
    """What is gone is said to be gone in the same commit: the next process goes on, all adds up."""
    exchange.start("relay", "catalog", "audit")
    for event_id in exchange.accept("m-1", "m-2", "m-3"):
        for recipient in ("catalog", "audit"):
            exchange.await_receipt(recipient, event_id)
    name, participant, table = {
        "retention.removed": ("relay", PUBLISHER, "outbox"),
        "retention.trail_forgotten": ("relay", PUBLISHER, "trail"),
        "retention.forgotten": ("audit", "audit", "receipt"),
        "retention.failures_forgotten": ("audit", "audit", "failure"),
        "retention.decisions_forgotten": ("audit", "audit", "decision"),
    }[point]
    exchange.cast.stop(name)
    ago = 90 * 86_400
    exchange.execute(
        PUBLISHER,
        "INSERT INTO trail"
        " (decided_at, action, recipient, message_id, dead_reason, operator, reason)"
        " VALUES (0, 'drop', 'audit', 'long-ago', 'rejected', 'somebody', 'old')",
    )
    exchange.execute(
        "audit", "INSERT INTO failure VALUES ('audit', 'long-ago', 1, 0, 'e', 1, NULL)"
    )
    exchange.execute(
        "audit", "INSERT INTO decision VALUES (1, 0, 'replay', 'audit', 'long-ago', 'who', 'why')"
    )
    exchange.execute(PUBLISHER, f"UPDATE outbox SET accepted_at = accepted_at - {ago}")
    exchange.execute("audit", f"UPDATE receipt SET received_at = received_at - {ago}")
    for recipient in ("catalog", "audit"):
        exchange.execute(recipient, f"UPDATE receipt SET event_at = event_at - {ago}")

    exchange.start(name, DELIVERY_KILL_AT=point)
    exchange.await_death(name)
    assert exchange.select(participant, f"SELECT count(*) FROM {table}") == [0]
    exchange.start(name)
    (young,) = exchange.accept("m-4")
    exchange.await_receipt("audit", young)

    for account in exchange.accounts().values():
        assert (account.difference, account.never_accepted) == (0, ()), account
