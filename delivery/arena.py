"""What a fault finds on the spot: the processes, their lines to the broker, and the broker."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from urllib.parse import quote

from pika.adapters.blocking_connection import BlockingConnection

from delivery.broker import Broker
from delivery.cast import Actor, Cast, await_that
from delivery.cluster import Cluster
from delivery.config import Config
from delivery.connection import connect
from delivery.errors import DeliveryError
from delivery.lines import Lines
from delivery.management import Management
from delivery.routes import RECIPIENTS
from delivery.stopping import Stop
from delivery.store import BUSY_TIMEOUT
from delivery.traffic import Journal

__all__ = ["API", "PROCESSES", "RELAY", "Arena", "Deleted", "DidNotBite", "Skew"]

API, RELAY = "api", "relay"
PROCESSES = (API, RELAY, *RECIPIENTS)
PATIENCE = 30.0  # seconds for the evidence that a fault bites, and again for the recovery


class DidNotBite(DeliveryError):
    """No evidence came that the fault had any effect: it must not be counted."""


@dataclass(frozen=True)
class Skew:
    """A process whose clock was *seconds* wrong between two moments (Unix seconds)."""

    process: str
    seconds: float
    begun: float
    ended: float


@dataclass(frozen=True)
class Deleted:
    """A queue that was gone between two moments (Unix seconds).

    *unsettled* is what had been confirmed by then, and the recipient had no receipt for: events in
    the queue, in its reader's hands, or on their way back from a retry. *unmarked* is what was not
    known to be confirmed: it may have been, before *since*, by a relay that was about to write so.
    """

    recipient: str
    unsettled: frozenset[str]
    since: float
    until: float
    unmarked: frozenset[str] = frozenset()


@dataclass
class Arena:
    """Passed to every fault. *config* leads past the wiretaps, straight to the broker."""

    config: Config
    broker: Broker
    cast: Cast
    commands: Mapping[str, Sequence[str]]
    taps: Mapping[str, Lines]
    users: Mapping[str, str]
    journal: Journal
    heartbeat: int  # seconds, of every process
    publisher: str = RELAY  # the process that publishes to the broker
    ours: bool = True  # this package's processes: they have points, and stores that are known
    cluster: Cluster | None = None  # what *broker* is, if it has nodes
    skews: list[Skew] = field(default_factory=list)
    deleted: list[Deleted] = field(default_factory=list)
    sent_again: set[str] = field(default_factory=set)  # events that a fault sent, out of turn
    strangers: set[str] = field(default_factory=set)  # keys of messages sent that are no event
    numbers: Iterator[int] = field(default_factory=lambda: iter(range(1, 1_000_000)))
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def stop(self) -> Stop:
        """Set when somebody interrupts the run."""
        return self.cast.stop_asked

    def start(self, process: str, *, wrap: Sequence[str] = (), **environ: str) -> Actor:
        """Start a process (again), on its own line to the broker."""
        if process in self.taps:
            environ = {"DELIVERY_AMQP_URL": self.taps[process].url, **environ}
        return self.cast.start(process, self.commands[process], wrap=wrap, **environ)

    def start_all(self) -> None:
        """Start every process, and wait until all are ready."""
        for process in self.commands:
            self.start(process)
        for process in self.commands:
            self.ready(process)

    def ready(self, process: str, *, since: int | None = None) -> None:
        """Wait until the process says that it is ready, since a mark or since its start."""
        name = process.partition("-")[0]  # relay-2 is a relay, one of several
        self.cast[process].await_event(f"{name}.ready", since=since, seconds=2 * PATIENCE)

    def restart(self, process: str) -> None:
        """Start a process that has ended, and wait until it is ready."""
        self.start(process)
        self.ready(process)

    def bites(self, condition: Callable[[], object], what: str, seconds: float = PATIENCE) -> None:
        """Wait for the evidence of a fault. Raises DidNotBite if it does not come."""
        try:
            await_that(condition, what, stop=self.stop, seconds=seconds)
        except DeliveryError as error:
            if self.stop:
                raise
            raise DidNotBite(str(error)) from error

    def recovers(
        self, condition: Callable[[], object], what: str, seconds: float = 2 * PATIENCE
    ) -> None:
        """Wait for what must come by itself. Raises DeliveryError if it does not."""
        await_that(condition, what, stop=self.stop, seconds=seconds)

    def said(self, process: str, text: str, since: int) -> bool:
        """Say whether a process has logged *text* since the mark."""
        return text in self.cast[process].log(since)

    def mark(self, process: str) -> int:
        """Return where to look for a process's trouble from now on."""
        return self.journal.refused if process == API else self.cast[process].mark()

    def in_trouble(self, process: str, since: int) -> bool:
        """Say whether a process can't use its store: by its log, or, the API, by its answers."""
        if process == API:
            refused = self.journal.refused > since
            return refused and "the store can't be used" in self.journal.last_refusal
        return self.said(process, " store.unavailable", since)

    def works_again(self, process: str, since: int) -> None:
        """Wait until a process that was in trouble goes on. Raises DeliveryError."""
        if process == API:
            known = len(self.journal.entries)
            self.recovers(lambda: len(self.journal.entries) > known, "the API accepts again")
        else:
            self.ready(process, since=since)

    def number(self) -> int:
        """Return a number that no other fault of this run has."""
        with self._lock:
            return next(self.numbers)

    @contextlib.contextmanager
    def connection(self) -> Iterator[BlockingConnection]:
        """Connect straight to the broker, as an administrator."""
        with connect(self.config.named("chaos")) as opened:
            yield opened

    def read(self, participant: str, query: str, *values: object) -> list[tuple[object, ...]]:
        """Ask a participant's store."""
        with closing(self._store(participant)) as store:
            return store.execute(query, values).fetchall()

    def settled(self) -> dict[str, int]:
        """Return how many events each recipient has settled."""
        query = "SELECT count(*) FROM receipt"
        return {each: int(str(self.read(each, query)[0][0])) for each in RECIPIENTS}

    def write(self, participant: str, statement: str) -> None:
        """Change a participant's store, as its administrator."""
        with closing(self._store(participant)) as store:
            store.execute(statement)

    def _store(self, participant: str) -> sqlite3.Connection:
        path = self.config.stores.path(participant)
        store = sqlite3.connect(path, isolation_level=None, timeout=4 * BUSY_TIMEOUT)
        store.execute("PRAGMA synchronous = NORMAL")
        return store

    @property
    def management(self) -> Management:
        """The broker's management API."""
        assert self.config.management is not None, "a broker of our own has one"
        return self.config.management

    def allow(self, process: str, *, write: str = ".*", read: str = ".*") -> None:
        """Set what the process's user may do on the broker."""
        rights = {"configure": ".*", "write": write, "read": read}
        self.management.put(f"/api/permissions/%2F/{quote(self.users[process])}", rights)

    @contextlib.contextmanager
    def skewed(self, process: str, seconds: float) -> Iterator[None]:
        """Note that the process's clock is wrong while the block runs."""
        begun = time.time()
        try:
            yield
        finally:
            self.skews.append(Skew(process, seconds, begun, time.time()))
