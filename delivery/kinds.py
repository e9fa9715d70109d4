"""What only one kind of queue can do, and what the broker does about the rest."""

from __future__ import annotations

from collections.abc import Iterator

from delivery.topology import Queue

__all__ = ["kind_mistakes"]

QUORUM_ONLY = ("x-delivery-limit", "x-dead-letter-strategy", "x-delayed-retry-type")
CLASSIC_ONLY = ("x-max-priority", "x-queue-mode")


def kind_mistakes(queue: Queue) -> Iterator[tuple[str, str]]:
    """Give what is wrong with *queue*'s arguments for its kind, and the way out of each."""
    alien = CLASSIC_ONLY if queue.kind == "quorum" else QUORUM_ONLY
    for name in alien:
        if name in queue.arguments:
            yield f"a {queue.kind} queue has no {name}: the broker refuses it", "leave it out"
    if queue.kind == "quorum":
        yield from _quorum_mistakes(queue)


def _quorum_mistakes(queue: Queue) -> Iterator[tuple[str, str]]:
    arguments = queue.arguments
    confirmed = arguments.get("x-dead-letter-strategy") == "at-least-once"
    if confirmed and arguments.get("x-overflow") != "reject-publish":
        what = "at-least-once without reject-publish: the broker falls back to at-most-once"
        yield what, "say x-overflow=reject-publish"
    if confirmed and "x-dead-letter-exchange" not in arguments:
        yield "at-least-once without a dead-letter exchange does nothing", "name the exchange"
    if arguments.get("x-overflow") == "reject-publish-dlx":
        what = "a quorum queue knows no reject-publish-dlx: when full it drops its oldest message"
        yield what, "use reject-publish"
    if "x-dead-letter-exchange" in arguments and not confirmed:
        what = "nobody confirms what dies there: a node that dies takes it along"
        yield what, "say x-dead-letter-strategy=at-least-once and x-overflow=reject-publish"
    limit = arguments.get("x-delivery-limit")
    if limit is None:
        what = "its delivery limit depends on the version: none before RabbitMQ 4.0, then 20"
        yield what, "say x-delivery-limit"
    elif isinstance(limit, int) and limit < 1_000 and "x-dead-letter-exchange" not in arguments:
        what = f"x-delivery-limit={limit} without a dead-letter exchange: what exceeds it is gone"
        yield what, "name a dead-letter exchange, or a limit that nothing reaches"
