"""One queue for each recipient, so that each succeeds or fails alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from delivery.errors import DeliveryError
from delivery.topology import Binding, Exchange, Queue, Topology

__all__ = ["RECIPIENTS", "Route", "check_recipient", "events_exchange", "routes_of", "topology_of"]

RECIPIENTS = ("catalog", "audit")


@dataclass(frozen=True)
class Route:
    """A recipient's own queue, and the routing keys that it asked for.

    ``namespace`` replaces the prefix of every name on the broker, so that tests and lessons never
    share a queue. The pattern takes every version of the fact: a version that the recipient does
    not understand must arrive and be seen, not pass it by.
    """

    recipient: str
    namespace: str = "delivery"
    pattern: str = "material.published.*"

    @property
    def exchange(self) -> str:
        """The exchange that the recipient listens to."""
        return events_exchange(self.namespace)

    @property
    def queue(self) -> str:
        """The recipient's own queue."""
        return f"{self.namespace}.{self.recipient}"


def events_exchange(namespace: str) -> str:
    """Return the name of the exchange that all events of *namespace* are published to."""
    return f"{namespace}.events"


def routes_of(namespace: str) -> tuple[Route, ...]:
    """Return the routes of this package's own recipients."""
    return tuple(Route(recipient, namespace) for recipient in RECIPIENTS)


def check_recipient(name: str) -> None:
    """Raise DeliveryError unless *name* is one of this package's recipients."""
    if name not in RECIPIENTS:
        raise DeliveryError(f"there is no recipient {name!r}; expected {' or '.join(RECIPIENTS)}")


def topology_of(routes: Iterable[Route]) -> Topology:
    """Return the exchange, and one queue and binding for each route."""
    total = Topology()
    for route in routes:
        total += Topology(
            (Exchange(route.exchange),),
            (Queue(route.queue),),
            (Binding(route.exchange, route.queue, route.pattern),),
        )
    return total
