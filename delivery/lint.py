"""Find mistakes in a topology that the broker accepts without a word."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from delivery.kinds import kind_mistakes
from delivery.routing import routed
from delivery.topology import Exchange, Queue, Topology

__all__ = ["Problem", "Publisher", "lint"]

# RabbitMQ 4.3, queue and exchange arguments. The broker takes any other x- argument silently.
QUEUE_ARGUMENTS = {
    *("x-message-ttl", "x-expires", "x-max-length", "x-max-length-bytes", "x-overflow"),
    *("x-dead-letter-exchange", "x-dead-letter-routing-key", "x-dead-letter-strategy"),
    *("x-max-priority", "x-queue-type", "x-queue-version", "x-queue-mode"),
    *("x-single-active-consumer", "x-delivery-limit", "x-quorum-initial-group-size"),
    *("x-queue-leader-locator", "x-consumer-timeout"),
    *("x-delayed-retry-type", "x-delayed-retry-min", "x-delayed-retry-max"),
}
KNOWN = {Queue: QUEUE_ARGUMENTS, Exchange: {"alternate-exchange"}}
COUNTS = ("x-message-ttl", "x-max-length", "x-max-length-bytes", "x-expires")
LIMITS = {"x-message-ttl", "x-max-length", "x-max-length-bytes"}


@dataclass(frozen=True)
class Publisher:
    """Who publishes where, and how: a part of the picture that the broker does not know."""

    exchange: str
    keys: tuple[str, ...]
    mandatory: bool = True
    confirms: bool = True


@dataclass(frozen=True)
class Problem:
    """One mistake: what it is about, what happens because of it, and the way out."""

    thing: str
    what: str
    fix: str

    def __str__(self) -> str:
        return f"{self.thing}: {self.what}; {self.fix}"


def lint(topology: Topology, publishers: Iterable[Publisher] = ()) -> list[Problem]:
    """Return every mistake found in *topology* and in how *publishers* use it."""
    return [
        *_names(topology),
        *_arguments(topology),
        *_bindings(topology),
        *_alternates(topology),
        *_dead_letters(topology),
        *_limits(topology),
        *_kinds(topology),
        *_publishers(topology, publishers),
    ]


def _names(topology: Topology) -> Iterator[Problem]:
    kinds: tuple[tuple[Exchange | Queue, ...], ...] = (topology.exchanges, topology.queues)
    for items in kinds:
        seen: set[str] = set()
        for item in items:
            thing = f"{type(item).__name__.lower()} {item.name!r}"
            if not item.name:
                yield Problem(thing, "has no name: the broker makes one up", "name it")
            if len(item.name.encode()) > 255:
                yield Problem(thing, "its name is longer than AMQP's 255 bytes", "shorten it")
            if item.name.startswith("amq."):
                yield Problem(thing, "the broker keeps names that begin with amq.", "rename it")
            if item.name in seen:
                yield Problem(thing, "is described twice, differently", "keep one description")
            seen.add(item.name)


def _arguments(topology: Topology) -> Iterator[Problem]:
    items: tuple[Exchange | Queue, ...] = topology.exchanges + topology.queues
    for item in items:
        thing = f"{type(item).__name__.lower()} {item.name!r}"
        for name in item.arguments:
            if name not in KNOWN[type(item)]:
                what = f"the broker ignores unknown argument {name!r}"
                yield Problem(thing, what, "check its spelling")
        for name in COUNTS:
            count = item.arguments.get(name, 0)
            if type(count) is not int or not 0 <= count < 2**32:
                yield Problem(thing, f"{name}={count!r}", "use a whole number from 0 to 2**32 - 1")
        if "x-expires" in item.arguments:
            yield Problem(thing, "x-expires deletes it with its messages", "leave it out")
        if item.arguments.get("x-queue-type", "") not in ("", getattr(item, "kind", "")):
            yield Problem(thing, "x-queue-type differs from its kind", "say it once, as kind")


def _bindings(topology: Topology) -> Iterator[Problem]:
    exchanges = {exchange.name for exchange in topology.exchanges}
    queues = {queue.name for queue in topology.queues}
    for binding in topology.bindings:
        thing = f"binding {binding.exchange!r} -> {binding.queue!r}"
        if binding.exchange not in exchanges:
            yield Problem(thing, "its exchange is missing", "describe the exchange, too")
        if binding.queue not in queues:
            yield Problem(thing, "its queue is missing", "describe the queue, too")


def _alternates(topology: Topology) -> Iterator[Problem]:
    known = {exchange.name: exchange for exchange in topology.exchanges}
    for exchange in topology.exchanges:
        name = exchange.arguments.get("alternate-exchange")
        if name is None:
            continue
        thing = f"exchange {exchange.name!r}"
        alternate = known.get(str(name))
        if alternate is None:
            yield Problem(thing, f"its alternate exchange {name!r} is missing", "describe it, too")
        elif not any(b.exchange == alternate.name for b in topology.bindings):
            yield Problem(
                thing,
                f"its alternate exchange {name!r} has no queue: what no queue wants vanishes there",
                "bind a queue to it",
            )
        elif not _takes_all(topology, alternate):
            yield Problem(
                thing,
                f"its alternate exchange {name!r} is a {alternate.kind} and may route nowhere",
                "make it a fanout",
            )


def _takes_all(topology: Topology, exchange: Exchange) -> bool:
    keys = {binding.key for binding in topology.bindings if binding.exchange == exchange.name}
    return exchange.kind == "fanout" or (exchange.kind == "topic" and "#" in keys)


def _dead_letters(topology: Topology) -> Iterator[Problem]:
    for queue in topology.queues:
        exchange = queue.arguments.get("x-dead-letter-exchange")
        key = queue.arguments.get("x-dead-letter-routing-key")
        if exchange is None:
            if key is not None:
                what = "a dead-letter routing key without a dead-letter exchange does nothing"
                yield Problem(f"queue {queue.name!r}", what, "name the exchange")
            continue
        if exchange == "" and key == queue.name:
            what = "what expires there goes to itself, and the broker drops it as a cycle"
            yield Problem(f"queue {queue.name!r}", what, "name another queue")
        keys = [str(key)] if key is not None else _keys_into(topology, queue)
        for each in keys:
            if not routed(topology, str(exchange), each):
                yield Problem(
                    f"queue {queue.name!r}",
                    f"what dies there goes to exchange {str(exchange)!r} with key {each!r}, which"
                    " routes nowhere: the broker drops it",
                    "name a target that exists, or bind a queue for that key",
                )


def _keys_into(topology: Topology, queue: Queue) -> list[str]:
    # Without a dead-letter key a message keeps the one that it came with.
    return [b.key for b in topology.bindings if b.queue == queue.name] or [queue.name]


def _limits(topology: Topology) -> Iterator[Problem]:
    # At-least-once keeps what the target refuses, and offers it again.
    dead_targets = {
        queue.arguments.get("x-dead-letter-routing-key")
        for queue in topology.queues
        if queue.arguments.get("x-dead-letter-exchange") == ""
        and queue.arguments.get("x-dead-letter-strategy") != "at-least-once"
    }
    for queue in topology.queues:
        limits = sorted(LIMITS & set(queue.arguments))
        rejects = queue.arguments.get("x-overflow") == "reject-publish"
        thing = f"queue {queue.name!r}"
        if limits and "x-dead-letter-exchange" not in queue.arguments:
            only_length = "x-message-ttl" not in limits
            if not (rejects and only_length):
                yield Problem(
                    thing,
                    f"{', '.join(limits)} without a dead-letter exchange: what exceeds it is gone",
                    "name a dead-letter exchange, or x-overflow=reject-publish for a length",
                )
        if rejects and (queue.name in dead_targets or queue.name.endswith(".dead")):
            yield Problem(
                thing,
                "a dead queue that rejects when full loses what the broker moves into it",
                "do not bound a dead queue with reject-publish",
            )


def _kinds(topology: Topology) -> Iterator[Problem]:
    for queue in topology.queues:
        for what, fix in kind_mistakes(queue):
            yield Problem(f"queue {queue.name!r}", what, fix)


def _publishers(topology: Topology, publishers: Iterable[Publisher]) -> Iterator[Problem]:
    exchanges = {exchange.name for exchange in topology.exchanges} | {""}
    for publisher in publishers:
        thing = f"publisher to {publisher.exchange!r}"
        if publisher.exchange not in exchanges:
            yield Problem(thing, "its exchange is missing", "describe the exchange, too")
            continue
        if publisher.mandatory and not publisher.confirms:
            yield Problem(
                thing,
                "mandatory without confirms: a return comes later, or never, and stops nobody",
                "publish on a ConfirmedChannel",
            )
        for key in publisher.keys:
            if not routed(topology, publisher.exchange, key):
                yield Problem(thing, f"key {key!r} reaches no queue", "bind a queue for it")
