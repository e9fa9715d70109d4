"""The processes of the exchange: the relay, and a receiver for each recipient."""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Protocol

from pika.adapters.blocking_connection import BlockingChannel, BlockingConnection
from pika.exceptions import ChannelClosedByBroker

from delivery.audit import append
from delivery.catalog import upsert
from delivery.config import Config
from delivery.confirms import Outcome
from delivery.connection import ACCESS_REFUSED, connect
from delivery.consumer import FailurePolicy, consume
from delivery.dead import park
from delivery.errors import DeliveryError
from delivery.failures import Failure, Watched, note
from delivery.handling import Handler
from delivery.inbox import once
from delivery.moved import refuse_moved
from delivery.outbox import Outbox, SqliteOutbox
from delivery.pipeline import ConfirmedChannel
from delivery.recovery import keep_connected
from delivery.refusals import Refusals
from delivery.relay import only_relay, relay_once
from delivery.retention import DAY, KEEP_DAYS, caretaker, receipts_round, sent_round
from delivery.retry import retry_later
from delivery.revision import latest_only
from delivery.routes import Route
from delivery.stopping import Stop
from delivery.store import StoreUnavailable, file_of, reading
from delivery.stores import PUBLISHER
from delivery.strikes import limit_deaths
from delivery.topology import Topology, declare
from delivery.verify import own_queues, verify
from delivery.writable import check_at_once, check_writable, proving

__all__ = [
    "handler_of",
    "policy_of",
    "prepare",
    "prepare_to_publish",
    "receive_with",
    "run_receiver",
    "run_relay",
]

log = logging.getLogger(__name__)

NAP = 0.005  # seconds between two looks for a commit of the API: what a fresh row waits at most
RECHECK = 0.5  # seconds between two looks for rows whose pause is over


def handler_of(route: Route) -> Handler:
    """Return the recipient's whole guarantee, read from the outside in."""
    effects: dict[str, Handler] = {
        "catalog": once(route, latest_only(upsert)),
        "audit": once(route, append),
    }
    return effects[route.recipient]


def prepare(
    config: Config, process: str, used: Topology | None = None, *, publishes_to: str = ""
) -> None:
    """Lint the topology and declare it. Raises DeliveryError, TopologyConflict.

    A user who may not declare needs not, if *used* says what must be there, and *publishes_to* the
    exchange that it must be allowed to publish to. Raises NotDeclared or pika's 403 if it isn't so.
    """
    if problems := config.problems():
        raise DeliveryError("the topology has mistakes: " + "; ".join(map(str, problems)))
    with connect(config.named(process)) as connection:
        try:
            declare(connection, config.topology())
        except ChannelClosedByBroker as refusal:
            if used is None or refusal.reply_code != ACCESS_REFUSED:
                raise
            verify(connection, used, publishes_to=publishes_to)


def prepare_to_publish(config: Config) -> None:
    """Do what prepare does for a relay, of whatever outbox: it needs the exchange only."""
    exchanges = tuple(each for each in config.topology().exchanges if each.name == config.exchange)
    prepare(config, "relay", Topology(exchanges), publishes_to=config.exchange)


def run_relay(
    config: Config,
    stop: Stop,
    *,
    batch: int = 500,
    keep_days: float = KEEP_DAYS,
    wrap: Callable[[Outbox], Outbox] = lambda outbox: outbox,
    beat: Callable[[], None] = lambda: None,
) -> None:
    """Publish what the outbox holds, until *stop*.

    Raises RelayBusy if another relay has it, and Moved if relays elsewhere do.

    What was sent more than *keep_days* ago is removed, a little at a time. *wrap* may watch the
    outbox; *beat* is called as long as the loop turns.
    """
    store = config.stores.open(PUBLISHER)
    tend = caretaker(lambda: sent_round(store, keep_days * DAY))
    prove = proving(lambda: check_at_once(store))

    def turn() -> None:
        beat()
        tend()
        prove()

    outbox = wrap(SqliteOutbox(store, config.exchange))
    with only_relay(config.stores.path(PUBLISHER)):
        refuse_moved(store)
        keep_connected(lambda: _relay(config, store, outbox, stop, batch, turn), stop=stop)
    log.info("relay.stopped")


