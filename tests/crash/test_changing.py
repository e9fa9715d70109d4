"""A change of queues that is killed at any point is finished by the next one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support.exchange import KILLED, exchange_on

from delivery.broker import Broker
from delivery.changing import change_queues, plan_change
from delivery.retry import retry_queue


@pytest.mark.parametrize("point", ["move.settled", "move.deleted", "move.unbound"])
def test_a_change_killed_at_any_point_is_finished_by_the_next(
    broker: Broker, tmp_path: Path, namespace: str, point: str
) -> None:
    """The message that waited in the old queue waits in the new one."""
    with exchange_on(broker, tmp_path, namespace, retries_ms=(600_000,)) as exchange:
        queue = retry_queue(exchange.config.route("catalog"), 1)
        exchange.put("catalog", b"{}", "e-1", queue=queue)
        later = replace(exchange.config, retries_ms=(900_000,))

        killed = exchange.run(
            *("--retries", "900000", "queues", "change", queue), DELIVERY_KILL_AT=point
        )
        assert killed.returncode == KILLED, killed.stderr
        assert [move.queue for move in plan_change(later, [queue])] == [queue]

        change_queues(later, [queue])
        assert plan_change(later, [queue]) == []
        assert exchange.place("catalog").retry == (1,)
