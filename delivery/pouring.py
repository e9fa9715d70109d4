"""Pour one queue into another: copy, confirm, ack."""

from __future__ import annotations

from collections.abc import Iterator

from pika.adapters.blocking_connection import BlockingChannel

from delivery.confirms import NotConfirmed, Outcome
from delivery.connection import BrokerUnavailable
from delivery.copies import copy_of
from delivery.handling import Delivery
from delivery.pipeline import ConfirmedChannel
from delivery.points import reach
from delivery.publisher import Message

__all__ = ["pour"]

BATCH = 200  # messages


def pour(channel: BlockingChannel, copies: ConfirmedChannel, source: str, target: str) -> None:
    """Move every message of *source* to *target*, and close *channel*.

    Raises NotConfirmed or BrokerUnavailable; what was not acked by then is in *source* again, and
    may be in *target*, too.
    """
    for batch in _batches(channel, source):
        sent = copies.send_all([Message("", target, copy_of(each), each.body) for each in batch])
        for answer in sent:
            if answer.outcome is not Outcome.CONFIRMED:
                raise NotConfirmed(answer, target)
        if len(sent) < len(batch):
            raise BrokerUnavailable(f"the connection was lost while {source} was moved")
        reach("move.copied")
        channel.basic_ack(batch[-1].tag, multiple=True)
        reach("move.settled")
    channel.close()


def _batches(channel: BlockingChannel, queue: str) -> Iterator[list[Delivery]]:
    """Give all messages of *queue*; within a batch each id is there once, as send_all asks."""
    batch: list[Delivery] = []
    ids: set[str | None] = set()
    while delivery := _next(channel, queue):
        if len(batch) == BATCH or delivery.properties.message_id in ids:
            yield batch
            batch, ids = [], set()
        batch.append(delivery)
        ids.add(delivery.properties.message_id)
    if batch:
        yield batch


def _next(channel: BlockingChannel, queue: str) -> Delivery | None:
    method, properties, body = channel.basic_get(queue)
    if method is None or properties is None or method.delivery_tag is None:
        return None
    return Delivery(queue=queue, body=body or b"", properties=properties, tag=method.delivery_tag)
