"""What no queue wanted is on the page, where it waits, until it is sent again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect
from support.browser import Live
from support.exchange import Exchange, exchange_on
from support.waiting import wait_for

from delivery.broker import Broker
from delivery.confirms import Outcome
from delivery.connection import connect
from delivery.lanes import unrouted_queue
from delivery.pipeline import ConfirmedChannel
from delivery.publisher import Message, envelope


@pytest.fixture
def exchange(broker: Broker, tmp_path: Path, namespace: str) -> Iterator[Exchange]:
    with exchange_on(broker, tmp_path, namespace) as exchange:
        yield exchange
        parking = unrouted_queue(exchange.config.exchange)
        with connect(exchange.config.broker) as connection:
            connection.channel().queue_delete(parking)
            connection.channel().exchange_delete(parking)
        assert exchange.config.management is not None
        exchange.config.management.delete(f"/api/policies/%2F/{parking}")


def publish(exchange: Exchange, key: str) -> Outcome:
    about = envelope("m-1", "material.published.v1", timestamp=1)
    with ConfirmedChannel(exchange.config.broker) as channel:
        return channel.send(Message(exchange.config.exchange, key, about, b"{}")).outcome


def test_a_parked_message_is_seen_beside_the_exchange(
    exchange: Exchange, open_page: Callable[..., Live]
) -> None:
    """Not drawn before there is a queue; its count, its kind, its command; gone with the queue."""
    for recipient in ("catalog", "audit"):
        exchange.config.stores.open(recipient).close()
    exchange.start("api")
    live = open_page(exchange.url)
    expect(live.node("catalog.queue")).to_have_text("0")
    expect(live.node("parked")).to_have_count(0)
    expect(live.page.locator("#parked")).to_be_hidden()

    assert exchange.run("unrouted", "declare").returncode == 0
    expect(live.node("parked")).to_have_text("0")
    expect(live.verdict).to_have_text("Everything adds up")
    wait_for(lambda: publish(exchange, "typo") is Outcome.CONFIRMED, "the policy acts")
    expect(live.node("parked")).to_have_text("1")
    expect(live.page.locator('[data-node="parked"] .state')).to_have_text("classic")
    expect(live.page.locator("#parked")).to_contain_text("No queue wanted it")
    expect(live.page.locator("#parked")).to_contain_text("delivery unrouted replay --all")
    expect(live.page.locator("#story")).to_contain_text("parked: no queue wanted it")
    expect(live.verdict).to_have_text("1 parked; all else arrived")
    label = live.page.locator("#picture svg").get_attribute("aria-label")
    assert "1 parked beside the exchange" in str(label)
    box = live.page.locator('[data-node="parked"]')
    expect(box).to_have_attribute("aria-label", "parked: 1, classic")
    box.focus()
    live.page.set_viewport_size({"width": 390, "height": 844})
    expect(live.node("parked")).to_have_text("1")
    expect(box).to_be_focused()  # it was drawn anew
    live.assert_accessible()

    with connect(exchange.config.broker) as connection:
        connection.channel().queue_delete(unrouted_queue(exchange.config.exchange))
    expect(live.node("parked")).to_have_count(0)
