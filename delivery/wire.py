"""Open a connection with one channel in confirm mode, and run its I/O loop in this thread."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from pika import BasicProperties, SelectConnection
from pika.adapters.select_connection import IOLoop
from pika.channel import Channel
from pika.exceptions import ChannelClosedByBroker
from pika.spec import Basic

from delivery.confirms import InFlight
from delivery.connection import (
    ACCESS_REFUSED,
    BrokerSettings,
    BrokerUnavailable,
    describe,
    unavailable,
)
from delivery.publisher import Message

__all__ = ["Wire"]

ROOM = 65_536  # bytes of frames that wait for one write

log = logging.getLogger(__name__)


class _Gathering(SelectConnection):
    """Writes its frames together: pika asks the system three times for each message."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._frames: list[bytes] = []
        self._size = 0
        super().__init__(*args, **kwargs)

    def _adapter_emit_data(self, data: bytes) -> None:
        self._frames.append(data)
        self._size += len(data)
        if self._size >= ROOM:
            self.flush()

    def flush(self) -> None:
        """Hand over what is gathered; a connection that is closed drops it, as pika does."""
        if self._frames:
            data = b"".join(self._frames)
            self._frames.clear()
            self._size = 0
            if not self.is_closed:
                super()._adapter_emit_data(data)  # type: ignore[misc]  # missing in the stubs


class Wire:
    """What pika's SelectConnection needs around it: callbacks in, and the loop, run on demand.

    ``gone`` says why the connection can't be used any more; empty while it can. ``blocked`` is the
    broker's reason for not taking publishes now (an alarm), empty while it does. Raises
    BrokerUnavailable, AccessRefused if it can't be opened.
    """

    def __init__(self, settings: BrokerSettings, in_flight: InFlight) -> None:
        self.gone = self.blocked = ""
        self._error: BaseException | None = None
        self.address = settings.address
        self._in_flight = in_flight
        self._channel: Channel | None = None
        self._confirming = self._closed = False
        self._loop = IOLoop()
        self._loop.activate_poller()
        self._connection = _Gathering(
            settings.parameters(),
            on_open_callback=self._on_open,
            on_open_error_callback=self._on_closed,
            on_close_callback=self._on_closed,
            custom_ioloop=self._loop,
        )
        self._connection.add_on_connection_blocked_callback(self._on_blocked)
        self._connection.add_on_connection_unblocked_callback(self._on_unblocked)
        ready = lambda: self._confirming or bool(self.gone)  # noqa: E731
        # A second more than pika's own limit, so that pika can give up in order.
        self.run_until(ready, settings.stack_timeout + 1.0)
        if not self._confirming:
            self.close()
            if self._error is not None:
                raise unavailable(settings, self._error) from self._error
            raise BrokerUnavailable(f"no broker at {settings.address}: no answer in time")

    @property
    def refused(self) -> bool:
        """Whether the broker closed the channel because this user lacks a right."""
        error = self._error
        return isinstance(error, ChannelClosedByBroker) and error.reply_code == ACCESS_REFUSED

    def publish(self, message: Message) -> None:
        """Write *message*, mandatory, to the socket or to pika's buffer."""
        assert self._channel is not None
        self._channel.basic_publish(
            message.exchange, message.routing_key, message.body, message.properties, mandatory=True
        )

    def run_until(self, done: Callable[[], bool], seconds: float) -> None:
        """Do the connection's I/O until *done*, or for *seconds*."""
        end = time.monotonic() + seconds
        alarm = self._loop.call_later(seconds, lambda: None)  # ends a poll that hears nothing
        while True:
            self._connection.flush()
            self._loop.poll()
            self._loop.process_timeouts()
            if done() or time.monotonic() >= end:
                break
        self._loop.remove_timeout(alarm)

    def give_up(self, reason: str) -> None:
        """Expect no more answers: what is in flight becomes UNKNOWN.

        A confirm that comes late finds nobody: the message is sent again on another connection.
        """
        self.gone = self.gone or reason
        self._in_flight.lost(self.gone)

    def close(self) -> None:
        """Close the connection and the loop; twice is once."""
        if self._closed:
            return
        self._closed = True
        if self._connection.is_open:  # pika can't close one that is still opening
            self._connection.close()
            self.run_until(lambda: self._connection.is_closed, 1.0)
        self.give_up("closed here")
        self._loop.close()

    def _on_open(self, connection: SelectConnection) -> None:
        connection.channel(on_open_callback=self._on_channel_open)

    def _on_blocked(self, _connection: SelectConnection, frame: Any) -> None:
        # Said once for each alarm, and only to a connection that publishes.
        log.warning("connection.blocked", extra={"reason": frame.method.reason})
        self.blocked = f"; the broker takes no publishes now: {frame.method.reason}"

    def _on_unblocked(self, _connection: SelectConnection, _frame: object) -> None:
        log.warning("connection.unblocked")
        self.blocked = ""

    def _on_channel_open(self, channel: Channel) -> None:
        self._channel = channel
        channel.add_on_close_callback(self._on_closed)
        channel.add_on_return_callback(self._on_return)
        channel.confirm_delivery(self._on_confirm, callback=self._on_confirming)

    def _on_confirming(self, _frame: object) -> None:
        self._confirming = True

    def _on_return(
        self, _channel: Channel, method: Basic.Return, properties: BasicProperties, _body: bytes
    ) -> None:
        where = f"exchange {method.exchange!r}, key {method.routing_key!r}"
        detail = f"{method.reply_code} {method.reply_text}: {where}"
        self._in_flight.returned(properties.message_id, detail)

    def _on_confirm(self, frame: Any) -> None:
        answer = frame.method
        ack = isinstance(answer, Basic.Ack)
        self._in_flight.answered(answer.delivery_tag, multiple=answer.multiple, ack=ack)

    def _on_closed(self, _source: object, reason: BaseException | str) -> None:
        if isinstance(reason, BaseException):
            self._error = self._error or reason
            reason = describe(reason)
        self.give_up(reason)
