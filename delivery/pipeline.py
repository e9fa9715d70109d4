"""A channel on which every publish is answered, with many messages in flight at once."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from types import TracebackType

from pika import BasicProperties

from delivery.confirms import Answer, InFlight, NotConfirmed, Outcome
from delivery.connection import AccessRefused, BrokerSettings, BrokerUnavailable, open_any
from delivery.publisher import Message
from delivery.wire import Wire

__all__ = ["ConfirmedChannel"]


class ConfirmedChannel:
    """A connection with one channel in confirm mode; a plain channel can't stand in for it.

    *timeout* is in seconds without any answer from the broker: past it, all that is in flight is
    UNKNOWN and the connection is given up (pika itself would wait for ever). *window* bounds the
    messages in flight. Not thread-safe. Raises BrokerUnavailable if there is no broker.
    """

    def __init__(
        self, settings: BrokerSettings, *, timeout: float = 10.0, window: int = 500
    ) -> None:
        self._settings = settings
        self._timeout = timeout
        self._window = window
        self._open()

    def _open(self) -> None:
        self._in_flight = in_flight = InFlight()
        self._wire = open_any(self._settings, lambda node: Wire(node, in_flight))

    def reopen(self) -> None:
        """Close the connection and open another one. Raises BrokerUnavailable."""
        self._wire.close()
        self._open()

    def send(self, message: Message) -> Answer:
        """Publish once, mandatory, and wait for the answer."""
        return self.send_all([message])[0]

    def send_all(self, messages: Sequence[Message]) -> list[Answer]:
        """Publish *messages* in order, and return an answer for each that was sent.

        The list is shorter than *messages* if the connection did not live to send the rest; the
        next call then raises BrokerUnavailable. Message ids must differ within one call.
        """
        self._check()
        todo = deque(messages)
        tags: list[int] = []
        in_flight = self._in_flight
        while (todo or in_flight.open) and not self._wire.gone:
            while todo and len(in_flight.open) < self._window:
                self._wire.publish(todo[0])
                tags.append(in_flight.sent(todo.popleft()))
            self._await_progress()
        return [in_flight.answers.pop(tag) for tag in tags]

    def move(self, body: bytes, properties: BasicProperties, *, to_queue: str) -> None:
        """Put a copy straight into one queue, or raise NotConfirmed."""
        answer = self.send(Message("", to_queue, properties, body))
        if answer.outcome is not Outcome.CONFIRMED:
            raise NotConfirmed(answer, to_queue)

    def serve(self, seconds: float = 0.0) -> None:
        """Serve heartbeats for *seconds*; call it often. Raises BrokerUnavailable if it is gone."""
        self._wire.run_until(lambda: bool(self._wire.gone), seconds)
        self._check()

    def close(self) -> None:
        """Close the connection."""
        self._wire.close()

    def __enter__(self) -> ConfirmedChannel:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.close()

    def _await_progress(self) -> None:
        """Wait for any answer, or for the timeout."""
        wire, in_flight = self._wire, self._in_flight
        before = len(in_flight.open)
        wire.run_until(lambda: len(in_flight.open) < before or bool(wire.gone), self._timeout)
        if len(in_flight.open) == before and not wire.gone:
            wire.give_up(f"no confirm within {self._timeout:g} s{wire.blocked}")

    def _check(self) -> None:
        if self._wire.gone:
            kind = AccessRefused if self._wire.refused else BrokerUnavailable
            raise kind(f"the connection to {self._wire.address} is gone: {self._wire.gone}")
