"""What many dead messages have in common, and one named by the beginning of its id."""

from __future__ import annotations

import pytest

from delivery.errors import DeliveryError
from delivery.groups import Group, full_key, groups_of
from delivery.triage import DeadMessage

KEYS = {"0f8e-1", "0f8e-2", "0f9", "0f"}


def dead(reason: str, parked_at: int, *, replays: int = 0) -> DeadMessage:
    error = f"error at {parked_at}"
    return DeadMessage("k", reason, error, 1, replays, parked_at, 0, True)


def test_a_group_has_a_count_and_its_first_and_last_time() -> None:
    """Largest first; a time that is not known is no first time."""
    messages = [dead("b", 5), dead("a", 3), dead("b", 0), dead("b", 2, replays=1), dead("c", 0)]
    assert groups_of("catalog", messages) == [
        Group("catalog", "b", 3, 2, 5, 1, "error at 5"),
        Group("catalog", "a", 1, 3, 3, 0, "error at 3"),
        Group("catalog", "c", 1, 0, 0, 0, "error at 0"),
    ]
    assert groups_of("catalog", []) == []


@pytest.mark.parametrize(
    ("word", "key"), [("0f8e-1", "0f8e-1"), ("0f9", "0f9"), ("0f", "0f"), ("x", None), ("", None)]
)
def test_a_whole_id_or_a_beginning_that_only_one_has(word: str, key: str | None) -> None:
    """A whole id is itself, even if others begin with it; nothing is the beginning of nobody."""
    assert full_key(word, KEYS) == key


def test_a_beginning_that_several_have_is_refused() -> None:
    """Never a guess: the sentence shows them."""
    with pytest.raises(DeliveryError, match="2 ids begin with '0f8': 0f8e-1, 0f8e-2; say more"):
        full_key("0f8", KEYS)


def test_copies_of_one_message_have_one_id() -> None:
    """A sheet gives it as often as there are copies; of very many ids not each is counted."""
    assert full_key("0f8e-1", ["0f8e-11", "0f8e-11"]) == "0f8e-11"
    with pytest.raises(DeliveryError, match="more than 1,000 ids begin with 'k'"):
        full_key("k", [f"k{n}" for n in range(2_000)])
