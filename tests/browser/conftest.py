"""One browser and one demo for the run; a tab of its own for every test."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, expect
from support.browser import Live, started
from support.exchange import environment

from delivery.broker import Broker
from delivery.cast import Cast

Open = Callable[..., Live]


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with started() as browser:
        yield browser


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Open]:
    """Open the live page in a tab; at the end nobody may have complained in it."""
    tabs: list[Live] = []

    def open_page(url: str, *, width: int = 1280, height: int = 900, theme: str = "light") -> Live:
        size = {"width": width, "height": height}
        context = browser.new_context(viewport=size, color_scheme=theme)
        tabs.append(Live(context.new_page(), url))
        return tabs[-1]

    yield open_page
    for tab in tabs:
        tab.page.context.close()
        assert tab.complaints == []


@pytest.fixture(scope="session")
def demo_url(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """`delivery demo --live` on the run's broker."""
    own = environment(DELIVERY_AMQP_URL=broker.amqp_url)
    if broker.management_url:
        own["DELIVERY_MANAGEMENT_URL"] = broker.management_url
    cast = Cast([], own, tmp_path_factory.mktemp("demo"))
    with cast.curtain():
        demo = cast.start("demo", ["demo", "--live", "--port", "0", "--no-browser"])
        line = demo.await_event("page at ", seconds=60)
        (url,) = re.findall(r"http://\S+/", line)
        yield url
        assert demo.stop() == 0
        assert "Traceback" not in demo.log()


@pytest.fixture
def stage(demo_url: str, open_page: Open) -> Live:
    """The demo's page, at rest; begun anew if the test before did not leave it so."""
    live = open_page(demo_url)
    expect(live.verdict).not_to_contain_text(" s ago")  # nobody watched since the last test
    states = live.page.locator("#cast tbody td:nth-child(2)").all_inner_texts()
    at_rest = live.verdict.inner_text() == "Everything adds up"
    if not at_rest or set(states) != {"running"}:
        live.act("reset")
        expect(live.page.locator("#said")).to_have_text("everything begins anew")
    expect(live.verdict).to_have_text("Everything adds up")
    live.await_updates(2)
    live.begin()
    return live
