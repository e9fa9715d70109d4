"""Everybody can read and use the page: axe finds nothing serious, in both themes and sizes."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
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
    live.assert_accessible()


def test_every_control_is_reached_with_the_tab_key(
    demo_url: str, open_page: Callable[..., Live]
) -> None:
    """In the order of the page; what has the focus shows it, and each box says what it is."""
    live = open_page(demo_url)
    nodes = live.page.locator("[data-node]")
    expect(nodes).to_have_count(16)  # 4, and 6 for each recipient
    reached = []
    for _ in range(60):
        live.page.keyboard.press("Tab")
        reached.append(
            live.page.evaluate(
                "(({ dataset, id }) => [dataset.action || dataset.node || id,"
                " getComputedStyle(document.activeElement).outlineStyle])(document.activeElement)"
            )
        )
    names = [name for name, _ in reached]
    for name in ("theme", "title", "burst", "poison", "kill catalog", "cut relay", "reset"):
        assert name in names, names
    boxes = [each.get_attribute("data-node") for each in nodes.all()]
    assert [name for name in names if name in boxes][: len(boxes)] == boxes
    seen = {"burst", "title", "kill catalog", *boxes}
    assert "none" not in {outline for name, outline in reached if name in seen}
    says = {
        str(each.get_attribute("data-node")): each.get_attribute("aria-label")
        for each in nodes.all()
    }
    for box, said in {
        "exchange": "topic exchange: events",
        "catalog.queue": r"catalog queue: \d+, ready, classic",
        "audit.dead": r"audit dead: \d+",
        "audit.retry.1": r"audit retry 1: \d+(, .+)?",
        "audit.store": r"audit applied: \d+(, .+)?",
    }.items():
        assert re.fullmatch(said, str(says[box])), says
