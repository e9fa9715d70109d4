"""The page under load: 10,000 dead and a flood of events cost it no more elements than none.

How many milliseconds an update takes is measured by `make bench` (the part "page").
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect
from support.browser import Live
from support.exchange import Exchange, exchange_on
from support.flood import Flood, bury

from delivery.broker import Broker

DEAD = 10_000
NEWS = 250  # elements: the lines of the story, which is cut to its newest


@pytest.fixture
def exchange(broker: Broker, tmp_path: Path, namespace: str) -> Iterator[Exchange]:
    with exchange_on(broker, tmp_path, namespace) as exchange:
        yield exchange


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

    bury(exchange.config, "catalog", DEAD)
    expect(live.node("catalog.dead")).to_have_text(f"{DEAD:,}")
    flood = Flood(exchange.config)
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
