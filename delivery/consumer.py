"""Process a queue: commit the effect first, settle the delivery second."""

from __future__ import annotations

import enum
import logging
import sqlite3
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar

from pika.adapters.blocking_connection import BlockingChannel

from delivery.connection import describe
from delivery.errors import PermanentError
from delivery.handling import Delivery, Failed, Handled, Handler, apply_batch
from delivery.points import reach
from delivery.reader import Reader
from delivery.stopping import Stop

__all__ = ["Apply", "FailurePolicy", "Guard", "Settlement", "consume", "consume_with", "requeue"]

log = logging.getLogger(__name__)


class Settlement(enum.Enum):
    """Where a delivery is safe now, and so what to tell the broker."""

    ELSEWHERE = "ack"  # committed, or a confirmed copy exists: this one can go
    ONLY_HERE = "requeue"  # this is the only one: back into its queue


FailurePolicy = Callable[[Delivery, Exception], Settlement]
Store = TypeVar("Store")  # a database connection
Guard = Callable[[Delivery, Store], AbstractContextManager[None]]
Results = Sequence[Handled | Failed]
NOBODY_ELSE = nullcontext()
Apply = Callable[[Sequence[Delivery]], Results]


def requeue(delivery: Delivery, error: Exception) -> Settlement:
    """Give the delivery back to its own queue, to be tried again at once."""
    return Settlement.ONLY_HERE


def consume(
    channel: BlockingChannel,
    queue: str,
    store: sqlite3.Connection,
    handle: Handler,
    *,
    on_failure: FailurePolicy = requeue,
    guard: Guard[sqlite3.Connection] | None = None,
    batch: int = 1,
    prefetch: int = 10,
    idle: float | None = None,
    stop: Stop | None = None,
    meanwhile: Callable[[], None] = lambda: None,
    turn: AbstractContextManager[object] = NOBODY_ELSE,
) -> None:
    """Process *queue* until *stop*, or until nothing arrived for *idle* seconds.

    This thread serves the connection while one worker thread runs the transactions, so a handler
    may take longer than the heartbeat. At most *batch* deliveries share a transaction; the broker
    hands over at most *prefetch* unsettled ones. A redelivered message is handled inside *guard*,
    which refuses it by raising PermanentError. *turn* is held for each transaction: a lock that the
    consumers of one SQLite file share, whose waiting writers would only look again now and then.

    Raises TemporaryError (ConsumingEnded, StoreUnavailable, NotConfirmed ...) and pika's AMQPError;
    what was not settled by then returns to the queue.
    """
    consume_with(
        channel,
        queue,
        _applying(store, handle, guard, turn),
        on_failure=on_failure,
        batch=batch,
        prefetch=prefetch,
        idle=idle,
        stop=stop,
        meanwhile=meanwhile,
    )


def consume_with(
    channel: BlockingChannel,
    queue: str,
    apply: Apply,
    *,
    on_failure: FailurePolicy = requeue,
    batch: int = 1,
    prefetch: int = 10,
    idle: float | None = None,
    stop: Stop | None = None,
    meanwhile: Callable[[], None] = lambda: None,
) -> None:
    """Do what consume does, with any store: *apply* commits a batch before it returns."""
    stop = Stop() if stop is None else stop
    reader = Reader(channel, queue, prefetch=max(batch, prefetch), meanwhile=meanwhile)
    with reader.returning(), ThreadPoolExecutor(1, thread_name_prefix=queue) as worker:
        while True:
            reader.serve_until(lambda: bool(reader) or bool(stop), idle)
            if stop or not reader:
                break
            job = worker.submit(apply, reader.take(batch))
            job.add_done_callback(lambda _: reader.wake())
            reader.serve_until(job.done)
            _settle(channel, job, on_failure)
    reader.close()


def _applying(
    store: sqlite3.Connection,
    handle: Handler,
    guard: Guard[sqlite3.Connection] | None,
    turn: AbstractContextManager[object],
) -> Apply:
    def apply(taken: Sequence[Delivery]) -> Results:
        if guard is None or not taken[0].redelivered:
            with turn:
                return apply_batch(taken, store, handle)
        try:
            with turn, guard(taken[0], store):
                return apply_batch(taken, store, handle)
        except PermanentError as refusal:
            return [Failed(taken[0], refusal)]

    return apply


def _settle(channel: BlockingChannel, job: Future[Results], on_failure: FailurePolicy) -> None:
    results = job.result()  # raises what the transaction raised: then nothing is settled
    if all(isinstance(result, Handled) for result in results):
        channel.basic_ack(results[-1].delivery.tag, multiple=True)
    else:
        for result in results:
            _settle_one(channel, result, on_failure)
    reach("consumer.settled")
    _tell(results)


def _tell(results: Results) -> None:
    """Log a lone delivery and each failure by itself; of a batch, how often each effect came.

    At level debug every delivery has a line, and the batch has none.
    """
    alone = len(results) == 1
    every = alone or log.isEnabledFor(logging.DEBUG)
    for result in results:
        if every or isinstance(result, Failed):
            log.info("delivery.settled", extra=_fields(result))
    if not every:
        counts = Counter(each.effect.value for each in results if isinstance(each, Handled))
        log.info("batch.settled", extra={"queue": results[0].delivery.queue, **counts})


def _settle_one(
    channel: BlockingChannel, result: Handled | Failed, on_failure: FailurePolicy
) -> None:
    settlement = Settlement.ELSEWHERE
    if isinstance(result, Failed):
        settlement = on_failure(result.delivery, result.error)
    if settlement is Settlement.ELSEWHERE:
        channel.basic_ack(result.delivery.tag)
    else:
        channel.basic_nack(result.delivery.tag, requeue=True)
    reach("consumer.settled_one")


def _fields(result: Handled | Failed) -> dict[str, object]:
    fields: dict[str, object] = {
        "queue": result.delivery.queue,
        "message_id": result.delivery.message_id,
    }
    if result.delivery.traceparent:
        fields["traceparent"] = result.delivery.traceparent
    if isinstance(result, Handled):
        return fields | {"effect": result.effect.value}
    return fields | {"effect": "failed", "error": describe(result.error)[:500]}
