"""Put one event on the wire, persistent and identified; promise nothing more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pika import BasicProperties, DeliveryMode
from pika.adapters.blocking_connection import BlockingChannel

from delivery.codec import CONTENT_TYPE, encode
from delivery.contract import Event

__all__ = ["APP_ID", "Message", "envelope", "properties_of", "publish"]

APP_ID = "delivery"
_CARRIED = (str, bytes, bool, int, datetime, type(None))


@dataclass(frozen=True)
class Message:
    """An event on the wire: where it goes, its properties, and its bytes."""

    exchange: str
    routing_key: str
    properties: BasicProperties
    body: bytes


def envelope(
    event_id: str,
    event_type: str,
    *,
    timestamp: int,
    correlation_id: str | None = None,
    headers: Mapping[str, object] | None = None,
) -> BasicProperties:
    """Return the properties that mirror an event's identity; *timestamp* is in Unix seconds.

    Raises ValueError for what AMQP 0-9-1 cannot carry (a float or a set in a header, an id of over
    255 bytes ...): pika would find out only while writing to the socket.
    """
    for text in (event_id, event_type, correlation_id or ""):
        _check_short(text)
    return BasicProperties(
        message_id=event_id,
        type=event_type,
        timestamp=timestamp,
        app_id=APP_ID,
        correlation_id=correlation_id,
        content_type=CONTENT_TYPE,
        content_encoding="utf-8",
        delivery_mode=DeliveryMode.Persistent,  # pika's default is transient
        headers=_checked(headers or {}),
    )


def properties_of(event: Event, *, correlation_id: str | None = None) -> BasicProperties:
    """Return the properties of *event*; *correlation_id* names the request that caused it."""
    return envelope(
        event.id, event.type, timestamp=int(event.time.timestamp()), correlation_id=correlation_id
    )


def publish(
    channel: BlockingChannel, event: Event, *, exchange: str, correlation_id: str | None = None
) -> None:
    """Send *event* to *exchange*, routed by its type. That it arrives anywhere is not promised."""
    properties = properties_of(event, correlation_id=correlation_id)
    channel.basic_publish(exchange, event.type, encode(event), properties)


def _checked(headers: Mapping[str, object]) -> dict[str, Any]:
    for name, value in headers.items():
        _check_short(name)
        if not isinstance(value, _CARRIED):
            raise ValueError(f"header {name!r}: AMQP cannot carry a {type(value).__name__}")
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise ValueError(f"header {name!r}: AMQP cannot carry so large a number")
    return dict(headers)


def _check_short(text: str) -> None:
    if len(text.encode()) > 255:
        raise ValueError(f"{text[:40]!r}...: AMQP's short strings hold 255 bytes at most")
