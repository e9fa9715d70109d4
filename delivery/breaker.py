"""Stop taking messages while what they all need is away, and try with one until it is back."""

from __future__ import annotations

import enum
import logging
import sqlite3
from collections.abc import Callable
from typing import Protocol

from delivery.codec import ContractError
from delivery.connection import describe
from delivery.consumer import FailurePolicy, Settlement
from delivery.contract import Event
from delivery.copies import copy_of
from delivery.errors import PermanentError, TemporaryError
from delivery.handling import Delivery, Effect, Handler
from delivery.pipeline import ConfirmedChannel
from delivery.points import reach
from delivery.stopping import Stop

__all__ = ["Breaker", "BreakerOpen", "Position", "Take", "consume_guarded"]

log = logging.getLogger(__name__)


class BreakerOpen(TemporaryError):
    """So many messages failed in a row that none of them can be at fault."""

    event = "breaker.paused"


class Position(enum.Enum):
    """CLOSED: messages flow. OPEN: one at a time is tried, after each pause."""

    CLOSED = "closed"
    OPEN = "open"


class Breaker:
    """Opens after *after* transient failures in a row, of different messages; a success closes it.

    Make one for each process and recipient, and keep it while ``keep_connected`` comes and goes.
    One message that fails again and again never opens it: that is what retry and dead are for.
    """

    def __init__(self, *, after: int = 5) -> None:
        self._after = after
        self._tried: set[str] = set()  # since the last success, by the worker
        self._failed: set[str] = set()  # of these, those that the policy has seen fail
        self._probing: Stop | None = None
        self.position = Position.CLOSED

    def watched(self, handle: Handler) -> Handler:
        """Return *handle*, whose successes are noted.

        Wrap the innermost one, which needs what may be away: a duplicate proves nothing.
        """

        def handler(event: Event, tx: sqlite3.Connection) -> Effect:
            self._tried.add(event.id)
            effect = handle(event, tx)
            self._succeeded()
            return effect

        return handler

    def holding(self, copies: ConfirmedChannel, otherwise: FailurePolicy) -> FailurePolicy:
        """Return a policy that counts failures, and leaves the rest to *otherwise*.

        The failure that opens the breaker raises BreakerOpen: nothing is settled from then on, and
        no attempt is spent. A probe that fails goes to the end of its own queue as it is, so that
        the next one is another message: if it alone is at fault, it must not keep the rest waiting.
        A queue that is full and refuses takes no copy: then the same one is tried again.
        """

        def policy(delivery: Delivery, error: Exception) -> Settlement:
            if isinstance(error, ContractError | PermanentError):
                return otherwise(delivery, error)  # its own fault
            if self._probing is not None and self.position is Position.OPEN:
                copies.move(delivery.body, copy_of(delivery), to_queue=delivery.queue)
                reach("breaker.copied")
                self._probing.request()
                return Settlement.ELSEWHERE
            self._failed = (self._failed & self._tried) | {delivery.message_id}
            if len(self._failed) < self._after:
                return otherwise(delivery, error)
            self.position = Position.OPEN
            log.warning("breaker.opened", extra={"queue": delivery.queue, "error": describe(error)})
            raise BreakerOpen(self._reason(error))

        return policy

    def probe(self, stop: Stop) -> None:
        """Let the next success, or the next failure, request *stop*."""
        self._probing = stop

    def _succeeded(self) -> None:
        self._tried.clear()
        if self.position is Position.OPEN:
            self.position = Position.CLOSED
            self._failed.clear()
            log.warning("breaker.resumed")
            if self._probing is not None:
                self._probing.request()

    def _reason(self, error: Exception) -> str:
        return f"{self._after} messages failed in a row, the last with: {describe(error)}"


class Take(Protocol):
    """What runs ``consume`` with everything else filled in."""

    def __call__(
        self, *, batch: int, prefetch: int, stop: Stop, meanwhile: Callable[[], None]
    ) -> None:
        """Consume until *stop*."""


def consume_guarded(
    breaker: Breaker,
    take: Take,
    *,
    stop: Stop,
    batch: int = 1,
    prefetch: int = 10,
    meanwhile: Callable[[], None] = lambda: None,
) -> None:
    """Consume until *stop*; while *breaker* is open, one message only, which decides what follows.

    Raises BreakerOpen if that message failed: let ``keep_connected`` pause, longer each time.
    """
    if breaker.position is Position.OPEN:
        probe = Stop()
        breaker.probe(probe)

        def until_stop() -> None:
            meanwhile()
            if stop:
                probe.request()

        take(batch=1, prefetch=1, stop=probe, meanwhile=until_stop)
        if breaker.position is Position.OPEN and probe and not stop:
            raise BreakerOpen("the message that was tried failed, too")
        if breaker.position is Position.OPEN:
            return  # nothing came that could be tried
    if not stop:
        take(batch=batch, prefetch=prefetch, stop=stop, meanwhile=meanwhile)
