"""Tell what happened between two looks, in lines that a viewer who was away can catch up on."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from delivery.live_counts import Counts
from delivery.observe import Waiting
from delivery.parking import Parked

__all__ = ["KEPT", "Line", "Story"]

KEPT = 300  # lines
JOIN = 1.5  # seconds within which the same news of the same teller makes one line


@dataclass(frozen=True)
class Line:
    """One line; *number* grows with each change of any line, *first* names the line for ever."""

    first: int
    number: int
    at: float  # Unix seconds
    who: str
    what: str
    count: int
    tone: str  # good, warn, bad, or act: something that the presenter did


class Story:
    """Collects lines, from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lines: deque[Line] = deque(maxlen=KEPT)
        self._number = 0

    def tell(self, who: str, what: str, *, tone: str = "act", count: int = 1) -> None:
        """Add a line, or count it in with the one that says the same and is still fresh."""
        now = time.time()
        with self._lock:
            self._number += 1
            for index in range(len(self._lines) - 1, -1, -1):
                line = self._lines[index]
                if now - line.at > JOIN:
                    break
                if (line.who, line.what) == (who, what) and tone != "act":
                    changed = replace(line, number=self._number, count=line.count + count)
                    self._lines[index] = changed
                    return
            self._lines.append(Line(self._number, self._number, now, who, what, count, tone))

    def clear(self) -> None:
        """Forget every line; later ones keep counting from here."""
        with self._lock:
            self._lines.clear()

    def since(self, number: int) -> list[Line]:
        """Return the lines that are new or changed since *number*, oldest first."""
        with self._lock:
            return [line for line in self._lines if line.number > number]

    def compare_counts(self, old: Counts | None, new: Counts | None) -> None:
        """Tell what the stores have more than before."""
        if old is None or new is None:
            return
        if old.outgoing and new.outgoing:
            before, now = old.outgoing, new.outgoing
            self._more("api", "accepted", "good", now.accepted - before.accepted)
            sent = now.accepted - now.waiting - before.accepted + before.waiting
            self._more("relay", "confirmed by the broker", "good", sent)
            for outcome in ("returned", "refused", "unknown"):
                more = now.pending.get(outcome, 0) - before.pending.get(outcome, 0)
                self._more("relay", f"{outcome}: stays in the outbox", "bad", more)
        for recipient, receipts in new.receipts.items():
            known = old.receipts.get(recipient)
            if receipts is None or known is None:
                continue
            self._more(recipient, "applied", "good", receipts.applied - known.applied)
            stale = receipts.stale - known.stale
            self._more(recipient, "stale: a newer revision was there", "warn", stale)
            again = receipts.duplicates - known.duplicates
            self._more(recipient, "duplicate: recognised by its receipt", "warn", again)
            self._more(recipient, "dropped", "warn", receipts.dropped - known.dropped)

    def compare_places(self, old: Sequence[Waiting] | None, new: Sequence[Waiting] | None) -> None:
        """Tell what the broker's queues have more than before."""
        if (old is None) != (new is None):
            lost = new is None
            what = "out of sight" if lost else "in sight"
            self.tell("broker", what, tone="bad" if lost else "good")
        if old is None or new is None:
            return
        known: Mapping[str, Waiting] = {place.recipient: place for place in old}
        for place in new:
            before = known[place.recipient]
            self._more(place.recipient, "dead", "bad", (place.dead or 0) - (before.dead or 0))
            for n, (was, now) in enumerate(zip(before.retry, place.retry, strict=True), start=1):
                self._more(place.recipient, f"waits for retry {n}", "warn", (now or 0) - (was or 0))
            if bool(before.consumers) != bool(place.consumers):
                what = "consumes" if place.consumers else "nobody consumes its queue"
                self.tell(place.recipient, what, tone="good" if place.consumers else "bad")

    def compare_parked(self, old: Parked | None, new: Parked | None) -> None:
        """Tell what no queue wanted since; what somebody held and gives back is not new."""
        if any(each and each.held for each in (old, new)):
            return
        before, now = (each.ready or 0 if each else 0 for each in (old, new))
        self._more("exchange", "parked: no queue wanted it", "bad", now - before)

    def _more(self, who: str, what: str, tone: str, count: int) -> None:
        if count > 0:
            self.tell(who, what, tone=tone, count=count)
