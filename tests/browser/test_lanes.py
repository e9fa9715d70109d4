"""Lanes that somebody built are on the page, where they hang on the exchange."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import expect
from support.browser import Live
from support.exchange import exchange_on
from support.proxy import Proxy

from delivery.broker import Broker
from delivery.connection import connect
from delivery.lanes import Lane, lane_route, lane_topology
from delivery.topology import declare

LANES = (Lane("background", "bulk.#"), Lane("critical", "urgent.#"))


def test_lanes_are_drawn_with_what_waits_in_them(
    broker: Broker, tmp_path: Path, namespace: str, open_page: Callable[..., Live]
) -> None:
    """Not drawn before there are any; who reads them; gone with their queues; in no sum."""
    with exchange_on(broker, tmp_path, namespace) as exchange:
        for recipient in ("catalog", "audit"):
            exchange.config.stores.open(recipient).close()
        assert exchange.config.management_url is not None
        plugin = Proxy(exchange.config.management_url)
        exchange.start("api", DELIVERY_MANAGEMENT_URL=plugin.url)
        live = open_page(exchange.url)
        expect(live.node("catalog.queue")).to_have_text("0")
        expect(live.node("listener-0")).to_have_count(0)
        note = live.page.locator("#listeners")
        expect(note).to_be_hidden()

        audit = exchange.config.route("audit")
        with connect(exchange.config.broker) as connection:
            declare(connection, lane_topology(audit, LANES))
            channel = connection.channel()
            for _ in range(3):
                channel.basic_publish(exchange.config.exchange, "bulk.mail", b"{}")
            queues = [lane_route(audit, lane).queue for lane in LANES]
            channel.basic_consume(queues[1], lambda *_: None)
            slow = {"timeout": 20_000}  # the plugin counts each 5 s
            expect(live.node("listener-0")).to_have_text("3", **slow)
            expect(live.node("listener-1")).to_have_text("0", **slow)
            first, second = (
                live.page.locator(f'[data-node="listener-{number}"]') for number in (0, 1)
            )
            expect(first).to_have_attribute(
                "aria-label", f"{queues[0]}: 3, nobody consumes, classic"
            )
            expect(second).to_have_attribute("aria-label", f"{queues[1]}: 0, 1 consuming, classic")
            expect(note).to_contain_text(f"{queues[0]} (bulk.#), {queues[1]} (urgent.#)")
            expect(note).to_contain_text("in no sum below")
            expect(live.verdict).to_have_text("Everything adds up")
            expect(live.page.locator('[data-node="catalog"] .state')).to_have_text(
                "nobody consumes"
            )
            live.assert_accessible()
            second.focus()
            live.page.set_viewport_size({"width": 390, "height": 844})
            expect(live.node("listener-0")).to_have_text("3")
            expect(second).to_be_focused()  # it was drawn anew
            live.assert_accessible()
            stranger = f"{namespace}-{'x' * 120}"
            channel.queue_declare(stranger, exclusive=True)
            channel.queue_bind(stranger, exchange.config.exchange, stranger)
            expect(note).to_contain_text(f"{stranger} ({stranger})", **slow)
            live.assert_accessible()
            channel.queue_delete(stranger)
            plugin.refusing = True
            expect(live.node("listener-0")).to_have_text("?", **slow)
            live.page.set_viewport_size({"width": 1280, "height": 844})
            expect(first).to_have_attribute("aria-label", f"{queues[0]}: ?, not seen")
            expect(note).to_contain_text("can't be seen: no management API at")
            plugin.refusing = False
            expect(live.node("listener-0")).to_have_text("3", **slow)
            for queue in queues:
                channel.queue_delete(queue)
        expect(live.node("listener-0")).to_have_count(0, **slow)
        expect(note).to_be_hidden()
        plugin.close()
