"""Say when a channel has refused everything for so long that another one may do better."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from delivery.confirms import Outcome

__all__ = ["Refusals"]

FIRST, MOST = 3.0, 60.0  # seconds of nothing but refusals before another channel is tried
IN_A_ROW = 3  # batches; one alone may have met a leader that has just died


class Refusals:
    """The batches in a row in which every message was refused.

    RabbitMQ 3.10.8, seen: a channel that was opened soon after a quorum queue's leader was killed
    may go on to refuse when there is a new leader, and a new channel confirms at once. A full queue
    refuses on every channel: so each change is followed by twice the patience, until something is
    not refused.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._patience, self._batches, self._since = FIRST, 0, 0.0

    def last(self, outcomes: Mapping[Outcome, int]) -> bool:
        """Take in how often each outcome came; say if it is time for another channel."""
        if not outcomes:
            return False
        if any(count for outcome, count in outcomes.items() if outcome is not Outcome.REFUSED):
            self._patience, self._batches = FIRST, 0
            return False
        now = self._clock()
        self._since = self._since if self._batches else now
        self._batches += 1
        if self._batches < IN_A_ROW or now - self._since < self._patience:
            return False
        self._patience, self._batches = min(2 * self._patience, MOST), 0
        return True
