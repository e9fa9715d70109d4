"""Judge from counts alone whether everything adds up, and say how sure that is."""

from __future__ import annotations

from dataclasses import dataclass

from delivery.live_counts import Outgoing, Receipts
from delivery.observe import Waiting

__all__ = ["Sum", "add_up"]


@dataclass(frozen=True)
class Sum:
    """Where the accepted events are for one recipient, by counts.

    ``in_hand`` are delivered and not settled; ``extra`` are messages beyond the events that are
    open: second copies, or strangers. ``exact`` is False while things move: the counts were not
    taken at the same instant.
    """

    on_the_way: int
    in_hand: int
    dead: int
    difference: int
    extra: int
    exact: bool


def add_up(
    outgoing: Outgoing | None,
    receipts: Receipts | None,
    place: Waiting | None,
    *,
    unacked: int | None,
    moving: bool,
) -> Sum | None:
    """Return the sum, None if a part of it can't be seen.

    The ledger looks at every id, also at the dead; this one must not, and may take a second copy
    for an event that is lost elsewhere: then it says ``extra``.
    """
    if outgoing is None or receipts is None or place is None:
        return None
    if place.ready is None or place.dead is None:
        return None
    waiting = outgoing.waiting + place.ready + sum(each or 0 for each in place.retry)
    rest = outgoing.accepted - receipts.settled - waiting - place.dead
    if not place.consumers:
        in_hand = 0  # nobody has any in hand
    elif moving:
        in_hand = max(0, rest)  # the management plugin's count would be too old to judge by
    else:
        in_hand = max(0, min(rest, unacked or 0))
    return Sum(
        on_the_way=waiting + in_hand,
        in_hand=in_hand,
        dead=place.dead,
        difference=max(0, rest - in_hand),
        extra=max(0, -rest),
        exact=not moving,
    )
