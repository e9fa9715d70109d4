"""Look at one recipient's dead messages; nothing is changed."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import closing, contextmanager
from types import TracebackType
from typing import Self

from pika.exceptions import ChannelClosedByBroker

from delivery.config import Config
from delivery.connection import ACCESS_REFUSED, connect
from delivery.dead import dead_queue
from delivery.errors import DeliveryError
from delivery.groups import full_key
from delivery.parking_desk import parked_events
from delivery.plan import Planned, plan
from delivery.sheet import Sheet
from delivery.sides import Sides, sqlite_sides
from delivery.triage import DeadMessage, HeldMessage, browse, held

__all__ = ["Lookout"]


class Lookout:
    """Holds a connection and the recipient's store; use it in a ``with`` block.

    The stores are SQLite's files, if *sides* does not say otherwise.
    """

    def __init__(self, config: Config, recipient: str, *, sides: Sides | None = None) -> None:
        self._config = config
        self._route = config.route(recipient)
        self._sides = sides or sqlite_sides(config.stores)
        self._store = self._sides.recipient(recipient)
        self._connection = connect(config.named("operator"))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the store and the connection."""
        self._store.close()
        if self._connection.is_open:
            self._connection.close()

    def browse(self) -> list[DeadMessage]:
        """Return the dead messages. Raises DeliveryError if there is no dead queue."""
        with self._dead_queue_there():
            return browse(self._connection, self._route)

    def each(self) -> Iterator[HeldMessage]:
        """Give the dead messages one by one; they are held until the last, so be quick."""
        with self._dead_queue_there(), held(self._connection, self._route) as (_, messages):
            yield from messages

    def dead_events(self) -> set[str]:
        """Return the ids of the dead events, and keep nothing else of them in memory."""
        return {message.key for message in self.each() if message.is_event}

    def parked_events(self) -> set[str]:
        """Return the ids of the events that no queue wanted, the recipient's neither."""
        return set(parked_events(self._connection, self._config.parking))

    def plan(self, dead: Iterable[DeadMessage] | None = None) -> list[Planned]:
        """Return the dead messages, or those given, with what a replay of each would do."""
        dead = self.browse() if dead is None else dead
        return plan(self._store.receipt, self._store.pruned(), dead)

    def in_full(self, keys: Collection[str]) -> list[HeldMessage]:
        """Return the dead messages that *keys* name, with their bodies: not too many."""
        return [message for message in self.each() if message.key in keys]

    def find(self, word: str) -> list[HeldMessage]:
        """Return the dead message whose key is, or begins with, *word*; its copies, too.

        Raises DeliveryError if there is none, or if several begin so.
        """
        with closing(Sheet()) as sheet:  # there may be a million
            sheet.write(self.each())
            key = full_key(word, sheet)
        if key is None:
            raise DeliveryError(self.absence(word))
        if found := self.in_full({key}):
            return found
        raise DeliveryError(self.absence(key))  # settled in between

    def absence(self, key: str) -> str:
        """Say why *key* is not among the dead: settled since, decided on, or never seen."""
        said = [f"{key} is not among the dead messages of {self._route.recipient}"]
        for decision in self._store.decisions(key):
            when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(decision.decided_at))
            done = "replayed" if decision.action == "replay" else "dropped"
            said.append(f"{done} by {decision.operator} at {when} ({decision.reason})")
        if receipt := self._store.receipt(key):
            said.append(f"its receipt says {receipt.effect.value}")
        return "; ".join(said)

    @contextmanager
    def _dead_queue_there(self) -> Iterator[None]:
        try:
            yield
        except ChannelClosedByBroker as refusal:
            if refusal.reply_code == ACCESS_REFUSED:
                raise
            raise DeliveryError(
                f"no queue {dead_queue(self._route)!r} ({refusal.reply_text});"
                " create it: delivery topology declare"
            ) from refusal
