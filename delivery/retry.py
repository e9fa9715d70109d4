"""Try again later, for the recipient that failed and for no other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from delivery.codec import ContractError
from delivery.consumer import FailurePolicy, Settlement
from delivery.copies import copy_of
from delivery.errors import PermanentError
from delivery.handling import Delivery
from delivery.pipeline import ConfirmedChannel
from delivery.points import reach
from delivery.routes import Route
from delivery.topology import Queue, Topology

__all__ = ["ATTEMPT_HEADER", "attempt_of", "retry_later", "retry_queue", "retry_topology"]

# Our own count: x-death starts again at 1 with every copy, and redelivered is true for messages
# that nobody ever tried.
ATTEMPT_HEADER = "x-delivery-attempt"


def retry_queue(route: Route, attempt: int) -> str:
    """Return the name of the queue where *route*'s messages wait after failed *attempt* (1 ..)."""
    return f"{route.queue}.retry.{attempt}"


def retry_topology(routes: Iterable[Route], delays_ms: Sequence[int]) -> Topology:
    """Return a waiting queue for each route and delay (milliseconds), leading back to that route.

    One queue per delay: a classic queue expires messages at its head only, so a short delay behind
    a long one would wait for it.
    """
    return Topology(
        queues=tuple(
            Queue(
                retry_queue(route, attempt),
                {
                    "x-message-ttl": delay,
                    "x-dead-letter-exchange": "",
                    "x-dead-letter-routing-key": route.queue,
                },
            )
            for route in routes
            for attempt, delay in enumerate(delays_ms, start=1)
        )
    )


def attempt_of(delivery: Delivery) -> int:
    """Return which attempt this delivery is, from 1; a header that is no count is ignored."""
    attempt = (delivery.properties.headers or {}).get(ATTEMPT_HEADER)
    return attempt if type(attempt) is int and attempt > 0 else 1


def retry_later(
    channel: ConfirmedChannel,
    route: Route,
    delays_ms: Sequence[int],
    *,
    exhausted: FailurePolicy,
) -> FailurePolicy:
    """Return a policy that waits through *delays_ms*, then hands over to *exhausted*.

    So there are ``len(delays_ms) + 1`` attempts. What can't succeed later is handed over at once.
    The policy raises NotConfirmed if the copy is not safe: then the original must stay.
    """

    def policy(delivery: Delivery, error: Exception) -> Settlement:
        attempt = attempt_of(delivery)
        if isinstance(error, ContractError | PermanentError) or attempt > len(delays_ms):
            return exhausted(delivery, error)
        properties = copy_of(delivery, **{ATTEMPT_HEADER: attempt + 1})
        channel.move(delivery.body, properties, to_queue=retry_queue(route, attempt))
        reach("retry.copied")
        return Settlement.ELSEWHERE

    return policy
