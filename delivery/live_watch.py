"""Look at one place again and again in a thread of its own, and keep what was seen last."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from pika.exceptions import AMQPError

from delivery.connection import describe
from delivery.errors import DeliveryError

__all__ = ["NOT_YET", "Seen", "Watcher"]

T = TypeVar("T")
NOT_YET = "not looked at yet"  # the page knows these words
AGAIN = 1.0  # seconds at most after a look that failed: what is back must be seen soon
SHARE = 0.1  # of the time at most that looking may take: a large store is looked at less often
WAITING = 0.5  # the same where a look is mostly waiting: a slow broker must not be unseen for long


@dataclass(frozen=True)
class Seen(Generic[T]):
    """The last look: its *value*, or why there is none; *at* in Unix seconds, *took* in seconds."""

    value: T | None
    why: str
    at: float
    took: float


class Watcher(Generic[T]):
    """Calls *look* every *period* seconds while somebody watches; *told* hears each new value.

    A slow look is repeated less often: it takes *share* of the time at most.
    *look* may raise DeliveryError, sqlite3.Error, OSError, and pika's AMQPError: that is said in
    place of a value. What it raises otherwise ends the thread, and the age of the value shows it.
    """

    def __init__(
        self,
        name: str,
        look: Callable[[], T],
        *,
        period: float,
        share: float = SHARE,
        told: Callable[[T | None], None] = lambda _: None,
    ) -> None:
        self._look = look
        self._told = told
        self._period = period
        self._share = share
        self._wanted = threading.Event()
        self._closed = threading.Event()
        self.seen: Seen[T] = Seen(None, NOT_YET, time.time(), 0.0)
        self._thread = threading.Thread(target=self._run, name=f"watch-{name}", daemon=True)
        self._thread.start()

    def want(self, wanted: bool) -> None:
        """Look from now on, or rest."""
        if wanted:
            self._wanted.set()
        else:
            self._wanted.clear()

    def close(self) -> None:
        """Look no more."""
        self._closed.set()
        self._wanted.set()

    def _run(self) -> None:
        while True:
            self._wanted.wait()
            if self._closed.is_set():
                return
            begun = time.monotonic()
            value, why = None, ""
            try:
                value = self._look()
            except (DeliveryError, AMQPError, OSError, sqlite3.Error) as error:
                why = describe(error)
            took = time.monotonic() - begun
            self.seen = Seen(value, why, time.time(), took)
            self._told(value)
            rest = max(self._period, took / self._share) - took
            self._closed.wait(min(rest, AGAIN) if why else rest)
