"""The settings of one exchange: where its broker, its files and its names are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from delivery.broker import Broker
from delivery.connection import BrokerSettings
from delivery.contract import EVENT_TYPE
from delivery.dead import dead_topology
from delivery.errors import DeliveryError
from delivery.lint import Problem, Publisher, lint
from delivery.management import Management
from delivery.parking import Parking
from delivery.retry import retry_topology
from delivery.routes import Route, check_recipient, events_exchange, routes_of, topology_of
from delivery.stores import Stores
from delivery.topology import Topology

__all__ = ["DEFAULT_RETRIES_MS", "Config", "as_it_is", "retries_of"]

DEFAULT_RETRIES_MS = (1_000, 10_000, 60_000)
LONGEST_MS = 2**32 - 1  # RabbitMQ takes no longer x-message-ttl


def as_it_is(topology: Topology) -> Topology:
    """Return *topology*: classic queues."""
    return topology


@dataclass(frozen=True, kw_only=True)
class Config:
    """Passed to every process of one exchange; *retries_ms* are the delays before each retry.

    *shape* is what a later lesson makes of the topology, *parking* the place for what no queue
    wants that a later lesson may have given the exchange: whether it is there, the broker says.
    """

    broker: BrokerSettings
    stores: Stores
    namespace: str = "delivery"
    retries_ms: tuple[int, ...] = DEFAULT_RETRIES_MS
    management_url: str | None = None
    shape: Callable[[Topology], Topology] = as_it_is
    parking: Parking | None = None

    @classmethod
    def on(
        cls,
        broker: Broker,
        data: Path,
        *,
        namespace: str,
        retries_ms: tuple[int, ...],
        shape: Callable[[Topology], Topology] = as_it_is,
    ) -> Config:
        """Return the settings of an exchange on *broker* that keeps its files in *data*."""
        return cls(
            broker=BrokerSettings(url=broker.amqp_url),
            stores=Stores(data),
            namespace=namespace,
            retries_ms=retries_ms,
            management_url=broker.management_url,
            shape=shape,
        )

    @property
    def exchange(self) -> str:
        """The exchange that every event is published to."""
        return events_exchange(self.namespace)

    @property
    def management(self) -> Management | None:
        """The management plugin, where its address is known."""
        return Management(self.management_url, self.broker.url) if self.management_url else None

    def need_management(self, why: str) -> Management:
        """Return the management plugin. Raises DeliveryError; *why* is "a policy needs", say."""
        found = self.management
        if found is None:
            raise DeliveryError(f"{why} the management plugin: set DELIVERY_MANAGEMENT_URL")
        return found

    def named(self, process: str) -> BrokerSettings:
        """Return the broker settings under the name that *process* shows on the broker."""
        return replace(self.broker, name=f"{self.namespace} {process}")

    def route(self, recipient: str) -> Route:
        """Return *recipient*'s route. Raises DeliveryError for one that does not exist."""
        check_recipient(recipient)
        return Route(recipient, self.namespace)

    def topology(self) -> Topology:
        """Return everything that the exchange needs on the broker."""
        routes = routes_of(self.namespace)
        plain = (
            topology_of(routes) + retry_topology(routes, self.retries_ms) + dead_topology(routes)
        )
        return self.shape(plain)

    def problems(self) -> list[Problem]:
        """Return what lint finds in the topology and in how it is published to."""
        return lint(self.topology(), [Publisher(self.exchange, (EVENT_TYPE,))])


def retries_of(text: str) -> tuple[int, ...]:
    """Read delays in milliseconds such as "1000,10000". Raises DeliveryError."""
    try:
        delays = tuple(int(each) for each in text.split(","))
    except ValueError:
        delays = ()
    if not delays or min(delays) < 1 or max(delays) > LONGEST_MS:
        raise DeliveryError(f"{text!r} are no retry delays; expected milliseconds: 1000,10000")
    return delays
