"""The page under load: 10,000 dead and a flood of events cost it no more elements than none.

How many milliseconds an update takes is measured by `make bench` (the part "page").
"""

from __future__ import annotations

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
NEWS = 250  # elements: the lines of the story, which is cut to its newest


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


def test_ten_thousand_dead_and_a_flood_of_events(
    exchange: Exchange, open_page: Callable[..., Live]
) -> None:
    """Updates go on, each shows what is so, and none makes the page larger."""
    exchange.start("api", "relay")
    for recipient in ("catalog", "audit"):
        exchange.cast.start(
            recipient, ["receive", recipient, "--batch", "200", "--prefetch", "400"]
        )
    for recipient in ("catalog", "audit"):
        exchange.cast[recipient].await_event(f"{recipient}.ready")
    live = open_page(exchange.url)
    live.await_updates(2)
    empty = elements(live)

    bury(exchange)
    expect(live.node("catalog.dead")).to_have_text(f"{DEAD:,}")
    flood = Flood(exchange)
    flood.start()
    try:
        accepted = live.number("audit", "accepted")
        live.await_updates(20)
        assert live.number("audit", "accepted") > accepted
    finally:
        flood.end()
    live.await_number("audit", "accepted", flood.committed)
    live.await_number("audit", "applied", flood.committed)
    expect(live.node("catalog.dead")).to_have_text(f"{DEAD:,}")
    grown = elements(live) - empty
    assert grown <= NEWS


def elements(live: Live) -> int:
    """How much there is on the page."""
    return int(live.page.evaluate("document.querySelectorAll('*').length"))
