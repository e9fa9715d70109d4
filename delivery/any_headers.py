"""Let pika hand over a message whatever its headers hold."""

from __future__ import annotations

import struct
from typing import Any

import pika.data

__all__ = ["UNREADABLE", "read_any_headers"]

UNREADABLE = "x-delivery-unreadable"  # stands for a table of headers that pika can't read

_read = pika.data.decode_table


def read_any_headers() -> None:
    """Make pika replace a table that it can't read by a note, instead of losing the connection.

    A time beyond the year 9999 or five hundred nested tables are legal AMQP, and brokers take them.
    pika (1.3.2 and 1.4.4) raises from inside its reader; the broker then sends the message again,
    for ever, and no policy ever sees it. There is no seam to mend this from outside, so the reader
    is replaced in pika's module. Twice is once.
    """
    setattr(pika.data, "decode_table", _read_or_note)  # noqa: B010


def _read_or_note(encoded: bytes, offset: int) -> tuple[Any, int]:
    try:
        return _read(encoded, offset)
    except (ValueError, OverflowError, OSError, RecursionError, AttributeError, TypeError) as error:
        # The table begins with its own size, so what follows can be found.
        (size,) = struct.unpack_from(">I", encoded, offset)
        return {UNREADABLE: repr(error)[:200]}, offset + 4 + size
