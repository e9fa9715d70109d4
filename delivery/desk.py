"""The operator's desk for one recipient's dead messages: the steps in their safe order."""

from __future__ import annotations

import time
from collections.abc import Collection

from delivery.config import Config
from delivery.decisions import record_drop, record_replay
from delivery.errors import DeliveryError
from delivery.lookout import Lookout
from delivery.pipeline import ConfirmedChannel
from delivery.plan import Planned, Prospect, Result, results
from delivery.points import reach
from delivery.replay import drop, replay
from delivery.stores import PUBLISHER
from delivery.trail import Action, begin, conclude
from delivery.triage import DeadMessage

__all__ = ["Desk"]


class Desk(Lookout):
    """A lookout that can act, too; each act is kept in the publisher's trail before it is done."""

    def __init__(self, config: Config, recipient: str) -> None:
        super().__init__(config, recipient)
        self._publisher = config.stores.open(PUBLISHER)

    def close(self) -> None:
        """Close the stores and the connection."""
        self._publisher.close()
        super().close()

    def replay(
        self,
        keys: Collection[str],
        *,
        reason: str,
        operator: str,
        force: bool = False,
        seconds: float = 15.0,
        rate: float | None = None,
    ) -> list[tuple[Planned, Result]]:
        """Send the messages again and return what became of each within *seconds* after the last.

        At most *rate* messages a second: a recipient that has just been mended may be slow.
        """
        if not reason.strip():
            raise DeliveryError("say why: a replay needs a reason")
        chosen = self.plan(each for each in self.browse() if each.key in keys)
        unsure = [each.message.key for each in chosen if each.prospect is Prospect.UNSURE]
        if unsure and not force:
            raise DeliveryError(f"{', '.join(unsure)}: {Prospect.UNSURE.value}")

        acts: list[tuple[int, str]] = []

        def record(message: DeadMessage) -> None:
            recipient = self._route.recipient
            if acts and rate:
                self._pause(1.0 / rate, publisher)
            acts.append((self._begin("replay", message, operator, reason), message.key))
            record_replay(self._store, recipient, message.key, operator=operator, reason=reason)

        with ConfirmedChannel(self._config.named("operator")) as publisher:
            sent = set(
                replay(
                    self._connection,
                    publisher,
                    self._route,
                    {each.message.key for each in chosen},
                    operator=operator,
                    reason=reason,
                    record=record,
                )
            )
        ours = [each for each in chosen if each.message.key in sent]
        gone = [(each, Result.GONE) for each in chosen if each.message.key not in sent]
        found = results(self._store, self._route, ours, self.each, seconds=seconds)
        named = {planned.message.key: result.value for planned, result in found}
        conclude(self._publisher, [(entry, named[key]) for entry, key in acts])
        return found + gone

    def drop(self, keys: Collection[str], *, reason: str, operator: str) -> list[str]:
        """Give the messages up: recorded first, deleted second. Returns the keys of those."""
        acts: list[int] = []

        def record(message: DeadMessage) -> None:
            acts.append(self._begin("drop", message, operator, reason))
            record_drop(
                self._store,
                self._route.recipient,
                message.key,
                is_event=message.is_event,
                operator=operator,
                reason=reason,
            )

        dropped = drop(self._connection, self._route, keys, record=record)
        conclude(self._publisher, [(entry, "dropped") for entry in acts])
        reach("trail.concluded")
        return dropped

    def _begin(self, action: Action, message: DeadMessage, operator: str, reason: str) -> int:
        entry = begin(
            self._publisher,
            action,
            self._route.recipient,
            message.key,
            operator=operator,
            reason=reason,
            dead_reason=message.reason,
        )
        reach("trail.begun")
        return entry

    def _pause(self, seconds: float, publisher: ConfirmedChannel) -> None:
        """Wait, serving both connections: a pause may be longer than a heartbeat."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self._connection.sleep(min(left, 1.0))
            publisher.serve()
