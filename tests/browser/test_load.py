"""The page under load: 10,000 dead and 1,000 events a second cost no update more than 100 ms."""

from __future__ import annotations

import statistics
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest
from playwright.sync_api import expect
from support.browser import Live
from support.exchange import Exchange, exchange_on

from delivery import outbox
from delivery.broker import Broker
from delivery.contract import MaterialPublished, material_published
from delivery.dead import dead_queue
from delivery.pipeline import ConfirmedChannel
from delivery.publisher import Message, envelope
from delivery.store import transaction
from delivery.stores import PUBLISHER

DEAD = 10_000
RATE = 1_000  # events a second
SECONDS = 6.0
LIMIT = 100.0  # ms


class Flood(threading.Thread):
    """Commits events into the outbox at a steady rate, a batch every 50 ms, until told to end."""

    def __init__(self, exchange: Exchange) -> None:
        super().__init__(daemon=True)
        self._exchange = exchange
        self._ending = threading.Event()
        self.committed = 0
        self.seconds = 0.0

    def run(self) -> None:
        begun = time.monotonic()
        with closing(self._exchange.config.stores.open(PUBLISHER)) as store:
            while not self._ending.wait(0.05):
                self.seconds = time.monotonic() - begun
                owed = int(self.seconds * RATE) - self.committed
                with transaction(store) as tx:
                    for _ in range(owed):
                        self._add(tx)
                self.committed += owed

    def _add(self, tx) -> None:
        data = MaterialPublished(
            material_id=f"m-{uuid.uuid4().hex[:12]}",
            revision=1,
            title="One of many",
            slug="one",
            author="A",
            published_at=datetime.now(UTC),
        )
        event = material_published(str(uuid.uuid4()), data)
        outbox.add(tx, event, correlation_id="flood", accepted_at=time.time())

    def end(self) -> None:
        self._ending.set()
        self.join()


@pytest.fixture
def exchange(broker: Broker, tmp_path: Path, namespace: str) -> Iterator[Exchange]:
    with exchange_on(broker, tmp_path, namespace) as exchange:
        yield exchange


def bury(exchange: Exchange) -> None:
    """Put dead messages of some 1 kB into the catalog's dead queue."""
    queue = dead_queue(exchange.config.route("catalog"))
    messages = [
        Message(
            "",
            queue,
            envelope(str(uuid.uuid4()), "t", timestamp=1, correlation_id="c"),
            b"x" * 1000,
        )
        for _ in range(DEAD)
    ]
    with ConfirmedChannel(exchange.config.broker) as channel:
        channel.send_all(messages)


def test_ten_thousand_dead_and_a_thousand_events_a_second(
    exchange: Exchange, open_page: Callable[..., Live]
) -> None:
    """Each look at stores and broker, and each update in the browser, is measured."""
    bury(exchange)
    exchange.start("api", "relay")
    for recipient in ("catalog", "audit"):
        exchange.cast.start(
            recipient, ["receive", recipient, "--batch", "200", "--prefetch", "400"]
        )
    for recipient in ("catalog", "audit"):
        exchange.cast[recipient].await_event(f"{recipient}.ready")
    live = open_page(exchange.url)
    expect(live.node("catalog.dead")).to_have_text(f"{DEAD:,}")
    flood = Flood(exchange)
    flood.start()
    try:
        live.await_updates(4)
        first, begun = live.measured("updates"), time.monotonic()
        accepted = live.number("audit", "accepted")
        lags = []
        while time.monotonic() - begun < SECONDS:
            live.await_updates(1)
            lags.append(live.measured("lag") * 1000)
        passed = time.monotonic() - begun
        seen = live.number("audit", "accepted") - accepted
        shown = live.measured("updates") - first
        spent = live.measured("all")[-shown:]
        looks = live.measured("looks").values()
    finally:
        flood.end()
    rate = seen / passed
    print(
        f"\n{rate:.0f} events/s seen, {DEAD} dead, {shown / passed:.1f} updates/s;"
        f" update in the browser: median {statistics.median(spent):.1f} ms,"
        f" worst {max(spent):.1f} ms; snapshot to shown: median {statistics.median(lags):.0f} ms;"
        f" looks at stores and broker: {', '.join(f'{1000 * look:.0f} ms' for look in looks)}"
    )
    assert rate > 0.7 * RATE, "the machine did not carry the load: nothing is proved"
    assert shown / passed > 1.5, "updates stopped"
    assert statistics.quantiles(spent, n=20)[-1] < LIMIT
    assert statistics.median(lags) < LIMIT
    expect(live.node("catalog.dead")).to_have_text(f"{DEAD:,}")
