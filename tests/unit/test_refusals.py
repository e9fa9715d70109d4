"""A relay changes its channel when refusals last, and no oftener than that."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest

from delivery.confirms import Outcome
from delivery.refusals import FIRST, IN_A_ROW, MOST, Refusals

REFUSED = Counter({Outcome.REFUSED: 2})


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def changes(clock: Clock, refusals: Refusals, seconds: int) -> list[float]:
    """Refuse a batch every second; return after how many seconds another channel was asked for."""
    begun, found = clock.now, []
    for _ in range(seconds):
        if refusals.last(REFUSED):
            found.append(clock.now - begun)
        clock.now += 1.0
    return found


def test_refusals_that_last_ask_for_another_channel(clock: Clock) -> None:
    assert changes(clock, Refusals(clock), 1 + int(FIRST)) == [FIRST]


def test_a_full_queue_is_asked_on_another_channel_ever_more_rarely(clock: Clock) -> None:
    """In an hour less than once a minute, and never given up."""
    found = changes(clock, Refusals(clock), 3600)
    gaps = [after - before for before, after in pairwise(found)]
    assert gaps == sorted(gaps)
    assert MOST <= gaps[-1] <= MOST + 1
    assert len(found) < 65


def test_some_batches_in_a_row_are_needed_however_long_they_take(clock: Clock) -> None:
    refusals, asked = Refusals(clock), []
    for _ in range(IN_A_ROW):
        asked.append(refusals.last(REFUSED))
        clock.now += 2 * FIRST
    assert asked == [False] * (IN_A_ROW - 1) + [True]


@pytest.mark.parametrize("other", [Outcome.CONFIRMED, Outcome.RETURNED, Outcome.UNKNOWN])
def test_one_message_that_is_not_refused_begins_the_count_anew(
    clock: Clock, other: Outcome
) -> None:
    """Also with the first patience: what was full once, is not what is broken now."""
    refusals = Refusals(clock)
    assert changes(clock, refusals, 12) == [3.0, 10.0]
    assert not refusals.last(REFUSED + Counter({other: 1}))
    assert changes(clock, refusals, 4) == [FIRST]


def test_a_batch_of_nothing_says_nothing(clock: Clock) -> None:
    refusals = Refusals(clock)
    assert changes(clock, refusals, 3) == []
    assert not refusals.last(Counter())
    assert changes(clock, refusals, 1) == [0.0]
