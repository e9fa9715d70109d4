"""Receive deliveries on one channel, and keep them until they are taken."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from pika import BasicProperties
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPError

from delivery.errors import TemporaryError
from delivery.handling import Delivery
from delivery.points import reach
from delivery.stopping import TICK

__all__ = ["ConsumingEnded", "Reader"]


class ConsumingEnded(TemporaryError):
    """The broker stopped sending without being asked (queue deleted, channel closed)."""

    event = "consuming.ended"


class Reader:
    """The deliveries that *queue* sent; at most *prefetch* of them are unsettled at a time.

    *meanwhile* runs on this thread at least every 0.1 s: serve other connections there.
    """

    def __init__(
        self,
        channel: BlockingChannel,
        queue: str,
        *,
        prefetch: int,
        meanwhile: Callable[[], None],
    ) -> None:
        self._channel = channel
        self._queue = queue
        self._meanwhile = meanwhile
        self._arrived: deque[Delivery] = deque()
        self._cancelled = False
        channel.basic_qos(prefetch_count=prefetch)
        channel.add_on_cancel_callback(self._on_cancel)
        self._tag = channel.basic_consume(queue, self._on_delivery)

    def serve_until(self, done: Callable[[], bool], seconds: float | None = None) -> None:
        """Serve the connection until *done*, or for *seconds*. Raises ConsumingEnded."""
        end = time.monotonic() + (float("inf") if seconds is None else seconds)
        while not done() and time.monotonic() < end:
            self._channel.connection.process_data_events(time_limit=TICK)
            # pika reports neither of these two by an exception.
            if self._cancelled or not self._channel.is_open:
                raise ConsumingEnded(f"the broker ended consuming from {self._queue!r}")
            self._meanwhile()

    def wake(self) -> None:
        """End the wait of ``serve_until`` early; safe in any thread."""
        with contextlib.suppress(AMQPError):  # lost meanwhile: then nobody waits
            self._channel.connection.add_callback_threadsafe(lambda: None)

    def __len__(self) -> int:
        return len(self._arrived)

    def take(self, most: int) -> list[Delivery]:
        """Return the next batch. A redelivered message goes alone: it may have killed a process."""
        taken: list[Delivery] = []
        while self._arrived and len(taken) < most:
            if taken and (self._arrived[0].redelivered or taken[-1].redelivered):
                break
            taken.append(self._arrived.popleft())
        return taken

    def close(self) -> None:
        """Stop receiving, and give back what was not taken."""
        self._channel.basic_cancel(self._tag)
        for delivery in self._arrived:
            self._channel.basic_nack(delivery.tag, requeue=True)
            reach("reader.given_back")
        self._arrived.clear()

    @contextlib.contextmanager
    def returning(self) -> Iterator[None]:
        """Give back all that is not settled if the block ends by a TemporaryError.

        With a word: what a closed channel returns counts towards a quorum queue's delivery limit,
        and after some twenty failures of a store, say, all that was prefetched would be dead.
        """
        try:
            yield
        except TemporaryError:
            with contextlib.suppress(AMQPError):  # no channel any more: the broker takes them back
                self._channel.basic_cancel(self._tag)
                self._channel.basic_nack(0, multiple=True, requeue=True)
            raise

    def _on_cancel(self, _frame: object) -> None:
        self._cancelled = True

    def _on_delivery(
        self, _channel: BlockingChannel, method: Any, properties: BasicProperties, body: bytes
    ) -> None:
        self._arrived.append(
            Delivery(
                queue=self._queue,
                body=body,
                properties=properties,
                tag=method.delivery_tag,
                redelivered=method.redelivered,
            )
        )
