"""The operator's desk for one recipient's dead messages: the steps in their safe order."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType

from pika.exceptions import ChannelClosedByBroker

from delivery.config import Config
from delivery.connection import connect
from delivery.dead import dead_queue
from delivery.decisions import decisions_on, record_drop, record_replay
from delivery.errors import DeliveryError
from delivery.inbox import receipt_of
from delivery.pipeline import ConfirmedChannel
from delivery.plan import Planned, Prospect, Result, plan, results
from delivery.replay import drop, replay
from delivery.triage import DeadMessage, browse, held

__all__ = ["Desk"]


class Desk:
    """Holds a connection and the recipient's store; use it in a ``with`` block."""

    def __init__(self, config: Config, recipient: str) -> None:
        self._config = config
        self._route = config.route(recipient)
        self._store = config.stores.open(recipient)
        self._connection = connect(config.named("operator"))

    def __enter__(self) -> Desk:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self._store.close()
        if self._connection.is_open:
            self._connection.close()

    def browse(self) -> list[DeadMessage]:
        """Return the dead messages. Raises DeliveryError if there is no dead queue."""
        with self._dead_queue_there():
            return browse(self._connection, self._route)

    def dead_events(self) -> set[str]:
        """Return the ids of the dead events, and keep nothing else of them in memory."""
        with self._dead_queue_there(), held(self._connection, self._route) as (_, messages):
            return {message.key for message in messages if message.is_event}

    def plan(self) -> list[Planned]:
        """Return the dead messages with what a replay of each would do."""
        return plan(self._store, self._route, self.browse())

    def choose(self, ids: Sequence[str], *, every: bool) -> set[str]:
        """Return the keys to work on. Raises DeliveryError for one that is not dead (any more)."""
        if bool(ids) == every:
            raise DeliveryError("say which messages: --id KEY (may be repeated), or --all")
        dead = {message.key for message in self.browse()}
        for key in ids:
            if key not in dead:
                raise DeliveryError(self.absence(key))
        return dead if every else set(ids)

    def replay(
        self,
        keys: Collection[str],
        *,
        reason: str,
        operator: str,
        force: bool = False,
        seconds: float = 15.0,
    ) -> list[tuple[Planned, Result]]:
        """Send the messages again and return what became of each within *seconds*."""
        if not reason.strip():
            raise DeliveryError("say why: a replay needs a reason")
        chosen = [each for each in self.plan() if each.message.key in keys]
        unsure = [each.message.key for each in chosen if each.prospect is Prospect.UNSURE]
        if unsure and not force:
            raise DeliveryError(f"{', '.join(unsure)}: {Prospect.UNSURE.value}")

        def record(message: DeadMessage) -> None:
            recipient = self._route.recipient
            record_replay(self._store, recipient, message.key, operator=operator, reason=reason)

        with ConfirmedChannel(self._config.named("operator")) as publisher:
            sent = replay(
                self._connection,
                publisher,
                self._route,
                [each.message.key for each in chosen],
                operator=operator,
                reason=reason,
                record=record,
            )
        keys_sent = {message.key for message in sent}
        ours = [each for each in chosen if each.message.key in keys_sent]
        gone = [(each, Result.GONE) for each in chosen if each.message.key not in keys_sent]
        return results(self._store, self._route, ours, self.browse, seconds=seconds) + gone

    def drop(self, keys: Collection[str], *, reason: str, operator: str) -> list[DeadMessage]:
        """Give the messages up: recorded first, deleted second."""

        def record(message: DeadMessage) -> None:
            record_drop(
                self._store,
                self._route.recipient,
                message.key,
                is_event=message.is_event,
                operator=operator,
                reason=reason,
            )

        return drop(self._connection, self._route, keys, record=record)

    @contextmanager
    def _dead_queue_there(self) -> Iterator[None]:
        try:
            yield
        except ChannelClosedByBroker as refusal:
            raise DeliveryError(
                f"no queue {dead_queue(self._route)!r} ({refusal.reply_text});"
                " create it: delivery topology declare"
            ) from refusal

    def absence(self, key: str) -> str:
        """Say why *key* is not among the dead: settled since, decided on, or never seen."""
        said = [f"{key} is not among the dead messages of {self._route.recipient}"]
        for decision in decisions_on(self._store, key):
            when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(decision.decided_at))
            done = "replayed" if decision.action == "replay" else "dropped"
            said.append(f"{done} by {decision.operator} at {when} ({decision.reason})")
        if receipt := receipt_of(self._store, self._route.recipient, key):
            said.append(f"its receipt says {receipt.effect.value}")
        return "; ".join(said)
