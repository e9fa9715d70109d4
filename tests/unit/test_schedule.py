"""The schedule of a chaos run: repeatable, fair to every kind, and clear about what it can't do."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest

from delivery.arena import PROCESSES
from delivery.errors import DeliveryError
from delivery.faults import Ground
from delivery.faults_relays import RELAYS
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
    two = [planned.target for planned in schedule(1, 20, ["cut-before-ack"])]
    assert all(first != second for first, second in pairwise(two))


def test_the_seed_chooses_the_order_who_is_hit_first_and_what_a_fault_draws() -> None:
    """Else some pairs of faults would never follow each other, whatever the seed."""
    seeds = range(20)
    assert len({tuple(p.kind for p in schedule(s, len(KINDS), KINDS)) for s in seeds}) == 20
    assert len({schedule(s, 1, ["stall"])[0].target for s in seeds}) == 3
    assert len({planned.seed for planned in schedule(1, 100, KINDS)}) == 100
    quick = [kind for kind in KINDS if not KINDS[kind].slow]
    kinds = [planned.kind for planned in schedule(1, 2 * len(quick), quick)]
    assert kinds[: len(quick)] != kinds[len(quick) :]


def test_faults_are_numbered_from_one() -> None:
    assert [planned.number for planned in schedule(1, 40, KINDS)] == [*range(1, 41)]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_says_what_it_does_and_what_is_right_afterwards(kind: str) -> None:
    fault = KINDS[kind]
    assert len(fault.what) > 20
    assert len(fault.end) > 20
    assert fault.targets
    known = {*RELAYS} if fault.ground is Ground.RELAYS else {*PROCESSES}
    assert all(set(target) <= known for target in fault.targets)
    assert str(fault.ground)


def test_kinds_can_be_chosen_and_left_out() -> None:
    assert chosen_kinds(["stall", "alarm"], ["alarm"]) == ["stall"]
    assert set(KINDS) - set(chosen_kinds([], ["alarm"])) == {"alarm"}


def test_each_ground_has_its_own_kinds_and_the_shared_ones() -> None:
    """A node is killed where there are others; a lone broker's faults are for a lone broker."""
    one, three = ({*chosen_kinds([], [], ground)} for ground in (Ground.BROKER, Ground.CLUSTER))
    assert three - one == {"kill-node", "partition"}
    assert one - three == {"kill-broker", "restart-broker", "alarm", "delete-queue"}
    assert chosen_kinds([], [], Ground.RELAYS) == ["kill-one-relay-of-three"]
    assert {*KINDS} == {*chosen_kinds([], [])} == one | three | {"kill-one-relay-of-three"}


def test_a_kind_of_another_ground_is_refused_and_says_whose_it_is() -> None:
    with pytest.raises(DeliveryError, match=r"kill-node is a fault of three nodes \(--nodes 3\)"):
        chosen_kinds(["kill-node"], [], Ground.BROKER)
    assert "kill-node" not in chosen_kinds([], ["kill-node"], Ground.BROKER)


def test_one_relay_of_three_is_killed_at_a_time() -> None:
    """Each kill has all three for itself; the first is the one that it hits, in turns."""
    targets = [planned.target for planned in schedule(1, 6, ["kill-one-relay-of-three"])]
    assert all(sorted(target) == sorted(RELAYS) for target in targets)
    assert len({target[0] for target in targets[:3]}) == 3


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
