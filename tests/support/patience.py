"""Quorum queues on a busy RabbitMQ 3.10: what it could not do within its own 5 s is asked again."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from pika.adapters.blocking_connection import BlockingConnection
from pika.exceptions import ConnectionClosedByBroker, NackError, StreamLostError

from delivery.connection import BrokerSettings, connect

T = TypeVar("T")
INTERNAL_ERROR = 541  # AMQP 0-9-1, reply codes; a queue's group has no leader yet
PATIENCE = 120.0  # seconds


def patiently(settings: BrokerSettings, act: Callable[[BlockingConnection], T]) -> T:
    """Act on a new connection, again after a 541, a nack or a lost connection.

    A 541 does not say that nothing was done, so *act* is one thing that may be done twice: a queue
    that was deleted with a 541 is gone the next time.
    """
    end = time.monotonic() + PATIENCE
    while True:
        try:
            with connect(settings) as own:
                return act(own)
        except (ConnectionClosedByBroker, StreamLostError, NackError) as trouble:
            code = getattr(trouble, "reply_code", INTERNAL_ERROR)
            if code != INTERNAL_ERROR or time.monotonic() > end:
                raise
        time.sleep(0.5)


def remove_queues(settings: BrokerSettings, *queues: str) -> None:
    """Delete the queues, also those that are gone already."""

    def delete(own: BlockingConnection) -> None:
        for queue in queues:
            own.channel().queue_delete(queue)

    patiently(settings, delete)
