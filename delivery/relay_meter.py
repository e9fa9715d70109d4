"""Count what the broker answered to a relay, and time how long it took."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from prometheus_client import Counter, Histogram

from delivery.confirms import Answer, Outcome
from delivery.meter import SECONDS, Meter
from delivery.outbox import Batch, Outbox
from delivery.publisher import Message

__all__ = ["RelayMeter"]


class RelayMeter(Meter):
    """Outcomes by kind, and how long the broker took; wrap the outbox with ``outbox``."""

    def __init__(self) -> None:
        super().__init__("relay")
        self._outcomes = Counter(
            "delivery_publish_outcomes",
            "Attempts to publish, by what the broker answered",
            ["outcome"],
            registry=self.registry,
        )
        for outcome in Outcome:
            self._outcomes.labels(outcome.value)  # a series that does not exist can't be alerted on
        self._confirm = Histogram(
            "delivery_confirm_seconds",
            "From handing a message over, with its batch, to the batch's last answer",
            buckets=SECONDS,
            registry=self.registry,
        )

    def outbox(self, outbox: Outbox) -> Outbox:
        """Wrap *outbox*, so that each recorded answer is counted."""
        return _MeteredOutbox(outbox, self)

    def answered(self, answers: Sequence[Answer], seconds: float) -> None:
        """Count *answers*, which came within *seconds*."""
        for answer in answers:
            self._outcomes.labels(answer.outcome.value).inc()
            self._confirm.observe(seconds)


class _MeteredOutbox:
    def __init__(self, outbox: Outbox, meter: RelayMeter) -> None:
        self._outbox = outbox
        self._meter = meter

    @contextmanager
    def batch(self, limit: int) -> Iterator[Batch]:
        with self._outbox.batch(limit) as batch:
            yield _MeteredBatch(batch, self._meter)


class _MeteredBatch:
    def __init__(self, batch: Batch, meter: RelayMeter) -> None:
        self._batch = batch
        self._meter = meter
        self._begun = time.perf_counter()

    @property
    def messages(self) -> Sequence[Message]:
        return self._batch.messages

    def record(self, answers: Sequence[Answer]) -> None:
        seconds = time.perf_counter() - self._begun
        self._batch.record(answers)
        self._meter.answered(answers, seconds)
