"""What is known about a published message: confirmed, returned, refused, or unknown."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from itertools import takewhile

from delivery.errors import TemporaryError
from delivery.publisher import Message

__all__ = ["Answer", "InFlight", "NotConfirmed", "Outcome"]


class Outcome(enum.Enum):
    """What the publisher knows after one attempt."""

    CONFIRMED = "confirmed"  # every matching queue has it
    RETURNED = "returned"  # no queue wanted it; the broker's ack that follows means nothing more
    REFUSED = "refused"  # the broker said no (a full queue with reject-publish, an internal error)
    UNKNOWN = "unknown"  # no answer: it may have arrived, and sending again may make a second copy


@dataclass(frozen=True)
class Answer:
    """The outcome of one attempt, with the broker's or the connection's own words."""

    outcome: Outcome
    detail: str = ""


class NotConfirmed(TemporaryError):
    """The broker did not take over a message that had to be safe before going on."""

    event = "copy.not_confirmed"

    def __init__(self, answer: Answer, target: str) -> None:
        detail = f" ({answer.detail})" if answer.detail else ""
        super().__init__(
            f"the copy for {target!r} is not confirmed: {answer.outcome.value}{detail};"
            " the original stays where it is"
        )
        self.answer = answer


class InFlight:
    """The messages of one channel that are not answered yet, and the answers to the others.

    A delivery tag is the channel's own count of publishes, from 1 (AMQP 0-9-1). Confirms come in
    any order, and one with *multiple* answers every open tag up to its own. A return comes before
    its message's ack, and names no tag: it is matched by message_id.
    """

    def __init__(self) -> None:
        self.open: dict[int, Message] = {}
        self.answers: dict[int, Answer] = {}
        self._returned: dict[int, str] = {}
        self._last_tag = 0

    def sent(self, message: Message) -> int:
        """Count *message* as published, and return its delivery tag."""
        self._last_tag += 1
        self.open[self._last_tag] = message
        return self._last_tag

    def returned(self, message_id: str | None, detail: str) -> None:
        """Note that the oldest open message with this id matched no queue."""
        for tag, message in self.open.items():
            if message.properties.message_id == message_id and tag not in self._returned:
                self._returned[tag] = detail
                return

    def answered(self, tag: int, *, multiple: bool, ack: bool) -> None:
        """Settle *tag*, with *multiple* also every open tag before it."""
        # Tags are opened in ascending order, and a dict keeps its order.
        tags = list(takewhile(lambda open_tag: open_tag <= tag, self.open)) if multiple else [tag]
        for each in tags:
            detail = self._returned.pop(each, None)
            if detail is not None:
                self._settle(each, Answer(Outcome.RETURNED, detail))
            else:
                self._settle(each, Answer(Outcome.CONFIRMED if ack else Outcome.REFUSED))

    def lost(self, detail: str) -> None:
        """Settle all that is open as unknown: no more answers will come."""
        for tag in list(self.open):
            self._settle(tag, Answer(Outcome.UNKNOWN, detail))

    def _settle(self, tag: int, answer: Answer) -> None:
        if self.open.pop(tag, None) is not None:
            self.answers[tag] = answer
