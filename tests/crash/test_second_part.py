"""SIGKILL between the durable steps of lanes and of the breaker: a repeat at most, never a loss."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import child_breaker
from support.exchange import KILLED, Exchange, exchange_on
from support.waiting import wait_for

from delivery.broker import Broker
from delivery.connection import connect
from delivery.lanes import unrouted_queue
from delivery.stores import PUBLISHER


@pytest.fixture
def exchange(broker: Broker, tmp_path: Path, namespace: str) -> Iterator[Exchange]:
    with exchange_on(broker, tmp_path, namespace) as opened:
        yield opened
        parking = unrouted_queue(opened.config.exchange)
        with connect(opened.config.broker) as connection:
            connection.channel().queue_delete(parking)
            connection.channel().exchange_delete(parking)
        assert opened.config.management is not None
        with contextlib.suppress(OSError):  # not every test sets one
            opened.config.management.delete(f"/api/policies/%2F/{parking}")


def at(*points: str) -> pytest.MarkDecorator:
    """Run the test once for each point; it kills a process there."""
    return pytest.mark.parametrize("point", points)


@at("unrouted.recorded", "unrouted.copied", "unrouted.settled")
def test_a_replay_of_what_was_parked_is_killed(exchange: Exchange, point: str) -> None:
    """The event is parked, or on its way, or both; a second replay and the receipts do the rest."""
    config = exchange.config
    assert exchange.run("unrouted", "declare").returncode == 0
    exchange.start("relay")
    with connect(config.broker) as connection:
        for binding in config.topology().bindings:
            connection.channel().queue_unbind(binding.queue, binding.exchange, binding.key)
    exchange.accept("m-1")
    confirmed = "SELECT count(*) FROM outbox WHERE confirmed_at IS NOT NULL"
    wait_for(lambda: exchange.select(PUBLISHER, confirmed) == [1], "confirmed, though parked")
    replay = ("unrouted", "replay", "--all", "--reason", "bound again")

    assert exchange.run(*replay, DELIVERY_KILL_AT=point).returncode == KILLED
    again = exchange.run(*replay)

    assert again.returncode == 0, again.stderr
    assert exchange.select(PUBLISHER, "SELECT result FROM trail")[0] is None
    exchange.start("catalog", "audit")
    exchange.assert_all_applied()


@at("breaker.copied")
def test_a_probe_that_failed_is_killed_before_its_ack(exchange: Exchange, point: str) -> None:
    """The copy is at the end of the queue, the original is back: two, which one receipt knows."""
    (event_id,) = exchange.accept("m-1")
    exchange.start("relay")
    wait_for(lambda: exchange.place("audit").ready == 1, "it is in the queue")
    config = exchange.config
    program = [sys.executable, child_breaker.__file__, config.broker.url, config.namespace]
    store = str(config.stores.path("audit"))

    ended = subprocess.run(
        [*program, store], env={**os.environ, "DELIVERY_KILL_AT": point}, timeout=60, check=False
    )

    assert ended.returncode == KILLED
    wait_for(lambda: exchange.place("audit").ready == 2, "the original is back")
    exchange.start("catalog", "audit")
    exchange.await_receipt("audit", event_id, duplicates=1)
    exchange.assert_all_applied()
