"""Pour one queue into another: copy, confirm, ack."""

from __future__ import annotations

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
    while batch := _take(channel, source):
        sent = copies.send_all(
            [Message("", target, copy_of(each), each.body) for each in batch.values()]
        )
        for answer in sent:
            if answer.outcome is not Outcome.CONFIRMED:
                raise NotConfirmed(answer, target)
        if len(sent) < len(batch):
            raise BrokerUnavailable(f"the connection was lost while {source} was moved")
        reach("move.copied")
        channel.basic_ack(max(batch), multiple=True)
        reach("move.settled")
    channel.close()


def _take(channel: BlockingChannel, queue: str) -> dict[int, Delivery]:
    """Return the next messages by delivery tag; an id that comes again ends the batch."""
    batch: dict[int, Delivery] = {}
    ids: set[str | None] = set()
    while len(batch) < BATCH and len(ids) == len(batch):
        method, properties, body = channel.basic_get(queue)
        if method is None or properties is None or method.delivery_tag is None:
            break
        tag = method.delivery_tag
        batch[tag] = Delivery(queue=queue, body=body or b"", properties=properties, tag=tag)
        ids.add(properties.message_id)
    if len(ids) < len(batch):
        channel.basic_nack(max(batch), requeue=True)
        del batch[max(batch)]
    return batch
