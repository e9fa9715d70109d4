"""Wait for a condition with a deadline; never sleep and hope."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_for(condition: Callable[[], object], what: str, seconds: float = 20.0) -> None:
    """Return as soon as *condition* holds; fail, naming *what*, after *seconds*."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not within {seconds} s: {what}"
        time.sleep(0.02)
