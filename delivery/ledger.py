"""Does everything add up? Count each accepted event once, in one place, for each recipient."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from delivery.handling import Effect

__all__ = ["Account", "Books", "account"]


@dataclass(frozen=True)
class Books:
    """What was read about one recipient; ids are event ids, counts are messages on the broker."""

    recipient: str
    accepted: Collection[str]
    pending: Collection[str]
    receipts: Mapping[str, Effect]
    dead: Collection[str]
    ready: int
    retry: int
    unacked: int | None
    dead_bytes: int = 0  # dead messages that are no event at all
    forgettable: Collection[str] = ()  # accepted so long ago that their receipts may be pruned


@dataclass(frozen=True)
class Account:
    """Where the accepted events are: the counts from ``applied`` to ``difference`` add up.

    ``forgotten`` are events from before the last pruning that have no receipt (any more).

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
    foreign_dead: int = 0  # dead messages that are no accepted event

    @property
    def balanced(self) -> bool:
        """Everything accepted is somewhere, and nothing else was applied."""
        return self.difference == 0 and not self.never_accepted


def account(books: Books) -> Account:
    """Put each accepted event into the first place that has it: receipt, dead, pending, broker."""
    accepted = set(books.accepted)
    kinds = dict.fromkeys(Effect, 0)
    for event_id in accepted & books.receipts.keys():
        kinds[books.receipts[event_id]] += 1
    rest = accepted - books.receipts.keys()
    dead = rest & set(books.dead)
    pending = (rest - dead) & set(books.pending)
    forgotten = (rest - dead - pending) & set(books.forgettable)
    on_broker = rest - dead - pending - forgotten

    left = len(on_broker)
    retry = min(left, books.retry)
    ready = min(left - retry, books.ready)
    unacked = min(left - retry - ready, books.unacked or 0)
    seen = books.retry + books.ready + (books.unacked or 0)
    difference = left - retry - ready - unacked
    return Account(
        recipient=books.recipient,
        accepted=len(accepted),
        applied=kinds[Effect.APPLIED] + kinds[Effect.DUPLICATE],
        stale=kinds[Effect.STALE],
        dropped=kinds[Effect.DROPPED],
        forgotten=len(forgotten),
        dead=len(dead),
        pending=len(pending),
        retry=retry,
        unacked=unacked,
        ready=ready,
        copies=max(0, seen - left),
        unacked_seen=books.unacked is not None,
        difference=difference,
        missing=tuple(sorted(on_broker)) if difference else (),
        never_accepted=tuple(sorted(_effects(books) - accepted)),
        foreign_dead=len(set(books.dead) - accepted) + books.dead_bytes,
    )


def _effects(books: Books) -> set[str]:
    """Return the ids whose receipt stands for an effect; giving up a foreign message is none."""
    return {each for each, effect in books.receipts.items() if effect is not Effect.DROPPED}
