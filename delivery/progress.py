"""Say every few seconds how far a long piece of work is."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

__all__ = ["ticker", "told"]

T = TypeVar("T")
EVERY = 5.0  # seconds
STEP = 100  # ticks after which the clock is looked at; of less work than that nothing is said


def ticker(
    say: Callable[[str], object], what: str, *, serve: Callable[[], object] = lambda: None
) -> Callable[[], None]:
    """Return what is to be called for each piece done; *serve* is called now and then, too."""
    done, said = 0, time.monotonic()

    def tick() -> None:
        nonlocal done, said
        done += 1
        if done % STEP:
            return
        serve()
        if time.monotonic() - said >= EVERY:
            say(f"{what}: {done} so far")
            said = time.monotonic()

    return tick


def told(items: Iterable[T], tick: Callable[[], None]) -> Iterator[T]:
    """Give *items*, with a *tick* after each."""
    for item in items:
        yield item
        tick()
