"""Copy a delivery for one queue, leaving behind what belongs to its old journey."""

from __future__ import annotations

import decimal
from collections.abc import Mapping
from copy import copy
from datetime import datetime
from typing import Any

from pika import BasicProperties, DeliveryMode

from delivery.handling import Delivery

__all__ = ["copy_of", "cut"]

# The broker's own notes: carried along, they would be stale (x-death), or would send the copy to
# other queues, too (CC, BCC: sender-selected distribution).
LEFT_BEHIND = {
    *("x-death", "x-first-death-exchange", "x-first-death-queue", "x-first-death-reason"),
    *("x-last-death-exchange", "x-last-death-queue", "x-last-death-reason", "CC", "BCC"),
}
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
    properties.headers = {name: value for name, value in kept.items() if value is not None}
    return properties


def cut(text: str, limit: int = TEXT_LIMIT) -> str:
    """Return *text* as valid UTF-8 of at most *limit* characters, saying what was left out."""
    clean = text.encode("utf-8", "backslashreplace").decode()
    if len(clean) <= limit:
        return clean
    return f"{clean[:limit]} ... ({len(clean) - limit} more characters)"


def _carried(value: object) -> object:
    """Return *value* as pika can write it: pika reads float headers but writes none."""
    if isinstance(value, Mapping):
        return {name: _carried(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_carried(each) for each in value]
    if isinstance(value, str | bytes | bool | int | datetime | decimal.Decimal):
        return value
    return str(value)
