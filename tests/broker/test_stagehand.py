"""The live demo begins anew in one step, also while its broker is away."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from support.waiting import wait_for

from delivery.broker import Broker, Kind
from delivery.stage_set import stage_set
from delivery.stopping import Stop


@pytest.mark.parametrize("ours", [True, False], ids=["ours", "given"])
def test_a_reset_while_the_broker_is_away_waits_for_it(
    breakable_broker: Broker, ours: bool
) -> None:
    """One that is ours is started; for a given one, whoever runs it does that."""
    given = replace(breakable_broker, kind=Kind.GIVEN, machine=None)
    shown = breakable_broker if ours else given
    with (
        stage_set(os.environ, shown, Stop()) as (_, hand, _),
        ThreadPoolExecutor(1) as pool,
    ):
        try:
            breakable_broker.kill()
            done = pool.submit(hand.reset)
            ended = {"ended"}
            wait_for(lambda: {each["state"] for each in hand.state()} == ended, "it has begun", 60)
            if not ours:
                breakable_broker.start()
            assert done.result() == "everything begins anew"
            assert {each["state"] for each in hand.state()} == {"running"}
        finally:
            breakable_broker.start()  # for the tests that follow
