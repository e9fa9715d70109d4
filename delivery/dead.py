"""Keep what could not be processed, with the reason."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterable

from delivery.codec import ContractError
from delivery.consumer import FailurePolicy, Settlement
from delivery.copies import copy_of, cut
from delivery.errors import PermanentError
from delivery.handling import Delivery
from delivery.pipeline import ConfirmedChannel
from delivery.points import reach
from delivery.retry import ATTEMPT_HEADER, attempt_of
from delivery.routes import Route
from delivery.topology import Queue, Topology

__all__ = ["HEADERS", "dead_queue", "dead_topology", "park", "reason_of"]

# What park writes on a message, and replay takes off again.
REASON, ERROR, TRACE, PARKED = (
    "x-delivery-reason",
    "x-delivery-error",
    "x-delivery-traceback",
    "x-delivery-parked-at",
)
HEADERS = (REASON, ERROR, TRACE, PARKED, ATTEMPT_HEADER)


def dead_queue(route: Route) -> str:
    """Return the name of the queue that keeps *route*'s dead messages."""
    return f"{route.queue}.dead"


def dead_topology(routes: Iterable[Route]) -> Topology:
    """Return one dead queue for each route. It has no limit: a full one would lose messages."""
    return Topology(queues=tuple(Queue(dead_queue(route)) for route in routes))


def reason_of(error: Exception) -> str:
    """Return why a message is dead, in one word.

    ``incompatible`` (not the contract), ``exhausted`` (every attempt failed), or what the
    PermanentError says: ``rejected``, ``conflict``, ``killer``.
    """
    if isinstance(error, ContractError):
        return "incompatible"
    return error.reason if isinstance(error, PermanentError) else "exhausted"


def park(
    channel: ConfirmedChannel, route: Route, *, clock: Callable[[], float] = time.time
) -> FailurePolicy:
    """Return a policy that moves the delivery to *route*'s dead queue, with its reason.

    The policy raises NotConfirmed if the copy is not safe (the dead queue is missing, say):
    then the original must stay.
    """

    def policy(delivery: Delivery, error: Exception) -> Settlement:
        properties = copy_of(
            delivery,
            **{
                REASON: reason_of(error),
                ERROR: cut(str(error) or repr(error)),
                TRACE: cut("".join(traceback.format_exception(error, limit=-3)), 4_000),
                PARKED: int(clock()),
                ATTEMPT_HEADER: attempt_of(delivery),
            },
        )
        channel.move(delivery.body, properties, to_queue=dead_queue(route))
        reach("park.copied")
        return Settlement.ELSEWHERE

    return policy