def _relay(
    config: Config,
    store: sqlite3.Connection,
    outbox: Outbox,
    stop: Stop,
    batch: int,
    turn: Callable[[], None],
) -> None:
    check_writable(store)  # else it would send again and again what it can't mark
    prepare_to_publish(config)
    with ConfirmedChannel(config.named("relay")) as channel:
        log.info("relay.ready", extra={"broker": config.broker.address})
        limit = 1  # a broker in alarm takes the connection and answers nothing: no batch for it
        file, refusals = file_of(store), Refusals()
        while not stop:
            turn()
            if file is None or file_of(store) != file:
                raise StoreUnavailable(
                    "the outbox's file was removed or replaced: restart the relay"
                )
            seen = _version(store)  # before the look: a commit in between must not be waited for
            outcomes = relay_once(outbox, channel, limit=limit)
            if outcomes and not outcomes[Outcome.UNKNOWN]:
                limit = batch
            if refusals.last(outcomes):
                log.info("relay.reopened", extra={"reason": "every message was refused"})
                channel.reopen()
            if not outcomes:
                _await_commit(store, seen, channel, stop, turn)


def _await_commit(
    store: sqlite3.Connection,
    seen: int,
    channel: ConfirmedChannel,
    stop: Stop,
    turn: Callable[[], None],
) -> None:
    """Wait, serving the connection, until another process commits or a pause may be over."""
    end = time.monotonic() + RECHECK
    while not stop and _version(store) == seen and time.monotonic() < end:
        channel.serve(NAP)
        turn()


def _version(store: sqlite3.Connection) -> int:
    # Changes with every commit of another connection; reads no table (SQLite, PRAGMA data_version).
    with reading():
        return int(store.execute("PRAGMA data_version").fetchone()[0])


def policy_of(
    route: Route, retries_ms: Sequence[int], outbound: ConfirmedChannel, watched: Watched
) -> FailurePolicy:
    """Return what becomes of a failed delivery: a retry, then dead; *watched* hears of both."""
    parked = watched.parking(park(outbound, route))
    return watched.retrying(retry_later(outbound, route, retries_ms, exhausted=parked))


def run_receiver(
    config: Config,
    recipient: str,
    stop: Stop,
    *,
    batch: int = 1,
    prefetch: int = 50,
    keep_days: float = KEEP_DAYS,
    wrap: Callable[[Handler], Handler] = lambda handle: handle,
    tell: Callable[[Failure], None] = lambda failure: None,
    beat: Callable[[], None] = lambda: None,
) -> None:
    """Process *recipient*'s queue until *stop*.

    Receipts of more than *keep_days* ago are forgotten, a little at a time, but for dead messages.
    *wrap* may watch the handler; *tell* hears of each failed attempt whose copy is safe; *beat* is
    called as long as the loop turns.
    """
    route = config.route(recipient)
    store = config.stores.open(recipient)
    # Of its own, for the thread that serves the broker; it never waits for the worker's.
    aside = config.stores.open(recipient)
    aside.execute("PRAGMA busy_timeout = 0")
    handle, guard = wrap(handler_of(route)), limit_deaths()
    take = partial(
        consume,
        queue=route.queue,
        store=store,
        handle=handle,
        guard=guard,
        batch=batch,
        prefetch=prefetch,
        stop=stop,
    )

    def keep(failure: Failure) -> None:
        note(store, failure)
        tell(failure)

    def forget(inbound: BlockingConnection) -> Iterator[None]:
        return receipts_round(aside, inbound, route, keep_days * DAY)

    watched = Watched(route, config.retries_ms, keep)
    prove = proving(lambda: check_at_once(aside), in_use=lambda: store.in_transaction)

    def turn() -> None:
        beat()
        prove()

    def work() -> None:
        check_writable(store)  # else it would be called ready between two failures
        prepare(config, recipient, own_queues(config.topology(), route))
        receive_with(config, route, take, forget, watched=watched, beat=turn)

    keep_connected(work, stop=stop)
    log.info(f"{recipient}.stopped")


class Take(Protocol):
    """What runs ``consume`` or ``consume_with`` with everything else filled in."""

    def __call__(
        self,
        channel: BlockingChannel,
        *,
        on_failure: FailurePolicy,
        meanwhile: Callable[[], None],
    ) -> None:
        """Consume until a stop that it knows."""


def receive_with(
    config: Config,
    route: Route,
    take: Take,
    forget: Callable[[BlockingConnection], Iterator[None]],
    *,
    watched: Watched,
    beat: Callable[[], None],
) -> None:
    """Connect, and do what run_receiver does with its queue, whatever store *take* applies to.

    *forget* begins a round that removes what is old.
    """
    settings = config.named(route.recipient)
    with connect(settings) as inbound, ConfirmedChannel(settings) as outbound:
        log.info(f"{route.recipient}.ready", extra={"broker": config.broker.address})
        tend = caretaker(lambda: forget(inbound))

        def meanwhile() -> None:
            outbound.serve()
            beat()
            tend()

        on_failure = policy_of(route, config.retries_ms, outbound, watched)
        take(inbound.channel(), on_failure=on_failure, meanwhile=meanwhile)
