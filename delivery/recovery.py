"""Keep a piece of work connected: after a failure pause, longer each time, and try again."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from pika.exceptions import AMQPChannelError, AMQPError, ChannelClosedByBroker

from delivery.connection import ACCESS_REFUSED, AccessRefused, describe
from delivery.errors import TemporaryError
from delivery.stopping import Stop

__all__ = ["Backoff", "keep_connected"]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Backoff:
    """Pauses in seconds: *first*, doubling up to *most*, each shortened at random by up to half.

    The jitter keeps many processes from coming back in the same instant.
    """

    first: float = 0.5
    most: float = 15.0

    def pause(self, failures: int) -> float:
        """Return the pause after this many failures in a row (1 ..)."""
        full = min(self.most, self.first * 2.0 ** min(failures - 1, 32))
        return full * random.uniform(0.5, 1.0)  # noqa: S311 - not a secret


def keep_connected(
    work: Callable[[], None],
    *,
    stop: Stop,
    backoff: Backoff = Backoff(),
    stable_after: float = 10.0,
) -> None:
    """Run *work* until it returns or *stop*; after a failure that may pass, pause and run it again.

    *work* opens its own connections and closes them. A run of *stable_after* seconds counts as
    recovered: the next pause is the first one again. Every other error is raised. The pause is
    logged under what it is for: ``connection.lost``, ``channel.closed``, ``access.refused``, or
    what a TemporaryError names itself, such as ``store.unavailable``.
    """
    failures = 0
    while not stop:
        begun = time.monotonic()
        try:
            work()
        except (TemporaryError, AMQPError) as error:
            if time.monotonic() - begun >= stable_after:
                failures = 0
            failures += 1
            pause = backoff.pause(failures)
            fields = {"error": describe(error), "failures": failures, "pause": round(pause, 2)}
            log.warning(_event(error), extra=fields)
            stop.wait(pause)
        else:
            return


def _event(error: TemporaryError | AMQPError) -> str:
    if isinstance(error, TemporaryError):
        return error.event
    if isinstance(error, ChannelClosedByBroker) and error.reply_code == ACCESS_REFUSED:
        return AccessRefused.event
    return "channel.closed" if isinstance(error, AMQPChannelError) else "connection.lost"
