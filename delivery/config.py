"""The settings of one exchange: where its broker, its files and its names are."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from delivery import audit, catalog, decisions, inbox, materials, outbox, revision, strikes
from delivery.connection import BrokerSettings
from delivery.contract import EVENT_TYPE
from delivery.dead import dead_topology
from delivery.errors import DeliveryError
from delivery.lint import Problem, Publisher, lint
from delivery.observe import Management
from delivery.retry import retry_topology
from delivery.routes import Route, events_exchange, routes_of, topology_of
from delivery.store import Schema, open_store
from delivery.topology import Topology

__all__ = ["Config"]

DEFAULT_RETRIES_MS = (1_000, 10_000, 60_000)
RECIPIENT_SCHEMAS: Mapping[str, tuple[Schema, ...]] = {
    "catalog": (inbox.SCHEMA, strikes.SCHEMA, decisions.SCHEMA, revision.SCHEMA, catalog.SCHEMA),
    "audit": (inbox.SCHEMA, strikes.SCHEMA, decisions.SCHEMA, audit.SCHEMA),
}


@dataclass(frozen=True, kw_only=True)
class Config:
    """Passed to every process of one exchange; *retries_ms* are the delays before each retry."""

    broker: BrokerSettings
    data: Path
    namespace: str = "delivery"
    retries_ms: tuple[int, ...] = DEFAULT_RETRIES_MS
    management_url: str | None = None

    @classmethod
    def from_env(
        cls, environ: Mapping[str, str], *, amqp_url: str, management_url: str | None
    ) -> Config:
        """Read DELIVERY_DATA, DELIVERY_NAMESPACE and DELIVERY_RETRIES_MS ("1000,10000")."""
        text = environ.get("DELIVERY_RETRIES_MS", "")
        try:
            retries = tuple(int(each) for each in text.split(",")) if text else DEFAULT_RETRIES_MS
        except ValueError:
            retries = (0,)
        if any(delay < 1 for delay in retries):
            raise DeliveryError(
                f"DELIVERY_RETRIES_MS is {text!r}; expected milliseconds such as 1000,10000"
            )
        return cls(
            broker=BrokerSettings(url=amqp_url),
            data=Path(environ.get("DELIVERY_DATA", ".delivery")),
            namespace=environ.get("DELIVERY_NAMESPACE", "delivery"),
            retries_ms=retries,
            management_url=management_url,
        )

    @property
    def exchange(self) -> str:
        """The exchange that every event is published to."""
        return events_exchange(self.namespace)

    @property
    def management(self) -> Management | None:
        """The management plugin, where its address is known."""
        return Management(self.management_url, self.broker.url) if self.management_url else None

    def named(self, process: str) -> BrokerSettings:
        """Return the broker settings under the name that *process* shows on the broker."""
        return replace(self.broker, name=f"{self.namespace} {process}")

    def route(self, recipient: str) -> Route:
        """Return *recipient*'s route. Raises DeliveryError for one that does not exist."""
        for route in routes_of(self.namespace):
            if route.recipient == recipient:
                return route
        names = " or ".join(RECIPIENT_SCHEMAS)
        raise DeliveryError(f"there is no recipient {recipient!r}; expected {names}")

    def topology(self) -> Topology:
        """Return everything that the exchange needs on the broker."""
        routes = routes_of(self.namespace)
        return topology_of(routes) + retry_topology(routes, self.retries_ms) + dead_topology(routes)

    def problems(self) -> list[Problem]:
        """Return what lint finds in the topology and in how it is published to."""
        return lint(self.topology(), [Publisher(self.exchange, (EVENT_TYPE,))])

    def store_path(self, participant: str) -> Path:
        """Return the path of a participant's own SQLite file."""
        return self.data / f"{participant}.sqlite3"

    def publisher_store(self) -> sqlite3.Connection:
        """Open the publisher's file, creating it if need be."""
        self.data.mkdir(parents=True, exist_ok=True)
        return open_store(self.store_path("publisher"), materials.SCHEMA, outbox.SCHEMA)

    def recipient_store(self, recipient: str) -> sqlite3.Connection:
        """Open *recipient*'s file, creating it if need be."""
        self.data.mkdir(parents=True, exist_ok=True)
        return open_store(self.store_path(recipient), *RECIPIENT_SCHEMAS[recipient])
