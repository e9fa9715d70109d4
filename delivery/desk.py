"""The operator's desk for one recipient's dead messages: the steps in their safe order."""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import closing
from itertools import islice

from delivery.acts import Acts
from delivery.choice import choose
from delivery.config import Config
from delivery.errors import DeliveryError
from delivery.lookout import Lookout
from delivery.outcome import await_results
from delivery.pipeline import ConfirmedChannel
from delivery.plan import Planned, Prospect, Result
from delivery.points import reach
from delivery.progress import ticker, told
from delivery.replay import dropping, replaying
from delivery.sides import Sides
from delivery.trail import Action
from delivery.triage import DeadMessage

__all__ = ["DROPPED", "Desk"]

DROPPED = "dropped"
NAMED = 20  # messages that a refusal names


class Desk(Lookout):
    """A lookout that can act, too; each act is kept in the publisher's trail before it is done.

    *say* is told how far long work is.
    """

    def __init__(
        self,
        config: Config,
        recipient: str,
        *,
        sides: Sides | None = None,
        say: Callable[[str], object] = lambda text: None,
    ) -> None:
        super().__init__(config, recipient, sides=sides)
        self._publisher = self._sides.publisher()
        self._say = say

    def close(self) -> None:
        """Close the stores and the connection."""
        self._publisher.close()
        super().close()

    def choose_on(
        self, sheet: Acts, ids: Sequence[str], *, every: bool = False, group: str = ""
    ) -> None:
        """Write the messages to work on down; choose says which, and what it raises."""
        dead = told(self.each(), self._ticker("read"))
        choose(sheet, dead, ids, every=every, group=group, absence=self.absence)

    def replay(
        self,
        keys: Container[str],
        *,
        reason: str,
        operator: str,
        force: bool = False,
        seconds: float = 15.0,
        rate: float | None = None,
    ) -> list[tuple[Planned, Result]]:
        """Do what replay_all says with the messages that *keys* name: not too many."""
        with closing(Acts()) as sheet:
            sheet.write(self.each())
            sheet.keep(lambda message: message.key in keys)
            self.replay_all(
                sheet, reason=reason, operator=operator, force=force, seconds=seconds, rate=rate
            )
            return list(sheet.results())

    def replay_all(
        self,
        sheet: Acts,
        *,
        reason: str,
        operator: str,
        force: bool = False,
        seconds: float = 15.0,
        rate: float | None = None,
    ) -> None:
        """Send the messages again; note what became of each within *seconds* after the last.

        At most *rate* messages a second: a recipient that has just been mended may be slow.
        """
        if not reason.strip():
            raise DeliveryError("say why: a replay needs a reason")
        tick = self._ticker("planned")
        sheet.plan(lambda page: told(self.plan(page), tick))
        if not force:
            _refuse(sheet)
        first = True

        def record(message: DeadMessage) -> None:
            nonlocal first
            if rate and not first:
                self._pause(1.0 / rate, publisher)
            first = False
            sheet.begun(self._begin("replay", message, operator, reason), message.key)
            self._store.record_replay(message.key, operator=operator, reason=reason)

        why = {"operator": operator, "reason": reason}
        with ConfirmedChannel(self._config.named("operator")) as publisher:
            sent = replaying(self._connection, publisher, self._route, sheet, **why, record=record)
            for _ in told(sent, self._ticker("sent again")):
                pass
        sheet.settle_others(Result.GONE.value)
        tick = self._ticker("results looked for")
        await_results(sheet, self._store.receipt, self.each, seconds=seconds, tick=tick)
        self._publisher.conclude(sheet.entries())

    def drop(self, keys: Container[str], *, reason: str, operator: str) -> list[str]:
        """Give the messages up: recorded first, deleted second. Returns the keys of those."""
        with closing(Acts()) as acts:
            return list(self._dropping(keys, acts, reason, operator))

    def drop_all(self, sheet: Acts, *, reason: str, operator: str) -> None:
        """Give the messages up, as drop does; note it, or why one is not there."""
        dropped = self._dropping(sheet, sheet, reason, operator)
        for _ in told(dropped, self._ticker("dropped")):
            pass
        sheet.settle_acted(DROPPED)
        for key in sheet.unsettled():
            sheet.settle(key, self.absence(key))

    def _dropping(
        self, keys: Container[str], acts: Acts, reason: str, operator: str
    ) -> Iterator[str]:
        def record(message: DeadMessage) -> None:
            acts.begun(self._begin("drop", message, operator, reason), message.key)
            self._store.record_drop(
                message.key, is_event=message.is_event, operator=operator, reason=reason
            )

        yield from dropping(self._connection, self._route, keys, record=record)
        self._publisher.conclude((entry, DROPPED) for entry, _ in acts.entries())
        reach("trail.concluded")

    def _begin(self, action: Action, message: DeadMessage, operator: str, reason: str) -> int:
        recipient, messages = self._route.recipient, [(message.key, message.reason)]
        (entry,) = self._publisher.begin(
            action, recipient, messages, operator=operator, reason=reason
        )
        reach("trail.begun")
        return entry

    def _pause(self, seconds: float, publisher: ConfirmedChannel) -> None:
        """Wait, serving both connections: a pause may be longer than a heartbeat."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self._connection.sleep(min(left, 1.0))
            publisher.serve()

    def _ticker(self, what: str) -> Callable[[], None]:
        """Return a ticker that serves the connection, too: long work may be on files only."""
        return ticker(self._say, what, serve=lambda: self._connection.process_data_events(0))


def _refuse(sheet: Acts) -> None:
    """Raise DeliveryError if a replay of any message could repeat its effect."""
    unsure = sheet.prospects().get(Prospect.UNSURE, 0)
    if not unsure:
        return
    planned = (each for each in sheet.planned() if each.prospect is Prospect.UNSURE)
    named = ", ".join(each.message.key for each in islice(planned, NAMED))
    more = f" and {unsure - NAMED} more" if unsure > NAMED else ""
    raise DeliveryError(f"{named}{more}: {Prospect.UNSURE.value}")
