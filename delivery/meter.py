"""Count and time what a relay or a recipient does, from outside: by its log, and by wrappers."""

from __future__ import annotations

import logging
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from delivery.contract import Event
from delivery.failures import Failure
from delivery.handling import Effect, Tx

__all__ = ["SECONDS", "Meter", "ReceiverMeter"]

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0)
EFFECTS = (*(effect.value for effect in Effect if effect is not Effect.DROPPED), "failed")


class Meter(logging.Handler):
    """What every process has: its connection. *process* is ``relay`` or a recipient.

    A logging handler for the package's own records: they are written when a thing is done, not when
    it is tried. Counters begin at 0 with the process.
    """

    def __init__(self, process: str) -> None:
        super().__init__()
        self.registry = CollectorRegistry()
        self._ready_event = f"{process}.ready"
        self._was_ready = False
        self._lost = self._counter("connections_lost", "Connections lost, or not made", process)
        self._again = self._counter("reconnects", "Times it was ready again", process)
        self._blocks = self._counter("connection_blocks", "Times the broker blocked it", process)
        self._blocked = Gauge(
            "delivery_connection_blocked",
            "1 while the broker blocks publishing (an alarm), else 0",
            ["process"],
            registry=self.registry,
        ).labels(process)

    def emit(self, record: logging.LogRecord) -> None:
        """Count what the record says has happened."""
        match record.getMessage():
            case "connection.lost" | "access.refused":
                self._lost.inc()
                self._blocked.set(0)
            case "channel.closed" | "consuming.ended" | "store.unavailable" | "copy.not_confirmed":
                self._blocked.set(0)  # the connection is given up with them
            case "connection.blocked":
                self._blocks.inc()
                self._blocked.set(1)
            case "connection.unblocked":
                self._blocked.set(0)
            case self._ready_event:
                if self._was_ready:
                    self._again.inc()
                self._was_ready = True

    def _counter(self, name: str, help_text: str, process: str) -> Counter:
        made = Counter(f"delivery_{name}", help_text, ["process"], registry=self.registry)
        return made.labels(process)


class ReceiverMeter(Meter):
    """Deliveries, effects by kind, handler seconds, retries, dead by reason of one recipient."""

    def __init__(self, recipient: str) -> None:
        super().__init__(recipient)
        more = ["recipient"]
        self._recipient = recipient
        self._deliveries = Counter(
            "delivery_deliveries", "Deliveries settled", more, registry=self.registry
        ).labels(recipient)
        self._effects = Counter(
            "delivery_effects",
            "Deliveries settled, by effect",
            [*more, "effect"],
            registry=self.registry,
        )
        for effect in EFFECTS:
            self._effects.labels(recipient, effect)
        self._handler = Histogram(
            "delivery_handler_seconds",
            "Time in the handler, whether it succeeded or not",
            more,
            buckets=SECONDS,
            registry=self.registry,
        ).labels(recipient)
        self._retries = Counter(
            "delivery_retries",
            "Copies that wait, by retry",
            [*more, "retry"],
            registry=self.registry,
        )
        self._dead = Counter(
            "delivery_dead", "Messages parked, by reason", [*more, "reason"], registry=self.registry
        )

    def emit(self, record: logging.LogRecord) -> None:
        """Count what the record says has happened."""
        super().emit(record)
        if record.getMessage() == "delivery.settled":
            self._deliveries.inc()
            self._effects.labels(self._recipient, vars(record)["effect"]).inc()
        elif record.getMessage() == "batch.settled":  # its failures have a record of their own
            for effect in EFFECTS:
                count = vars(record).get(effect, 0)
                self._deliveries.inc(count)
                self._effects.labels(self._recipient, effect).inc(count)

    def handler(self, handle: Callable[[Event, Tx], Effect]) -> Callable[[Event, Tx], Effect]:
        """Wrap *handle*, so that it is timed."""

        def timed(event: Event, tx: Tx) -> Effect:
            with self._handler.time():
                return handle(event, tx)

        return timed

    def failed(self, failure: Failure) -> None:
        """Count a failed attempt whose copy is safe."""
        if failure.reason is None:
            self._retries.labels(self._recipient, str(failure.attempt)).inc()
        else:
            self._dead.labels(self._recipient, failure.reason).inc()
