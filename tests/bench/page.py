"""What an update costs the live page under load, beside the same page with nothing to show."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median

from bench.exchange import Exchange, exchange
from bench.scene import Row, Scene
from playwright.sync_api import expect
from support.browser import Live, started
from support.flood import RATE, Flood, bury

from delivery.connection import connect
from delivery.dead import dead_queue

DEAD = 10_000
SECONDS = 6.0
LIMIT = "<= 100 ms"
QUIET = "0 dead, no traffic"
# Only what took 50 ms or more is told; it holds layout and painting, too (W3C, Long Tasks).
TASKS = """window.tasks = [];
new PerformanceObserver((list) => list.getEntries().forEach((each) => tasks.push(each.duration)))
  .observe({ type: "longtask" });"""


@dataclass
class Found:
    """Milliseconds of every update, and of every long task; events/s that the page saw go by."""

    updates: list[float] = field(default_factory=list)
    lags: list[float] = field(default_factory=list)
    tasks: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)


def rows(scene: Scene) -> list[Row]:
    """The same tab, quiet and loaded in turn: what slows the machine slows both."""
    seconds = SECONDS if scene.size >= 1 else SECONDS / 2
    quiet, loaded, committed = Found(), Found(), 0
    with exchange(scene) as opened, started() as browser:
        opened.start("api", "relay")
        opened.start("catalog", "audit", options=("--batch", "200", "--prefetch", "400"))
        live = Live(browser.new_page(), opened.url)
        live.page.evaluate(TASKS)
        for _ in range(min(3, scene.rounds)):
            _purge(opened)
            expect(live.node("catalog.dead")).to_have_text("0")
            _watch(live, quiet, seconds)
            bury(opened.config, "catalog", DEAD)
            expect(live.node("catalog.dead")).to_have_text(f"{DEAD:,}")
            flood = Flood(opened.config)
            flood.start()
            try:
                _watch(live, loaded, seconds)
            finally:
                flood.end()
            committed += flood.committed
            live.await_number("audit", "applied", committed)
        assert live.complaints == []
    return _rows(quiet, loaded)


def _rows(quiet: Found, loaded: Found) -> list[Row]:
    work = f"update of the live page with {DEAD:,} dead at {RATE:,} events/s"

    def row(what: str, of: Callable[[Found], float], target: str = LIMIT) -> Row:
        return Row(f"{work}: {what}", of(loaded), "ms", QUIET, of(quiet), target)

    return [
        row("median", lambda found: median(found.updates)),
        row("worst", lambda found: max(found.updates)),
        row("since its snapshot, median", lambda found: median(found.lags)),
        # Whatever kept the tab's thread, painting and other people's load included: no target.
        row("longest task (0: < 50 ms)", lambda found: max(found.tasks, default=0.0), ""),
        # Less, and the machine did not carry the load: the rows above prove nothing.
        Row("events that the page saw go by", median(loaded.rates), "/s", target=">= 700 /s"),
    ]


def _watch(live: Live, found: Found, seconds: float) -> None:
    """Let the page go on for *seconds*, and add what its updates took to *found*."""
    live.await_updates(4)  # what came before the load, or after it, has been shown
    long, first, begun = len(_tasks(live)), live.measured("updates"), time.monotonic()
    accepted = live.number("audit", "accepted")
    while time.monotonic() < begun + seconds:
        live.await_updates(1)
        found.lags.append(live.measured("lag") * 1000)
    found.rates.append((live.number("audit", "accepted") - accepted) / (time.monotonic() - begun))
    found.updates += live.measured("all")[first - live.measured("updates") :]
    found.tasks += _tasks(live)[long:]


def _purge(opened: Exchange) -> None:
    with connect(opened.config.broker) as connection:
        connection.channel().queue_purge(dead_queue(opened.config.route("catalog")))


def _tasks(live: Live) -> list[float]:
    return list(live.page.evaluate("window.tasks"))
