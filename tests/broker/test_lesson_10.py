"""Lesson 10: a cut connection is opened again, and an older revision never wins."""

from __future__ import annotations

import threading
import time
from contextlib import closing
from dataclasses import replace

from support.events import event
from support.handlers import handler
from support.proxy import proxied
from support.recipients import effects, store_at
from support.retrying import attempts
from support.waiting import wait_for
from support.world import World

from delivery.codec import encode
from delivery.connection import connect
from delivery.consumer import consume
from delivery.contract import Event
from delivery.inbox import receipt_of
from delivery.recovery import Backoff, keep_connected
from delivery.stopping import Stop


def test_a_cut_connection_is_opened_again_and_consuming_goes_on(world: World) -> None:
    """keep_connected: after the cut there is one consumer again, and it works."""
    world.declare(routes=[world.audit])
    stop = Stop()
    with proxied(world.settings.url) as proxy:
        through = replace(world.settings, url=proxy.url)
        runs: list[float] = []

        def work() -> None:
            runs.append(time.monotonic())
            with (
                closing(store_at(world.store_path(world.audit))) as store,
                connect(through) as connection,
            ):
                consume(
                    connection.channel(),
                    world.audit.queue,
                    store,
                    handler(world.audit),
                    stop=stop,
                )

        thread = threading.Thread(
            target=keep_connected, args=(work,), kwargs={"stop": stop, "backoff": Backoff(0.1, 0.5)}
        )
        thread.start()
        try:
            wait_for(lambda: world.consumers(world.audit.queue) == 1, "consuming")
            first, second = event(), event()
            world.publish(first)
            wait_for(lambda: _effects(world, first) == 1, "the first effect")

            proxy.cut()
            wait_for(lambda: len(runs) == 2, "it starts again")
            wait_for(lambda: world.consumers(world.audit.queue) == 1, "one consumer again")
            world.publish(second)
            wait_for(lambda: _effects(world, second) == 1, "the second effect")
        finally:
            stop.request()
            thread.join(10)
    assert not thread.is_alive()
    assert _effects(world, first) == 1


def _effects(world: World, of: Event) -> int:
    with closing(store_at(world.store_path(world.audit))) as store:
        return effects(store, of.id)


def test_an_older_revision_is_stale_and_a_contradiction_is_dead(world: World) -> None:
    """Case 11: 7, then 5: the state stays 7. Then another 7: dead with reason conflict."""
    world.declare(50, routes=[world.catalog])
    seven, five = event("m-1", 7, title="seven"), event("m-1", 5, title="five")
    another = event("m-1", 7, title="another seven")
    world.publish(seven, five, another)

    seen = world.consume(
        world.catalog, handler(world.catalog), delays_ms=[50], until=lambda s: bool(s.failures)
    )

    with closing(store_at(world.store_path(world.catalog))) as store:
        assert store.execute("SELECT revision, title FROM catalog").fetchall() == [(7, "seven")]
        effects_found = [receipt_of(store, "catalog", each.id) for each in (seven, five, another)]
    assert [found and found.effect.value for found in effects_found] == ["applied", "stale", None]
    assert attempts(seen) == [1]
    ((headers, body),) = world.dead(world.catalog)
    assert (headers["x-delivery-reason"], body) == ("conflict", encode(another))
