"""A classic exchange becomes a quorum one while events are published: nothing is lost."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pika.exceptions import ChannelClosedByBroker
from support.exchange import Exchange, exchange_on
from support.publishing import publishing
from support.waiting import wait_for

from delivery import points, relocation
from delivery.broker import Broker
from delivery.confirms import Outcome
from delivery.connection import connect
from delivery.lanes import unrouted_queue
from delivery.moving import InUse, move_to_quorum, plan_move
from delivery.pipeline import ConfirmedChannel
from delivery.publisher import Message, envelope
from delivery.quorum import as_quorum
from delivery.retry import retry_queue
from delivery.services import prepare
from delivery.topology import TopologyConflict
from delivery.triage import DeskBusy, held


@pytest.fixture
def exchange(undisturbed_broker: Broker, tmp_path: Path, namespace: str) -> Iterator[Exchange]:
    with exchange_on(undisturbed_broker, tmp_path, namespace, retries_ms=(400,)) as opened:
        yield opened


def stop(exchange: Exchange, *names: str) -> None:
    for name in names:
        assert exchange.cast.stop(name) == 0


def ready(exchange: Exchange, queue: str) -> int:
    with connect(exchange.config.broker) as connection:
        return int(connection.channel().queue_declare(queue, passive=True).method.message_count)


def test_an_exchange_is_moved_under_traffic_and_nothing_is_lost(exchange: Exchange) -> None:
    """Ready, waiting and dead messages come along; the API and the relay go on all the time."""
    exchange.start("relay", "catalog", "audit")
    with exchange.refusing("m-bad"):
        (bad,) = exchange.accept("m-bad")
        exchange.await_dead("catalog")
    with publishing(exchange), exchange.refusing("m-late"):
        exchange.accept("m-late")
        stop(exchange, "catalog", "audit")
        moved = exchange.run("cluster", "move", "--apply", "--json")
        assert moved.returncode == 0, moved.stderr
        report = json.loads(moved.stdout)
        assert report["applied"] is True
        assert {each["queue"] for each in report["queues"]} == {
            queue.name for queue in exchange.config.topology().queues
        }
        exchange.cast.environ = {**exchange.cast.environ, "DELIVERY_QUEUES": "quorum"}
        exchange.start("catalog", "audit")
    stop(exchange, "relay")
    exchange.start("relay")

    exchange.config = replace(exchange.config, shape=as_quorum)
    assert plan_move(exchange.config) == []
    desk = exchange.run("dead", "replay", "catalog", "--all", "--reason", "healed")
    assert desk.returncode == 0, desk.stdout + desk.stderr
    exchange.assert_all_applied()
    assert exchange.receipt("catalog", bad) is not None


def test_the_plan_changes_nothing(exchange: Exchange) -> None:
    """It names each queue with what is in it."""
    exchange.put("catalog", b"{}", "e-1")

    planned = exchange.run("cluster", "move")

    assert planned.returncode == 0, planned.stderr
    assert f"{exchange.config.route('catalog').queue}: classic, 1 ready" in planned.stdout
    assert "plan only" in planned.stderr
    prepare(exchange.config, "test")  # TopologyConflict if anything were changed


def test_a_queue_that_is_read_is_not_moved(exchange: Exchange) -> None:
    """What its reader holds could not come along. Nothing is changed."""
    exchange.start("catalog")

    with pytest.raises(InUse, match="stop the recipients first"):
        move_to_quorum(exchange.config)

    prepare(exchange.config, "test")
    stop(exchange, "catalog")


def test_dead_messages_that_somebody_looks_at_are_not_moved(exchange: Exchange) -> None:
    """An empty-looking queue would be deleted with what the operator's screen holds."""
    route = exchange.config.route("audit")
    with connect(exchange.config.broker) as desk, held(desk, route), pytest.raises(DeskBusy):
        move_to_quorum(exchange.config)

    prepare(exchange.config, "test")


