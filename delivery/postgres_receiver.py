"""A recipient as a process, one of any number on its queue, with its database in PostgreSQL."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial

from pika.adapters.blocking_connection import BlockingConnection

from delivery import (
    postgres_decisions,
    postgres_effects,
    postgres_failures,
    postgres_inbox,
    postgres_revision,
    postgres_strikes,
)
from delivery.config import Config
from delivery.consumer import consume_with
from delivery.failures import Failure, Watched
from delivery.points import reach
from delivery.postgres import Connection, open_postgres, reading
from delivery.postgres_inbox import PostgresHandler, applying, once, prune
from delivery.postgres_revision import latest_only
from delivery.postgres_strikes import limit_deaths
from delivery.postgres_writable import check_writable
from delivery.recovery import keep_connected
from delivery.retention import DAY, KEEP_DAYS, STEP, long_before, oldest_dead
from delivery.routes import Route
from delivery.services import prepare, receive_with
from delivery.stopping import Stop
from delivery.store import Schema
from delivery.verify import own_queues
from delivery.writable import proving

__all__ = ["SCHEMAS", "handler_of", "run_postgres_receiver"]

log = logging.getLogger(__name__)

_EVERY = (
    postgres_inbox.SCHEMA,
    postgres_strikes.SCHEMA,
    postgres_decisions.SCHEMA,
    postgres_failures.SCHEMA,
)
SCHEMAS: dict[str, tuple[Schema, ...]] = {
    "catalog": (*_EVERY, postgres_revision.SCHEMA, postgres_effects.CATALOG),
    "audit": (*_EVERY, postgres_effects.AUDIT),
}
_ANY_OLD = """
SELECT FROM receipt WHERE recipient = %s AND received_at < to_timestamp(%s) UNION ALL
SELECT FROM failure WHERE recipient = %s AND failed_at < to_timestamp(%s) UNION ALL
SELECT FROM decision WHERE entry = (SELECT min(entry) FROM decision)
    AND decided_at < to_timestamp(%s) LIMIT 1
"""


def handler_of(route: Route) -> PostgresHandler:
    """Return the recipient's whole guarantee, as services.handler_of does."""
    effects: dict[str, PostgresHandler] = {
        "catalog": once(route, latest_only(postgres_effects.upsert)),
        "audit": once(route, postgres_effects.append),
    }
    return effects[route.recipient]


def run_postgres_receiver(
    config: Config,
    recipient: str,
    url: str,
    stop: Stop,
    *,
    batch: int = 1,
    prefetch: int = 50,
    keep_days: float = KEEP_DAYS,
    wrap: Callable[[PostgresHandler], PostgresHandler] = lambda handle: handle,
    tell: Callable[[Failure], None] = lambda failure: None,
    beat: Callable[[], None] = lambda: None,
) -> None:
    """Process *recipient*'s queue into the database at *url*, until *stop*.

    The arguments are run_receiver's.
    """
    route = config.route(recipient)
    handle, guard = wrap(handler_of(route)), limit_deaths(recipient)

    def opened() -> Connection:
        return open_postgres(url, *SCHEMAS[recipient], name=f"{config.namespace} {recipient}")

    def work() -> None:
        prepare(config, recipient, own_queues(config.topology(), route))
        # The second one is for the thread that serves the broker.
        with closing(opened()) as store, closing(opened()) as aside:
            take = partial(
                consume_with,
                queue=route.queue,
                apply=applying(store, handle, guard),
                batch=batch,
                prefetch=prefetch,
                stop=stop,
            )

            def keep(failure: Failure) -> None:
                postgres_failures.note(aside, failure)
                tell(failure)

            def forget(inbound: BlockingConnection) -> Iterator[None]:
                return _receipts_round(aside, inbound, route, keep_days * DAY)

            check_writable(store)
            prove = proving(partial(check_writable, aside))

            def turn() -> None:
                beat()
                prove()

            watched = Watched(route, config.retries_ms, keep)
            receive_with(config, route, take, forget, watched=watched, beat=turn)

    keep_connected(work, stop=stop)
    log.info(f"{recipient}.stopped")


def _receipts_round(
    store: Connection, connection: BlockingConnection, route: Route, keep: float
) -> Iterator[None]:
    """Forget, step by step, *route*'s receipts and failures that are older than *keep* seconds.

    What operators decided about its messages is kept for a year.
    """
    before, long_ago, recipient = time.time() - keep, long_before(keep), route.recipient
    with reading():
        any_old = store.execute(_ANY_OLD, (*(recipient, before) * 2, long_ago)).rowcount
    if not any_old:
        return  # the usual case: nobody's dead messages need be held for it
    since = oldest_dead(connection, route)
    gone = STEP
    while gone == STEP:
        gone = prune(store, recipient, before=before, oldest_dead=since, most=STEP)
        reach("postgres.receipts_forgotten")
        yield
    gone = STEP
    while gone == STEP:
        gone = postgres_failures.forget(
            store, recipient, before=before, oldest_dead=since, most=STEP
        )
        reach("postgres.failures_forgotten")
        yield
    gone = STEP
    while gone == STEP:
        gone = postgres_decisions.forget(store, before=long_ago, oldest_dead=since, most=STEP)
        reach("postgres.decisions_forgotten")
        yield
