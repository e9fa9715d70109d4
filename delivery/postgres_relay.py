"""The relay as a process, one of several on the same PostgreSQL outbox."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial

from delivery import postgres_outbox, postgres_trail
from delivery.config import Config
from delivery.confirms import Outcome
from delivery.outbox import Outbox
from delivery.pipeline import ConfirmedChannel
from delivery.points import reach
from delivery.postgres import Connection, open_postgres, reading
from delivery.postgres_outbox import CHANNEL, PostgresOutbox, forget_sent
from delivery.postgres_writable import check_writable
from delivery.recovery import keep_connected
from delivery.refusals import Refusals
from delivery.relay import relay_once
from delivery.retention import DAY, KEEP_DAYS, STEP, caretaker, long_before
from delivery.services import NAP, RECHECK, prepare_to_publish
from delivery.stopping import Stop
from delivery.writable import proving

__all__ = ["run_postgres_relay"]

log = logging.getLogger(__name__)

SCHEMAS = (postgres_outbox.SCHEMA, postgres_trail.SCHEMA)


def run_postgres_relay(
    config: Config,
    url: str,
    stop: Stop,
    *,
    batch: int = 100,
    keep_days: float = KEEP_DAYS,
    wrap: Callable[[Outbox], Outbox] = lambda outbox: outbox,
    beat: Callable[[], None] = lambda: None,
) -> None:
    """Publish what the outbox in the database at *url* holds, until *stop*.

    The arguments are run_relay's. A smaller *batch* leaves more to the other relays, and holds what
    it has taken for a shorter time.
    """

    def work() -> None:
        prepare_to_publish(config)
        with (
            closing(open_postgres(url, *SCHEMAS, name=f"{config.namespace} relay")) as store,
            ConfirmedChannel(config.named("relay")) as channel,
        ):
            check_writable(store)
            tend = caretaker(partial(_forget_round, store, keep_days * DAY))
            prove = proving(partial(check_writable, store))

            def turn() -> None:
                beat()
                tend()
                prove()

            outbox = wrap(PostgresOutbox(store, config.exchange))
            with reading():
                store.execute(f"LISTEN {CHANNEL}")
            log.info("relay.ready", extra={"broker": config.broker.address})
            _relay(store, outbox, channel, stop, batch, turn)

    keep_connected(work, stop=stop)
    log.info("relay.stopped")


def _relay(
    store: Connection,
    outbox: Outbox,
    channel: ConfirmedChannel,
    stop: Stop,
    batch: int,
    turn: Callable[[], None],
) -> None:
    # A broker in alarm takes the connection and answers nothing: no batch for it. And one that
    # confirms slowly must not keep rows longer than the server lets a silent session hold them.
    limit, refusals = 1, Refusals()
    while not stop:
        turn()
        outcomes = relay_once(outbox, channel, limit=limit)
        if outcomes and not outcomes[Outcome.UNKNOWN]:
            limit = min(batch, 2 * limit)
        if refusals.last(outcomes):
            log.info("relay.reopened", extra={"reason": "every message was refused"})
            channel.reopen()
        if not outcomes:
            _await_commit(store, channel, stop, turn)


def _await_commit(
    store: Connection, channel: ConfirmedChannel, stop: Stop, turn: Callable[[], None]
) -> None:
    """Wait, serving the connection, until a commit is announced or it is time to look anyway.

    An announcement that is lost costs half a second, never an event.
    """
    end = time.monotonic() + RECHECK
    while not stop and not _heard(store) and time.monotonic() < end:
        channel.serve(NAP)
        turn()


def _heard(store: Connection) -> bool:
    with reading():
        return bool(list(store.notifies(timeout=0)))


def _forget_round(store: Connection, keep: float) -> Iterator[None]:
    gone = STEP
    while gone == STEP:
        gone = forget_sent(store, keep=keep, most=STEP)
        reach("postgres.forgotten")
        yield
    gone = STEP
    while gone == STEP:
        gone = postgres_trail.forget(store, before=long_before(keep), most=STEP)
        reach("postgres.trail_forgotten")
        yield
