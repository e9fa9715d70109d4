"""Look at every place at once, again and again, and say how old each sample is."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any

from pika.adapters.blocking_connection import BlockingConnection
from pika.exceptions import AMQPError

from delivery.config import Config
from delivery.connection import connect, describe
from delivery.errors import TemporaryError
from delivery.listeners import Listeners, listeners
from delivery.observe import MANAGEMENT_AGE, Waiting, waiting
from delivery.parking import Parked, parked
from delivery.routes import RECIPIENTS, routes_of
from delivery.sides import Sides, sqlite_sides

__all__ = ["Seen", "Snapshot", "Watcher"]


@dataclass(frozen=True)
class Seen:
    """One recipient: where its messages wait, its receipts, and what is missing by counts."""

    recipient: str
    waiting: Waiting | None  # None: the broker has not been reached yet
    receipts: dict[str, Any] | None  # None: not visible
    difference: int | None  # None: can't be told, see ``difference_why``
    surplus: int  # messages and receipts beyond what was accepted: copies, or a stranger's
    difference_why: str


@dataclass(frozen=True)
class Snapshot:
    """What one look saw; times are Unix seconds. ``error`` says why the broker was not asked."""

    taken_at: float
    outbox: dict[str, Any]
    recipients: tuple[Seen, ...]
    retries_ms: tuple[int, ...]
    error: str = ""
    parked: Parked | None = None  # None: there is no parking queue, or the broker was never asked
    listeners: Listeners | None = None  # None: the management plugin did not tell
    command: str = "delivery"  # what a command about these stores begins with

    def fields(self) -> dict[str, Any]:
        """Return it for machines, each recipient's figures side by side."""
        shown: dict[str, Any] = {"taken_at": self.taken_at, "outbox": self.outbox}
        shown["recipients"] = [
            {**(asdict(seen.waiting) if seen.waiting else {}), **_own(seen)}
            for seen in self.recipients
        ]
        shown["parked"] = asdict(self.parked) if self.parked else None
        shown["listeners"] = asdict(self.listeners) if self.listeners else None
        return shown | ({"error": self.error} if self.error else {})


class Watcher:
    """Keeps one connection from look to look, and what the broker said last; close it.

    The stores are SQLite's files, if *sides* does not say otherwise. While *config* knows no
    broker, each look asks *find* for the settings with one, which raises BrokerUnavailable if there
    is none yet.
    """

    def __init__(
        self,
        config: Config,
        sides: Sides | None = None,
        *,
        find: Callable[[], Config] | None = None,
    ) -> None:
        self._config = config
        self._find = find
        self._sides = sides or sqlite_sides(config.stores)
        self._connection: BlockingConnection | None = None
        self._places: dict[str, Waiting] = {}
        self._parked: Parked | None = None
        self._listeners: Listeners | None = None
        self._listeners_at = -math.inf

    def look(self) -> Snapshot:
        """Return what is to be seen now; of a broker that is away the last figures.

        They then are as old as they say. Stores and broker are read in the direction in which
        events move: one on the way is seen twice rather than never.
        """
        with closing(self._sides.publisher()) as publisher:
            outbox = publisher.summary() | {"sampled_at": time.time()}
        error = ""
        try:
            self._ask_broker()
        except (TemporaryError, AMQPError) as trouble:
            self.close()
            self._listeners, self._listeners_at = None, -math.inf
            error = describe(trouble)
        seen = tuple(self._seen(name, outbox, error) for name in RECIPIENTS)
        return Snapshot(
            time.time(),
            outbox,
            seen,
            self._config.retries_ms,
            error,
            self._parked,
            self._listeners,
            self._sides.command,
        )

    def close(self) -> None:
        """Close the connection; the next look opens another."""
        if self._connection is not None and self._connection.is_open:
            self._connection.close()
        self._connection = None

    def _ask_broker(self) -> None:
        if self._find is not None:
            self._config, self._find = self._find(), None
        config = self._config
        if self._connection is None:
            self._connection = connect(config.named("status"))
        routes, retries = routes_of(config.namespace), len(config.retries_ms)
        found = waiting(self._connection, routes, retries=retries, management=config.management)
        self._places = {place.recipient: place for place in found}
        self._parked = parked(self._connection, config.parking, config.management)
        if time.monotonic() >= self._listeners_at + MANAGEMENT_AGE:  # sooner there is no news
            self._listeners, self._listeners_at = _who_listens(config), time.monotonic()

    def _seen(self, recipient: str, outbox: dict[str, Any], error: str) -> Seen:
        place = self._places.get(recipient)
        found = self._sides.receipts(recipient)
        why = _doubt(place, found, error, self._sides.command)
        if why or place is None or found is None:
            return Seen(recipient, place, found, None, 0, why)
        on_broker = (place.ready or 0) + (place.unacked or 0) + (place.dead or 0)
        on_broker += sum(count or 0 for count in place.retry)
        left = outbox["accepted"] - sum(outbox["pending"].values()) - found["settled"] - on_broker
        if left > 0 and place.unacked is None:
            return Seen(recipient, place, found, None, 0, f"{left} may be unacked: not visible")
        return Seen(recipient, place, found, max(0, left), max(0, -left), "")


def _who_listens(config: Config) -> Listeners | None:
    try:
        return listeners(config)
    except OSError:
        return None


def _doubt(place: Waiting | None, found: dict[str, Any] | None, error: str, command: str) -> str:
    """Say why counts alone can't tell whether anything is missing; empty if they can."""
    if place is None or error:
        return "the broker can't be asked"
    if found is None:
        return "the receipts are not visible"
    if found["pruned"]:
        return f"receipts were pruned: {command} ledger"
    return "somebody holds the dead messages" if place.dead_held else ""


def _own(seen: Seen) -> dict[str, Any]:
    return {name: value for name, value in asdict(seen).items() if name != "waiting"}
