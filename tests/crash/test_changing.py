"""A change of queues that is killed at any point is finished by the next one."""

from __future__ import annotations

import re
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import typer
from support.exchange import KILLED, exchange_on
from support.waiting import wait_for

from delivery.broker import Broker
from delivery.changing import change_queues, plan_change
from delivery.connection import connect
from delivery.interrupted import told_if_interrupted
from delivery.observe import depth
from delivery.relocation import Move, aside
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


def test_a_change_that_is_interrupted_says_what_stands_where(
    broker: Broker, tmp_path: Path, namespace: str
) -> None:
    """Ctrl-C while it waits for somebody who holds a message; the next run ends it."""
    with exchange_on(broker, tmp_path, namespace, retries_ms=(600_000,)) as exchange:
        queue, management = (
            retry_queue(exchange.config.route("catalog"), 1),
            exchange.config.management,
        )
        assert management is not None
        for number in range(2):
            exchange.put("catalog", b"{}", f"e-{number}", queue=queue)
        with connect(exchange.config.broker) as somebody:
            assert somebody.channel().basic_get(queue)[0] is not None
            wait_for(lambda: management.unacked(queue) == 1, "the plugin has counted it", 20)
            change = exchange.cast.start(
                "change", ["--retries", "900000", "queues", "change", queue]
            )

            def set_aside() -> bool:
                found = depth(somebody, aside(queue))
                return found is not None and found.ready == 1

            wait_for(set_aside, "one message is set aside")
            change.process.send_signal(signal.SIGINT)
            assert change.process.wait(20) == 130
        wait_for(lambda: f"in {aside(queue)}" in change.log(), "it has said it")
        assert "run it again" in change.log()
        assert re.search(rf"  {queue}: .*wanted 900000; \d ready here, 1 in", change.log())
        assert "Traceback" not in change.log()

        later = replace(exchange.config, retries_ms=(900_000,))
        change_queues(later, [queue])
        with connect(exchange.config.broker) as reading:
            channel, found = reading.channel(), []
            while (got := channel.basic_get(queue, auto_ack=True))[0] is not None:
                found.append(got[1].message_id)
        # One that was copied, and not yet acked when it was interrupted, may be there twice.
        assert set(found) == {"e-0", "e-1"}, found


def test_an_interrupt_that_an_error_hides_is_told_too(capsys: pytest.CaptureFixture[str]) -> None:
    """A connection that was interrupted may not close in order; another error is left alone."""
    left = Move("q", "missing", 0, 3, 0)
    with pytest.raises(typer.Exit) as ended, told_if_interrupted(lambda: [left]):
        try:
            raise KeyboardInterrupt
        finally:
            raise ValueError
    assert ended.value.exit_code == 130
    assert "q: missing; 0 ready here, 3 in q.moving" in capsys.readouterr().err
    with pytest.raises(ValueError), told_if_interrupted(lambda: [left]):
        raise ValueError
    assert capsys.readouterr().err == ""
