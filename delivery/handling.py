"""Apply deliveries to a store: one transaction, a savepoint for each, so that each fails alone."""

from __future__ import annotations

import enum
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TypeVar

from pika import BasicProperties

from delivery.codec import ContractError, decode
from delivery.contract import Event
from delivery.errors import TemporaryError
from delivery.points import reach
from delivery.store import savepoint, transaction

__all__ = [
    "Delivery",
    "Effect",
    "Failed",
    "Handled",
    "Handler",
    "Tx",
    "apply_batch",
    "apply_within",
    "event_of",
]

Tx = TypeVar("Tx")  # a database connection inside its transaction


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """What the broker handed over: bytes that may not be an event."""

    queue: str
    body: bytes
    properties: BasicProperties
    tag: int = 0
    redelivered: bool = False

    @property
    def message_id(self) -> str:
        """The message's id; empty if the sender gave none, with escapes if it is not UTF-8."""
        given: str | bytes = self.properties.message_id or ""  # pika hands over what it can't read
        return given.decode("utf-8", "backslashreplace") if isinstance(given, bytes) else given

    @property
    def traceparent(self) -> str:
        """The trace that the message belongs to, as its sender says; empty if it says nothing."""
        given = (self.properties.headers or {}).get("traceparent")
        return given[:100] if isinstance(given, str) else ""


class Effect(enum.Enum):
    """What a handler did with an event; counted, not guessed."""

    APPLIED = "applied"
    DUPLICATE = "duplicate"
    STALE = "stale"
    DROPPED = "dropped"  # no handler's answer: an operator gave the message up


Handler = Callable[[Event, sqlite3.Connection], Effect]


@dataclass(frozen=True)
class Handled:
    """The effect of this delivery is committed."""

    delivery: Delivery
    effect: Effect


@dataclass(frozen=True)
class Failed:
    """Nothing of this delivery was committed."""

    delivery: Delivery
    error: Exception


def event_of(delivery: Delivery) -> Event:
    """Return the event in *delivery*, or raise ContractError."""
    event = decode(delivery.body)
    message_id = delivery.message_id
    if not message_id:
        raise ContractError("no_message_id", "the message has no message_id to tell copies by")
    if message_id != event.id:
        raise ContractError("wrong_value", "message_id differs from the event's id")
    return event


def apply_batch(
    deliveries: Sequence[Delivery], store: sqlite3.Connection, handle: Handler
) -> list[Handled | Failed]:
    """Handle *deliveries* in one transaction, and return what became of each, in their order.

    Raises TemporaryError if the store can't be used: then nothing of any delivery was committed.
    """
    return apply_within(transaction(store), savepoint, deliveries, handle)


def apply_within(
    transaction: AbstractContextManager[Tx],
    savepoint: Callable[[Tx], AbstractContextManager[None]],
    deliveries: Sequence[Delivery],
    handle: Callable[[Event, Tx], Effect],
) -> list[Handled | Failed]:
    """Do what apply_batch does, in any database that has transactions and savepoints."""
    with transaction as tx:
        results = [_apply(delivery, tx, savepoint, handle) for delivery in deliveries]
        reach("consumer.applied")
    reach("consumer.committed")
    return results


def _apply(
    delivery: Delivery,
    tx: Tx,
    savepoint: Callable[[Tx], AbstractContextManager[None]],
    handle: Callable[[Event, Tx], Effect],
) -> Handled | Failed:
    try:
        with savepoint(tx):
            effect = handle(event_of(delivery), tx)
            reach("consumer.handled", delivery.message_id)
        return Handled(delivery, effect)
    except TemporaryError:
        raise  # not the message's fault: no attempt is spent
    except Exception as error:  # noqa: BLE001 - a handler may raise anything; a policy decides
        return Failed(delivery, error)
