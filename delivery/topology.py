"""Exchanges, queues and bindings as plain values, and the one call that declares them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from pika.adapters.blocking_connection import BlockingChannel, BlockingConnection
from pika.exceptions import ChannelClosedByBroker

from delivery.errors import DeliveryError

__all__ = [
    "Binding",
    "Conflict",
    "DeclarationRefused",
    "Exchange",
    "Queue",
    "Topology",
    "TopologyConflict",
    "declare",
]

NOT_FOUND, PRECONDITION_FAILED = 404, 406  # AMQP 0-9-1, reply codes

_Item = TypeVar("_Item")


@dataclass(frozen=True)
class Exchange:
    """A durable exchange."""

    name: str
    kind: Literal["topic", "fanout", "direct", "headers"] = "topic"
    arguments: Mapping[str, object] = field(default_factory=dict)

    def declare(self, channel: BlockingChannel, *, passive: bool = False) -> None:
        """Create it on the broker, or (*passive*) only ask whether it exists."""
        channel.exchange_declare(
            self.name, self.kind, passive=passive, durable=True, arguments=dict(self.arguments)
        )


@dataclass(frozen=True)
class Queue:
    """A durable queue; its arguments can't change once it exists."""

    name: str
    arguments: Mapping[str, object] = field(default_factory=dict)
    kind: Literal["classic", "quorum"] = "classic"

    def declare(self, channel: BlockingChannel, *, passive: bool = False) -> None:
        """Create it on the broker, or (*passive*) only ask whether it exists."""
        arguments = {"x-queue-type": self.kind, **self.arguments}
        channel.queue_declare(self.name, passive=passive, durable=True, arguments=arguments)


@dataclass(frozen=True)
class Binding:
    """Messages for routing keys that match ``key`` on ``exchange`` reach ``queue``."""

    exchange: str
    queue: str
    key: str


@dataclass(frozen=True)
class Topology:
    """A set of declarations; ``a + b`` is both, each thing once."""

    exchanges: tuple[Exchange, ...] = ()
    queues: tuple[Queue, ...] = ()
    bindings: tuple[Binding, ...] = ()

    def __add__(self, other: Topology) -> Topology:
        return Topology(
            _once_each(self.exchanges + other.exchanges),
            _once_each(self.queues + other.queues),
            _once_each(self.bindings + other.bindings),
        )


@dataclass(frozen=True)
class Conflict:
    """Something that exists on the broker with another argument than we want."""

    thing: str
    argument: str
    have: str
    want: str

    def __str__(self) -> str:
        return f"{self.thing} exists with {self.argument} = {self.have}, wanted {self.want}"


class TopologyConflict(DeliveryError):
    """Existing objects differ from what was to be declared; nothing was declared."""

    def __init__(self, conflicts: Sequence[Conflict]) -> None:
        found = "; ".join(str(conflict) for conflict in conflicts)
        super().__init__(
            f"{found}. Nothing was declared. A queue's arguments can't change in place. Most often"
            " the settings differ here from those it was declared with (DELIVERY_RETRIES_MS,"
            " DELIVERY_QUEUES): go back to the old value. If the new one is meant: `delivery queues"
            " plan`, then `delivery queues change QUEUE`; or use another namespace."
        )
        self.conflicts = tuple(conflicts)


class DeclarationRefused(DeliveryError):
    """The broker does not accept an argument of something new; lint knows the usual mistakes."""


def declare(connection: BlockingConnection, topology: Topology) -> None:
    """Declare *topology*, all of it or (after TopologyConflict) nothing; twice changes nothing.

    Raises DeclarationRefused for an impossible argument of something new: what stood before it is
    declared by then.

    What exists is compared first: the broker answers a differing declare with 406 and closes the
    channel, which would leave the rest undeclared.
    """
    items: tuple[Exchange | Queue, ...] = topology.exchanges + topology.queues
    found = [_conflict(connection, item) for item in items]
    if conflicts := [conflict for conflict in found if conflict]:
        raise TopologyConflict(conflicts)
    channel = connection.channel()
    for item in items:
        try:
            item.declare(channel)
        except ChannelClosedByBroker as refusal:
            if refusal.reply_code != PRECONDITION_FAILED:
                raise
            raise DeclarationRefused(f"{_thing(item)}: {refusal.reply_text}") from refusal
    for binding in topology.bindings:
        channel.queue_bind(binding.queue, binding.exchange, binding.key)
    channel.close()


def _conflict(connection: BlockingConnection, item: Exchange | Queue) -> Conflict | None:
    channel = connection.channel()
    try:
        item.declare(channel, passive=True)
        item.declare(channel)  # it exists: an equal declare changes nothing, another one is a 406
    except ChannelClosedByBroker as refusal:
        if refusal.reply_code == NOT_FOUND:
            return None
        if refusal.reply_code == PRECONDITION_FAILED:
            return _read_refusal(item, refusal.reply_text)
        raise
    channel.close()
    return None


_REFUSAL = re.compile(r"inequivalent arg '(.+?)' for .*: received (.+) but current is (.+)$")


def _read_refusal(item: Exchange | Queue, text: str) -> Conflict:
    thing = _thing(item)
    match = _REFUSAL.search(text)
    if match is None:
        return Conflict(thing, "an argument", "(broker's words)", text)
    argument, want, have = match.groups()
    return Conflict(thing, argument, _value(have), _value(want))


def _thing(item: Exchange | Queue) -> str:
    return f"{type(item).__name__.lower()} '{item.name}'"


def _value(text: str) -> str:
    match = re.match(r"(?:the value )?'(.*?)'(?: of type '.*')?$", text)
    return match[1] if match else text


def _once_each(items: tuple[_Item, ...]) -> tuple[_Item, ...]:
    return tuple(item for i, item in enumerate(items) if item not in items[:i])