def test_the_parking_queue_comes_along(exchange: Exchange) -> None:
    """If there is one; it is of the kind of the others from then on, and declared as such."""
    place = unrouted_queue(exchange.config.exchange)
    try:
        assert exchange.run("unrouted", "declare").returncode == 0
        exchange.put("audit", b"{}", "e-1", queue=place)
        quorum = exchange.run("unrouted", "declare", DELIVERY_QUEUES="quorum")
        assert "x-queue-type = classic, wanted quorum" in quorum.stderr

        assert place in {move.queue for move in move_to_quorum(exchange.config)}

        assert ready(exchange, place) == 1
        quorum = exchange.run("unrouted", "declare", DELIVERY_QUEUES="quorum")
        assert (quorum.returncode, quorum.stderr) == (0, "")
        assert move_to_quorum(exchange.config) == []
    finally:
        assert exchange.config.management is not None
        exchange.config.management.delete(f"/api/policies/%2F/{place}")
        exchange.delete_queue(place)
        with connect(exchange.config.broker) as connection:
            connection.channel().exchange_delete(place)


def test_moving_twice_is_once(exchange: Exchange) -> None:
    """The second run finds nothing to do, and no queue is left aside."""
    exchange.put("catalog", b"{}", "e-1")
    assert len(move_to_quorum(exchange.config)) == len(exchange.config.topology().queues)

    assert move_to_quorum(exchange.config) == []
    assert ready(exchange, exchange.config.route("catalog").queue) == 1
    with connect(exchange.config.broker) as connection, pytest.raises(ChannelClosedByBroker):
        name = exchange.config.route("catalog").queue + ".moving"
        connection.channel().queue_declare(name, passive=True)


def test_a_queue_that_is_neither_of_the_two_is_left_alone(exchange: Exchange) -> None:
    """Another delay than the configured one: somebody else's, or an older setting's."""
    other = replace(exchange.config, retries_ms=(999,))

    with pytest.raises(TopologyConflict, match=retry_queue(other.route("catalog"), 1)):
        move_to_quorum(other)

    prepare(exchange.config, "test")


def test_messages_with_the_same_id_all_come_along(exchange: Exchange) -> None:
    """A stranger's messages may have any id, or a second copy the same one."""
    for _ in range(3):
        exchange.put("catalog", b"{}", "e-1")
    exchange.put("catalog", b"{}", "e-2")

    move_to_quorum(exchange.config)

    assert ready(exchange, exchange.config.route("catalog").queue) == 4


def test_what_a_node_sends_to_the_queue_aside_a_moment_late_is_brought_back(
    exchange: Exchange, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each node of a cluster routes by its own copy of the bindings, which may be an older one."""
    monkeypatch.setattr(relocation, "GRACE", 5.0)
    queue = exchange.config.route("catalog").queue
    late = Message("", f"{queue}.moving", envelope("e-1", "x", timestamp=1), b"{}")
    with ConfirmedChannel(exchange.config.broker) as channel, pytest.MonkeyPatch.context() as armed:
        armed.setattr(points, "_armed", {})
        outcomes: list[Outcome] = []
        send = threading.Timer(0.5, lambda: outcomes.append(channel.send(late).outcome))
        points.arm("move.unbound", send.start)
        move_to_quorum(exchange.config)
        send.join()

    assert outcomes == [Outcome.CONFIRMED]
    assert ready(exchange, queue) == 1


def test_a_queue_of_which_somebody_holds_a_message_is_not_deleted(
    exchange: Exchange, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fetched one by one, it shows no consumer; what is held would be gone with the queue."""
    monkeypatch.setattr(relocation, "HELD", 0.0)
    queue, management = exchange.config.route("catalog").queue, exchange.config.management
    assert management is not None
    exchange.put("catalog", b"{}", "e-1")
    with connect(exchange.config.broker) as somebody:
        assert somebody.channel().basic_get(queue)[0] is not None
        wait_for(lambda: management.unacked(queue) == 1, "the plugin has counted it", 20)
        with pytest.raises(InUse, match=r"somebody holds 1 message.* run it again"):
            move_to_quorum(exchange.config)

    wait_for(lambda: management.unacked(queue) == 0, "the plugin has counted it", 20)
    move_to_quorum(exchange.config)
    assert ready(exchange, queue) == 1
