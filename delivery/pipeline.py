"""A channel on which every publish is answered, with many messages in flight at once."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

from pika import BasicProperties, SelectConnection
from pika.adapters.select_connection import IOLoop
from pika.channel import Channel
from pika.spec import Basic

from delivery.confirms import Answer, InFlight, NotConfirmed, Outcome
from delivery.connection import BrokerSettings, BrokerUnavailable, describe
from delivery.publisher import Message

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
        self._timeout = timeout
        self._window = window
        self._in_flight = InFlight()
        self._address = settings.address
        self._gone = ""  # why the connection can't be used any more
        self._ready = self._closed = False
        self._channel: Channel | None = None
        self._loop = IOLoop()
        self._loop.activate_poller()
        self._connection = SelectConnection(
            settings.parameters(),
            on_open_callback=self._on_open,
            on_open_error_callback=self._on_closed,
            on_close_callback=self._on_closed,
            custom_ioloop=self._loop,
        )
        self._run_until(lambda: self._ready or bool(self._gone), settings.connect_timeout * 2)
        if not self._ready:
            reason = self._gone or "no answer in time"
            self.close()
            raise BrokerUnavailable(f"no broker at {self._address}: {reason}")

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
        while (todo or self._in_flight.open) and not self._gone:
            while todo and len(self._in_flight.open) < self._window and not self._gone:
                tags.append(self._publish(todo.popleft()))
            self._await_progress()
        return [self._in_flight.answers.pop(tag) for tag in tags]

    def move(self, body: bytes, properties: BasicProperties, *, to_queue: str) -> None:
        """Put a copy straight into one queue, or raise NotConfirmed."""
        answer = self.send(Message("", to_queue, properties, body))
        if answer.outcome is not Outcome.CONFIRMED:
            raise NotConfirmed(answer, to_queue)

    def serve(self, seconds: float = 0.0) -> None:
        """Serve heartbeats for *seconds*; call it often. Raises BrokerUnavailable if it is gone."""
        self._run_until(lambda: bool(self._gone), seconds)
        self._check()

    def close(self) -> None:
        """Close the connection; what is in flight becomes UNKNOWN."""
        if self._closed:
            return
        self._closed = True
        if not (self._connection.is_closed or self._connection.is_closing):
            self._connection.close()
            self._run_until(lambda: self._connection.is_closed, 1.0)
        self._in_flight.lost("closed here")
        self._loop.close()

    def __enter__(self) -> ConfirmedChannel:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.close()

    def _publish(self, message: Message) -> int:
        assert self._channel is not None
        self._channel.basic_publish(
            message.exchange, message.routing_key, message.body, message.properties, mandatory=True
        )
        return self._in_flight.sent(message)

    def _await_progress(self) -> None:
        before = len(self._in_flight.open)
        self._run_until(
            lambda: len(self._in_flight.open) < before or bool(self._gone), self._timeout
        )
        if len(self._in_flight.open) == before and not self._gone:
            self._give_up(f"no confirm within {self._timeout:g} s")

    def _give_up(self, reason: str) -> None:
        # A late confirm must find nobody: the messages will be sent again on another channel.
        self._gone = self._gone or reason
        self._in_flight.lost(self._gone)

    def _check(self) -> None:
        if self._gone:
            raise BrokerUnavailable(f"the connection to {self._address} is gone: {self._gone}")

    def _run_until(self, done: Callable[[], bool], seconds: float) -> None:
        """Run the connection's own I/O loop, in this thread, until *done* or for *seconds*."""
        end = time.monotonic() + seconds
        alarm = self._loop.call_later(seconds, lambda: None)  # ends a poll that hears nothing
        while True:
            self._loop.poll()
            self._loop.process_timeouts()
            if done() or time.monotonic() >= end:
                break
        self._loop.remove_timeout(alarm)

    def _on_open(self, connection: SelectConnection) -> None:
        connection.channel(on_open_callback=self._on_channel_open)

    def _on_channel_open(self, channel: Channel) -> None:
        self._channel = channel
        channel.add_on_close_callback(self._on_closed)
        channel.add_on_return_callback(self._on_return)
        channel.confirm_delivery(self._on_confirm, callback=self._on_confirming)

    def _on_confirming(self, _frame: object) -> None:
        self._ready = True

    def _on_return(
        self, _channel: Channel, method: Basic.Return, properties: BasicProperties, _body: bytes
    ) -> None:
        self._in_flight.returned(
            properties.message_id,
            f"{method.reply_code} {method.reply_text}: exchange {method.exchange!r},"
            f" key {method.routing_key!r}",
        )

    def _on_confirm(self, frame: Any) -> None:
        ack = isinstance(frame.method, Basic.Ack)
        self._in_flight.answered(frame.method.delivery_tag, multiple=frame.method.multiple, ack=ack)

    def _on_closed(self, _source: object, reason: BaseException | str) -> None:
        text = describe(reason) if isinstance(reason, BaseException) else reason
        self._give_up(text)
