"""Let pika read a timestamp of any year: AMQP allows it, and one such header stops a consumer."""

from __future__ import annotations

from datetime import UTC, datetime, tzinfo

import pika.data

__all__ = ["read_any_time"]

LATEST = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)


def read_any_time() -> None:
    """Make pika read a header's time beyond the year 9999 as that year's end.

    pika (1.3.2 and 1.4.4) raises from inside its reader, which ends the connection; the broker
    then sends the message again, for ever, and no policy ever sees it. There is no seam to mend
    this from outside, so the name ``datetime`` in pika's module is replaced. Twice is once.
    """
    setattr(pika.data, "datetime", _AnyTime)  # noqa: B010


class _LooksLikeDatetime(type):
    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, datetime)


class _AnyTime(metaclass=_LooksLikeDatetime):
    """What pika uses of ``datetime``: these two, and ``isinstance``."""

    @staticmethod
    def utcfromtimestamp(seconds: int) -> datetime:
        """Return the naive time, as pika 1.3 does."""
        return _AnyTime.fromtimestamp(seconds, UTC).replace(tzinfo=None)

    @staticmethod
    def fromtimestamp(seconds: int, tz: tzinfo) -> datetime:
        """Return the aware time, as pika 1.4 does."""
        try:
            return datetime.fromtimestamp(seconds, tz)
        except (OverflowError, OSError, ValueError):
            return LATEST.replace(tzinfo=tz)
