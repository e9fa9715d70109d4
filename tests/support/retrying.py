"""The world of a test with retry queues."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from delivery.consumer import FailurePolicy, Settlement
from delivery.handling import Delivery, Handler
from delivery.pipeline import ConfirmedChannel
from delivery.retry import attempt_of, retry_later, retry_topology
from delivery.routes import Route
from delivery.topology import declare
from support import consuming
from support.consuming import Seen


class World(consuming.World):
    """What fails is tried again; what is exhausted is given up."""

    def declare(self, *delays_ms: int, routes: Sequence[Route] = ()) -> None:
        """Declare *routes* (all, if none is named) with their retry queues."""
        super().declare(routes=routes)
        declare(self.connection, retry_topology(routes or self.both, delays_ms))

    def consume(
        self, route: Route, handle: Handler, *, delays_ms: Sequence[int] = (), **options: Any
    ) -> Seen:
        """Consume as before, with a confirmed channel of its own for the copies."""
        with ConfirmedChannel(self.settings) as copies:
            policy = retry_later(copies, route, delays_ms, exhausted=self.exhausted(copies, route))
            return super().consume(route, handle, on_failure=policy, serve=copies.serve, **options)

    def exhausted(self, copies: ConfirmedChannel, route: Route) -> FailurePolicy:
        return give_up


def give_up(delivery: Delivery, error: Exception) -> Settlement:
    return Settlement.ELSEWHERE  # in the test's list of failures


def attempts(seen: Seen) -> list[int]:
    return [attempt_of(delivery) for delivery, _ in seen.failures]
