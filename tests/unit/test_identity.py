"""Event ids are unique, and in the order of time."""

from __future__ import annotations

import uuid

from delivery.identity import new_event_id

NOW = 1_800_000_000.0


def test_ids_of_later_milliseconds_are_greater() -> None:
    """As text, which is how a store sorts them; also across the change of a hexadecimal digit."""
    ids = [new_event_id(NOW + n / 1000) for n in range(5_000)]
    assert ids == sorted(ids)


def test_ids_of_one_millisecond_differ_and_are_valid() -> None:
    """74 bits of chance; version 7, variant of RFC 9562."""
    ids = {new_event_id(NOW) for _ in range(10_000)}
    assert len(ids) == 10_000
    assert {(uuid.UUID(each).version, uuid.UUID(each).variant) for each in ids} == {
        (7, uuid.RFC_4122)
    }
