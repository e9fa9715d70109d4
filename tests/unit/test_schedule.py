"""The schedule of a chaos run: repeatable, fair to every kind, and clear about what it can't do."""

from __future__ import annotations

from collections import Counter

import pytest

from delivery.arena import PROCESSES
from delivery.errors import DeliveryError
from delivery.schedule import KINDS, chosen_kinds, schedule


def test_the_same_seed_gives_the_same_schedule_and_another_seed_another() -> None:
    assert schedule(7, 100, KINDS) == schedule(7, 100, KINDS)
    assert schedule(7, 100, KINDS) != schedule(8, 100, KINDS)


def test_a_longer_schedule_begins_like_a_shorter_one() -> None:
    assert schedule(7, 100, KINDS)[:40] == schedule(7, 40, KINDS)


def test_the_first_round_has_every_kind_once() -> None:
    first = [planned.kind for planned in schedule(3, len(KINDS), KINDS)]
    assert sorted(first) == sorted(KINDS)


def test_a_thousand_faults_hold_each_kind_more_than_twenty_times() -> None:
    """Slow kinds come in every second round only."""
    counts = Counter(planned.kind for planned in schedule(1, 1000, KINDS))
    slow = max(n for kind, n in counts.items() if KINDS[kind].slow)
    quick = min(n for kind, n in counts.items() if not KINDS[kind].slow)
    assert min(counts.values()) > 20
    assert 2 * slow - 2 <= quick <= 2 * slow


def test_the_targets_of_a_kind_take_turns() -> None:
    hit = Counter(p.target for p in schedule(1, 60, ["stall"]))
    assert hit == {("relay",): 20, ("catalog",): 20, ("audit",): 20}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_says_what_it_does_and_what_is_right_afterwards(kind: str) -> None:
    fault = KINDS[kind]
    assert len(fault.what) > 20
    assert len(fault.end) > 20
    assert fault.targets
    assert all(set(target) <= set(PROCESSES) for target in fault.targets)


def test_kinds_can_be_chosen_and_left_out() -> None:
    assert chosen_kinds(["stall", "alarm"], ["alarm"]) == ["stall"]
    assert set(KINDS) - set(chosen_kinds([], ["alarm"])) == {"alarm"}


@pytest.mark.parametrize(
    ("only", "without", "says"),
    [
        (["stal"], [], "there is no fault 'stal'; see: delivery chaos --list"),
        ([], ["stal"], "there is no fault 'stal'"),
        (["stall"], ["stall"], "no kind of fault is left"),
    ],
)
def test_a_wrong_choice_is_refused(only: list[str], without: list[str], says: str) -> None:
    with pytest.raises(DeliveryError, match=says):
        chosen_kinds(only, without)
