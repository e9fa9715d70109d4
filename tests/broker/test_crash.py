"""Processes are killed between two durable steps; nothing is lost, and nothing is applied twice."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from support import children
from support.events import event
from support.recipients import effects, handler, receipts, store_at
from support.waiting import wait_for
from support.world import World

from delivery import outbox
from delivery.codec import encode
from delivery.inbox import receipt_of
from delivery.relay import only_relay
from delivery.store import open_store, transaction

KILLED = -9


def consumer_of(world: World, **more: Any) -> dict[str, Any]:
    arguments = {
        "url": world.settings.url,
        "store": str(world.store_path(world.audit)),
        "namespace": world.namespace,
        "die_at": [],
        "delays_ms": [],
        "idle": 0.5,
    }
    return {**arguments, **more}


def relay_of(world: World, store: Path, *die_at: Any) -> dict[str, Any]:
    return {
        "url": world.settings.url,
        "store": str(store),
        "exchange": world.audit.exchange,
        "limit": 100,
        "die_at": die_at,
    }


def test_a_relay_killed_half_way_continues_where_it_was(world: World, tmp_path: Path) -> None:
    """Case 4: SIGKILL between confirm and mark, the fifth time of ten; no row needs a repair."""
    world.declare(routes=[world.audit])
    path = tmp_path / "publisher.db"
    with closing(open_store(path, outbox.SCHEMA)) as store:
        events = [event(f"m-{n}") for n in range(1_000)]
        with transaction(store) as tx:
            for each in events:
                outbox.add(tx, each, correlation_id="r", accepted_at=time.time())

        assert children.run("relay", **relay_of(world, path, "relay.confirmed", 5)) == KILLED

        assert world.ready(world.audit.queue) == 500
        assert counts(store) == {(0, None): 600, (1, "confirmed"): 400}
        with only_relay(path):  # the lock died with its process
            pass

        assert children.run("relay", **relay_of(world, path)) == 0
        assert counts(store) == {(1, "confirmed"): 1_000}

    assert world.ready(world.audit.queue) == 1_100  # 100 were confirmed, and not yet marked
    world.consume(world.audit, handler(world.audit), batch=100, prefetch=500)
    with closing(store_at(world.store_path(world.audit))) as recipient:
        assert receipts(recipient, "audit") == effects(recipient) == 1_000
        (duplicates,) = recipient.execute("SELECT sum(duplicates) FROM receipt").fetchone()
    assert duplicates == 100


def counts(store: sqlite3.Connection) -> dict[tuple[int, str | None], int]:
    rows = store.execute(
        "SELECT attempts, outcome, count(*), count(confirmed_at) FROM outbox GROUP BY 1, 2"
    ).fetchall()
    assert all(marked == (count if outcome else 0) for _, outcome, count, marked in rows)
    return {(attempts, outcome): count for attempts, outcome, count, _ in rows}


@pytest.mark.parametrize(
    ("point", "effects_then", "duplicates_later"),
    [("consumer.applied", 0, 0), ("consumer.committed", 1, 1)],
)
def test_a_recipient_killed_around_its_commit_applies_the_message_once(
    world: World, point: str, effects_then: int, duplicates_later: int
) -> None:
    """Case 10: before the commit nothing is kept, after it the redelivery is a DUPLICATE."""
    world.declare(routes=[world.audit])
    of = event()
    world.publish(of)

    assert children.run("consumer", **consumer_of(world, die_at=[point, 1])) == KILLED
    with closing(store_at(world.store_path(world.audit))) as store:
        assert effects(store, of.id) == receipts(store, "audit") == effects_then
        wait_for(lambda: world.ready(world.audit.queue) == 1, "the broker has it back")

        assert children.run("consumer", **consumer_of(world)) == 0
        receipt = receipt_of(store, "audit", of.id)
        assert effects(store, of.id) == 1
        assert receipt is not None
        assert receipt.duplicates == duplicates_later
    assert world.ready(world.audit.queue) == 0
    assert world.dead(world.audit) == []


def test_a_recipient_killed_between_copy_and_ack_loses_nothing(world: World) -> None:
    """A retry copy and the original both come: never none. The effect is one."""
    world.declare(100, routes=[world.audit])
    of = event()
    world.publish(of)

    crashing = consumer_of(world, die_at=["retry.copied", 1], delays_ms=[100], fails=of.id)
    assert children.run("consumer", **crashing) == KILLED
    wait_for(lambda: world.ready(world.audit.queue) == 2, "original and copy")

    assert children.run("consumer", **consumer_of(world, delays_ms=[100])) == 0
    with closing(store_at(world.store_path(world.audit))) as store:
        receipt = receipt_of(store, "audit", of.id)
        assert effects(store, of.id) == 1
    assert receipt is not None
    assert receipt.duplicates == 1


def test_a_recipient_killed_between_park_and_ack_keeps_the_message(world: World) -> None:
    """The dead queue may hold it twice, under one id; it does not miss it."""
    world.declare(routes=[world.audit])
    of = event()
    world.publish(of)

    crashing = consumer_of(world, die_at=["park.copied", 1], fails=of.id)
    assert children.run("consumer", **crashing) == KILLED
    wait_for(lambda: world.ready(world.audit.queue) == 1, "the original is back")
    assert children.run("consumer", **consumer_of(world, fails=of.id)) == 0

    assert [body for _, body in world.dead(world.audit)] == [encode(of)] * 2
    assert world.ready(world.audit.queue) == 0


@pytest.mark.parametrize("batch", [1, 50])
def test_a_message_that_kills_the_process_ends_dead_and_stops_nobody(
    world: World, batch: int
) -> None:
    """Three deaths, then reason ``killer``; the messages around it have their effects.

    In a batch, too: what was in it when the process died is redelivered, and then goes alone.
    """
    world.declare(routes=[world.audit])
    before, killer, after = event("m-1"), event("m-2"), event("m-3")
    world.publish(before, killer, after)

    ends = []
    while not ends or ends[-1] == KILLED:
        ends.append(children.run("consumer", **consumer_of(world, kills=killer.id, batch=batch)))
        assert len(ends) < 8, "it kills for ever"

    assert ends == [KILLED, KILLED, KILLED, 0]
    ((headers, body),) = world.dead(world.audit)
    assert (headers["x-delivery-reason"], body) == ("killer", encode(killer))
    with closing(store_at(world.store_path(world.audit))) as store:
        assert [effects(store, each.id) for each in (before, killer, after)] == [1, 0, 1]
    assert world.ready(world.audit.queue) == 0


def test_sigterm_finishes_the_one_at_work_and_gives_back_the_rest(world: World) -> None:
    """Case 16: ten are prefetched, one is at work: it is committed and acked, nine are ready."""
    world.declare(routes=[world.audit])
    world.publish(*(event(f"m-{n}") for n in range(10)))
    begun = Path(f"{world.store_path(world.audit)}.begun")

    with children.start("consumer", **consumer_of(world, idle=None, slow=1.0)) as child:
        try:
            wait_for(begun.exists, "the first handler is at work")
            wait_for(lambda: world.ready(world.audit.queue) == 0, "all ten are prefetched")
            child.terminate()
            assert child.wait(10) == 0
        finally:
            child.kill()

    with closing(store_at(world.store_path(world.audit))) as store:
        assert effects(store) == receipts(store, "audit") == 1
    assert world.ready(world.audit.queue) == 9
