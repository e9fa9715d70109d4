"""A failed delivery comes back to its own recipient, a bounded number of times."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest
from support.events import event
from support.recipients import effects, failing, store_at
from support.retrying import World, attempts

from delivery import audit, catalog
from delivery.codec import encode
from delivery.confirms import NotConfirmed
from delivery.contract import Event
from delivery.handling import Effect


def broken(event_: Event, tx: sqlite3.Connection) -> Effect:
    raise RuntimeError("always")


def test_a_retry_comes_back_to_the_recipient_that_failed_only(world: World) -> None:
    """Case 5: one failure at the catalog: it sees two deliveries, the audit log one."""
    world.declare(100)
    of = event()
    world.publish(of)

    flaky = failing(1, catalog.upsert, lambda: RuntimeError("once"))
    mine = world.consume(
        world.catalog, flaky, delays_ms=[100], until=lambda seen: len(seen.events) == 2
    )
    others = world.consume(world.audit, audit.append, delays_ms=[100])

    assert [each.id for each in mine.events] == [of.id, of.id]
    assert attempts(mine) == [1]
    assert [each.id for each in others.events] == [of.id]
    with closing(store_at(world.store_path(world.catalog))) as store:
        assert store.execute("SELECT count(*) FROM catalog").fetchone() == (1,)
    for queue in (world.catalog.queue, f"{world.catalog.queue}.retry.1", world.audit.queue):
        assert world.ready(queue) == 0


def test_a_handler_that_always_fails_gets_its_attempts_and_no_more(world: World) -> None:
    """Case 6: two delays are three attempts; then it is given up."""
    world.declare(50, 100, routes=[world.audit])
    of = event()
    world.publish(of)

    always = failing(9, audit.append, lambda: RuntimeError("always"))
    seen = world.consume(world.audit, always, delays_ms=[50, 100])

    assert attempts(seen) == [1, 2, 3]
    for suffix in ("", ".retry.1", ".retry.2"):
        assert world.ready(world.audit.queue + suffix) == 0
    with closing(store_at(world.store_path(world.audit))) as store:
        assert effects(store) == 0


def test_without_its_retry_queue_a_message_stays_where_it_is(world: World) -> None:
    """Case 9 for the retry: a copy that went nowhere does not let the original go."""
    world.declare(routes=[world.audit])
    of = event()
    world.publish(of)

    with pytest.raises(NotConfirmed, match=r"\.retry\.1"):
        world.consume(world.audit, broken, delays_ms=[50])

    ((properties, body),) = world.take(world.audit.queue)
    assert (properties.message_id, body) == (of.id, encode(of))
