"""A browser of this machine, and what a test asks of the live page."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Locator, Page, expect, sync_playwright

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
MISSING = (
    "the browser tests need Chromium or Chrome on the PATH, and there is none:"
    " install it (Debian, Ubuntu: sudo apt-get install chromium; macOS: brew install chromium),"
    " or leave them out: make test T='tests/unit tests/broker tests/crash tests/bench'"
)
SECONDS = 15.0
STICKING_OUT = """[...document.querySelectorAll("[data-node]")].flatMap((node) => {
  const width = node.querySelector("rect, polygon").getBBox().width;
  const wide = [...node.querySelectorAll("text")].filter((each) => each.getBBox().width > width);
  return wide.map((each) => `${node.dataset.node}: ${each.textContent}`);
})"""


def program(which: Callable[[str], str | None] = shutil.which) -> str:
    """Return the browser's path; without one the test fails and says how to get one."""
    for name in PROGRAMS:
        if found := which(name):
            return found
    pytest.fail(MISSING, pytrace=False)


@contextlib.contextmanager
def started() -> Iterator[Browser]:
    """Start the system's browser; nothing is downloaded."""
    expect.set_options(timeout=SECONDS * 1000)
    executable = program()
    with sync_playwright() as playwright:
        # A sandbox needs rights that a container and root do not have; the page is our own.
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        yield browser
        browser.close()


class Live:
    """The live page in one tab; whatever its scripts complain of fails the test."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.complaints: list[str] = []
        self.base: dict[tuple[str, str], int] = {}
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("dialog", lambda dialog: (self.complaints.append("a dialog"), dialog.dismiss()))
        page.goto(url)
        expect(self.verdict).not_to_have_text("Looking ...")

    @property
    def verdict(self) -> Locator:
        return self.page.locator("#verdict")

    def act(self, action: str) -> None:
        self.page.locator(f'[data-action="{action}"]').click()

    def cell(self, recipient: str, row: str) -> Locator:
        return self.page.locator(f'[data-cell="{recipient}.{row}"]')

    def node(self, name: str) -> Locator:
        """The count in a box of the picture."""
        return self.page.locator(f'[data-node="{name}"] .count')

    def number(self, recipient: str, row: str) -> int:
        """What the ledger shows, beyond what it showed when the test began; -1: no number."""
        text = self.cell(recipient, row).inner_text().replace(",", "")
        return int(text) - self.base.get((recipient, row), 0) if text.isdecimal() else -1

    def begin(self) -> None:
        """Count what only grows from here on."""
        self.base = {
            (recipient, row): self.number(recipient, row)
            for recipient in ("catalog", "audit")
            for row in ("accepted", "applied", "stale")
        }

    def await_number(self, recipient: str, row: str, number: int) -> None:
        shown = number + self.base.get((recipient, row), 0)
        expect(self.cell(recipient, row)).to_have_text(f"{shown:,}")

    def assert_accessible(self) -> None:
        """No wider than the screen, no words wider than their box; axe finds nothing serious."""
        assert self.page.viewport_size is not None
        wide = self.page.evaluate("document.documentElement.scrollWidth")
        assert wide <= self.page.viewport_size["width"]
        sticking_out = self.page.evaluate(STICKING_OUT)
        assert sticking_out == [], sticking_out
        serious = [
            (each["id"], each["impact"], [node["target"] for node in each["nodes"]])
            for each in Axe().run(self.page).response["violations"]
            if each["impact"] in ("serious", "critical")
        ]
        assert serious == [], serious

    def measured(self, what: str) -> Any:
        return self.page.evaluate(f"window.livePage.{what}")

    def await_updates(self, more: int, seconds: float = SECONDS) -> None:
        """Wait until the page has shown *more* snapshots than now."""
        enough, end = self.measured("updates") + more, time.monotonic() + seconds
        while self.measured("updates") < enough:
            assert time.monotonic() < end, f"no {more} updates within {seconds} s"
            self.page.wait_for_timeout(50)
