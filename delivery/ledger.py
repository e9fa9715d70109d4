"""Does everything add up? Count each accepted event once, in one place, for each recipient."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from delivery.handling import Effect
from delivery.ordered import Ordered, in_order

__all__ = ["Account", "Books", "account"]


SHOWN = 1_000  # ids of what is wrong that are kept, of each kind

Receipts = Mapping[str, Effect] | Iterable[tuple[str, Effect]]


@dataclass(frozen=True)
class Books:
    """What was read about one recipient; ids are event ids, counts are messages on the broker.

    There may be millions of ids: an iterator gives them in ascending order, and is read once. A
    collection may be in any order.
    """

    recipient: str
    accepted: Iterable[str]
    pending: Iterable[str]
    receipts: Receipts
    dead: Iterable[str]
    ready: int
    retry: int
    unacked: int | None
    parked: Iterable[str] = ()  # no queue wanted them, the recipient's neither
    dead_bytes: int = 0  # dead messages that are no event at all
    forgettable: Iterable[str] = ()  # accepted so long ago that their receipts may be pruned
    removed: Iterable[str] = ()  # receipts from before the publisher's oldest row


@dataclass(frozen=True)
class Account:
    """Where the accepted events are: what is counted from ``applied`` on adds up.

    ``forgotten`` are events from before the last pruning that have no receipt (any more). Events
    whose outbox row was removed (the retention) are in no count.

    ``copies`` are messages on the broker beyond the events that wait there: second copies of what
    is settled already. While there are any, a loss could hide behind them; at rest (nothing ready,
    unacked or waiting for a retry) the difference is exact.
    """

    recipient: str
    accepted: int
    applied: int
    stale: int
    dropped: int
    forgotten: int
    dead: int
    pending: int
    retry: int
    unacked: int
    ready: int
    copies: int
    unacked_seen: bool
    difference: int
    missing: tuple[str, ...] = field(default=())  # ids to look for, if the difference is not 0
    never_accepted: tuple[str, ...] = field(default=())  # receipts for what nobody published
    parked: int = 0  # kept where an operator finds what no queue wanted
    foreign_dead: int = 0  # dead messages that are no accepted event

    @property
    def balanced(self) -> bool:
        """Everything accepted is somewhere, and nothing else was applied."""
        return self.difference == 0 and not self.never_accepted


def account(books: Books) -> Account:
    """Put each accepted event into the first place that has it.

    Receipt, dead, pending, parked, forgotten, and then the broker, that tells counts only.
    """
    receipts, dead = _Settled(books), Ordered(books.dead)
    pending, forgettable = Ordered(books.pending), Ordered(books.forgettable)
    parked = Ordered(books.parked)
    total = left = dead_count = pending_count = parked_count = forgotten = 0
    kinds = dict.fromkeys(Effect, 0)
    on_broker: list[str] = []
    for event_id in in_order(books.accepted):
        total += 1
        effect, is_dead = receipts.of(event_id), dead.has(event_id)
        if effect is not None:
            kinds[effect] += 1
        elif is_dead:
            dead_count += 1
        elif pending.has(event_id):
            pending_count += 1
        elif parked.has(event_id):
            parked_count += 1
        elif forgettable.has(event_id):
            forgotten += 1
        else:
            left += 1
            if left <= SHOWN:
                on_broker.append(event_id)

    retry = min(left, books.retry)
    ready = min(left - retry, books.ready)
    unacked = min(left - retry - ready, books.unacked or 0)
    seen = books.retry + books.ready + (books.unacked or 0)
    difference = left - retry - ready - unacked
    return Account(
        recipient=books.recipient,
        accepted=total,
        applied=kinds[Effect.APPLIED] + kinds[Effect.DUPLICATE],
        stale=kinds[Effect.STALE],
        dropped=kinds[Effect.DROPPED],
        forgotten=forgotten,
        dead=dead_count,
        pending=pending_count,
        parked=parked_count,
        retry=retry,
        unacked=unacked,
        ready=ready,
        copies=max(0, seen - left),
        unacked_seen=books.unacked is not None,
        difference=difference,
        missing=tuple(on_broker) if difference else (),
        never_accepted=receipts.never_accepted(),
        foreign_dead=dead.others() + books.dead_bytes,
    )


class _Settled:
    """The receipts, asked for in the same way; those passed over are for what nobody accepted."""

    def __init__(self, books: Books) -> None:
        given = books.receipts
        self._receipts = iter(sorted(given.items()) if isinstance(given, Mapping) else given)
        self._at = next(self._receipts, None)
        self._removed = Ordered(books.removed)
        self._foreign: list[str] = []

    def of(self, event_id: str) -> Effect | None:
        while self._at is not None and self._at[0] < event_id:
            self._pass()
        if self._at is None or self._at[0] != event_id:
            return None
        effect = self._at[1]
        self._at = next(self._receipts, None)
        return effect

    def never_accepted(self) -> tuple[str, ...]:
        while self._at is not None:
            self._pass()
        return tuple(self._foreign)

    def _pass(self) -> None:
        assert self._at is not None
        event_id, effect = self._at
        # Giving up a foreign message is no effect; a removed row's event was accepted once.
        if (
            effect is not Effect.DROPPED
            and not self._removed.has(event_id)
            and len(self._foreign) < SHOWN
        ):
            self._foreign.append(event_id)
        self._at = next(self._receipts, None)
