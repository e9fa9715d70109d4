"""A campaign is judged when nothing moves any more, not after some seconds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from delivery.chaos import QUIET, moves
from delivery.timeline import Sample


def sample(at: float, settled: int, ready: int = 0) -> Sample:
    both, none = {"catalog": settled, "audit": 9}, {"catalog": 0, "audit": 0}
    return Sample(at, 9, 0, both, {"catalog": ready, "audit": 0}, none, none)


def test_what_is_in_a_recipients_hands_is_waited_for() -> None:
    """No queue shows it: only two samples with the same receipts are rest."""
    assert moves([])
    assert moves([sample(1.0, 8, ready=1), sample(2.0, 8)]) is False
    assert moves([sample(1.0, 8, ready=1), sample(2.0, 9)])
    assert moves([sample(1.0, 9)])


def test_a_long_queue_is_waited_for_as_long_as_it_gets_shorter() -> None:
    slow = [sample(at * QUIET / 2, settled=at, ready=9 - at) for at in range(9)]
    assert all(moves(slow[: n + 1]) for n in range(len(slow)))


def test_a_queue_that_nobody_empties_is_not_waited_for() -> None:
    stuck = [sample(0.0, 1, ready=5), sample(QUIET - 1, 2, ready=4)]
    assert moves([*stuck, sample(2 * QUIET - 2, 2, ready=4)])
    assert not moves([*stuck, sample(2 * QUIET - 1, 2, ready=4)])


@pytest.mark.parametrize("place", ["pending", "ready", "retry"])
@pytest.mark.parametrize("count", [1, None])
def test_a_count_that_is_not_zero_or_not_known_is_no_rest(place: str, count: int | None) -> None:
    """Where nobody answered, there may be anything."""
    still = sample(1.0, 9)
    assert still.at_rest
    there = count if place == "pending" else {"catalog": 0, "audit": count}
    assert not replace(still, **{place: there}).at_rest
