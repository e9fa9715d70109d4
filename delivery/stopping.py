"""Ask a loop to finish what it has begun: a signal becomes a flag."""

from __future__ import annotations

import signal
import time

__all__ = ["Stop", "stop_on_signals"]

TICK = 0.1  # seconds


class Stop:
    """False until somebody asks to stop.

    Not a ``threading.Event``: its lock could be held by the very thread that a signal handler
    interrupts.
    """

    def __init__(self) -> None:
        self._requested = False

    def __bool__(self) -> bool:
        return self._requested

    def request(self, *_signal: object) -> None:
        """Ask the loop to finish; safe in a signal handler."""
        self._requested = True

    def wait(self, seconds: float) -> None:
        """Sleep for *seconds*, or until somebody asks to stop."""
        end = time.monotonic() + seconds
        while not self._requested and (left := end - time.monotonic()) > 0:
            time.sleep(min(left, TICK))


def stop_on_signals() -> Stop:
    """Return a Stop that SIGTERM and SIGINT request; call it in the main thread."""
    stop = Stop()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop.request)
    return stop
