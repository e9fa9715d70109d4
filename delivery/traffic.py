"""Publish at a steady rate over HTTP, and keep a journal of what the API promised."""

from __future__ import annotations

import random
import threading
import time
import uuid
from dataclasses import dataclass
from typing import Any

from delivery.client import post
from delivery.errors import DeliveryError
from delivery.stopping import Stop

__all__ = ["KILLER", "MOODY", "Entry", "Journal", "Traffic"]

MOODY = "moody"  # the first word of a title that the recipients' stores refuse now and then
KILLER = "killer"  # the first word of one whose handling kills its process


@dataclass(frozen=True)
class Entry:
    """One answer 202: the client may rely on it."""

    event_id: str
    material_id: str
    revision: int
    title: str
    answered_at: float  # Unix seconds


class Journal:
    """What clients were promised, kept apart from the publisher's own store."""

    def __init__(self, url: str, stop: Stop) -> None:
        self._url = url
        self.stop = stop
        self._lock = threading.Lock()
        self.entries: dict[str, Entry] = {}
        self.refused = 0  # answers that ask to come again, and no answers at all
        self.last_refusal = ""

    def publish(self, material_id: str, title: str, *, patience: float = 120.0) -> Entry:
        """Publish one material; repeat the request under its key until the API answers.

        Raises DeliveryError for a refusal, for an event that another request was promised already,
        and if nobody answers within *patience* seconds or before the run is stopped.
        """
        end = time.monotonic() + patience
        command = {"material_id": material_id, "title": title, "slug": "s", "author": "A"}
        key = uuid.uuid4().hex
        while True:
            status, answer = self._ask(command, key)
            if status == 202:
                entry = Entry(
                    answer["event_id"], material_id, answer["revision"], title, time.time()
                )
                self._keep(entry)
                return entry
            if status < 500:
                raise DeliveryError(f"the API refused a publication: {status} {answer}")
            self.refused, self.last_refusal = self.refused + 1, str(answer.get("detail", answer))
            if self.stop or time.monotonic() > end:
                raise DeliveryError(f"the API never answered; at last: {answer}")
            time.sleep(0.1)

    def _keep(self, entry: Entry) -> None:
        with self._lock:
            if entry.event_id in self.entries:
                raise DeliveryError(f"the API promised {entry.event_id} to two requests")
            self.entries[entry.event_id] = entry

    def _ask(self, command: dict[str, Any], key: str) -> tuple[int, dict[str, Any]]:
        try:
            status, answer, _ = post(self._url, command, key)
        except DeliveryError as error:  # no answer: it may have been accepted, or not
            return 503, {"detail": str(error)}
        return status, answer


class Traffic(threading.Thread):
    """Publishes *rate* materials a second, drawn from *seed*, until told to end.

    One title in fifty is moody. A late answer is not made up for: the rate is an upper bound.
    """

    def __init__(self, journal: Journal, *, rate: float, materials: int, seed: int) -> None:
        super().__init__(daemon=True, name="traffic")
        self._journal = journal
        self._pause = 1 / rate
        self._materials = materials
        self._random = random.Random(seed)  # noqa: S311 - repeatable on purpose
        self._ending = threading.Event()
        self.error: Exception | None = None  # why it ended by itself: an answer without an id, say

    def run(self) -> None:
        """Publish until `end`."""
        due = time.monotonic()
        number = 0
        while not self._ending.wait(max(0.0, due - time.monotonic())):
            due = max(due + self._pause, time.monotonic() - 1.0)
            number += 1
            mood = MOODY if self._random.random() < 0.02 else "calm"
            material = f"m-{self._random.randrange(self._materials)}"
            try:
                self._journal.publish(material, f"{mood} {number}")
            except (DeliveryError, LookupError, TypeError, ValueError) as error:
                self.error = error
                return

    def end(self) -> None:
        """Publish nothing more, and return when the last request was answered."""
        self._ending.set()
        self.join()
