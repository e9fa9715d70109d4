"""The relay's small print: where it may be killed, what it logs, and whom it names."""

from __future__ import annotations

import fcntl
import logging
import os
import re
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest
from support.events import event
from support.proxy import proxied
from support.world import World

from delivery import outbox
from delivery.confirms import Outcome
from delivery.contract import Event
from delivery.outbox import SqliteOutbox
from delivery.pipeline import ConfirmedChannel
from delivery.points import arm
from delivery.relay import RelayBusy, only_relay, relay_once
from delivery.store import open_store, transaction


@pytest.fixture
def store(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    with closing(open_store(tmp_path / "publisher.db", outbox.SCHEMA)) as opened:
        yield opened


def add(store: sqlite3.Connection, *events: Event) -> None:
    with transaction(store) as tx:
        for each in events:
            outbox.add(tx, each, correlation_id="request-1", accepted_at=time.time())


def relay(world: World, store: sqlite3.Connection) -> dict[Outcome, int]:
    with ConfirmedChannel(world.settings) as channel:
        return relay_once(SqliteOutbox(store, world.catalog.exchange), channel)


def outcomes(store: sqlite3.Connection) -> list[str | None]:
    return [row[0] for row in store.execute("SELECT outcome FROM outbox ORDER BY position")]


def die() -> None:
    raise KeyboardInterrupt


def test_the_mark_comes_after_the_confirm(world: World, store: sqlite3.Connection) -> None:
    """A relay that dies between the two has sent what it has not marked: it is sent again."""
    world.declare(routes=[world.catalog])
    add(store, event())

    arm("relay.confirmed", die)
    with pytest.raises(KeyboardInterrupt):
        relay(world, store)

    assert (world.ready(world.catalog.queue), outcomes(store)) == (1, [None])
    assert relay(world, store) == {Outcome.CONFIRMED: 1}


def test_after_the_mark_nothing_is_owed(world: World, store: sqlite3.Connection) -> None:
    """A relay that dies right after the mark sends nothing twice."""
    world.declare(routes=[world.catalog])
    add(store, event())

    arm("relay.marked", die)
    with pytest.raises(KeyboardInterrupt):
        relay(world, store)

    assert (world.ready(world.catalog.queue), outcomes(store)) == (1, ["confirmed"])
    assert relay(world, store) == {}


def test_a_cycle_is_bounded(world: World, store: sqlite3.Connection) -> None:
    """A long outage's backlog goes out 500 at a time, each part marked before the next."""
    world.declare(routes=[world.catalog])
    add(store, *(event() for _ in range(501)))

    assert relay(world, store) == {Outcome.CONFIRMED: 500}
    assert relay(world, store) == {Outcome.CONFIRMED: 1}


def test_a_connection_lost_in_a_cycle_marks_what_was_sent_only(
    world: World, store: sqlite3.Connection
) -> None:
    """Fewer answers than messages is no error: the rest was not tried."""
    world.declare(routes=[world.catalog])
    add(store, *(event() for _ in range(5)))

    with proxied(world.settings.url) as proxy:
        settings = replace(world.settings, url=proxy.url)
        with ConfirmedChannel(settings, timeout=0.5, window=3) as channel:
            proxy.swallow_replies = True
            counts = relay_once(SqliteOutbox(store, world.catalog.exchange), channel)

    assert counts == {Outcome.UNKNOWN: 3}
    assert outcomes(store) == ["unknown"] * 3 + [None] * 2


def test_a_cycle_says_how_often_each_outcome_came(
    world: World, store: sqlite3.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    """One line for the cycle, and one for each message that is not confirmed, naming it."""
    world.declare(routes=[world.catalog])
    good, bad = event(), event()
    add(store, good, bad)
    with transaction(store) as tx:
        tx.execute("UPDATE outbox SET event_type = 'nobody.listens' WHERE position = 2")

    with caplog.at_level(logging.INFO, "delivery.relay"):
        relay(world, store)

    warning, cycle = (record for record in caplog.records if record.name == "delivery.relay")
    assert (warning.levelname, warning.message) == ("WARNING", "message.not_confirmed")
    assert (vars(warning)["message_id"], vars(warning)["outcome"]) == (bad.id, "returned")
    assert vars(warning)["detail"].startswith("312 NO_ROUTE")
    assert (cycle.levelname, cycle.message) == ("INFO", "relay.cycle")
    assert (vars(cycle)["confirmed"], vars(cycle)["returned"]) == (1, 1)


def test_the_holder_is_named_even_after_others_held_it(tmp_path: Path) -> None:
    """What a former holder wrote is gone; the process and its start are the present one's."""
    path = tmp_path / "publisher.db"
    with only_relay(path):
        pass

    with only_relay(path), pytest.raises(RelayBusy) as busy, only_relay(path):
        pytest.fail("two relays at once")

    found = re.fullmatch(
        r"another relay has this outbox: process (\d+), since (.+); stop it first", str(busy.value)
    )
    assert found is not None, busy.value
    assert int(found[1]) == os.getpid()
    since = datetime.strptime(found[2], "%Y-%m-%d %H:%M:%S")
    assert abs((datetime.now() - since).total_seconds()) < 60
    assert busy.value.__suppress_context__


def test_a_holder_that_has_not_written_its_name_yet_is_said_to_be_new(tmp_path: Path) -> None:
    """Between the lock and the first byte there is a moment; its reader gets no traceback."""
    path = tmp_path / "publisher.db"
    with Path(f"{path}.relay-lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)

        with (
            pytest.raises(RelayBusy, match=r": a process that has just started; stop it first$"),
            only_relay(path),
        ):
            pytest.fail("two relays at once")
