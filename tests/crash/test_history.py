"""A recipient that joins late gets its whole history through the publisher's feed, once."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from support.events import event
from support.exchange import KILLED, Exchange, exchange_on
from support.waiting import wait_for

from delivery import outbox
from delivery.broker import Broker
from delivery.codec import encode
from delivery.handling import Delivery, Handled, apply_batch
from delivery.publisher import properties_of
from delivery.services import handler_of
from delivery.store import transaction
from delivery.stores import PUBLISHER, Stores

EVENTS, MATERIALS = 10_000, 500
TABLES = {
    "catalog": ("catalog", "latest"),
    "audit": ("audit",),
}


@pytest.fixture
def exchange(broker: Broker, tmp_path: Path, namespace: str) -> Iterator[Exchange]:
    with exchange_on(broker, tmp_path, namespace) as opened:
        yield opened


def history(exchange: Exchange, folder: Path) -> Stores:
    """Fill the publisher's store with confirmed events; return an old recipient's stores."""
    events = [
        event(f"m-{number % MATERIALS}", revision=number // MATERIALS + 1)
        for number in range(EVENTS)
    ]
    an_hour_ago = time.time() - 3_600
    with closing(exchange.config.stores.open(PUBLISHER)) as store, transaction(store) as tx:
        for each in events:
            outbox.add(tx, each, correlation_id="request", accepted_at=an_hour_ago)
        tx.execute("UPDATE outbox SET confirmed_at = accepted_at, attempts = 1")
    old = Stores(folder / "old")
    for recipient in TABLES:
        handle = handler_of(exchange.config.route(recipient))
        deliveries = [
            Delivery(queue="old", body=encode(each), properties=properties_of(each))
            for each in events
        ]
        with closing(old.open(recipient)) as store:
            results = apply_batch(deliveries, store, handle)
        assert all(isinstance(each, Handled) for each in results)
    return old


def rows(stores: Stores, recipient: str) -> list[tuple[object, ...]]:
    """What the recipient knows, without what each recipient counts for itself."""
    found = []
    with closing(stores.open(recipient)) as store:
        for table in TABLES[recipient]:
            columns = [
                name
                for (name,) in store.execute("SELECT name FROM pragma_table_info(?)", (table,))
                if name not in ("entry", "recorded_at")
            ]
            found += store.execute(f"SELECT {', '.join(columns)} FROM {table}").fetchall()
    return sorted(found)


def receive(exchange: Exchange, recipient: str) -> None:
    command = ["receive", recipient, "--batch", "200", "--prefetch", "1000"]
    exchange.cast.start(recipient, [*command, "--log-level", "warning"])


@pytest.mark.parametrize("recipient", ["catalog", "audit"])
def test_a_recipient_that_joins_late_gets_its_history(
    exchange: Exchange, tmp_path: Path, recipient: str
) -> None:
    """10,000 events over HTTP, killed in the middle, run again: the old recipient's state."""
    old = history(exchange, tmp_path)
    other = next(each for each in TABLES if each != recipient)
    exchange.start("api")
    receive(exchange, recipient)
    command = ("reconcile", recipient, "--feed", exchange.url)

    planned = exchange.run(*command)
    assert planned.returncode == 0, planned.stderr
    assert len(planned.stdout.splitlines()) == EVENTS
    assert f"{recipient}: {EVENTS} to send again (plan only: add --apply)" in planned.stderr
    assert exchange.select(recipient, "SELECT count(*) FROM receipt") == [0]

    begun = time.monotonic()
    killed = exchange.run(*command, "--apply", DELIVERY_KILL_AT="reconcile.sent:8")
    assert killed.returncode == KILLED
    half = f"SELECT count(*) = {8 * 500} FROM receipt"
    wait_for(lambda: exchange.select(recipient, half) == [1], "what was sent has its receipts", 60)
    again = exchange.run(*command, "--apply")
    assert again.returncode == 0, again.stderr
    assert len(again.stdout.splitlines()) == EVENTS - 8 * 500

    every = f"SELECT count(*) = {EVENTS} FROM receipt"
    wait_for(lambda: exchange.select(recipient, every) == [1], "the whole history", 60)
    print(f"{recipient}: {EVENTS} events in {time.monotonic() - begun:.1f} s")
    assert time.monotonic() - begun < 60
    assert rows(exchange.config.stores, recipient) == rows(old, recipient)
    assert exchange.select(recipient, "SELECT sum(duplicates) FROM receipt") == [0]
    assert exchange.place(other).ready == 0  # nobody else got anything

    third = exchange.run(*command, "--apply", "--json")
    assert re.sub(r"\s+", "", third.stdout) == (
        f'{{"recipient":"{recipient}","sent":true,"missing":[],"parked":0}}'
    )


def test_a_long_plan_is_made_page_by_page(exchange: Exchange, tmp_path: Path) -> None:
    """Twenty times the events do not take more memory."""
    history(exchange, tmp_path)
    peaks = {}
    for events in (EVENTS, 500):
        with closing(exchange.config.stores.open(PUBLISHER)) as store:
            store.execute("DELETE FROM outbox WHERE position > ?", (events,))
        code = (
            "import sys, tracemalloc; tracemalloc.start(); from delivery.cli import app\n"
            "try: app()\n"
            "finally: print(tracemalloc.get_traced_memory()[1], file=sys.stderr)"
        )
        ended = subprocess.run(
            [sys.executable, "-c", code, *exchange.options, "reconcile", "audit", "--page", "100"],
            env=exchange.environ,
            capture_output=True,
            text=True,
            check=True,
        )
        assert len(ended.stdout.splitlines()) == events
        peaks[events] = int(ended.stderr.splitlines()[-1])
    print(peaks)
    assert peaks[EVENTS] < peaks[500] + 2_000_000  # bytes; the events' bodies alone are larger
