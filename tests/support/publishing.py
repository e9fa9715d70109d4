"""Traffic beside what a test does."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from support.exchange import Exchange
from support.waiting import wait_for


@contextmanager
def publishing(exchange: Exchange) -> Iterator[None]:
    """Accept some 50 publications a second, of seven materials, as long as the block runs."""
    over = threading.Event()

    def publish() -> None:
        number = 0
        while not over.wait(0.02):
            exchange.accept(f"m-{number % 7}")
            number += 1

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def await_more(exchange: Exchange, more: int) -> None:
    """Wait until the catalog has so many more receipts: the traffic gets through."""
    goal = _receipts(exchange) + more
    wait_for(lambda: _receipts(exchange) >= goal, f"{goal} receipts", seconds=90)


def _receipts(exchange: Exchange) -> int:
    (count,) = exchange.select("catalog", "SELECT count(*) FROM receipt")
    return int(count)
