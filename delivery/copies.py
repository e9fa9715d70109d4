"""Copy a delivery for one queue, leaving behind what belongs to its old journey."""

from __future__ import annotations

import decimal
import math
import struct
from collections.abc import Mapping, Set
from copy import copy
from datetime import datetime
from typing import Any

from pika import BasicProperties, DeliveryMode
from pika.exceptions import AMQPError

from delivery.handling import Delivery

__all__ = ["copy_of", "cut"]

# The broker's own notes: carried along, they would be stale (x-death), or would send the copy to
# other queues, too (CC, BCC: sender-selected distribution).
LEFT_BEHIND = {
    *("x-death", "x-first-death-exchange", "x-first-death-queue", "x-first-death-reason"),
    *("x-last-death-exchange", "x-last-death-queue", "x-last-death-reason", "CC", "BCC"),
}
# Bytes for all properties of a copy: they travel in one frame (131,072 bytes), never split.
ROOM = 128_000
LEFT_OUT = "x-delivery-left-out"
NOTE = 4_200  # bytes that this header takes at most: 1,000 characters of up to four bytes
DEPTH_LIMIT = 16  # of nested headers
TEXT_LIMIT = 1_000  # characters of any one text that we add to a header


def copy_of(delivery: Delivery, **headers: object) -> BasicProperties:
    """Return the properties for a copy of *delivery*, with *headers* added; None removes one.

    The copy is persistent whatever the original was. It does not expire (it would vanish from a
    dead queue), and names no user (the broker refuses a user_id that is not the publisher's own).
    Underscores in the names of *headers* stand for hyphens.
    """
    properties = copy(delivery.properties)
    properties.delivery_mode = DeliveryMode.Persistent.value
    properties.expiration = None
    properties.user_id = None
    kept: dict[str, Any] = {
        name: _carried(value)
        for name, value in (delivery.properties.headers or {}).items()
        if name not in LEFT_BEHIND
    }
    kept.update({name.replace("_", "-"): value for name, value in headers.items()})
    properties.headers = {str(name): value for name, value in kept.items() if value is not None}
    _fit(properties, ours={name.replace("_", "-") for name in headers})
    return properties


def cut(text: str, limit: int = TEXT_LIMIT) -> str:
    """Return *text* as valid UTF-8 of at most *limit* characters, saying what was left out."""
    clean = text.encode("utf-8", "backslashreplace").decode()
    if len(clean) <= limit:
        return clean
    return f"{clean[:limit]} ... ({len(clean) - limit} more characters)"


def _carried(value: object, depth: int = 0) -> object:
    """Return *value* as pika can write it; it does not write all that it reads."""
    if depth > DEPTH_LIMIT:
        return "(nested too deeply)"
    if isinstance(value, Mapping):
        return {str(name): _carried(each, depth + 1) for name, each in value.items()}
    if isinstance(value, list):
        return [_carried(each, depth + 1) for each in value]
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return str(value)  # pika reads a float as a whole number of any size
    if value is None or isinstance(value, str | bytes | bool | int | datetime | decimal.Decimal):
        return value
    return str(value)


def _fit(properties: BasicProperties, *, ours: Set[str]) -> None:
    """Leave out the sender's longest headers until the rest can be sent, and name them.

    Our own notes come on top of headers that may have filled the frame already: without room the
    copy could never be confirmed, and the message would block its queue for ever.
    """
    if _size(properties) <= ROOM:
        return
    headers: dict[str, Any] = dict(properties.headers or {})
    before = headers.pop(LEFT_OUT, None)
    properties.headers = {name: headers[name] for name in headers.keys() & ours}
    room = ROOM - NOTE - _size(properties)
    # Each is measured once: a frame holds twenty thousand headers, and nobody serves the connection
    # meanwhile. (Without the flags and the table's own size, which are there once: 6 bytes.)
    sizes = {name: _size(BasicProperties(headers={name: headers[name]})) - 6 for name in headers}
    left_out = [before] if isinstance(before, str) else []
    for name in sorted(headers.keys() - ours, key=lambda name: (sizes[name], name)):
        room -= sizes[name]
        if room < 0:
            del headers[name]
            left_out.append(name)
    properties.headers = headers | {LEFT_OUT: cut(", ".join(left_out))}


def _size(properties: BasicProperties) -> float:
    """Return how many bytes *properties* take on the wire: infinite, if pika can't write them."""
    try:
        return sum(map(len, properties.encode()))
    except (struct.error, AMQPError, ArithmeticError, ValueError, TypeError, AssertionError):
        return math.inf
