"""The world of a test with retry queues and dead queues: all places where a message can be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from delivery.consumer import FailurePolicy
from delivery.dead import dead_queue, dead_topology, park
from delivery.pipeline import ConfirmedChannel
from delivery.routes import Route
from delivery.topology import declare
from support import retrying


class World(retrying.World):
    """What is exhausted, or can't be handled, is kept dead."""

    def declare(self, *delays_ms: int, routes: Sequence[Route] = (), dead: bool = True) -> None:
        """Declare *routes* (all, if none is named) with retry queues and dead queues."""
        super().declare(*delays_ms, routes=routes)
        if dead:
            declare(self.connection, dead_topology(routes or self.both))

    def exhausted(self, copies: ConfirmedChannel, route: Route) -> FailurePolicy:
        return park(copies, route)

    def dead(self, route: Route) -> list[tuple[dict[str, Any], bytes]]:
        """Take *route*'s dead messages: their headers and bodies."""
        return [(dict(p.headers), body) for p, body in self.take(dead_queue(route))]
