"""A move to quorum queues that is killed at any point is finished by the next one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.exchange import KILLED, Exchange, exchange_on

from delivery.broker import Broker
from delivery.moving import move_to_quorum, plan_move
from delivery.quorum import as_quorum


@pytest.fixture
def exchange(undisturbed_broker: Broker, tmp_path: Path, namespace: str) -> Iterator[Exchange]:
    with exchange_on(undisturbed_broker, tmp_path, namespace) as opened:
        yield opened


def at(*points: str) -> pytest.MarkDecorator:
    """Run the test once for each point; it kills a process there."""
    return pytest.mark.parametrize("point", points)


@at("move.copied", "move.settled", "move.set_aside", "move.deleted", "move.unbound")
def test_a_move_killed_at_any_point_is_finished_by_the_next(exchange: Exchange, point: str) -> None:
    """What was published before, and while it lay there half done, is applied once."""
    exchange.start("relay")
    exchange.accept("m-1", "m-2", "m-3")
    exchange.await_sent()

    killed = exchange.run("cluster", "move", "--apply", DELIVERY_KILL_AT=point)
    assert killed.returncode == KILLED, killed.stderr
    exchange.accept("m-4")
    exchange.await_sent()
    assert plan_move(exchange.config)

    move_to_quorum(exchange.config)
    exchange.cast.stop("relay")
    exchange.config = replace(exchange.config, shape=as_quorum)
    exchange.cast.environ = {**exchange.cast.environ, "DELIVERY_QUEUES": "quorum"}
    exchange.start("relay", "catalog", "audit")
    assert plan_move(exchange.config) == []
    exchange.assert_all_applied()
