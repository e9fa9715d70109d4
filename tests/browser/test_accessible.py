"""Everybody can read and use the page: axe finds nothing serious, in both themes and sizes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect
from support.browser import Live

SIZES = {"room": (1280, 900), "phone": (390, 844)}


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
def test_axe_finds_nothing_serious(
    size: str, theme: str, demo_url: str, open_page: Callable[..., Live]
) -> None:
    """With a queue that waits, and a dead message that is opened; nothing sticks out sideways."""
    width, height = SIZES[size]
    live = open_page(demo_url, width=width, height=height, theme=theme)
    if live.number("audit", "dead") == 0:
        live.act("poison")
    expect(live.node("audit.dead")).not_to_have_text("0")
    live.act("plan audit")
    expect(live.page.locator("#dead")).to_contain_text("would be dead again")
    assert live.page.evaluate("document.documentElement.scrollWidth") <= width
    found = Axe().run(live.page).response["violations"]
    serious = [
        (each["id"], each["impact"], [node["target"] for node in each["nodes"]])
        for each in found
        if each["impact"] in ("serious", "critical")
    ]
    assert serious == []


def test_every_control_is_reached_with_the_tab_key(
    demo_url: str, open_page: Callable[..., Live]
) -> None:
    """In the order of the page; what has the focus shows it."""
    live = open_page(demo_url)
    reached = []
    for _ in range(40):
        live.page.keyboard.press("Tab")
        reached.append(
            live.page.evaluate(
                "[document.activeElement.dataset.action || document.activeElement.id,"
                " getComputedStyle(document.activeElement).outlineStyle]"
            )
        )
    names = [name for name, _ in reached]
    for name in ("theme", "title", "burst", "poison", "kill catalog", "cut relay", "reset"):
        assert name in names, names
    outlines = {outline for name, outline in reached if name in ("burst", "title", "kill catalog")}
    assert "none" not in outlines
