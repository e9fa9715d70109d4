"""The relay marks a row only when the broker has its message, and no row holds up another."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from support import child_relay, children
from support.children import KILLED
from support.events import event
from support.proxy import proxied
from support.recipients import effects, receipts, store_at
from support.waiting import wait_for
from support.world import World

from delivery import audit, outbox
from delivery.confirms import Outcome
from delivery.connection import BrokerUnavailable
from delivery.contract import Event
from delivery.inbox import once, receipt_of
from delivery.outbox import LONGEST_PAUSE, SqliteOutbox
from delivery.pipeline import ConfirmedChannel
from delivery.relay import RelayBusy, only_relay, relay_once
from delivery.store import open_store, transaction
from delivery.topology import Exchange, Topology, declare


@pytest.fixture
def store(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    with closing(open_store(tmp_path / "publisher.db", outbox.SCHEMA)) as opened:
        yield opened


def add(store: sqlite3.Connection, *events: Event) -> None:
    with transaction(store) as tx:
        for each in events:
            outbox.add(tx, each, correlation_id="request-1", accepted_at=time.time())


def box(world: World, store: sqlite3.Connection, *, later: float = 0.0) -> SqliteOutbox:
    """Return the outbox, seen with a clock that is *later* seconds ahead."""
    return SqliteOutbox(store, world.catalog.exchange, clock=lambda: time.time() + later)


def rows(store: sqlite3.Connection) -> list[tuple[object, ...]]:
    return store.execute(
        "SELECT outcome, attempts, confirmed_at IS NOT NULL FROM outbox ORDER BY position"
    ).fetchall()


def test_a_returned_row_stays_pending_and_goes_out_once_a_queue_wants_it(
    world: World, store: sqlite3.Connection
) -> None:
    """Case 1: the row is not marked by the ack that follows a return; a repaired route heals it."""
    declare(world.connection, Topology((Exchange(world.catalog.exchange),)))
    add(store, event())

    with ConfirmedChannel(world.settings) as channel:
        assert relay_once(box(world, store), channel) == {Outcome.RETURNED: 1}
        assert rows(store) == [("returned", 1, 0)]

        world.declare(routes=[world.catalog])
        assert relay_once(box(world, store, later=60), channel) == {Outcome.CONFIRMED: 1}
    assert rows(store) == [("confirmed", 2, 1)]
    assert world.ready(world.catalog.queue) == 1


def test_an_unknown_outcome_is_sent_again_under_the_same_id_and_applied_once(
    world: World, store: sqlite3.Connection
) -> None:
    """Case 2: both recipients process both copies, and each has one effect."""
    world.declare()
    of = event()
    add(store, of)

    with proxied(world.settings.url) as proxy:
        with ConfirmedChannel(replace(world.settings, url=proxy.url)) as channel:
            proxy.swallow_replies = True
            cutting = threading.Thread(
                target=lambda: (
                    wait_for(lambda: proxy.swallowed, "the confirm is swallowed"),
                    proxy.cut(),
                )
            )
            cutting.start()
            assert relay_once(box(world, store), channel) == {Outcome.UNKNOWN: 1}
            cutting.join()
        assert proxy.swallowed > 0
    assert rows(store) == [("unknown", 1, 0)]

    with ConfirmedChannel(world.settings) as channel:
        assert relay_once(box(world, store, later=60), channel) == {Outcome.CONFIRMED: 1}

    for route in (world.catalog, world.audit):
        seen = world.consume(route, once(route, audit.append), until=lambda s: len(s.events) == 2)
        assert [each.id for each in seen.events] == [of.id, of.id]
        with closing(store_at(world.store_path(route))) as recipient:
            assert effects(recipient, of.id) == 1
            receipt = receipt_of(recipient, route.recipient, of.id)
        assert receipt is not None
        assert receipt.duplicates == 1
        assert world.ready(route.queue) == 0


def test_a_row_that_is_always_returned_holds_up_no_other(
    world: World, store: sqlite3.Connection
) -> None:
    """Case 3: four good rows behind it go out in the same cycle, and the bad one backs off."""
    world.declare(routes=[world.catalog])
    add(store, *(event() for _ in range(5)))
    with transaction(store) as tx:
        tx.execute("UPDATE outbox SET event_type = 'nobody.listens' WHERE position = 1")

    with ConfirmedChannel(world.settings) as channel:
        counts = relay_once(box(world, store), channel)
        assert counts == {Outcome.RETURNED: 1, Outcome.CONFIRMED: 4}
        assert relay_once(box(world, store), channel) == {}  # it waits

        add(store, event())
        assert relay_once(box(world, store, later=60), channel, limit=1) == {Outcome.CONFIRMED: 1}
        assert relay_once(box(world, store, later=60), channel) == {Outcome.RETURNED: 1}
    (next_attempt,) = store.execute(
        "SELECT next_attempt_at FROM outbox WHERE position = 1"
    ).fetchone()
    assert 60 < next_attempt - time.time() <= 60 + LONGEST_PAUSE
    assert rows(store)[0] == ("returned", 2, 0)
    assert world.ready(world.catalog.queue) == 5


def test_a_relay_whose_broker_is_gone_spends_no_attempt(
    world: World, store: sqlite3.Connection
) -> None:
    """What was not sent was not tried: the rows wait unchanged."""
    world.declare(routes=[world.catalog])
    add(store, event(), event())
    with (
        proxied(world.settings.url) as proxy,
        ConfirmedChannel(replace(world.settings, url=proxy.url)) as channel,
    ):
        proxy.cut()
        with pytest.raises(BrokerUnavailable):
            channel.serve(5)
        with pytest.raises(BrokerUnavailable):
            relay_once(box(world, store), channel)
    assert rows(store) == [(None, 0, 0), (None, 0, 0)]


def test_rows_go_out_in_the_order_of_their_acceptance(
    world: World, store: sqlite3.Connection
) -> None:
    """A healthy outbox keeps the order, over several cycles too."""
    world.declare(routes=[world.catalog])
    events = [event("m-1", revision) for revision in range(1, 31)]
    add(store, *events)

    with ConfirmedChannel(world.settings) as channel:
        while relay_once(box(world, store), channel, limit=7):
            pass

    arrived = [properties.message_id for properties, _ in world.take(world.catalog.queue)]
    assert arrived == [each.id for each in events]


def test_a_second_relay_is_told_who_holds_the_outbox(tmp_path: Path) -> None:
    """One relay per outbox; the lock is free again as soon as the first one ends."""
    path = tmp_path / "publisher.db"
    with (
        only_relay(path),
        pytest.raises(RelayBusy, match=r"process \d+, since 2"),
        only_relay(path),
    ):
        pytest.fail("two relays at once")
    with only_relay(path):
        pass


def test_a_relay_killed_half_way_continues_where_it_was(world: World, tmp_path: Path) -> None:
    """Case 4: SIGKILL between confirm and mark, the fifth time of ten; no row needs a repair."""
    world.declare(routes=[world.audit])
    path = tmp_path / "publisher.db"
    with closing(open_store(path, outbox.SCHEMA)) as store:
        events = [event(f"m-{n}") for n in range(1_000)]
        with transaction(store) as tx:
            for each in events:
                outbox.add(tx, each, correlation_id="r", accepted_at=time.time())

        assert (
            children.run(child_relay, world, store=str(path), die_at=["relay.confirmed", 5])
            == KILLED
        )

        assert world.ready(world.audit.queue) == 500
        assert counts(store) == {(0, None): 600, (1, "confirmed"): 400}
        with only_relay(path):  # the lock died with its process
            pass

        assert children.run(child_relay, world, store=str(path)) == 0
        assert counts(store) == {(1, "confirmed"): 1_000}

    assert world.ready(world.audit.queue) == 1_100  # 100 were confirmed, and not yet marked
    world.consume(world.audit, once(world.audit, audit.append), batch=100, prefetch=500)
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
